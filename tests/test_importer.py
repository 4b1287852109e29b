"""Models of every framework into a Bento model store of the test's own, each tried in a real runner."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorflow as tf
import torch
from onnx import TensorProto, helper, numpy_helper

from ekiben.errors import EkibenError, InvalidRequest, InvalidSettings, LoadFailed
from ekiben.importer import import_model
from ekiben.repository.bento_store import BentoStore
from ekiben.repository.version_numbers import VersionNumbers
from ekiben.types import ModelSettings, Signature, TensorSpec

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

HOME = "bento"
PAIR = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, and nobody told of it."""
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / HOME))
    monkeypatch.setenv("BENTOML_DO_NOT_TRACK", "True")
    return tmp_path / HOME


def save_onnx(path: Path, external: str = "") -> None:
    """y = x · weights"""
    weights = numpy_helper.from_array(2 * np.eye(2, dtype=np.float32), "weights")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weights"], ["y"])], "double", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)


def save_tensorflow(path: Path) -> None:
    module = tf.Module()
    module.factor = tf.Variable(2.0)
    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    module.call = tf.function(lambda x: {"y": x * module.factor}, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.call})


def save_torchscript(path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 3).eval(), torch.zeros(1, 2)).save(str(path))


def stored(home: Path, tag: str) -> tuple[Path, ModelSettings]:
    """Folder and settings of a stored version, as the server will see them."""
    name, _, word = tag.partition(":")
    (model,) = (model for model in BentoStore(home, VersionNumbers(None)).models() if model.name == name)
    (version,) = (version for version in model.versions if word in (version.word, str(version.number)))
    assert not version.error
    return Path(version.path), version.settings


def test_onnx_keeps_its_weights_files(tmp_path: Path, home: Path) -> None:
    save_onnx(tmp_path / "net.onnx", external="net.weights")
    (tmp_path / "unrelated.bin").touch()

    tag = import_model(tmp_path / "net.onnx", name="double", version="3")

    folder, settings = stored(home, tag)
    assert tag == "double:3"
    assert sorted(path.name for path in folder.iterdir()) == ["model.yaml", "net.weights", "saved_model.onnx"]
    assert (settings.runtime, settings.file) == ("onnx", "saved_model.onnx")
    assert settings.signatures == {"serving_default": PAIR}


def test_the_version_is_bentomls_word_where_none_is_given(tmp_path: Path, home: Path) -> None:
    save_onnx(tmp_path / "net.onnx")

    first, second = (import_model(tmp_path / "net.onnx", name="double") for _ in range(2))

    assert first != second
    assert stored(home, first)[1] == stored(home, second)[1]


