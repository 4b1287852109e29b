"""ModelInfer requests as tests write them, decoded in every way there is."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from ekiben.errors import EkibenError, InvalidRequest
from ekiben.types import Request
from ekiben.wire.oip_json import InferCall
from ekiben.wire.oip_proto import InferCodec

UNKNOWN_FIELD = b"\xa0\x1f\x01"
"""Sends a message the way of those that are parsed whole."""


def message(*inputs: tuple[str, str, list[int], bytes | None], **more: Any) -> Any:
    """A request for model 'm'; an input's blob goes to raw_input_contents, unless it is None."""
    made = service_pb2.ModelInferRequest(model_name="m", **more)
    for name, datatype, shape, blob in inputs:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        if blob is not None:
            made.raw_input_contents.append(blob)
    return made


def typed(datatype: str, shape: list[int], **contents: Any) -> Any:
    made = message(("i", datatype, shape, None))
    made.inputs[0].contents.SetInParent()
    for field, values in contents.items():
        getattr(made.inputs[0].contents, field).extend(values)
    return made


def with_output(**parameters: Any) -> Any:
    """A request with an output 'o' that has these parameters, each with its kind."""
    request = message(("i", "INT8", [1], b"x"))
    output = request.outputs.add(name="o")
    for key, (kind, value) in parameters.items():
        setattr(output.parameters[key], kind, value)
    return request


def every_way(request: Any) -> list[InferCall]:
    """As bytes and as a view, for the first and the second time, and parsed whole."""
    data = request.SerializeToString()
    codec = InferCodec()
    return [
        codec.decode_infer(data),
        codec.decode_infer(memoryview(data)),
        codec.decode_infer(data + UNKNOWN_FIELD),
        codec.decode_infer(UNKNOWN_FIELD + data),
    ]


def decoded(request: Any) -> Request:
    first, *others = every_way(request)
    for other in others:
        assert same(first, other)
    return first.request


def same(left: InferCall, right: InferCall) -> bool:
    assert left.request.inputs.keys() == right.request.inputs.keys()
    for name, tensor in left.request.inputs.items():
        other = right.request.inputs[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert tensor.tolist() == other.tolist() or tensor.tobytes() == other.tobytes()
    plain = [(call.request, call.wishes, call.classifies, call.binary) for call in (left, right)]
    fields = ("model", "version", "id", "outputs", "parameters", "signature")
    assert [getattr(plain[0][0], field) for field in fields] == [getattr(plain[1][0], field) for field in fields]
    return plain[0][1:] == plain[1][1:]


def refused(request: Any, kind: type[EkibenError] = InvalidRequest) -> str:
    data = request if isinstance(request, bytes) else request.SerializeToString()
    messages = set()
    codec = InferCodec()
    for each in (data, memoryview(data), data + UNKNOWN_FIELD):
        with pytest.raises(kind) as caught:
            codec.decode_infer(each)
        messages.add(str(caught.value))
    assert len(messages) == 1
    return messages.pop()
