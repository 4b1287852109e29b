"""One suite over every runtime: what a Session promises, whatever the framework.

`identity` answers its input x as y. `sums` answers a + b as total and a - b as difference.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest
import tensorflow as tf
import torch
from onnx import TensorProto, helper

from ekiben.errors import LoadFailed
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext, Session
from ekiben.runtimes.table import load_session
from ekiben.types import DATATYPES, Signature, Tensor, TensorSpec

MakeContext = Callable[..., LoadContext]

IDENTITY_SHAPE = (-1, -1)
SUMS = Signature(
    inputs=(TensorSpec("a", "FP32", (-1, -1)), TensorSpec("b", "FP32", (-1, -1))),
    outputs=(TensorSpec("total", "FP32", (-1, -1)), TensorSpec("difference", "FP32", (-1, -1))),
)


def identity_of(datatype: str) -> Signature:
    return Signature((TensorSpec("x", datatype, IDENTITY_SHAPE),), (TensorSpec("y", datatype, IDENTITY_SHAPE),))


class Framework(NamedTuple):
    """How a test builds the two models in one framework."""

    identity: Callable[[Path, str], None]
    sums: Callable[[Path], None]
    datatypes: frozenset[str]
    checks_names: bool
    """Whether the model's files say the names, so that a wrong declaration is seen when it loads."""


def onnx_identity(folder: Path, datatype: str) -> None:
    dtype = TensorProto.STRING if datatype == "BYTES" else helper.np_dtype_to_tensor_dtype(DATATYPES[datatype])
    x, y = (helper.make_tensor_value_info(name, dtype, ["rows", "columns"]) for name in "xy")
    save_onnx(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y]), folder)


