"""Inference requests for HTTP, made piece by piece so that a check can send a wrong one as easily as a right one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ekiben.types import DATATYPES, Tensor, TensorSpec, datatype_of
from ekiben.wire.binary_tensor import binary_from_tensor, bytes_elements

__all__ = ["BinaryBody", "as_binary", "as_json", "binary_body", "encoded", "outputs_wanted", "request", "sample_tensor"]

_COUNT: Final = 7
"""Counting values start again here: small enough for any datatype, and for most models that look things up."""


class BinaryBody(msgspec.Struct, frozen=True):
    """A body of JSON and blobs, and the header that says where the JSON ends."""

    body: bytes
    header_length: int

    def headers(self) -> dict[str, str]:
        """As keyword arguments of HttpClient.post."""
        return {"content_type": "application/octet-stream", "inference_header_content_length": str(self.header_length)}


def request(inputs: Iterable[Mapping[str, Any]], **members: Any) -> dict[str, Any]:
    """An inference request; `members` are the optional ones: id, parameters, outputs."""
    return {"inputs": list(inputs), **members}


def encoded(document: object) -> bytes:
    """As JSON; non-finite numbers become the tokens NaN and Infinity."""
    return _json(document).encode()


def _json(value: Any) -> str:
    # numpy's own text of a float32 is the shortest that is the same number; Python's would be that of a double.
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_json(key)}:{_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_json(each) for each in value) + "]"
    if isinstance(value, np.floating | float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, np.floating):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    return msgspec.json.encode(value).decode()


def as_json(name: str, tensor: Tensor, *, nested: bool = False) -> dict[str, Any]:
    """An input whose data are numbers or text in the JSON, flat unless `nested`."""
    if tensor.dtype == np.object_:
        texts = np.array([each.decode() for each in bytes_elements(tensor)], np.object_)
        tensor, datatype = texts.reshape(tensor.shape), "BYTES"
    else:
        datatype = datatype_of(tensor)
    data = _nested(tensor) if nested else list(tensor.reshape(-1))
    return {"name": name, "shape": list(tensor.shape), "datatype": datatype, "data": data}


def _nested(tensor: Tensor) -> Any:
    return [_nested(part) for part in tensor] if tensor.ndim > 1 else list(tensor.reshape(-1))


def as_binary(name: str, tensor: Tensor) -> tuple[dict[str, Any], bytes]:
    """An input whose data are a blob, and the blob."""
    blob = bytes(binary_from_tensor(tensor))
    place = {"binary_data_size": len(blob)}
    return {"name": name, "shape": list(tensor.shape), "datatype": datatype_of(tensor), "parameters": place}, blob


def binary_body(document: object, blobs: Sequence[bytes]) -> BinaryBody:
    """JSON, then the blobs."""
    head = encoded(document)
    return BinaryBody(b"".join((head, *blobs)), len(head))


def outputs_wanted(names: Iterable[str], **parameters: object) -> list[dict[str, Any]]:
    """The `outputs` of a request, each with these parameters."""
    return [{"name": name, **({"parameters": parameters} if parameters else {})} for name in names]


def sample_tensor(spec: TensorSpec, kind: str, variable: int, rows: int = 1) -> Tensor:
    """A tensor of the input's shape; its first dimension, where variable, is `rows`, the others `variable`.

    `kind` is `counting` (1, 2, 3 … and over again), `ones` or `zeros`; a BYTES tensor has them as decimal text.
    """
    sizes = [variable if size < 0 else size for size in spec.shape]
    if spec.shape and spec.shape[0] < 0:
        sizes[0] = rows
    count = math.prod(sizes)
    numbers = {"counting": np.arange(count) % _COUNT + 1, "ones": np.ones(count), "zeros": np.zeros(count)}[kind]
    if spec.datatype == "BYTES":
        flat = np.array([str(int(number)).encode() for number in numbers], np.object_)
    elif spec.datatype == "BOOL" and kind == "counting":
        flat = numbers % 2 == 1
    else:
        flat = numbers.astype(DATATYPES[spec.datatype])
    return flat.reshape(sizes)
