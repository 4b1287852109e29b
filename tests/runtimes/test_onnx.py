"""What is ONNX Runtime's own: optional inputs, external data, odd names, text that is not text."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ekiben.errors import LoadFailed
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext
from ekiben.runtimes.onnx import OnnxSession
from ekiben.types import Signature, Tensor, TensorSpec

MakeContext = Callable[..., LoadContext]


def tensor_info(name: str, dtype: int = TensorProto.FLOAT, shape: Sequence[Any] | None = ("rows", 2)) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def save(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initialisers: Sequence[Any] = (),
    ir_version: int = 9,
    opset: int = 18,
) -> Path:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initialisers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def save_text_identity(folder: Path) -> None:
    info = (TensorProto.STRING, ["rows"])
    save(folder, [helper.make_node("Identity", ["x"], ["y"])], [tensor_info("x", *info)], [tensor_info("y", *info)])


def save_with_default(folder: Path, ir_version: int) -> None:
    """y = x + b, with 10 as b's default."""
    b = numpy_helper.from_array(np.array([10], np.float32), "b")
    node = helper.make_node("Add", ["x", "b"], ["y"])
    inputs = [tensor_info("x"), tensor_info("b", shape=[1])]
    save(folder, [node], inputs, [tensor_info("y")], [b], ir_version=ir_version)


def run(session: OnnxSession, **inputs: Tensor) -> Tensor:
    return session.run(DEFAULT_SIGNATURE, inputs, ["y"])["y"]


def text(*values: bytes) -> Tensor:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


ONES = np.ones((1, 2), np.float32)


def test_an_initialiser_that_is_an_input_is_optional(tmp_path: Path, make_context: MakeContext) -> None:
    save_with_default(tmp_path, ir_version=9)
    session = OnnxSession(make_context())

    assert session.signatures[DEFAULT_SIGNATURE].inputs == (
        TensorSpec("x", "FP32", (-1, 2)),
        TensorSpec("b", "FP32", (1,), optional=True),
    )
    assert run(session, x=ONES).tolist() == [[11, 11]]
    assert run(session, x=ONES, b=np.array([2], np.float32)).tolist() == [[3, 3]]


def test_weights_of_old_models_are_not_offered_as_inputs(tmp_path: Path, make_context: MakeContext) -> None:
    save_with_default(tmp_path, ir_version=3)

    session = OnnxSession(make_context())

    assert [spec.name for spec in session.signatures[DEFAULT_SIGNATURE].inputs] == ["x"]
    assert run(session, x=ONES).tolist() == [[11, 11]]


def test_an_input_of_optional_type_may_be_left_out(tmp_path: Path, make_context: MakeContext) -> None:
    optional = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, ["n", 2])))
    given = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["o"], ["t"])], "given", [], [tensor_info("t", shape=None)]
    )
    absent = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"])], "absent", [], [tensor_info("e", shape=None)]
    )
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("If", ["has"], ["y"], then_branch=given, else_branch=absent),
    ]
    save(tmp_path, nodes, [tensor_info("x"), optional], [tensor_info("y")])
    session = OnnxSession(make_context())

    assert session.signatures[DEFAULT_SIGNATURE].inputs[1] == TensorSpec("o", "FP32", (-1, 2), optional=True)
    assert run(session, x=ONES).tolist() == [[1, 1]]
    assert run(session, x=ONES, o=7 * ONES).tolist() == [[7, 7]]


def test_an_input_the_model_needs_cannot_be_declared_optional(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], [tensor_info("x")], [tensor_info("y")])
    declared = Signature((TensorSpec("x", "FP32", (-1, 2), optional=True),), (TensorSpec("y", "FP32", (-1, 2)),))

    with pytest.raises(LoadFailed, match="input 'x' is declared optional, but the model needs it"):
        OnnxSession(make_context(signatures={DEFAULT_SIGNATURE: declared}))


def test_weights_may_lie_in_files_beside_the_model(tmp_path: Path, make_context: MakeContext) -> None:
    weight = numpy_helper.from_array(np.arange(2048, dtype=np.float32).reshape(2, 1024), "w")
    path = save(
        tmp_path,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor_info("x")],
        [tensor_info("y", shape=["rows", 1024])],
        [weight],
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size >= 8192

    session = OnnxSession(make_context())

    assert run(session, x=ONES)[0, :2].tolist() == [1024, 1026]


