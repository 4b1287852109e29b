"""What makes a model decoupled, and how it is loaded."""

from pathlib import Path
from typing import Any

import pytest

from ekiben.errors import LoadFailed
from ekiben.runner.base import Raised
from tests.runner.conftest import make_runner
from tests.runner.talk import MODEL, TALK, Call, run, started, whole


def test_what_a_loaded_runner_says_of_itself(tmp_path: Path) -> None:
    async def load(code: str, **settings: Any) -> bool:
        (tmp_path / "model.py").write_text(code)
        runner = make_runner(**{"path": tmp_path, "signature": TALK, "runtime": "python", **settings})
        loaded = await runner.start()
        await runner.stop()
        return loaded.decoupled

    plain = "class Model:\n    def infer(self, inputs): return {'said': inputs['what']}\n"
    lazy = "class Model:\n    def infer(self, inputs): return ({'said': [word]} for word in inputs['what'].tolist())\n"

    async def main() -> None:
        assert await load(MODEL)
        assert await load(MODEL, decoupled=True)
        assert not await load(plain)
        assert not await load(plain, decoupled=False)
        assert await load(lazy, decoupled=True)
        with pytest.raises(LoadFailed, match=r"model 'fake' version 7 .*decoupled: false, but it gives a stream"):
            await load(MODEL, decoupled=False)
        with pytest.raises(LoadFailed, match=r"decoupled: true, but it gives one response"):
            await load(plain, decoupled=True, runtime="ekiben.testing:FakeRuntime")

    run(main())


@pytest.mark.parametrize(
    ("returned", "words"),
    [("inputs", "it returned dict"), ("3", "it returned int"), ("None", "it returned NoneType")],
)
def test_a_function_said_to_be_decoupled_must_return_an_iterator(tmp_path: Path, returned: str, words: str) -> None:
    code = f"class Model:\n    def infer(self, inputs): return {returned}\n"

    async def main() -> None:
        async with started(tmp_path, code, decoupled=True) as runner:
            outcome = await Call(runner, "a").next()
            assert isinstance(outcome, Raised)
            assert words in outcome.message

    run(main())


def test_an_iterator_that_is_no_generator_streams_too(tmp_path: Path) -> None:
    code = "class Model:\n    def infer(self, inputs): return map(lambda word: {'said': [word]}, inputs['what'])\n"

    async def main() -> None:
        async with started(tmp_path, code, decoupled=True) as runner:
            assert await whole(runner, "a", "b") == [["a"], ["b"]]

    run(main())


def test_the_warm_up_takes_the_first_response_only(tmp_path: Path) -> None:
    code = """
import pathlib
class Model:
    def infer(self, inputs):
        path = pathlib.Path(__file__).parent / "warm"
        try:
            for number in range(1000):
                path.write_text(str(number))
                yield {"said": ["a"]}
        finally:
            path.with_name("cold").write_text(path.read_text())
"""

    async def main() -> None:
        async with started(tmp_path, code):
            assert (tmp_path / "cold").read_text() == "0"

    run(main())
