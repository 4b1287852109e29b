"""What is TensorFlow's own: several signatures, serialised examples, both loaders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from ekiben.errors import LoadFailed
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext
from ekiben.runtimes.tensorflow import TensorflowSession
from ekiben.types import Signature, Tensor, TensorSpec

MakeContext = Callable[..., LoadContext]


def examples(*values: float) -> Tensor:
    array = np.empty(len(values), np.object_)
    array[:] = [
        tf.train.Example(
            features=tf.train.Features(feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=[value]))})
        ).SerializeToString()
        for value in values
    ]
    return array


def save_double(folder: Path, signature: str = DEFAULT_SIGNATURE) -> None:
    """y = 2 x"""
    module = tf.Module()
    module.factor, module.slot = tf.Variable(2.0), tf.Variable(0.0)
    module.call = tf.function(
        lambda x: {"y": x * module.factor},
        input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")],
        autograph=False,
    )
    tf.saved_model.save(module, str(folder), signatures={signature: module.call})


def break_object_graph(folder: Path) -> None:
    """Give the root object an optimizer's slot, which it cannot have: as in basic-pitch, TensorFlow 2 fails on it."""
    path = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel()
    model.ParseFromString(path.read_bytes())
    root = model.meta_graphs[0].object_graph_def.nodes[0]
    ids = {child.local_name: child.node_id for child in root.children}
    root.slot_variables.add(original_variable_node_id=ids["factor"], slot_name="m", slot_variable_node_id=ids["slot"])
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    "name",
    ["saved_model_half_plus_two_cpu", "saved_model_half_plus_two_tf2_cpu", "saved_model_half_plus_two_2_versions"],
)
def test_half_plus_two_and_its_other_signatures(name: str, testdata: Path, make_context: MakeContext) -> None:
    session = TensorflowSession(make_context(path=testdata / "tfserving" / name / "00000123"))

    assert set(session.signatures) >= {
        DEFAULT_SIGNATURE, "classify_x_to_y", "regress_x_to_y", "regress_x_to_y2", "regress_x2_to_y3"
    }  # fmt: skip
    shape = session.signatures[DEFAULT_SIGNATURE].inputs[0].shape
    x = np.full([1] * len(shape), 2, np.float32)
    assert session.run(DEFAULT_SIGNATURE, {"x": x}, ["y"])["y"].reshape(-1).tolist() == [3]
    assert session.signatures["regress_x_to_y"].inputs == (TensorSpec("inputs", "BYTES", (-1,)),)
    regressed = session.run("regress_x_to_y", {"inputs": examples(2, 4)}, ["outputs"])["outputs"]
    assert regressed.tolist() == [[3], [4]]
    assert session.run("classify_x_to_y", {"inputs": examples(2)}, ["scores"])["scores"].tolist() == [[3]]
    session.close()


def test_a_session_bundle_fails_with_a_reason(testdata: Path, make_context: MakeContext) -> None:
    with pytest.raises(LoadFailed, match=r"model 'fish' version 7 .*saved_model\.pb"):
        TensorflowSession(make_context(path=testdata / "tfserving" / "bad_half_plus_two" / "00000123"))


def test_the_old_loader_takes_over_where_the_new_one_fails(tmp_path: Path, make_context: MakeContext) -> None:
    save_double(tmp_path)
    break_object_graph(tmp_path)
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(str(tmp_path))

    session = TensorflowSession(make_context())

    assert session.signatures == {
        DEFAULT_SIGNATURE: Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))
    }
    x = np.array([[1, 2], [3, 4]], np.float32)
    assert session.run(DEFAULT_SIGNATURE, {"x": x}, ["y"])["y"].tolist() == [[2, 4], [6, 8]]
    with pytest.raises(ValueError, match="shape"):
        session.run(DEFAULT_SIGNATURE, {"x": np.ones((2, 5), np.float32)}, ["y"])
    assert session.run(DEFAULT_SIGNATURE, {"x": x[:0]}, ["y"])["y"].shape == (0, 2)
    session.close()


def test_without_a_serving_default_the_first_signature_is_the_default(
    tmp_path: Path, make_context: MakeContext
) -> None:
    save_double(tmp_path, signature="double")

    session = TensorflowSession(make_context())

    assert session.signatures[DEFAULT_SIGNATURE] == session.signatures["double"]
    assert session.run(DEFAULT_SIGNATURE, {"x": np.ones((1, 2), np.float32)}, ["y"])["y"].tolist() == [[2, 2]]
    session.close()


def test_a_model_without_signatures_says_how_to_give_one(tmp_path: Path, make_context: MakeContext) -> None:
    module = tf.Module()
    module.factor = tf.Variable(2.0)
    tf.saved_model.save(module, str(tmp_path))

    with pytest.raises(LoadFailed, match="no signature to call; save it with"):
        TensorflowSession(make_context())


def test_scalars_in_and_out(tmp_path: Path, make_context: MakeContext) -> None:
    module = tf.Module()
    module.call = tf.function(
        lambda k, name: {"twice": k * 2, "name": name},
        input_signature=[tf.TensorSpec([], tf.int64, "k"), tf.TensorSpec([], tf.string, "name")],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path), signatures={DEFAULT_SIGNATURE: module.call})
    session = TensorflowSession(make_context())

    name = np.array(b"\xffekiben\x00", np.object_)
    answer = session.run(DEFAULT_SIGNATURE, {"k": np.array(21), "name": name}, ["twice", "name"])

    assert answer["twice"].shape == ()
    assert answer["twice"].tolist() == 42
    assert answer["name"].shape == ()
    assert answer["name"].dtype == np.object_
    assert answer["name"].item() == b"\xffekiben\x00"
    session.close()


def test_an_unknown_rank_can_be_declared(tmp_path: Path, make_context: MakeContext) -> None:
    module = tf.Module()
    module.call = tf.function(
        lambda x: {"y": -x}, input_signature=[tf.TensorSpec(None, tf.int32, "x")], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path), signatures={DEFAULT_SIGNATURE: module.call})
    declared = Signature((TensorSpec("x", "INT32", (-1, 3)),), (TensorSpec("y", "INT32", (-1, 3)),))

    undeclared = TensorflowSession(make_context())
    session = TensorflowSession(make_context(signatures={DEFAULT_SIGNATURE: declared}))

    assert undeclared.signatures[DEFAULT_SIGNATURE].inputs[0].shape == (-1,)
    assert session.signatures == {DEFAULT_SIGNATURE: declared}
    session.close()


def test_a_model_that_keeps_its_input_keeps_a_copy(tmp_path: Path, make_context: MakeContext) -> None:
    module = tf.Module()
    module.last = tf.Variable(tf.zeros([1, 1024]))

    def step(x: tf.Tensor) -> dict[str, tf.Tensor]:
        before = tf.identity(module.last)
        with tf.control_dependencies([before]):
            module.last.assign(x)
        return {"before": before}

    module.call = tf.function(step, input_signature=[tf.TensorSpec([1, 1024], tf.float32, "x")], autograph=False)
    tf.saved_model.save(module, str(tmp_path), signatures={DEFAULT_SIGNATURE: module.call})
    session = TensorflowSession(make_context())
    memory = np.full((1, 1024), 5, np.float32)

    session.run(DEFAULT_SIGNATURE, {"x": memory}, ["before"])
    memory[:] = -1

    assert session.run(DEFAULT_SIGNATURE, {"x": memory}, ["before"])["before"].min() == 5
    session.close()