def test_names_with_colons(tmp_path: Path, make_context: MakeContext) -> None:
    save(tmp_path, [helper.make_node("Identity", ["in:0"], ["out:0"])], [tensor_info("in:0")], [tensor_info("out:0")])
    session = OnnxSession(make_context())

    assert session.run(DEFAULT_SIGNATURE, {"in:0": ONES}, ["out:0"])["out:0"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    "values",
    [
        (b"\xff\xfe", b"", b"\x80"),
        ("駅弁 \U0010fe85".encode(), b"plain"),
        ("駅弁 \U0010fe85".encode(), b"\xff", bytes(range(256))),
        (b"\xf4\x8f\xba", "\U0010fe80\U0010feff".encode(), b"\xed\xb2\x80"),
    ],
)
def test_any_bytes_pass_through_a_string_model(
    values: tuple[bytes, ...], tmp_path: Path, make_context: MakeContext
) -> None:
    save_text_identity(tmp_path)
    session = OnnxSession(make_context())

    assert run(session, x=text(*values)).tolist() == list(values)


def test_bytes_that_are_not_text_do_not_change_their_neighbours(tmp_path: Path, make_context: MakeContext) -> None:
    """The model sees the digits of the other elements as they are: it computes with them."""
    nodes = [
        helper.make_node("Cast", ["n"], ["numbers"], to=TensorProto.INT64),
        helper.make_node("Cast", ["numbers"], ["y"], to=TensorProto.STRING),
        helper.make_node("Identity", ["raw"], ["same"]),
    ]
    info = (TensorProto.STRING, ["rows"])
    save(
        tmp_path,
        nodes,
        [tensor_info("n", *info), tensor_info("raw", *info)],
        [tensor_info("y", *info), tensor_info("same", *info)],
    )
    session = OnnxSession(make_context())

    answer = session.run(DEFAULT_SIGNATURE, {"n": text(b"041", b"7"), "raw": text(b"\xff\x00", b"ok")}, ["y", "same"])

    assert answer["y"].tolist() == [b"41", b"7"]
    assert answer["same"].tolist() == [b"\xff\x00", b"ok"]


def test_bfloat16_is_computed(tmp_path: Path, make_context: MakeContext) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["wide", "wide"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.BFLOAT16),
    ]
    save(tmp_path, nodes, [tensor_info("x", TensorProto.BFLOAT16)], [tensor_info("y", TensorProto.BFLOAT16)])
    session = OnnxSession(make_context())

    answer = run(session, x=np.array([[1.5, -2]], ml_dtypes.bfloat16).T[:1].repeat(2, axis=1))

    assert answer.dtype == ml_dtypes.bfloat16
    assert answer.tolist() == [[3, 3]]


def test_text_in_and_bfloat16_out_is_refused(tmp_path: Path, make_context: MakeContext) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])]
    inputs = [tensor_info("x", TensorProto.BFLOAT16), tensor_info("s", TensorProto.STRING)]
    save(tmp_path, nodes, inputs, [tensor_info("y", TensorProto.BFLOAT16), tensor_info("t", TensorProto.STRING)])

    with pytest.raises(LoadFailed, match="no way to run BYTES inputs and BF16 outputs together"):
        OnnxSession(make_context())


def test_an_output_that_is_no_tensor_is_left_out(tmp_path: Path, make_context: MakeContext) -> None:
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)))
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("SequenceConstruct", ["x"], ["s"])]
    save(tmp_path, nodes, [tensor_info("x")], [tensor_info("y"), sequence])
    session = OnnxSession(make_context())

    assert [spec.name for spec in session.signatures[DEFAULT_SIGNATURE].outputs] == ["y"]
    assert run(session, x=ONES).tolist() == [[1, 1]]


def test_a_fixed_batch_size_is_refused_where_batching_is_on(tmp_path: Path, make_context: MakeContext) -> None:
    save(
        tmp_path,
        [helper.make_node("Identity", ["x"], ["y"])],
        [tensor_info("x", shape=[1, 2])],
        [tensor_info("y", shape=[1, 2])],
    )

    with pytest.raises(LoadFailed, match="'x' has the fixed size 1 in its first dimension"):
        OnnxSession(make_context(batched=True))
    assert OnnxSession(make_context(batched=False)).signatures[DEFAULT_SIGNATURE].inputs[0].shape == (1, 2)


def test_a_scalar_input(tmp_path: Path, make_context: MakeContext) -> None:
    save(
        tmp_path,
        [helper.make_node("Add", ["x", "k"], ["y"])],
        [tensor_info("x"), tensor_info("k", shape=[])],
        [tensor_info("y")],
    )
    session = OnnxSession(make_context())

    assert session.signatures[DEFAULT_SIGNATURE].inputs[1].shape == ()
    assert run(session, x=ONES, k=np.array(4, np.float32)).tolist() == [[5, 5]]


def test_a_scalar_stays_a_scalar(tmp_path: Path, make_context: MakeContext) -> None:
    save(
        tmp_path,
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [tensor_info("x", shape=[])],
        [tensor_info("y", shape=[])],
    )
    answer = run(OnnxSession(make_context()), x=np.array(4, np.float32))

    assert (answer.shape, float(answer)) == ((), 8)
