"""Tensors as InferTensorContents: a repeated field for each family of datatypes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Tensor
from ekiben.wire.binary_tensor import bytes_array, shaped

__all__ = ["tensor_from_contents"]

_FIELDS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype → where its elements stand. FP16 and BF16 have no such field."""

_WIDEST: Final[Mapping[str, str]] = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}


def tensor_from_contents(model: str, name: str, datatype: str, shape: Sequence[int], contents: Any) -> Tensor:
    """The tensor in an InferTensorContents message. Raises InvalidRequest."""
    field = _FIELDS.get(datatype)
    for given, _ in contents.ListFields():
        if given.name != field:
            raise InvalidRequest(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' "
                f"of type '{_WIDEST[given.name]}', expected datatype '{datatype}'"
            )
    if field is None:
        raise InvalidRequest(
            f"input tensor '{name}' for model '{model}' is of datatype '{datatype}', which is only sent in "
            "raw_input_contents"
        )
    elements = getattr(contents, field)
    found, count = len(elements), math.prod(shape)
    if found != count:
        if datatype == "BYTES":
            raise InvalidRequest(
                f"unexpected number of string elements {found} for inference input '{name}' for model '{model}', "
                f"expecting {count}"
            )
        size = DATATYPES[datatype].itemsize
        raise InvalidRequest(
            f"input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {count * size}, got {found * size}"
        )
    if datatype == "BYTES":
        return shaped(name, bytes_array(list(elements)), shape)
    return shaped(name, _READERS[field](model, name, datatype, found, contents), shape)


def _fixed(_model: str, _name: str, datatype: str, count: int, contents: Any) -> Tensor:
    """Elements that protobuf writes as we need them; they are the end of the message, which holds nothing else."""
    serialized = contents.SerializeToString()
    dtype = DATATYPES[datatype]
    return np.frombuffer(serialized, dtype, count, len(serialized) - count * dtype.itemsize)


def _integers(model: str, name: str, datatype: str, count: int, contents: Any) -> Tensor:
    dtype = DATATYPES[datatype]
    wide = np.dtype(np.int64 if dtype.kind == "i" else np.uint64)
    values = np.fromiter(getattr(contents, _FIELDS[datatype]), wide, count)
    narrow = values.astype(dtype)
    wrong = np.flatnonzero(narrow != values)
    if wrong.size:
        raise InvalidRequest(
            f"value {values[wrong[0]]} of input '{name}' for model '{model}' is out of range for {datatype}"
        )
    return narrow


_READERS: Final[Mapping[str, Callable[[str, str, str, int, Any], Tensor]]] = {
    "bool_contents": _fixed,
    "int_contents": _integers,
    "int64_contents": _integers,
    "uint_contents": _integers,
    "uint64_contents": _integers,
    "fp32_contents": _fixed,
    "fp64_contents": _fixed,
}
