"""Tensors as JSON: numbers without an object each, ranges and types checked, values exact.

A tensor's `data` is flat or nested, row-major. Integers stay integers up to 64 bits; a number that its datatype
cannot hold is refused, never wrapped or rounded to another kind.
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
import orjson
import simdjson

from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Tensor
from ekiben.wire.binary_tensor import bytes_array, bytes_elements, check_text, shaped
from ekiben.wire.json_text import Repaired

__all__ = ["FLOAT32_BOUND", "JsonData", "float_tensor", "json_data", "tensor_from_json", "with_non_finite"]

JsonData: TypeAlias = Tensor | list[str] | orjson.Fragment
"""What orjson writes (OPT_SERIALIZE_NUMPY) as a tensor's `data`."""

FLOAT32_BOUND: Final = 3.4028235677973366e38
"""The smallest number that rounds to infinity."""
_SLICE: Final = 1 << 18
"""Numbers that are written in one go."""
_EXPLAINED: Final = 10_000
"""Elements that are looked at for the message."""
_COUNTED: Final = 1024
"""Elements over the expected number that are still counted, for the message."""
_RANK: Final = 32
_SPARE_ARRAYS: Final = 1_000_000
"""Arrays without elements, as of a shape with a 0, that are still read."""
_Kind: TypeAlias = Literal["d", "i", "u"]
_WIDE: Final[dict[str, tuple[_Kind, np.dtype[Any]]]] = {
    "f": ("d", np.dtype(np.float64)),
    "i": ("i", np.dtype(np.int64)),
    "u": ("u", np.dtype(np.uint64)),
}
"""numpy's kind → simdjson's name of its widest type, and that type."""
_NUMBERS: Final[dict[str, tuple[_Kind, np.dtype[Any], np.dtype[Any]]]] = {
    datatype: (*_WIDE[dtype.kind], dtype)
    for datatype, dtype in DATATYPES.items()
    if dtype.kind in _WIDE and datatype != "FP16"
}
_T = TypeVar("_T")


def tensor_from_json(
    name: str, datatype: str, shape: Sequence[int], data: simdjson.Array, repaired: Repaired | None = None
) -> Tensor:
    """The tensor that a parsed `data` array holds. Raises InvalidRequest naming the input and the first bad element."""
    count = math.prod(shape)
    flat: Tensor
    if datatype in _NUMBERS:
        flat = _numbers(name, datatype, data, repaired)
    elif datatype == "BYTES":
        check_text(name, count)
        texts = _elements(name, datatype, data, str, count, repaired)
        if repaired is not None:
            texts = [repaired.string(text) for text in texts]
        _check_count(name, shape, count, len(texts))
        return shaped(name, bytes_array([text.encode() for text in texts]), shape)
    elif datatype == "BOOL":
        flat = np.array(_elements(name, datatype, data, bool, count, repaired), np.bool_)
    else:
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if flat.size != count:
        _check_count(name, shape, count, flat.size)
    return flat.reshape(shape) if count else shaped(name, flat, shape)


def float_tensor(name: str, shape: Sequence[int], data: Sequence[float]) -> Tensor:
    """An FP32 tensor of a few numbers that are within its range."""
    flat = np.array(data, np.float32)
    if flat.size != math.prod(shape):
        _check_count(name, shape, math.prod(shape), flat.size)
    return flat.reshape(shape) if data else shaped(name, flat, shape)


def _check_count(name: str, shape: Sequence[int], count: int, found: int) -> None:
    if found != count:
        raise InvalidRequest(
            f"Unable to parse 'data' of input '{name}': shape {list(shape)} holds {count} elements, got {found}"
        )


def _numbers(name: str, datatype: str, data: simdjson.Array, repaired: Repaired | None) -> Tensor:
    kind, wide, dtype = _NUMBERS[datatype]
    try:
        values: Tensor = np.frombuffer(data.as_buffer(of_type=kind), wide)
    except (TypeError, ValueError):
        raise _fault(name, datatype, data, repaired) from None
    if kind == "d":
        if repaired is not None:
            values = repaired.numbers(values)
        if datatype == "FP64":
            return values
        # argmax and item: several times cheaper than max for the usual few elements. NaN comes out as either extreme.
        if values.size and not (
            values.item(values.argmax()) < FLOAT32_BOUND and values.item(values.argmin()) > -FLOAT32_BOUND
        ):
            finite = values[np.isfinite(values)]
            if finite.size and np.abs(finite).max() >= FLOAT32_BOUND:
                raise _fault(name, datatype, data, repaired)
        return values.astype(dtype)
    if dtype.itemsize == 8:
        return values
    narrow: Tensor = values.astype(dtype)
    # Compared as bytes, which for the usual few elements is several times cheaper than an array operation.
    if narrow.astype(values.dtype).tobytes() != values.tobytes():
        raise _fault(name, datatype, data, repaired)
    return narrow


