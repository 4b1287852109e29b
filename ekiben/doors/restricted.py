"""Endpoints that only callers with a key may use: each verb and method has a group, and a restricted group has a lock.

It is decided at the start which handlers have a lock, by verb: however a path is written, what would answer it asks
for the key. An endpoint whose group is not restricted has no lock, and costs what it did.
"""

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from ekiben.doors.http_calls import CONTENT_LENGTH, JSON, Answer, Fields, Handler, Receive, Scope, Send
from ekiben.doors.status import grpc_status, http_status
from ekiben.errors import Restricted
from ekiben.restrictions import Key, keys_of
from ekiben.settings import Settings
from ekiben.wire.h2 import GrpcError, Guard, Metadata
from ekiben.wire.oip_documents import error_body
from ekiben.wire.oip_paths import Target

__all__ = ["GRPC_GROUPS", "HTTP_GROUPS", "OPEN", "HttpLock", "LockedApp", "grpc_guards", "http_locks", "locked"]

OPEN: Final = ""
"""The group of what tells nothing and does nothing."""

HTTP_GROUPS: Final[Mapping[str, str]] = {
    "server_live": "health",
    "server_ready": "health",
    "model_ready": "health",
    "server_metadata": "metadata",
    "model_metadata": "metadata",
    "infer": "inference",
    "generate": "inference",
    "generate_stream": "inference",
    "shared_memory_status": "shared-memory",
    "shared_memory_register": "shared-memory",
    "shared_memory_unregister": "shared-memory",
    "cuda_shared_memory_status": "shared-memory",
    "cuda_shared_memory_register": "shared-memory",
    "cuda_shared_memory_unregister": "shared-memory",
    "model_config": "model-config",
    "index": "model-repository",
    "load": "model-repository",
    "unload": "model-repository",
    "statistics": "statistics",
    "trace_settings": "trace",
    "update_trace_settings": "trace",
    "log_settings": "logging",
    "update_log_settings": "logging",
}
"""Verb (wire.oip_paths) → group."""

_OIP: Final = "/inference.GRPCInferenceService/"

GRPC_GROUPS: Final[Mapping[str, str]] = {
    f"{_OIP}ServerLive": "health",
    f"{_OIP}ServerReady": "health",
    f"{_OIP}ModelReady": "health",
    "/grpc.health.v1.Health/Check": "health",
    "/grpc.health.v1.Health/Watch": "health",
    f"{_OIP}ServerMetadata": "metadata",
    f"{_OIP}ModelMetadata": "metadata",
    f"{_OIP}ModelInfer": "inference",
    f"{_OIP}ModelStreamInfer": "inference",
    f"{_OIP}SystemSharedMemoryStatus": "shared-memory",
    f"{_OIP}SystemSharedMemoryRegister": "shared-memory",
    f"{_OIP}SystemSharedMemoryUnregister": "shared-memory",
    f"{_OIP}CudaSharedMemoryStatus": "shared-memory",
    f"{_OIP}CudaSharedMemoryRegister": "shared-memory",
    f"{_OIP}CudaSharedMemoryUnregister": "shared-memory",
    f"{_OIP}ModelConfig": "model-config",
    f"{_OIP}RepositoryIndex": "model-repository",
    f"{_OIP}RepositoryModelLoad": "model-repository",
    f"{_OIP}RepositoryModelUnload": "model-repository",
    f"{_OIP}ModelStatistics": "statistics",
    f"{_OIP}TraceSetting": "trace",
    f"{_OIP}LogSettings": "logging",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": OPEN,
}
"""Path of a method → group."""

_GRPC_PREFIX: Final = "triton-grpc-protocol-"
_PAGES: Final = ("/", "/docs.json", "/schema.json", "/livez", "/readyz", "/healthz", "/metrics")
_FOLDERS: Final = ("/static_content/", "/assets/")
_READING: Final = ("GET", "HEAD")
_POLICY_VIOLATION: Final = 1008


@final
class HttpLock:
    """Asks a request for one header."""

    def __init__(self, key: Key) -> None:
        self.header: Final = key.header.lower().encode()
        self._value = key.value.encode()
        self._refusal = f"This API is restricted, expecting header '{key.header}'"

    def check(self, fields: Fields) -> None:
        """Raise Restricted unless the header is there and right. Takes as long for a near miss as for a far one."""
        if not hmac.compare_digest(fields.get(self.header, b""), self._value):
            raise Restricted(self._refusal)


def http_locks(settings: Settings, verbs: Iterable[str]) -> dict[str, HttpLock]:
    """Verb → its lock, of those that have one. With any restriction, raises KeyError for a verb without a group."""
    keys = keys_of("http_restricted", settings.http_restricted)
    return {verb: HttpLock(keys[HTTP_GROUPS[verb]]) for verb in verbs if keys and HTTP_GROUPS[verb] in keys}


def locked(handler: Handler, lock: HttpLock) -> Handler:
    """The handler behind the lock. A refused request's body is not read."""

    async def answer(target: Target, receive: Receive, fields: Fields) -> Answer:
        lock.check(fields)
        return await handler(target, receive, fields)

    return answer


def grpc_guards(settings: Settings, methods: Iterable[str]) -> dict[str, Guard]:
    """Path → its guard, of those that have one. With any restriction, raises KeyError for a path without a group."""
    keys = keys_of("grpc_restricted", settings.grpc_restricted)
    guards = {group: _guard(key) for group, key in keys.items()}
    return {path: guards[GRPC_GROUPS[path]] for path in methods if guards and GRPC_GROUPS[path] in guards}


def _guard(key: Key) -> Guard:
    header = f"{_GRPC_PREFIX}{key.header.lower()}"
    name, expected = header.encode(), key.value.encode()
    refusal = Restricted(f"This protocol is restricted, expecting header '{header}'")

    def guard(metadata: Metadata) -> None:
        given = next((value for field, value in metadata if field == name), b"")
        if not hmac.compare_digest(given, expected):
            raise GrpcError(grpc_status(refusal), refusal.message)

    return guard


@final
class LockedApp:
    """BentoML's app behind the lock of the group `inference`: typed APIs run models too, and mounted apps may.

    Its own pages, probes and metrics stay open, and only to be read; whatever else it may have is locked.
    """

    def __init__(self, app: Any, lock: HttpLock, prefix: str) -> None:
        """`prefix` is what the service puts before its paths; BentoML has some of its own with and some without."""
        self._app = app
        self._lock = lock
        prefixes = ("", prefix.rstrip("/"))
        self._pages = frozenset(prefix + page for prefix in prefixes for page in _PAGES)
        self._folders = tuple(prefix + folder for prefix in prefixes for folder in _FOLDERS)

    @classmethod
    def around(cls, app: Any, settings: Settings, prefix: str) -> Any:
        """The app itself where inference is not restricted."""
        lock = http_locks(settings, ("infer",)).get("infer")
        return app if lock is None else cls(app, lock, prefix)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403, or close a web socket, without the key; else the app answers."""
        if scope["type"] in ("http", "websocket") and not self._is_open(scope):
            try:
                self._lock.check(dict(scope["headers"]))
            except Restricted as error:
                await _refuse(scope, send, error)
                return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope.get("method") in _READING and (path in self._pages or path.startswith(self._folders))


async def _refuse(scope: Scope, send: Send, error: Restricted) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message})
        return
    body = error_body(error.message)
    headers = [JSON, (CONTENT_LENGTH, b"%d" % len(body))]
    await send({"type": "http.response.start", "status": http_status(error), "headers": headers})
    await send({"type": "http.response.body", "body": body})
