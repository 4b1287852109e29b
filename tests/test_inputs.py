"""What people write after --input, and the tensors it becomes."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ekiben.errors import InvalidRequest
from ekiben.inputs import is_image, read_inputs, tensor_spec
from ekiben.types import Tensor, TensorSpec

_X = TensorSpec("x", "FP32", (-1, 3))
_Y = TensorSpec("y", "INT8", (2,))
_TEXT = TensorSpec("t", "BYTES", (-1, 1))


def _one(path: Path) -> Tensor:
    return np.ones((1, 3), np.float32)


def _read(*arguments: str, specs: tuple[TensorSpec, ...] = (_X,)) -> dict[str, Tensor]:
    return read_inputs(arguments, specs, "m", _one)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("image:FP32:-1,3,224,224", TensorSpec("image", "FP32", (-1, 3, 224, 224))),
        ("serving:x:0:INT64:2", TensorSpec("serving:x:0", "INT64", (2,))),
        ("rate:FP64:", TensorSpec("rate", "FP64", ())),
    ],
)
def test_tensor_spec(text: str, spec: TensorSpec) -> None:
    assert tensor_spec(text) == spec


@pytest.mark.parametrize("text", ["", "x", "x:FP32", ":FP32:1", "x:FP31:1", "x:FP32:a", "x:FP32:-2", "x:FP32:1.5"])
def test_what_is_no_tensor_spec_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        tensor_spec(text)


def test_json_is_read_in_the_declared_datatype() -> None:
    (x,) = _read("x=[[1, 2, 3], [4, 5, 6]]").values()
    assert x.dtype == np.float32
    assert x.shape == (2, 3)
    bfloat = _read("x=[1.5]", specs=(TensorSpec("x", "BF16", (1,)),))["x"]
    assert bfloat.dtype == ml_dtypes.bfloat16


def test_a_missing_batch_dimension_is_added() -> None:
    assert _read("x=[1, 2, 3]")["x"].shape == (1, 3)
    assert _read("y=[1, 2]", specs=(_Y,))["y"].shape == (2,)


def test_one_input_needs_no_name() -> None:
    assert _read("[1, 2, 3]")["x"].tolist() == [[1, 2, 3]]


def test_text_is_bytes() -> None:
    assert _read("t=hello", specs=(_TEXT,))["t"].tolist() == [[b"hello"]]
    assert _read('t=["a", "ü"]', specs=(TensorSpec("t", "BYTES", (-1,)),))["t"].tolist() == [b"a", "ü".encode()]


def test_files(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "one.npz", whatever=array)
    np.savez(tmp_path / "two.npz", x=array, y=np.array([1, 2], np.int8))
    (tmp_path / "a.json").write_text(str(array.tolist()))
    for value in ("a.npy", "one.npz", "two.npz", "a.json"):
        assert np.array_equal(_read(f"x=@{tmp_path / value}")["x"], array)
    assert np.array_equal(_read(f"x={tmp_path / 'a.npy'}")["x"], array)
    both = _read(str(tmp_path / "two.npz"), specs=(_X, _Y))
    assert sorted(both) == ["x", "y"]
    (tmp_path / "raw.bin").write_bytes(b"\x00\xff")
    assert _read(f"t=@{tmp_path / 'raw.bin'}", specs=(_TEXT,))["t"].tolist() == [[b"\x00\xff"]]


def test_an_image_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "cat.JPG").write_bytes(b"jpeg")
    assert is_image("@cat.JPG")
    assert not is_image("cat.JPG")
    assert _read(f"x=@{tmp_path / 'cat.JPG'}")["x"].shape == (1, 3)
    assert _read(f"t=@{tmp_path / 'cat.JPG'}", specs=(_TEXT,))["t"].tolist() == [[b"jpeg"]]


@pytest.mark.parametrize(
    ("arguments", "specs", "words"),
    [
        (["z=1"], (_X,), ["no input 'z'", "x"]),
        (["x=[1,2,3]", "x=[1,2,3]"], (_X,), ["'x' is given twice"]),
        (["x=[1, [2]]"], (_X,), ["'x'", "not a tensor"]),
        (["x=abc"], (_X,), ["'x'", "'abc'", "@FILE"]),
        (["x=@/none.npy"], (_X,), ["'/none.npy'"]),
        (["/none.npz"], (_X, _Y), ["'/none.npz'"]),
        (["[1]"], (_X, _Y), ["name=VALUE", "x, y"]),
        (["y=[1.5, 2]"], (_Y,), ["'y'", "INT8", "loss"]),
        (["y=[300, 2]"], (_Y,), ["'y'", "INT8"]),
        (['x=["a"]'], (_X,), ["'x'", "FP32"]),
        (["t=[1, 2]"], (_TEXT,), ["'t'", "text"]),
        (["x=" + "[" * 100_000], (_X,), ["'x'"]),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], specs: tuple[TensorSpec, ...], words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        _read(*arguments, specs=specs)
    for word in words:
        assert word in raised.value.message


def test_a_file_of_objects_or_of_anything_else_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "two.npz", a=1, b=2)
    for name in ("objects.npy", "text.npy", "text.npz", "empty.npy", "two.npz"):
        with pytest.raises(InvalidRequest, match=name):
            _read(f"x=@{tmp_path / name}")