def _elements(
    name: str, datatype: str, data: simdjson.Array, kind: type[_T], count: int, repaired: Repaired | None
) -> list[_T]:
    """The elements, checked one by one. `count` is what the shape needs; not much more than that is looked at."""
    elements: list[_T] = []
    for element in _flattened(data, repaired, [_RANK * count + _SPARE_ARRAYS]):
        if not isinstance(element, kind):
            raise _bad_element(name, datatype, len(elements), element)
        elements.append(element)
        if len(elements) > count + _COUNTED:
            break
    return elements


def _flattened(data: simdjson.Array, repaired: Repaired | None, arrays: list[int]) -> Iterator[object]:
    """`arrays` holds how many more arrays may be entered; what comes after them is left out."""
    for element in data:
        if isinstance(element, simdjson.Array):
            arrays[0] -= 1
            if arrays[0] < 0:
                return
            yield from _flattened(element, repaired, arrays)
        else:
            yield repaired.number(element) if repaired is not None and isinstance(element, float) else element


def _fault(name: str, datatype: str, data: simdjson.Array, repaired: Repaired | None) -> InvalidRequest:
    """The error for an array that its datatype cannot hold: names the first offender among the leading elements."""
    dtype = DATATYPES[datatype]
    for index, element in enumerate(itertools.islice(_flattened(data, repaired, [_EXPLAINED]), _EXPLAINED)):
        if type(element) is bool or not isinstance(element, int | float):
            return _bad_element(name, datatype, index, element)
        if dtype.kind == "f":
            if FLOAT32_BOUND <= abs(element) < math.inf:
                return _bad_element(name, datatype, index, element)
        elif type(element) is float or not np.iinfo(dtype).min <= element <= np.iinfo(dtype).max:
            return _bad_element(name, datatype, index, element)
    return InvalidRequest(f"Unable to parse 'data' of input '{name}': it has elements that {datatype} cannot hold")


def _bad_element(name: str, datatype: str, index: int, element: object) -> InvalidRequest:
    dtype = DATATYPES[datatype]
    if dtype.kind in "iu":
        wanted = f"an integer from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
    else:
        wanted = {"f": "a number in its range", "b": "true or false", "O": "a string"}[dtype.kind]
    if isinstance(element, simdjson.Object):
        shown = "an object"
    else:
        shown = json.dumps(element, ensure_ascii=False)
        shown = shown if len(shown) <= 40 else shown[:40] + "…"
    return InvalidRequest(
        f"Unable to parse 'data' of input '{name}': element {index} is {shown}, {datatype} needs {wanted}"
    )


def json_data(model: str, name: str, datatype: str, tensor: Tensor) -> JsonData:
    """A tensor as orjson can write it, flat; non-finite numbers come out as null (see `with_non_finite`).

    Raises InvalidRequest where JSON cannot carry it.
    """
    if datatype == "BYTES":
        try:
            return [element.decode() for element in bytes_elements(tensor)]
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"output '{name}' of model '{model}' holds bytes that are not UTF-8 text. "
                f"Please use the binary data format for output '{name}'"
            ) from None
    if datatype in ("FP16", "BF16"):
        raise InvalidRequest(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output {name}"
        )
    flat = tensor.ravel()
    if flat.size <= _SLICE:
        return flat
    # One call of orjson would keep every other thread waiting for as long as it takes.
    slices = (_dumped(flat[start : start + _SLICE]) for start in range(0, flat.size, _SLICE))
    return orjson.Fragment(b"[" + b",".join(piece[1:-1] for piece in slices) + b"]")


def with_non_finite(data: JsonData) -> JsonData:
    """The same data with NaN, Infinity and -Infinity spelt as Python's json does, where there are any."""
    return orjson.Fragment(_dumped(data)) if isinstance(data, np.ndarray) and data.dtype.kind == "f" else data


def _dumped(data: Tensor) -> bytes:
    """A flat numeric array as JSON; orjson writes null for what is not finite."""
    text = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" not in text:
        return text
    infinite = np.isinf(data)
    if not infinite.any():
        return text.replace(b"null", b"NaN")
    largest = np.finfo(data.dtype).max
    if (np.abs(data) == largest).any():
        return _spelt_one_by_one(data, text)
    # The largest number stands for infinity, and its text is then replaced; its sign is in front of it already.
    text = orjson.dumps(np.where(infinite, np.copysign(largest, data), data), option=orjson.OPT_SERIALIZE_NUMPY)
    stand_in = orjson.dumps(np.array([largest], data.dtype), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    return text.replace(b"null", b"NaN").replace(stand_in, b"Infinity")


def _spelt_one_by_one(data: Tensor, text: bytes) -> bytes:
    pieces = text.split(b"null")
    strange = data[~np.isfinite(data)]
    tokens = np.where(np.isnan(strange), "NaN", np.where(strange > 0, "Infinity", "-Infinity")).tolist()
    parts = [pieces[0]]
    for token, piece in zip(tokens, pieces[1:], strict=True):
        parts += (token.encode(), piece)
    return b"".join(parts)
