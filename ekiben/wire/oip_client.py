"""The client's side of the Open Inference Protocol over HTTP: requests → bodies, replies → responses, in binary."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ekiben.errors import EkibenError, InferenceFailed, InvalidRequest, NotFound, Restricted, Unavailable, Unsupported
from ekiben.types import Request, Response, Signature, Tensor, TensorSpec, datatype_of
from ekiben.wire.binary_tensor import binary_from_tensor, tensor_from_binary

__all__ = ["decode_metadata", "decode_reply", "encode_request", "error_of", "model_path"]

_ERRORS: Final[Mapping[int, type[EkibenError]]] = {
    400: InvalidRequest,
    403: Restricted,
    404: NotFound,
    501: Unsupported,
    503: Unavailable,
}


def model_path(model: str, version: str = "") -> str:
    """The path of a model's metadata."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def encode_request(request: Request) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference request; every output is asked for in binary."""
    blobs = [binary_from_tensor(tensor) for tensor in request.inputs.values()]
    waiting = {"priority": request.priority, "timeout": request.timeout_us}
    header = msgspec.json.encode(
        {
            **({"id": request.id} if request.id else {}),
            "parameters": {
                **request.parameters,
                **{name: value for name, value in waiting.items() if value},
                "binary_data_output": True,
            },
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype_of(tensor),
                    "shape": tensor.shape,
                    "parameters": {"binary_data_size": len(blob)},
                }
                for (name, tensor), blob in zip(request.inputs.items(), blobs, strict=True)
            ],
            **({"outputs": [{"name": name} for name in request.outputs]} if request.outputs else {}),
        }
    )
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(header))}
    return b"".join((header, *blobs)), headers


def decode_reply(body: bytes, json_length: int) -> Response:
    """The response in a body whose outputs are all binary; `json_length` is the header that came with it."""
    header: dict[str, Any] = msgspec.json.decode(body[:json_length])
    outputs: dict[str, Tensor] = {}
    offset = json_length
    for output in header["outputs"]:
        size = output["parameters"]["binary_data_size"]
        name = output["name"]
        outputs[name] = tensor_from_binary(
            header["model_name"], name, output["datatype"], output["shape"], body, offset, size
        )
        offset += size
    return Response(header["model_name"], header.get("model_version", ""), outputs)


def decode_metadata(body: bytes) -> Signature:
    """The default signature in a model's metadata."""
    metadata: dict[str, Any] = msgspec.json.decode(body)
    inputs, outputs = (
        tuple(TensorSpec(spec["name"], spec["datatype"], tuple(spec["shape"])) for spec in metadata[kind])
        for kind in ("inputs", "outputs")
    )
    return Signature(inputs, outputs)


def error_of(status: int, body: bytes) -> EkibenError:
    """The error that a reply with this status carries."""
    try:
        message = str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"HTTP status {status}"
    return _ERRORS.get(status, InferenceFailed)(message)