def test_what_is_stored_loads_with_bentomls_own_loader(tmp_path: Path, home: Path) -> None:
    save_onnx(tmp_path / "net.onnx")
    tag = import_model(tmp_path / "net.onnx", name="double")
    code = (
        "import bentoml.onnx, numpy\n"
        f"session = bentoml.onnx.load_model('{tag}')\n"
        "print(session.run(None, {'x': numpy.ones((1, 2), 'float32')})[0].tolist())\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[[2.0, 2.0]]"


def test_savedmodel(tmp_path: Path, home: Path) -> None:
    save_tensorflow(tmp_path / "export")

    folder, settings = stored(home, import_model(tmp_path / "export", name="double"))

    assert (folder / "saved_model.pb").is_file()
    assert (folder / "variables" / "variables.index").is_file()
    assert (settings.runtime, settings.file) == ("tensorflow", "")
    assert settings.signatures == {"serving_default": PAIR}


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_torchscript_by_an_example(suffix: str, tmp_path: Path, home: Path) -> None:
    save_torchscript(tmp_path / "net.pt")
    example, ones = tmp_path / f"example{suffix}", np.ones((1, 2), np.float32)
    if suffix == ".npz":
        np.savez(example, input=ones)
    else:
        np.save(example, ones)

    _, settings = stored(home, import_model(tmp_path / "net.pt", name="linear", example=example))

    assert settings.signatures["serving_default"] == Signature(
        (TensorSpec("input", "FP32", (-1, 2)),), (TensorSpec("output", "FP32", (-1, 3)),)
    )


def test_torchscript_by_described_inputs(tmp_path: Path, home: Path) -> None:
    save_torchscript(tmp_path / "net.pt")
    features = TensorSpec("features", "FP32", (-1, 2))

    folder, settings = stored(home, import_model(tmp_path / "net.pt", name="linear", inputs=[features]))

    assert (folder / "saved_model.pt").is_file()
    assert settings.signatures["serving_default"].inputs == (features,)
    with pytest.raises(LoadFailed, match=r"did not run on the inputs given: .*shapes cannot be multiplied"):
        import_model(tmp_path / "net.pt", name="linear", inputs=[TensorSpec("features", "FP32", (-1, 5))])


def test_torchscript_alone_says_what_is_missing(tmp_path: Path) -> None:
    save_torchscript(tmp_path / "net.pt")

    with pytest.raises(InvalidRequest, match=r"--example FILE\.npz.* --input NAME:DATATYPE:SHAPE"):
        import_model(tmp_path / "net.pt", name="linear")


def test_a_folder_with_its_model_yaml_and_labels(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "double"
    save_onnx(folder / "weights" / "net.onnx")
    (folder / "names").mkdir()
    (folder / "names" / "labels.txt").write_text("left\nright\n")
    (folder / "model.yaml").write_text(
        "runtime: onnx\n"
        "file: weights/net.onnx\n"
        "batching: {max_batch_size: 16, max_delay_us: 100}\n"
        "instances: [{device: cpu, count: 2}]\n"
        "labels: {y: names/labels.txt}\n"
        "preprocess: {kind: image, size: [8, 8]}\n"
        "version_policy: latest:2\n"
    )

    path, settings = stored(home, import_model(folder, name="double"))

    assert Path(settings.labels["y"]).read_text() == "left\nright\n"
    assert Path(settings.labels["y"]).is_relative_to(path)
    assert settings.batching.max_batch_size == 16
    assert settings.instances[0].count == 2
    assert settings.preprocess == {"kind": "image", "size": [8, 8]}
    assert settings.version_policy == "latest:2"
    assert settings.signatures == {"serving_default": PAIR}


def test_a_python_model_keeps_its_folder(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "helper.py").write_text("FACTOR = 2\n")
    (folder / "__pycache__").mkdir()
    (folder / "model.py").write_text(
        "from ekiben.types import Signature, TensorSpec\n"
        "from .helper import FACTOR\n"
        "class Model:\n"
        "    signature = Signature((TensorSpec('x', 'FP32', (-1, 2)),), (TensorSpec('y', 'FP32', (-1, 2)),))\n"
        "    def infer(self, inputs):\n"
        "        return {'y': inputs['x'] * FACTOR}\n"
    )

    path, settings = stored(home, import_model(folder, name="own"))

    assert sorted(entry.name for entry in path.iterdir()) == ["helper.py", "model.py", "model.yaml"]
    assert (settings.runtime, settings.file) == ("python", "model.py")
    assert settings.signatures == {"serving_default": PAIR}


@pytest.mark.parametrize("count", [0, 3])
def test_a_python_model_that_streams(count: int, tmp_path: Path, home: Path) -> None:
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "model.py").write_text(
        "from ekiben.types import Signature, TensorSpec\n"
        "class Model:\n"
        "    signature = Signature((TensorSpec('x', 'FP32', (-1, 2)),), (TensorSpec('y', 'FP32', (-1, 2)),))\n"
        "    def infer(self, inputs):\n"
        f"        for number in range({count}):\n"
        "            yield {'y': inputs['x'] + number}\n"
    )

    _, settings = stored(home, import_model(tmp_path / "talk", name="talk"))

    assert (settings.runtime, settings.signatures, settings.decoupled) == ("python", {"serving_default": PAIR}, None)


def test_a_runtime_of_the_users_own(tmp_path: Path, home: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(b"1")

    path, settings = stored(home, import_model(tmp_path / "model", name="fake", runtime="ekiben.testing:FakeRuntime"))

    assert (path / "weights.bin").read_bytes() == b"1"
    assert settings.runtime == "ekiben.testing:FakeRuntime"


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_files_are_converted(suffix: str, tmp_path: Path, home: Path) -> None:
    model = tmp_path / f"net{suffix}"
    run_keras(
        "x = keras.Input((2,), name='x')",
        "model = keras.Model(x, keras.layers.Dense(3, name='y')(x))",
        f"model.save({str(model)!r})",
    )

    path, settings = stored(home, import_model(model, name="dense"))

    assert (path / "saved_model.pb").is_file()
    assert settings.runtime == "tensorflow"
    assert settings.signatures["serving_default"] == Signature(
        (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 3)),)
    )


def test_code_in_a_keras_file_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "net.keras"
    run_keras(
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x * 2)])",
        f"model.save({str(model)!r})",
    )

    with pytest.raises(LoadFailed, match=r"Keras cannot convert '.*net\.keras': .*Lambda"):
        import_model(model, name="dense")