def onnx_sums(folder: Path) -> None:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "columns"]) for name in ("a", "b")]
    outputs = [
        helper.make_tensor_value_info(spec.name, TensorProto.FLOAT, ["rows", "columns"]) for spec in SUMS.outputs
    ]
    nodes = [helper.make_node("Add", ["a", "b"], ["total"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    save_onnx(helper.make_graph(nodes, "sums", inputs, outputs), folder)


def save_onnx(graph: Any, folder: Path) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")


def tensorflow_identity(folder: Path, datatype: str) -> None:
    dtype = tf.string if datatype == "BYTES" else tf.dtypes.as_dtype(DATATYPES[datatype])
    module = tf.Module()
    module.call = tf.function(
        lambda x: {"y": tf.identity(x)}, input_signature=[tf.TensorSpec([None, None], dtype, "x")], autograph=False
    )
    tf.saved_model.save(module, str(folder / "model.savedmodel"), signatures={DEFAULT_SIGNATURE: module.call})


def tensorflow_sums(folder: Path) -> None:
    module = tf.Module()
    module.call = tf.function(
        lambda a, b: {"total": a + b, "difference": a - b},
        input_signature=[tf.TensorSpec([None, None], tf.float32, name) for name in ("a", "b")],
        autograph=False,
    )
    tf.saved_model.save(module, str(folder / "model.savedmodel"), signatures={DEFAULT_SIGNATURE: module.call})


class TorchIdentity(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class TorchSums(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


def torchscript_identity(folder: Path, datatype: str) -> None:
    save_torchscript(TorchIdentity(), folder)


def torchscript_sums(folder: Path) -> None:
    save_torchscript(TorchSums(), folder)


def save_torchscript(module: Any, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(folder / "model.pt"))


def python_identity(folder: Path, datatype: str) -> None:
    (folder / "model.py").write_text("class Model:\n    def infer(self, inputs):\n        return {'y': inputs['x']}\n")


def python_sums(folder: Path) -> None:
    (folder / "model.py").write_text(
        "class Model:\n"
        "    def infer(self, inputs):\n"
        "        a, b = inputs['a'], inputs['b']\n"
        "        return {'total': a + b, 'difference': a - b}\n"
    )


ALL = frozenset(DATATYPES)
FRAMEWORKS = {
    "onnx": Framework(onnx_identity, onnx_sums, ALL, True),
    "tensorflow": Framework(tensorflow_identity, tensorflow_sums, ALL, True),
    "torchscript": Framework(torchscript_identity, torchscript_sums, ALL - {"BYTES"}, False),
    "python": Framework(python_identity, python_sums, ALL, False),
}
TYPED = [(name, datatype) for name, framework in FRAMEWORKS.items() for datatype in sorted(framework.datatypes)]
every_runtime = pytest.mark.parametrize("runtime", FRAMEWORKS)


def sample(datatype: str) -> Tensor:
    """Two rows of three, with the values that get lost most easily."""
    dtype = DATATYPES[datatype]
    if datatype == "BYTES":
        return np.array([[b"", b"a\x00b", "駅弁".encode()], [b"\xff\xfe\x00", b"\x00", bytes(range(256))]], np.object_)
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([[limits.min, limits.max, 0], [1, 2, limits.max - 1]], dtype)
    limits = ml_dtypes.finfo(dtype)
    return np.array([[0.0, -0.0, np.nan], [np.inf, -np.inf, limits.max]], dtype)


def same(left: Tensor, right: Tensor) -> bool:
    if left.dtype == np.object_:
        return left.shape == right.shape and left.tolist() == right.tolist()
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def load_sums(runtime: str, folder: Path, make_context: MakeContext) -> Session:
    FRAMEWORKS[runtime].sums(folder)
    return load_session(runtime, make_context(signatures={DEFAULT_SIGNATURE: SUMS}))


@pytest.mark.parametrize(("runtime", "datatype"), TYPED)
def test_every_datatype_passes_to_the_last_bit(
    runtime: str, datatype: str, tmp_path: Path, make_context: MakeContext
) -> None:
    FRAMEWORKS[runtime].identity(tmp_path, datatype)
    session = load_session(runtime, make_context(signatures={DEFAULT_SIGNATURE: identity_of(datatype)}))
    tensor = sample(datatype)
    tensor.flags.writeable = False

    answer = session.run(DEFAULT_SIGNATURE, {"x": tensor}, ["y"])["y"]

    assert same(answer, tensor)
    empty = session.run(DEFAULT_SIGNATURE, {"x": tensor[:0]}, ["y"])["y"]
    assert empty.shape == (0, 3)
    assert empty.dtype == tensor.dtype
    session.close()


@every_runtime
def test_signature_and_device_are_told(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    session = load_sums(runtime, tmp_path, make_context)

    assert session.signatures == {DEFAULT_SIGNATURE: SUMS}
    assert session.device == "cpu"
    session.close()


@pytest.mark.parametrize("runtime", [name for name, framework in FRAMEWORKS.items() if framework.checks_names])
def test_signature_is_read_from_the_model(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    FRAMEWORKS[runtime].sums(tmp_path)

    session = load_session(runtime, make_context(batched=True))

    signature = session.signatures[DEFAULT_SIGNATURE]
    assert set(signature.inputs) == set(SUMS.inputs)
    assert set(signature.outputs) == set(SUMS.outputs)
    session.close()


@every_runtime
def test_only_the_outputs_asked_for_are_returned(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    session = load_sums(runtime, tmp_path, make_context)
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 2, np.float32)

    both = session.run(DEFAULT_SIGNATURE, {"a": a, "b": b}, ["difference", "total"])
    one = session.run(DEFAULT_SIGNATURE, {"b": b, "a": a}, ["difference"])

    assert {name: float(array[0, 0]) for name, array in both.items()} == {"total": 7.0, "difference": 3.0}
    assert list(one) == ["difference"]
    assert same(one["difference"], np.full((2, 3), 3, np.float32))
    session.close()


@every_runtime
def test_answers_outlive_the_inputs(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    FRAMEWORKS[runtime].identity(tmp_path, "FP32")
    session = load_session(runtime, make_context(signatures={DEFAULT_SIGNATURE: identity_of("FP32")}))
    memory = np.arange(4096, dtype=np.float32).reshape(2, 2048)
    wanted = memory.copy()

    answer = session.run(DEFAULT_SIGNATURE, {"x": memory}, ["y"])["y"]
    memory[:] = -1

    assert same(answer, wanted)
    session.close()


@every_runtime
def test_inputs_need_not_be_contiguous(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    session = load_sums(runtime, tmp_path, make_context)
    a = np.arange(12, dtype=np.float32).reshape(3, 4).T[:, ::-1]

    total = session.run(DEFAULT_SIGNATURE, {"a": a, "b": a}, ["total"])["total"]

    assert same(np.ascontiguousarray(total), np.ascontiguousarray(a + a))
    session.close()


@every_runtime
def test_session_survives_an_input_it_cannot_use(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    session = load_sums(runtime, tmp_path, make_context)
    good = np.ones((2, 3), np.float32)

    for bad in ({"a": good, "b": np.ones((2, 5), np.float32)}, {"a": good}):
        with pytest.raises(Exception, match=r"\S"):
            session.run(DEFAULT_SIGNATURE, bad, ["total"])

    assert same(session.run(DEFAULT_SIGNATURE, {"a": good, "b": good}, ["total"])["total"], good + good)
    session.close()


@every_runtime
def test_a_missing_file_is_named(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    with pytest.raises(LoadFailed, match=r"model 'fish' version 7 .* no 'gone\.bin'"):
        load_session(runtime, make_context(file="gone.bin", signatures={DEFAULT_SIGNATURE: SUMS}))


@every_runtime
def test_files_outside_the_folder_are_refused(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    with pytest.raises(LoadFailed, match=r"'\.\./other' must be named relative to its folder"):
        load_session(runtime, make_context(file="../other", signatures={DEFAULT_SIGNATURE: SUMS}))


@every_runtime
def test_a_file_that_is_no_model_fails_with_a_reason(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    names = {"onnx": "model.onnx", "tensorflow": "saved_model.pb", "torchscript": "model.pt", "python": "model.py"}
    (tmp_path / names[runtime]).write_bytes(b"this is no model")

    with pytest.raises(LoadFailed, match="model 'fish' version 7 on device 'cpu': "):
        load_session(runtime, make_context(signatures={DEFAULT_SIGNATURE: SUMS}))


@every_runtime
def test_a_gpu_that_is_not_there_is_refused(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    FRAMEWORKS[runtime].sums(tmp_path)

    with pytest.raises(LoadFailed, match="model 'fish' version 7 on device 'gpu:63': "):
        load_session(runtime, make_context(device="gpu:63", signatures={DEFAULT_SIGNATURE: SUMS}))


@every_runtime
def test_auto_resolves_to_a_real_device(runtime: str, tmp_path: Path, make_context: MakeContext) -> None:
    FRAMEWORKS[runtime].sums(tmp_path)

    session = load_session(runtime, make_context(device="auto", signatures={DEFAULT_SIGNATURE: SUMS}))

    assert session.device in ("cpu", "gpu:0")
    session.close()


@pytest.mark.parametrize("runtime", [name for name, framework in FRAMEWORKS.items() if framework.checks_names])
@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (("a", "c"), ("total",), "input 'c' is declared, but the model has only 'a', 'b'"),
        (("a",), ("total",), "must declare input 'b'"),
        (("a", "b"), ("sum",), "output 'sum' is declared, but the model has only 'difference', 'total'"),
    ],
)
def test_a_declaration_that_contradicts_the_model_is_refused(
    runtime: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    message: str,
    tmp_path: Path,
    make_context: MakeContext,
) -> None:
    FRAMEWORKS[runtime].sums(tmp_path)
    declared = Signature(
        tuple(TensorSpec(name, "FP32", (-1, -1)) for name in inputs),
        tuple(TensorSpec(name, "FP32", (-1, -1)) for name in outputs),
    )

    with pytest.raises(LoadFailed, match=message):
        load_session(runtime, make_context(signatures={DEFAULT_SIGNATURE: declared}))


@pytest.mark.parametrize("runtime", [name for name, framework in FRAMEWORKS.items() if framework.checks_names])
@pytest.mark.parametrize(
    ("datatype", "shape", "message"),
    [
        ("FP64", (-1, -1), "declared as FP64, but the model has FP32"),
        ("FP32", (-1,), r"declared with shape \[-1\], but the model has \[-1, -1\]"),
    ],
)
def test_a_declared_type_or_rank_is_checked(
    runtime: str, datatype: str, shape: tuple[int, ...], message: str, tmp_path: Path, make_context: MakeContext
) -> None:
    FRAMEWORKS[runtime].identity(tmp_path, "FP32")
    declared = Signature((TensorSpec("x", datatype, shape),), (TensorSpec("y", "FP32", (-1, -1)),))

    with pytest.raises(LoadFailed, match=message):
        load_session(runtime, make_context(signatures={DEFAULT_SIGNATURE: declared}))
