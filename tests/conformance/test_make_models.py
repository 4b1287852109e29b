"""The models that the suite recommends: ONNX that onnx accepts and ONNX Runtime runs, in a layout that Ekiben reads."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ekiben.conformance.make_models import make_models
from ekiben.errors import InvalidSettings
from ekiben.repository.layout import open_repositories


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made")
    assert len(make_models(made)) == len(list(made.iterdir()))
    return made


def _run(folder: Path, name: str, *inputs: Any, version: str = "1") -> list[Any]:
    session = onnxruntime.InferenceSession(folder / name / version / "model.onnx", providers=["CPUExecutionProvider"])
    given = {each.name: value for each, value in zip(session.get_inputs(), inputs, strict=True)}
    outputs: list[Any] = session.run(None, given)
    return outputs


def test_every_model_is_valid(folder: Path) -> None:
    files = sorted(folder.glob("*/*/model.onnx"))
    assert len(files) == len(list(folder.iterdir())) + 1  # one has two versions
    for file in files:
        onnx.checker.check_model(onnx.load(file), full_check=True)


def test_they_compute_what_their_names_say(folder: Path) -> None:
    text = np.array([["a", "b"]], object)
    assert _run(folder, "echo_bytes", text)[0].tolist() == [["a", "b"]]
    assert _run(folder, "echo_fp16", np.ones((2, 3), np.float16))[0].dtype == np.float16
    assert _run(folder, "echo_scalar", np.array(5, np.float32))[0] == 5
    left, right = np.full((1, 16), 5, np.int32), np.full((1, 16), 3, np.int32)
    total, difference = _run(folder, "sum_and_difference", left, right)
    assert (total[0, 0], difference[0, 0]) == (8, 2)
    assert _run(folder, "two_versions", np.ones((1, 1), np.int32), version="2")[0] == 1


def test_ekiben_reads_every_configuration(folder: Path, tmp_path: Path) -> None:
    models = open_repositories([str(folder)], home=tmp_path, state_directory=tmp_path).models()
    assert {model.name for model in models} == {path.name for path in folder.iterdir()}
    assert [model.error for model in models if model.error] == []
    assert next(model for model in models if model.name == "two_versions").wanted() == (1, 2)


def test_nothing_is_written_over(folder: Path) -> None:
    before = (folder / "echo_fp32" / "config.pbtxt").read_text()
    with pytest.raises(InvalidSettings, match="exists already"):
        make_models(folder)
    assert (folder / "echo_fp32" / "config.pbtxt").read_text() == before
