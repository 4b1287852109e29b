"""What service.py declares, as the command line shows it: each in a process of its own, for it is a module."""

import os
import subprocess
import sys
from pathlib import Path

import bentoml
import pytest
import yaml
from bentoml._internal.models import ModelStore
from bentoml.models import ModelContext

_SERVICE = """
import bentoml, ekiben
from ekiben import Batching

@bentoml.service(service_class=ekiben.EngineService)
class Engine:
    fraud = ekiben.runner("fraud:latest", batching=Batching(max_batch_size=7), device="cpu")
    pinned = ekiben.runner("pinned:b")
    gone = ekiben.runner("gone:latest")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project, and a store with models that were saved with BentoML alone."""
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    for tag in ("fraud:a", "pinned:a", "pinned:b", "other:a"):
        with bentoml.models.create(
            tag,
            module="",
            context=ModelContext(framework_name="", framework_versions={}),
            signatures={},
            _model_store=ModelStore(models),
        ) as model:
            Path(model.path_of("model.onnx")).write_bytes(b"onnx")
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def _run(folder: Path, service: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "service.py").write_text(service)
    return subprocess.run(
        [sys.executable, "-m", "ekiben.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("EKIBEN_")},
            "BENTOML_HOME": str(folder.parent / "home"),
            "BENTOML_DO_NOT_TRACK": "True",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        timeout=120,
    )


def _rows(listed: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Name, version, word and whether it is wanted."""
    assert listed.returncode == 0, listed.stderr
    return [line.split()[:4] for line in listed.stdout.splitlines()[1:]]


def test_what_only_service_py_declares_is_listed(folder: Path) -> None:
    listed = _run(folder, _SERVICE, "list")
    assert _rows(listed) == [
        ["fraud", "1", "a", "yes"],
        ["gone", "-", "error"],
        ["pinned", "1", "a", "no"],
        ["pinned", "2", "b", "yes"],
    ]
    assert "has no 'gone'" in listed.stderr
    assert _rows(_run(folder, _SERVICE, "list", "--repository", "store")) == _rows(listed)


def test_a_declared_model_is_inspected_as_it_will_be_run(folder: Path) -> None:
    inspected = _run(folder, _SERVICE, "inspect", "fraud")
    about = yaml.safe_load(inspected.stdout)
    assert (about["word"], about["batching"]["max_batch_size"], about["instances"][0]["device"]) == ("a", 7, "cpu")
    assert "the signature cannot be read" in inspected.stderr


def test_places_that_service_py_declares_are_looked_into(folder: Path) -> None:
    (folder / "tree" / "m" / "3").mkdir(parents=True)
    (folder / "tree" / "m" / "3" / "model.onnx").write_bytes(b"onnx")
    service = _SERVICE + '    others = ekiben.repository("tree")\n'
    assert ["m", "3", "yes", "onnx"] in _rows(_run(folder, service, "list"))
    other = _run(folder, "raise SystemExit('not read')", "list", "--repository", "tree")
    assert _rows(other) == [["m", "3", "yes", "onnx"]]
    assert other.stderr == ""


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ("import nothing_like_it\n", ["nothing_like_it"]),
        ("class Engine\n", ["SyntaxError"]),
        ("raise SystemExit('later')\n", ["SystemExit", "later"]),
        ("class Other: pass\n", ["Engine"]),
    ],
)
def test_a_service_py_that_cannot_be_imported_is_said_and_the_rest_is_listed(
    service: str, words: list[str], folder: Path
) -> None:
    listed = _run(folder, service, "list")
    assert listed.returncode == 0
    assert len(listed.stderr.splitlines()) == 2, "and that there are no other models"
    assert listed.stderr.startswith(f"ekiben: {folder / 'service.py'} cannot be imported")
    for word in words:
        assert word in listed.stderr


def test_a_service_of_bentomls_own_kind_declares_nothing(folder: Path) -> None:
    service = "import bentoml\n@bentoml.service\nclass Engine: pass\n"
    listed = _run(folder, service, "list")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "no models in" in listed.stderr
