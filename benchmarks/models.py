"""The models under test and the repository folders that hold them, all written below build/bench/."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import yaml
from onnx import TensorProto, helper, numpy_helper

from benchmarks.calls import Floats
from benchmarks.paths import BENCH, DEMO_MODELS

__all__ = [
    "FEATURES",
    "SYNTHETIC_FEATURES",
    "ModelMissing",
    "demo_repository",
    "image_repository",
    "mlp",
    "mlp_repository",
    "random_rows",
    "session",
    "synthetic_repository",
    "unbatched",
]

FEATURES: Final = 30
HIDDEN: Final = 64
CLASSES: Final = 2
SYNTHETIC_FEATURES: Final = 4
MAX_BATCH_SIZE: Final = 64
IMAGE_BATCH_SIZE: Final = 4
"""Where this model is at its best on a CPU, in the loop in process as well."""
SYNTHETIC: Final = Path(__file__).with_name("synthetic_model.py")


class ModelMissing(Exception):
    """A model that another command builds is not there."""


def unbatched(model: str) -> str:
    """The name of the same model with batching switched off."""
    return f"{model}_unbatched"


def mlp() -> Path:
    """The tiny MLP as ONNX: `x` FP32 [-1,30] → 64 → 64 → `y` [-1,2], ReLU between, weights from a fixed seed."""
    random = np.random.default_rng(30)
    sizes = [FEATURES, HIDDEN, HIDDEN, CLASSES]
    nodes, weights, flowing = [], [], "x"
    for layer, (rows, columns) in enumerate(pairwise(sizes), start=1):
        matrix = (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        weights += [
            numpy_helper.from_array(matrix, f"w{layer}"),
            numpy_helper.from_array(np.zeros(columns, np.float32), f"b{layer}"),
        ]
        last = layer == len(sizes) - 1
        nodes.append(helper.make_node("Gemm", [flowing, f"w{layer}", f"b{layer}"], ["y" if last else f"h{layer}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"]))
        flowing = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path = BENCH / "mlp.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def mlp_repository() -> Path:
    """`mlp`, and the same with batching off."""
    root = _empty(BENCH / "repositories" / "mlp")
    for name, size in (("mlp", MAX_BATCH_SIZE), (unbatched("mlp"), 1)):
        _add(root, name, mlp(), "model.onnx", {"runtime": "onnx", **_batching(size, threads=1)})
    return root


def synthetic_repository() -> Path:
    """`synthetic` (python, 5 ms + 0.1 ms a row), and the same with batching off."""
    root = _empty(BENCH / "repositories" / "synthetic")
    tensor = {"datatype": "FP32", "shape": [-1, SYNTHETIC_FEATURES]}
    signature = {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    for name, size in (("synthetic", MAX_BATCH_SIZE), (unbatched("synthetic"), 1)):
        settings = {"runtime": "python", "signatures": {"serving_default": signature}, **_batching(size, threads=1)}
        _add(root, name, SYNTHETIC, "model.py", settings)
    return root


def image_repository(threads: int) -> tuple[Path, Path]:
    """EfficientNet-Lite0 with that many threads: the repository and the ONNX file. Raises ModelMissing."""
    built = sorted((DEMO_MODELS / "efficientnet_onnx").rglob("*.onnx"))
    if not built:
        raise ModelMissing(f"no ONNX file below {DEMO_MODELS / 'efficientnet_onnx'}: scripts/build_models.py builds it")
    root = _empty(BENCH / "repositories" / "image")
    _add(root, "efficientnet", built[-1], "model.onnx", {"runtime": "onnx", **_batching(IMAGE_BATCH_SIZE, threads)})
    return root, built[-1]


def demo_repository(name: str) -> Path:
    """A demo model alone, as it was built. Raises ModelMissing."""
    built = DEMO_MODELS / name
    if not built.is_dir():
        raise ModelMissing(f"no {built}: scripts/build_models.py builds it")
    root = _empty(BENCH / "repositories" / "demo")
    shutil.copytree(built, root / name / "1")
    for file in ("model.yaml", "labels.txt"):
        shutil.move(root / name / "1" / file, root / name / file)
    return root


def session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    """The same file in this process."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def random_rows(*shape: int) -> Floats:
    """Inputs from a fixed seed, of four decimals so that their text stays short."""
    return np.round(np.random.default_rng(1).standard_normal(shape), 4).astype(np.float32)


def _batching(max_batch_size: int, threads: int) -> dict[str, Any]:
    return {
        "batching": {"max_batch_size": max_batch_size},
        "instances": [{"device": "cpu", "count": threads, "threads": 1}],
    }


def _add(root: Path, name: str, source: Path, file: str, settings: dict[str, Any]) -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    shutil.copyfile(source, version / file)
    (root / name / "model.yaml").write_text(yaml.safe_dump(settings))


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
