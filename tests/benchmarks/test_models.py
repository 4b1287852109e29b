from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks import in_process, models
from benchmarks.synthetic_model import Model


@pytest.fixture(autouse=True)
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "BENCH", tmp_path)


def test_the_mlp_is_the_same_at_every_build_and_takes_any_batch() -> None:
    first, second = models.mlp().read_bytes(), models.mlp().read_bytes()

    assert first == second
    session = models.session(models.mlp(), threads=1)
    rows = models.random_rows(3, models.FEATURES)
    together = in_process.first_output(session, rows).reshape(3, 2)
    alone = np.stack([in_process.first_output(session, rows[index : index + 1]) for index in range(3)])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert np.abs(together).max() > 0.01


@pytest.mark.parametrize(
    ("build", "name", "file"),
    [
        (models.mlp_repository, "mlp", "model.onnx"),
        (models.synthetic_repository, "synthetic", "model.py"),
    ],
)
def test_a_repository_holds_the_model_twice(build: Callable[[], Path], name: str, file: str) -> None:
    root = build()

    for model, size in ((name, 64), (models.unbatched(name), 1)):
        assert (root / model / "1" / file).is_file()
        settings = yaml.safe_load((root / model / "model.yaml").read_text())
        assert settings["batching"] == {"max_batch_size": size}


def test_the_synthetic_model_doubles() -> None:
    rows = models.random_rows(2, 4)

    np.testing.assert_array_equal(Model().infer({"x": rows})["y"], rows * 2)