def run_keras(*lines: str) -> None:
    """In a process of its own, for Keras picks its backend when it is imported."""
    code = "\n".join(["import os; os.environ['KERAS_BACKEND'] = 'tensorflow'", "import keras", *lines])
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [("weights.pth", "no TorchScript code"), ("model.pkl", "is a pickle"), ("notes.txt", "no model")],
)
def test_what_is_no_model_is_refused(name: str, message: str, tmp_path: Path, home: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / name)

    with pytest.raises(LoadFailed, match=message):
        import_model(tmp_path / name, name="refused")
    assert not home.exists()


def test_a_model_that_does_not_answer_is_not_stored(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "model.py").write_text("class Model:\n    def infer(self, inputs):\n        raise ValueError('never')\n")
    (folder / "model.yaml").write_text(
        "signatures:\n"
        "  serving_default:\n"
        "    inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]\n"
        "    outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]\n"
    )

    with pytest.raises(LoadFailed, match=r"model 'own' raised on zeros; give inputs .* --example FILE\.npz: never"):
        import_model(folder, name="own")
    assert not home.exists()


def test_an_example_that_does_not_fit_is_refused(tmp_path: Path, home: Path) -> None:
    save_onnx(tmp_path / "net.onnx")
    np.savez(tmp_path / "example.npz", z=np.ones((1, 2), np.float32))

    with pytest.raises(InvalidRequest, match="'double' has no input 'z'; its inputs are x"):
        import_model(tmp_path / "net.onnx", name="double", example=tmp_path / "example.npz")
    with pytest.raises(InvalidRequest, match="there is no file"):
        import_model(tmp_path / "net.onnx", name="double", example=tmp_path / "gone.npz")
    assert not home.exists()


@pytest.mark.parametrize(
    ("name", "version", "error", "message"),
    [
        ("Double", "", InvalidSettings, "'Double' cannot be a model's name .* lower-case"),
        ("", "", InvalidSettings, "needs a name"),
        ("a/b", "", InvalidSettings, "'a/b' cannot be a model's name"),
        ("../up", "", InvalidSettings, "'../up' cannot be a model's name"),
        ("x" * 64, "", InvalidSettings, "at most 63"),
        ("double", "V1", InvalidSettings, "'V1' cannot be a model's version"),
        ("double", "latest", InvalidSettings, "'latest' is what BentoML calls the newest version"),
        ("double", "1", InvalidSettings, "'double:1' is in the Bento model store already"),
    ],
)
def test_names_and_versions(name: str, version: str, error: type[EkibenError], message: str, tmp_path: Path) -> None:
    save_onnx(tmp_path / "net.onnx")
    (tmp_path / HOME / "models" / "double" / "1").mkdir(parents=True)

    with pytest.raises(error, match=message):
        import_model(tmp_path / "net.onnx", name=name, version=version)


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    save_onnx(tmp_path / "net.onnx", external="net.weights")
    content = (tmp_path / "net.onnx").read_bytes()
    (tmp_path / "net.onnx").write_bytes(content.replace(b"net.weights", b"../.weights"))

    with pytest.raises(LoadFailed, match=r"keeps weights in '\.\./\.weights', outside its own folder"):
        import_model(tmp_path / "net.onnx", name="double")


def test_what_cannot_be_written_is_told(tmp_path: Path, home: Path) -> None:
    save_onnx(tmp_path / "net.onnx")
    home.write_text("no folder")

    with pytest.raises(LoadFailed, match=r"net\.onnx' cannot be imported: .*bento"):
        import_model(tmp_path / "net.onnx", name="double")


def test_a_model_that_bentoml_stored_can_be_described_and_imported_anew(tmp_path: Path, home: Path) -> None:
    save_torchscript(tmp_path / "saved_model.pt")
    (tmp_path / "model.yaml").write_text(
        "name: linear\nversion: abc\nmodule: bentoml.torchscript\nlabels: {}\noptions: {}\nmetadata: {}\n"
        "signatures: {__call__: {batchable: false}}\napi_version: v1\n"
    )

    tag = import_model(tmp_path, name="linear", inputs=[TensorSpec("x", "FP32", (-1, 2))])

    assert stored(home, tag)[1].signatures["serving_default"].inputs[0].name == "x"


def test_importing_loads_no_framework() -> None:
    code = "import sys, ekiben.importer; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    frameworks: Sequence[Any] = ("torch", "tensorflow", "keras", "onnxruntime", "onnx")

    done = subprocess.run([sys.executable, "-c", code, *frameworks], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
