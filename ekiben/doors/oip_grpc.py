"""The Open Inference Protocol's gRPC door: `inference.GRPCInferenceService`, by method path.

Inference has a file of its own. The other replies are made of the HTTP door's documents, so that both say the same.
"""

import asyncio
from functools import partial
from typing import Any, Final, final

import msgspec
from google.protobuf import json_format

from ekiben import __version__
from ekiben.doors.grpc_calls import Call, Methods, Unary
from ekiben.doors.oip_grpc_infer import Inference
from ekiben.doors.oip_grpc_stream import InferStream
from ekiben.engine.engine import Engine
from ekiben.errors import Unsupported
from ekiben.extensions.shared_memory import NO_REGIONS, SharedMemory
from ekiben.extensions.traces import Traces
from ekiben.types import LoadOverride
from ekiben.wire.oip_documents import (
    index_body,
    model_config_body,
    model_metadata_body,
    server_metadata_body,
    statistics_body,
)
from ekiben.wire.oip_proto import encode_kserve_change
from ekiben.wire.oip_repository import dependents_in_message, override_in_message
from ekiben.wire.protos.oip import OIP

__all__ = ["OipGrpc"]

_INLINE_BYTES: Final = 1 << 20
"""Loads up to here are decoded on the loop: longer ones carry files."""


@final
class OipGrpc:
    """Built once per engine; its methods are called on the engine's loop."""

    def __init__(self, engine: Engine, regions: SharedMemory = NO_REGIONS, traces: Traces | None = None) -> None:
        """Without `traces` no request is traced."""
        self._engine = engine
        self._metadata = _message("ServerMetadataResponse", server_metadata_body(__version__, regions.extensions))
        inference = Inference(engine, regions, traces or Traces())
        unary: dict[str, Unary] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": inference.unary,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._repository_model_load,
            "RepositoryModelUnload": self._repository_model_unload,
        }
        path = f"/{OIP.services[0]}/"
        self.methods: Final = Methods(
            {path + name: handler for name, handler in unary.items()},
            receiving={path + "ModelStreamInfer": partial(InferStream, inference)},
        )

    def _server_live(self, _data: memoryview, _call: Call) -> bytes:
        return _encoded("ServerLiveResponse", live=True)

    def _server_ready(self, _data: memoryview, _call: Call) -> bytes:
        return _encoded("ServerReadyResponse", ready=self._engine.ready())

    def _server_metadata(self, _data: memoryview, _call: Call) -> bytes:
        return self._metadata

    def _model_ready(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("ModelReadyRequest", data)
        return _encoded("ModelReadyResponse", ready=self._engine.model_ready(request.name, request.version))

    def _model_metadata(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("ModelMetadataRequest", data)
        view = self._engine.version(request.name, request.version)
        versions = self._engine.ready_versions(request.name)
        document = model_metadata_body(view.model, versions, view.platform, view.default)
        return _message("ModelMetadataResponse", document)

    def _model_config(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("ModelConfigRequest", data)
        view = self._engine.version(request.name, request.version)
        document = model_config_body(view.model, view.platform, view.settings, view.default)
        return _message("ModelConfigResponse", b'{"config":%s}' % document)

    def _model_statistics(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("ModelStatisticsRequest", data)
        versions = self._engine.statistics(request.name, request.version)
        return _message("ModelStatisticsResponse", statistics_body(versions))

    def _repository_index(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("RepositoryIndexRequest", data)
        _refuse_repository(request.repository_name)
        lines = index_body([msgspec.structs.asdict(entry) for entry in self._engine.index(request.ready)])
        return _message("RepositoryIndexResponse", b'{"models":%s}' % lines)

    async def _repository_model_load(self, data: memoryview, _call: Call) -> bytes:
        inline = len(data) <= _INLINE_BYTES
        model, reply, override = _load_of(data) if inline else await asyncio.to_thread(_load_of, data)
        await self._engine.load(model, override)
        return reply

    async def _repository_model_unload(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("RepositoryModelUnloadRequest", data)
        model, reply = _model_to_change(request)
        await self._engine.unload(model, dependents=dependents_in_message(model, request.parameters))
        return reply


def _model_to_change(request: Any) -> tuple[str, bytes]:
    """The model to load or unload, and what to reply: Triton's message has it in field 2, KServe's in field 1."""
    model: str = request.model_name
    if not model and request.repository_name:
        model = request.repository_name
        return model, encode_kserve_change(model)
    _refuse_repository(request.repository_name)
    return model, b""


def _load_of(data: memoryview) -> tuple[str, bytes, LoadOverride | None]:
    """The model to load, what to reply, and what is given instead of the repository."""
    request = OIP.parse("RepositoryModelLoadRequest", data)
    model, reply = _model_to_change(request)
    return model, reply, override_in_message(model, request.parameters)


def _refuse_repository(name: str) -> None:
    if name:
        raise Unsupported(f"'repository_name' specification is not supported, got '{name}'")


def _encoded(name: str, **fields: object) -> bytes:
    return bytes(OIP.message(name)(**fields).SerializeToString())


def _message(name: str, document: bytes) -> bytes:
    """A message from one of the HTTP door's documents, whose keys are those of the message."""
    return bytes(json_format.Parse(document, OIP.message(name)()).SerializeToString())
