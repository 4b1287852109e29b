"""Tensors as raw bytes: little-endian, row-major, no padding; the binary tensor data extension.

A BYTES element is its length as four little-endian bytes, then the bytes themselves.
"""

import math
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from ekiben.errors import InvalidRequest, TooLarge
from ekiben.types import DATATYPES, Tensor

__all__ = [
    "MOST_TEXTS",
    "binary_from_tensor",
    "bytes_array",
    "bytes_elements",
    "check_text",
    "shaped",
    "tensor_from_binary",
]

MOST_TEXTS: Final = 1 << 18
"""BYTES elements of one tensor: each is an object, and takes its time on the event loop."""
_LENGTH: Final = struct.Struct("<I")
_COUNTED: Final = 1024
"""Elements over the expected number that are still counted, for the message."""


def shaped(name: str, flat: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in their shape, whose product the caller has checked.

    Raises InvalidRequest for what numpy cannot address: a dimension of zero beside an enormous one.
    """
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"shape {list(shape)} of input '{name}' is too large") from None


def check_text(name: str, count: int) -> None:
    """Raise TooLarge for more BYTES elements than can be handled one by one while others wait."""
    if count > MOST_TEXTS:
        raise TooLarge(f"input '{name}' has {count} BYTES elements, and a request may have {MOST_TEXTS} in one tensor")


def bytes_array(elements: Sequence[bytes]) -> Tensor:
    """A flat BYTES tensor."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def tensor_from_binary(
    model: str, name: str, datatype: str, shape: Sequence[int], body: bytes | memoryview, offset: int, size: int
) -> Tensor:
    """The tensor in `body[offset:offset + size]`: a view of it, but for BYTES. Raises InvalidRequest."""
    count = math.prod(shape)  # in Python's integers: exact at any size, and nothing is allocated
    if datatype == "BYTES":
        check_text(name, count)
        return shaped(
            name, bytes_array(_bytes_elements(model, name, count, bytes(body[offset : offset + size]))), shape
        )
    dtype = DATATYPES[datatype]
    if count * dtype.itemsize != size:
        raise InvalidRequest(
            f"input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {count * dtype.itemsize}, got {size}"
        )
    if datatype == "BOOL":
        flags = np.frombuffer(body, np.uint8, count, offset)
        # numpy takes a bool to be 0 or 1; any other byte from the wire would be undefined behaviour downstream.
        flat: Tensor = flags.view(np.bool_) if not count or flags.max() <= 1 else flags != 0
    else:
        flat = np.frombuffer(body, dtype, count, offset)
    return shaped(name, flat, shape)


def _bytes_elements(model: str, name: str, count: int, data: bytes) -> list[bytes]:
    elements: list[bytes] = []
    end = len(data)
    position = found = 0
    while position < end:
        if end - position < 4:
            raise InvalidRequest(
                f"incomplete string length indicator for inference input '{name}' for model '{model}', "
                f"expecting 4 bytes but only {end - position} bytes available"
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if length > end - position:
            raise InvalidRequest(
                f"incomplete string data for inference input '{name}' for model '{model}', "
                f"expecting string of length {length} but only {end - position} bytes available"
            )
        found += 1
        if found <= count:
            elements.append(data[position : position + length])
        elif found > count + _COUNTED:
            break
        position += length
    if found != count:
        raise InvalidRequest(
            f"unexpected number of string elements {found} for inference input '{name}' for model '{model}', "
            f"expecting {count}"
        )
    return elements


def bytes_elements(tensor: Tensor) -> list[bytes]:
    """The elements of a BYTES tensor, row-major; text that a runtime left as `str` is UTF-8."""
    return [
        element if type(element) is bytes else element.encode() if isinstance(element, str) else bytes(element)
        for element in tensor.reshape(-1).tolist()
    ]


def binary_from_tensor(tensor: Tensor) -> memoryview | bytes:
    """The tensor's bytes, without a copy where it is contiguous."""
    if tensor.dtype.kind in "OSU":
        pack = _LENGTH.pack
        return b"".join([part for element in bytes_elements(tensor) for part in (pack(len(element)), element)])
    # By way of uint8: the buffer protocol has no format for bfloat16.
    return tensor.ravel().view(np.uint8).data
