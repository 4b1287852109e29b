"""Tensors from what people write: nested lists, `name=VALUE` on the command line, files of arrays."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Tensor, TensorSpec

__all__ = ["as_tensor", "is_image", "read_inputs", "tensor_spec"]

_ARRAY_SUFFIXES: Final = (".npy", ".npz")
_IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def tensor_spec(text: str) -> TensorSpec:
    """`name:DATATYPE:shape`, as in `image:FP32:-1,3,224,224`; a name may hold colons. Raises InvalidRequest."""
    name, *rest = text.rsplit(":", 2)
    if len(rest) != 2 or not name:
        raise InvalidRequest(f"'{text}' must be name:DATATYPE:shape, as in image:FP32:-1,3,224,224")
    datatype, sizes = rest
    if datatype not in DATATYPES:
        raise InvalidRequest(f"'{text}': the datatype must be one of {', '.join(DATATYPES)}, got '{datatype}'")
    try:
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        shape = (-2,)
    if any(size < -1 for size in shape):
        raise InvalidRequest(f"'{text}': the shape must be whole numbers, or -1 for any size, got '{sizes}'")
    return TensorSpec(name, datatype, shape)


def is_image(value: str) -> bool:
    """Whether `@FILE` names an image, by its suffix."""
    return value.startswith("@") and Path(value).suffix.lower() in _IMAGE_SUFFIXES


def read_inputs(
    arguments: Sequence[str], specs: Sequence[TensorSpec], model: str, image: Callable[[Path], Tensor]
) -> dict[str, Tensor]:
    """The tensors that `arguments` describe, in the datatypes of `specs`.

    An argument is `name=VALUE`; `VALUE` alone for a model with one input; or FILE.npz, whose names are the inputs'.
    VALUE is a JSON literal, FILE.npy, FILE.npz, or @FILE: one of those, a .json file, an image (which `image` turns
    into the tensor), or any file for a BYTES input. Plain text will do for a BYTES input. A tensor that lacks only
    the batch dimension gets one of size 1. Raises InvalidRequest, naming the input.
    """
    known = {spec.name: spec for spec in specs}
    tensors: dict[str, Tensor] = {}
    for name, value in _named(arguments, known, model):
        if name not in known:
            raise InvalidRequest(f"model '{model}' has no input '{name}'; its inputs are {', '.join(known)}")
        if name in tensors:
            raise InvalidRequest(f"input '{name}' is given twice")
        spec = known[name]
        if isinstance(value, str) and is_image(value) and spec.datatype != "BYTES":
            tensors[name] = image(_file(value[1:]))
        else:
            tensors[name] = _fitted(_read(value, spec) if isinstance(value, str) else value, spec)
    return tensors


def _named(arguments: Sequence[str], known: Mapping[str, TensorSpec], model: str) -> list[tuple[str, str | Tensor]]:
    """Input name and value, one by one; a value is text, or an array from an .npz file."""
    named: list[tuple[str, str | Tensor]] = []
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if separator and name in known:
            named.append((name, value))
        elif argument.endswith(".npz"):
            named += _arrays(_file(argument.removeprefix("@"))).items()
        elif len(known) == 1 and not (separator and name.isidentifier()):
            named.append((next(iter(known)), argument))
        elif separator:
            named.append((name, value))
        else:
            raise InvalidRequest(f"'{argument}' must be name=VALUE; the inputs of '{model}' are {', '.join(known)}")
    return named


def _read(value: str, spec: TensorSpec) -> Any:
    path = Path(value.removeprefix("@"))
    if path.suffix in _ARRAY_SUFFIXES and (value.startswith("@") or path.is_file()):
        return _array(_file(str(path)), spec.name)
    if value.startswith("@"):
        content = _file(value[1:]).read_bytes()
        if spec.datatype == "BYTES" and path.suffix != ".json":
            return np.array([content], np.object_)
        text = content.decode("utf-8", "replace")
    else:
        text = value
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if spec.datatype == "BYTES" and not value.startswith("@"):
            return [value]
        raise InvalidRequest(
            f"input '{spec.name}': '{value}' is neither JSON ({error}) nor a file of arrays; write a file as @FILE"
        ) from None


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise InvalidRequest(f"there is no file '{name}'")
    return path


def _arrays(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise InvalidRequest(f"'{path}' is not an .npz file of arrays: {error}") from None


def _array(path: Path, name: str) -> Tensor:
    if path.suffix == ".npz":
        arrays = _arrays(path)
        if name not in arrays and len(arrays) != 1:
            raise InvalidRequest(f"'{path}' has no array '{name}'; it has {', '.join(arrays) or 'none'}")
        return arrays[name] if name in arrays else next(iter(arrays.values()))
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidRequest(f"'{path}' is not an .npy file of an array: {error}") from None
    if not isinstance(loaded, np.ndarray):
        raise InvalidRequest(f"'{path}' is not an .npy file of an array")
    return loaded


def as_tensor(value: object, name: str, datatype: str) -> Tensor:
    """Nested lists or an array, in the declared datatype. Raises InvalidRequest where a value does not fit.

    Floats may be rounded to a narrower float; nothing may overflow, lose a fraction or change its kind.
    """
    try:
        # As objects, for numpy's own text arrays drop NULs at the end.
        array = np.asarray(value, np.object_ if datatype == "BYTES" else None)
    except ValueError as error:
        raise InvalidRequest(f"input '{name}' is not a tensor: {error}") from None
    if datatype == "BYTES":
        return _as_bytes(array, name)
    dtype = DATATYPES[datatype]
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        if array.size == 0 or (array.dtype.kind in "biuf" and _fits(array, dtype)):
            return array.astype(dtype)
    raise InvalidRequest(f"input '{name}' takes {datatype}, and {array.dtype} values do not fit without loss")


def _fitted(value: Any, spec: TensorSpec) -> Tensor:
    """In the declared datatype, and with the batch dimension."""
    array = as_tensor(value, spec.name, spec.datatype)
    if spec.shape[:1] == (-1,) and array.ndim == len(spec.shape) - 1:
        return array[np.newaxis]
    return array


def _as_bytes(array: Tensor, name: str) -> Tensor:
    result = np.empty(array.shape, np.object_)
    for index, item in np.ndenumerate(array):
        if not isinstance(item, bytes | str):
            raise InvalidRequest(f"input '{name}' takes text, got {type(item).__name__}")
        result[index] = item.encode() if isinstance(item, str) else bytes(item)
    return result


def _fits(array: Tensor, dtype: np.dtype[Any]) -> bool:
    converted = array.astype(dtype)
    if dtype.kind in "biu":
        return bool((converted == array).all())
    return bool((np.isfinite(converted.astype(np.float64)) == np.isfinite(array)).all())
