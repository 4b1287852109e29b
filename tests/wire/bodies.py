"""Requests as tests write them, decoded the small and the large way."""

import json

import pytest

from ekiben.errors import EkibenError, InvalidRequest
from ekiben.types import DATATYPES, Tensor
from ekiben.wire.oip_json import InferCall, InferDecoder

PADDING = ("", "x" * 9000)
"""An unknown field of this size sends a document the small or the large way."""


def json_input(datatype: object, data: object, shape: object = None, /, **more: object) -> dict[str, object]:
    """`more` replaces or adds fields; without a shape the data are flat."""
    if shape is None:
        shape = [len(data)] if isinstance(data, list) else []
    return {"name": "i", "datatype": datatype, "shape": shape, "data": data, **more}


def decode(document: object, blobs: bytes = b"", depth: int = 100) -> InferCall:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return InferDecoder(depth).decode("m", "", text + blobs, len(text) if blobs else -1)


def one(datatype: str, data: object, shape: list[int] | None = None, padding: str = "") -> Tensor:
    return decode({"z": padding, "inputs": [json_input(datatype, data, shape)]}).request.inputs["i"]


def both_ways(datatype: str, data: object, shape: list[int] | None = None) -> Tensor:
    small, large = (one(datatype, data, shape, padding) for padding in PADDING)
    assert small.dtype == large.dtype == DATATYPES[datatype]
    assert small.shape == large.shape
    assert small.tolist() == large.tolist() or small.tobytes() == large.tobytes()
    return small


def refused(document: object, blobs: bytes = b"", kind: type[EkibenError] = InvalidRequest) -> str:
    messages = []
    for padding in PADDING:
        padded = document
        if isinstance(document, dict):
            padded = {"z": padding, **document}
        with pytest.raises(kind) as caught:
            decode(padded, blobs)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return messages[0]


def binary_input(datatype: str, shape: list[int], size: object, name: str = "i") -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
