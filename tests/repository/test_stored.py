from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ekiben.errors import LoadFailed
from ekiben.repository.stored import read_stored

BATCHED = {"batchable": True, "batch_dim": [0, 0]}
NOT_SAID = {"batchable": False}


@pytest.mark.parametrize(
    ("module", "file", "runtime"),
    [
        ("bentoml.onnx", "saved_model.onnx", "onnx"),
        ("bentoml.torchscript", "saved_model.pt", "torchscript"),
        ("bentoml.tensorflow", "", "tensorflow"),
    ],
)
def test_what_bentomls_savers_stored(module: str, file: str, runtime: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()

    assert read_stored(tmp_path, module, {"run": NOT_SAID}) == (runtime, file, None)


@pytest.mark.parametrize(
    ("signatures", "batched"),
    [
        ({}, None),
        ({"run": NOT_SAID}, None),
        ({"run": BATCHED}, True),
        ({"run": {"batchable": True}}, True),
        ({"run": {"batchable": True, "batch_dim": 0}}, True),
        ({"run": {"batchable": True, "batch_dim": [1, 0]}}, False),
        ({"run": {"batchable": True, "batch_dim": 1}}, False),
        ({"run": BATCHED, "other": NOT_SAID}, None),
        ({"run": SimpleNamespace(batchable=True, batch_dim=(0, 0))}, True),
    ],
)
def test_what_the_saver_said_of_batching(signatures: dict[str, Any], batched: bool | None, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()

    assert read_stored(tmp_path, "", signatures) == ("onnx", "model.onnx", batched)


def test_models_of_other_savers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"was stored by bentoml\.sklearn, whose models are not served"):
        read_stored(tmp_path, "bentoml.sklearn", {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"its file 'saved_model\.onnx' is missing"):
        read_stored(tmp_path, "bentoml.onnx", {})
