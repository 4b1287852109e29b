"""The gRPC part of the little server: a function from message to message, which faults wrap, and a client of it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import json_format

from ekiben.conformance.grpc_call import GrpcStatus
from ekiben.wire.protos.grpc import HEALTH
from ekiben.wire.protos.oip import OIP
from tests.conformance.little_http import LOG, REGIONS, TRACE, metadata
from tests.conformance.little_models import (
    DTYPES,
    EXTENSIONS,
    MODELS,
    Array,
    Refused,
    State,
    check_parameters,
    config,
    packed,
    unpacked,
)


class GrpcAsked(NamedTuple):
    """A call, or one message of a stream."""

    method: str
    message: Any
    compression: str = ""


GrpcAnswerer = Callable[[GrpcAsked], Any]
GrpcFault = Callable[[GrpcAsked, GrpcAnswerer], Any]
"""Stands before the honest answerer, which raises Refused for an error. A reply of bytes is sent as it is."""

_FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def honest(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    """No fault."""
    return answer(asked)


class LittleGrpc:
    """Answers messages."""

    def __init__(self, state: State) -> None:
        self._state = state

    def answer(self, asked: GrpcAsked) -> Any:
        """The right reply. Raises Refused."""
        reply = self._reply(asked.method, asked.message)
        kind = OIP.message(f"{asked.method}Response")
        return json_format.ParseDict(reply, kind()) if isinstance(reply, dict) else reply

    def _reply(self, method: str, request: Any) -> Any:
        state = self._state
        match method:
            case "ServerLive":
                return {"live": True}
            case "ServerReady":
                return {"ready": True}
            case "ServerMetadata":
                return {"name": "little", "version": "1", "extensions": list(EXTENSIONS)}
            case "ModelReady":
                return {"ready": request.name in state.loaded}
            case "ModelMetadata":
                return metadata(state.model(request.name, request.version))
            case "ModelConfig":
                made = config(state.model(request.name, request.version))
                made.pop("sequence_batching", None)
                return {"config": made}
            case "ModelStatistics":
                success = {"count": state.successes[request.name]}
                return {"model_stats": [{"name": request.name, "inference_stats": {"success": success}}]}
            case "RepositoryIndex":
                states = {name: "READY" if name in state.loaded else "UNAVAILABLE" for name in MODELS}
                return {"models": [{"name": name, "state": states[name]} for name in MODELS]}
            case "RepositoryModelLoad" | "RepositoryModelUnload":
                state.change(request.model_name, method.removeprefix("RepositoryModel").lower())
                return {}
            case "TraceSetting":
                return {"settings": {key: {"value": _texts(value)} for key, value in TRACE.items()}}
            case "LogSettings":
                return {"settings": {key: {_parameter(value): value} for key, value in LOG.items()}}
            case "SystemSharedMemoryStatus":
                return {"regions": {"r": REGIONS["systemsharedmemory"]}}
            case "CudaSharedMemoryStatus":
                return {"regions": {"c": REGIONS["cudasharedmemory"]}}
        return self._infer(request)

    def streamed(self, asked: GrpcAsked) -> Any:
        """One reply of a stream."""
        try:
            return OIP.message("ModelStreamInferResponse")(infer_response=self._infer(asked.message))
        except Refused as error:
            return OIP.message("ModelStreamInferResponse")(error_message=str(error))

    def _infer(self, request: Any) -> Any:
        model = self._state.model(request.model_name, request.model_version)
        given = check_parameters(
            {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()}
        )
        raw = list(request.raw_input_contents)
        if raw and any(each.contents.ListFields() for each in request.inputs):
            raise Refused("both raw and typed contents")
        if raw and len(raw) != len(request.inputs):
            raise Refused("few raw contents" if len(raw) < len(request.inputs) else "many raw contents")
        inputs = [
            (
                each.name,
                each.datatype,
                unpacked(each.datatype, each.shape, raw[at]) if raw else _typed(each),
            )
            for at, each in enumerate(request.inputs)
        ]
        outputs = self._state.infer(model, inputs, [each.name for each in request.outputs], given)
        datatypes = {spec.name: spec.datatype for spec in model.outputs}
        return OIP.message("ModelInferResponse")(
            model_name=model.name,
            model_version=request.model_version or model.versions[-1],
            id=request.id,
            outputs=[{"name": key, "datatype": datatypes[key], "shape": each.shape} for key, each in outputs.items()],
            raw_output_contents=[packed(tensor) for tensor in outputs.values()],
        )


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _parameter(value: object) -> str:
    return {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]


def _typed(given: Any) -> Array:
    if given.datatype not in _FIELDS:
        raise Refused(f"typed contents of {given.datatype}")
    elements = list(getattr(given.contents, _FIELDS[given.datatype]))
    if len(elements) != int(np.prod(given.shape)):
        raise Refused(f"size of typed contents is {len(elements)}")
    if given.datatype == "BYTES":
        return unpacked("BYTES", given.shape, b"".join(len(each).to_bytes(4, "little") + each for each in elements))
    return np.array(elements, DTYPES[given.datatype]).reshape(given.shape)


class LittleGrpcClient:
    """What the suite calls, without a network between."""

    def __init__(self, state: State, fault: GrpcFault = honest) -> None:
        self._little = LittleGrpc(state)
        self._fault = fault

    def call(self, path: str, message: bytes, compression: str = "") -> bytes:
        """A unary call."""
        method = path.rpartition("/")[2]
        health = path == f"/{HEALTH.services[0]}/Check"
        kind = HEALTH.message("HealthCheckRequest") if health else OIP.message(f"{method}Request")
        asked = GrpcAsked(method, kind.FromString(message), compression)
        return self._sent(asked, _serving if health else self._little.answer)

    def stream(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        """Every reply of a stream."""
        requests = [OIP.message("ModelInferRequest").FromString(each) for each in messages]
        return [self._sent(GrpcAsked("ModelStreamInfer", each), self._little.streamed) for each in requests]

    def _sent(self, asked: GrpcAsked, answer: GrpcAnswerer) -> bytes:
        try:
            reply = self._fault(asked, answer)
        except Refused as error:
            raise GrpcStatus(error.code, str(error)) from None
        return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())


def _serving(_asked: GrpcAsked) -> Any:
    return HEALTH.message("HealthCheckResponse")(status=1)
