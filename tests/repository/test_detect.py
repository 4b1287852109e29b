import pickle
import zipfile
from pathlib import Path

import pytest

from ekiben.errors import InvalidSettings, LoadFailed
from ekiben.repository.detect import detect, usual_file

MODEL_PY = "import numpy\n\nclass Model:\n    def infer(self, inputs): ...\n"


def touch(folder: Path, *names: str) -> None:
    """Files with nothing in them; a TorchScript archive or a model.py with what tells them."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pt":
            write_zip(path, "m/data.pkl", "m/code/__torch__.py", "m/constants.pkl")
        else:
            path.write_text(MODEL_PY if path.name == "model.py" else "")


def write_zip(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")


@pytest.mark.parametrize(
    ("files", "runtime", "file"),
    [
        (["model.onnx"], "onnx", "model.onnx"),
        (["net.onnx", "net.onnx.data", "labels.txt"], "onnx", "net.onnx"),
        (["model.onnx", "other.onnx"], "onnx", "model.onnx"),
        (["model.onnx/model.onnx", "model.onnx/weights.bin"], "onnx", "model.onnx/model.onnx"),
        (["saved_model.onnx", "model.yaml"], "onnx", "saved_model.onnx"),
        (["saved_model.pb", "variables/variables.index"], "tensorflow", ""),
        (["saved_model.pbtxt"], "tensorflow", ""),
        (["model.savedmodel/saved_model.pb"], "tensorflow", "model.savedmodel"),
        (["export/saved_model.pb", "labels.txt"], "tensorflow", "export"),
        (["model.pt"], "torchscript", "model.pt"),
        (["resnet.pt"], "torchscript", "resnet.pt"),
        (["model.py", "helper.py", "weights.onnx"], "python", "model.py"),
    ],
)
def test_folders(files: list[str], runtime: str, file: str, tmp_path: Path) -> None:
    touch(tmp_path, *files)

    assert detect(tmp_path) == (runtime, file)


@pytest.mark.parametrize(
    ("name", "runtime", "file"),
    [
        ("any.onnx", "onnx", "any.onnx"),
        ("any.pt", "torchscript", "any.pt"),
        ("model.py", "python", "model.py"),
        ("saved_model.pb", "tensorflow", ""),
    ],
)
def test_files(name: str, runtime: str, file: str, tmp_path: Path) -> None:
    touch(tmp_path, name, "unrelated.onnx")

    assert detect(tmp_path / name) == (runtime, file)


def test_the_runtime_narrows_the_choice(tmp_path: Path) -> None:
    touch(tmp_path, "a.onnx", "b.pt")

    with pytest.raises(InvalidSettings, match=r"more than one model: 'a\.onnx' \(onnx\), 'b\.pt' \(torchscript\)"):
        detect(tmp_path)
    assert detect(tmp_path, "torchscript") == ("torchscript", "b.pt")
    with pytest.raises(LoadFailed, match="no model for runtime 'tensorflow'"):
        detect(tmp_path, "tensorflow")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.keras", "`ekiben import` converts it"),
        ("model.h5", "`ekiben import` converts it"),
        ("model.pkl", r"is a pickle, .* export the model to ONNX"),
        ("model.joblib", r"is a pickle, .* export the model to ONNX"),
        ("weights.safetensors", "no TorchScript code"),
        ("model.pt2", "torch.export archive"),
        ("export.meta", "TensorFlow 1 meta graph"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_to_do(name: str, message: str, tmp_path: Path) -> None:
    touch(tmp_path, name)

    for path in (tmp_path, tmp_path / name):
        with pytest.raises(LoadFailed, match=message):
            detect(path)


def test_a_state_dict_is_told_from_torchscript(tmp_path: Path) -> None:
    write_zip(tmp_path / "zipped.pth", "archive/data.pkl", "archive/data/0")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"weight": 1}))

    for name in ("zipped.pth", "plain.pt"):
        with pytest.raises(LoadFailed, match=rf"{name}' holds weights .* no TorchScript code.* torch\.jit\.trace"):
            detect(tmp_path / name)


def test_a_zip_that_python_cannot_read_is_no_model_and_no_accident(tmp_path: Path) -> None:
    write_zip(tmp_path / "model.pt", "m/code/a.py")
    data = bytearray((tmp_path / "model.pt").read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 99  # the version that is needed to extract it
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(LoadFailed):
        detect(tmp_path)


def test_a_model_py_without_the_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class TritonPythonModel: ...\n")

    with pytest.raises(LoadFailed, match="defines no class `Model`"):
        detect(tmp_path)


def test_version_folders_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "00000123/saved_model.pb", "2/model.onnx")

    with pytest.raises(LoadFailed, match=r"holds version folders \(00000123, 2\)"):
        detect(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="there is no model at"):
        detect(tmp_path / "gone")
    with pytest.raises(LoadFailed, match=r"holds no model that can be served: looked for \*\.onnx"):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("files", "runtime", "found"),
    [
        (["saved_model.onnx", "model.onnx"], "onnx", "model.onnx"),
        (["saved_model.onnx"], "onnx", "saved_model.onnx"),
        (["net.onnx"], "onnx", ""),
        (["model.py", "model.onnx"], "python", "model.py"),
        (["model.savedmodel/saved_model.pb"], "tensorflow", "model.savedmodel"),
        (["saved_model.pb"], "tensorflow", ""),
        (["model.pt"], "torchscript", "model.pt"),
        (["model.onnx"], "mine:Runtime", ""),
    ],
)
def test_the_usual_file_of_a_runtime(files: list[str], runtime: str, found: str, tmp_path: Path) -> None:
    touch(tmp_path, *files)
    assert usual_file(tmp_path, runtime) == found
