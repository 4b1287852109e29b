from collections.abc import Callable
from pathlib import Path

import pytest

from ekiben.errors import InvalidSettings, LoadFailed
from ekiben.runtimes.base import LoadContext
from ekiben.runtimes.table import RUNTIMES, load_session
from ekiben.testing import FakeRuntime

MakeContext = Callable[..., LoadContext]


def test_a_runtime_of_the_users_own_is_named_by_module_and_class(make_context: MakeContext) -> None:
    assert isinstance(load_session("ekiben.testing:FakeRuntime", make_context()), FakeRuntime)


@pytest.mark.parametrize("runtime", ["", "caffe", "module:", ":Class", "module:not a name"])
def test_an_unknown_name_is_refused_with_those_that_exist(runtime: str, make_context: MakeContext) -> None:
    with pytest.raises(InvalidSettings, match=f"unknown runtime '{runtime}'.*{', '.join(sorted(RUNTIMES))}"):
        load_session(runtime, make_context())


@pytest.mark.parametrize("runtime", ["ekiben_no_such_module:Session", "ekiben.testing:NoSuchClass"])
def test_a_runtime_that_cannot_be_imported_names_model_and_reason(runtime: str, make_context: MakeContext) -> None:
    with pytest.raises(LoadFailed, match=rf"model 'fish' version 7 needs runtime '{runtime}'.*(no_such|NoSuch)"):
        load_session(runtime, make_context())


def test_every_runtime_is_one_file() -> None:
    folder = Path(load_session.__code__.co_filename).parent

    for target in RUNTIMES.values():
        module, _, _ = target.rpartition(":")
        assert (folder / f"{module.rpartition('.')[2]}.py").is_file()
