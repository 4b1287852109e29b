"""Inference messages of gRPC: requests made of tensors, replies read with mistrust."""

import math
from collections.abc import Mapping
from typing import Any, Final

from ekiben.conformance.verdicts import Failed, expect, shortened
from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Tensor, datatype_of
from ekiben.wire.binary_tensor import binary_from_tensor, bytes_elements, tensor_from_binary
from ekiben.wire.protos.oip import OIP
from ekiben.wire.typed_contents import tensor_from_contents

__all__ = ["message", "outputs_of", "raw_fields", "typed_fields"]

_CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def raw_fields(model: str, inputs: Mapping[str, Tensor], **more: Any) -> dict[str, Any]:
    """Fields of a ModelInferRequest whose tensors are in raw_input_contents."""
    given = [_described(name, tensor) for name, tensor in inputs.items()]
    blobs = [bytes(binary_from_tensor(tensor)) for tensor in inputs.values()]
    return {"model_name": model, "inputs": given, "raw_input_contents": blobs, **more}


def typed_fields(model: str, inputs: Mapping[str, Tensor], **more: Any) -> dict[str, Any]:
    """Fields of a ModelInferRequest whose tensors are in the contents of their inputs."""
    given = []
    for name, tensor in inputs.items():
        field = _CONTENTS[datatype_of(tensor)]
        elements = bytes_elements(tensor) if field == "bytes_contents" else tensor.reshape(-1).tolist()
        given.append({**_described(name, tensor), "contents": {field: elements}})
    return {"model_name": model, "inputs": given, **more}


def _described(name: str, tensor: Tensor) -> dict[str, Any]:
    return {"name": name, "datatype": datatype_of(tensor), "shape": list(tensor.shape)}


def outputs_of(reply: Any) -> dict[str, Tensor]:
    """The tensors of a ModelInferResponse, raw or typed; both at once is a fault. Raises Failed."""
    raw = list(reply.raw_output_contents)
    expect(len(raw) in (0, len(reply.outputs)), f"{len(reply.outputs)} raw outputs, or none", f"{len(raw)}")
    tensors: dict[str, Tensor] = {}
    for place, output in enumerate(reply.outputs):
        where = f"output '{output.name}'"
        shape = list(output.shape)
        expect(output.datatype in DATATYPES, f"a datatype of the protocol for {where}", output.datatype)
        expect(all(size >= 0 for size in shape), f"sizes in the shape of {where}", shape)
        expect(output.name not in tensors, "each output once", f"{where} twice")
        # Contents that are there and hold nothing are as good as none.
        typed = bool(output.contents.ListFields())
        expect(not (raw and typed), f"either raw or typed contents for {where}", "both")
        try:
            if raw:
                blob = raw[place]
                tensor = tensor_from_binary("", output.name, output.datatype, shape, blob, 0, len(blob))
            else:
                tensor = tensor_from_contents("", output.name, output.datatype, shape, output.contents)
        except InvalidRequest as error:
            count = math.prod(shape)
            raise Failed(f"expected {count} {output.datatype} in {where}; got {shortened(error.message)}") from None
        tensors[output.name] = tensor
    return tensors


def message(fields: Mapping[str, Any]) -> Any:
    """A ModelInferRequest."""
    return OIP.message("ModelInferRequest")(**fields)
