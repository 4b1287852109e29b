"""The one request that a run repeats, and how to read the numbers out of its answer."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["Call", "Floats", "bentoml_call", "binary_call", "json_call"]

Floats: TypeAlias = NDArray[np.float32]
Read: TypeAlias = Callable[[Mapping[str, str], bytes], Floats]
"""(response headers, body) → the first output, flat."""

INFER_HEADER_LENGTH = "Inference-Header-Content-Length"


class Call(msgspec.Struct, frozen=True):
    """A POST."""

    path: str
    body: bytes
    headers: dict[str, str]
    read: Read


def json_call(model: str, name: str, rows: Floats) -> Call:
    """Open Inference Protocol, everything as JSON."""
    tensor = {"name": name, "datatype": "FP32", "shape": list(rows.shape), "data": _numbers(rows.ravel())}
    return Call(
        path=f"/v2/models/{model}/infer",
        body=msgspec.json.encode({"inputs": [tensor]}),
        headers={"Content-Type": "application/json"},
        read=lambda _, body: _flat(msgspec.json.decode(body)["outputs"][0]["data"]),
    )


def binary_call(model: str, name: str, output: str, rows: Floats) -> Call:
    """Open Inference Protocol with the binary tensor extension in both directions."""
    data = rows.tobytes()
    tensor = {
        "name": name,
        "datatype": "FP32",
        "shape": list(rows.shape),
        "parameters": {"binary_data_size": len(data)},
    }
    wanted = {"name": output, "parameters": {"binary_data": True}}
    header = msgspec.json.encode({"inputs": [tensor], "outputs": [wanted]})
    return Call(
        path=f"/v2/models/{model}/infer",
        body=header + data,
        headers={"Content-Type": "application/octet-stream", INFER_HEADER_LENGTH: str(len(header))},
        read=lambda headers, body: np.frombuffer(body[int(headers[INFER_HEADER_LENGTH]) :], np.float32),
    )


def bentoml_call(rows: Floats) -> Call:
    """What `@bentoml.api def predict(self, x)` takes."""
    return Call(
        path="/predict",
        body=msgspec.json.encode({"x": [_numbers(row) for row in rows]}),
        headers={"Content-Type": "application/json"},
        read=lambda _, body: _flat(msgspec.json.decode(body)),
    )


def _numbers(values: Floats) -> list[float]:
    """As doubles of few digits, so that the same short text goes to every server."""
    return [round(float(value), 4) for value in values]


def _flat(data: object) -> Floats:
    return np.asarray(data, np.float32).ravel()
