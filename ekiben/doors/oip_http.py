"""The Open Inference Protocol's HTTP door: a bare ASGI app that owns every path under /v2.

    scope ─► Route (kept by raw path) ─► infer: body ─► InferDecoder ─► Engine.infer ─► encode_reply ─► Answer
                                       └► the rest: one handler each ─────────────────────────────────► Answer

Errors become answers in one place, `_failed`. A request id is in the log line and the `x-request-id` header of each.
"""

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final
from urllib.parse import quote

import msgspec

from ekiben import __version__
from ekiben.clock import SYSTEM_CLOCK, Clock
from ekiben.doors.http_calls import (
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    JSON,
    SMALL_BODY_BYTES,
    Answer,
    Chunks,
    Fields,
    Gone,
    Handler,
    Receive,
    Scope,
    Send,
    Watch,
    check_declared,
    read_body,
    small_body,
    unpacked,
    whole_body,
)
from ekiben.doors.restricted import http_locks, locked
from ekiben.doors.shared_memory import SharedInfer
from ekiben.doors.status import http_status
from ekiben.engine.engine import Engine
from ekiben.errors import (
    Cancelled,
    Code,
    Decoupled,
    EkibenError,
    NotFound,
    QueueFull,
    TooLarge,
    Unsupported,
)
from ekiben.extensions.recording import Recording
from ekiben.extensions.shared_memory import NO_REGIONS, SharedMemory
from ekiben.extensions.traces import Traces
from ekiben.settings import Settings
from ekiben.types import LoadOverride
from ekiben.wire.compression import ENCODINGS, chosen_encoding, compressed
from ekiben.wire.oip_documents import (
    error_body,
    index_body,
    model_config_body,
    model_metadata_body,
    server_metadata_body,
    statistics_body,
)
from ekiben.wire.oip_json import Classes, InferCall, InferDecoder, encode_reply, header_length
from ekiben.wire.oip_paths import METHODS, UPDATES, Target, target_of
from ekiben.wire.oip_repository import dependents_in_json, override_in_json

__all__ = ["OipHttp"]

_LOG: Final = logging.getLogger("ekiben.doors.oip_http")
_ACCESS: Final = logging.getLogger("ekiben.access")
_KEPT_ROUTES: Final = 1024
_KEPT_PATH_BYTES: Final = 256
_INLINE_PACK_BYTES: Final = 64 << 10
_INLINE_ELEMENTS: Final = 1 << 17
"""Replies up to here are written on the loop, some milliseconds at most."""
_INLINE_DECODE_BYTES: Final = 8 << 20
_WORTH_PACKING_BYTES: Final = 128
_DECOUPLED: Final = "HTTP end point doesn't support models with decoupled transaction policy"

_OCTETS: Final = (b"content-type", b"application/octet-stream")
_ACCEPT_ENCODING: Final = b"accept-encoding"
_HEADER_LENGTH: Final = b"inference-header-content-length"
_REQUEST_ID: Final = b"x-request-id"
_TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"
_READ: Final = frozenset(
    (CONTENT_LENGTH, CONTENT_ENCODING, _ACCEPT_ENCODING, _HEADER_LENGTH, _REQUEST_ID, _TRACEPARENT, _TRACESTATE)
)
_SANE_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACE: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


Route: TypeAlias = tuple[Target, dict[str, Handler]]
"""What a path asks for, and who answers, by method."""


class _IndexBody(msgspec.Struct):
    ready: bool = False


@final
class OipHttp:
    """Built once per engine; called for every request whose path it `owns`, on the engine's loop."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        clock: Clock = SYSTEM_CLOCK,
        regions: SharedMemory = NO_REGIONS,
        extensions: Sequence[Mapping[str, Handler]] = (),
        traces: Traces | None = None,
    ) -> None:
        """`regions`: where tensors may stand. `extensions`: handlers of further verbs, each from a file of its own.

        Without `traces` no request is traced.
        """
        self._engine = engine
        self._traces = traces or Traces(clock)
        self._access_log = settings.access_log
        self._clock = clock
        self._body_limit = settings.body_limit_bytes
        self._limit_digits = len(str(self._body_limit))
        self._unpacked_limit = settings.decompressed_limit_bytes
        self._json_limit = settings.json_limit_bytes
        self._inline_limit = min(self._json_limit, _INLINE_DECODE_BYTES)
        self._depth_limit = settings.json_depth_limit
        self._decoder = InferDecoder(self._depth_limit)
        self._routes: dict[bytes, Route] = {}
        self._id_prefix = secrets.token_hex(6)
        self._id_numbers = itertools.count(1)
        self._shared = SharedInfer(engine, regions)
        self._metadata = server_metadata_body(__version__, regions.extensions)
        self._handlers: dict[str, Handler] = {
            "infer": self._infer,
            "server_metadata": self._server_metadata,
            "server_live": self._server_live,
            "server_ready": self._server_ready,
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "model_config": self._model_config,
            "statistics": self._statistics,
            "index": self._index,
            "load": self._load,
            "unload": self._unload,
        }
        for handlers in extensions:
            self._handlers |= handlers
        locks = http_locks(settings, self._handlers)
        self._handlers |= {verb: locked(self._handlers[verb], lock) for verb, lock in locks.items()}
        self._read = _READ.union(lock.header for lock in locks.values())

    @staticmethod
    def owns(path: str) -> bool:
        """Whether a path, percent-decoded as ASGI has it in `path`, is this door's."""
        return path.startswith("/v2/") or path == "/v2"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises nothing."""
        fields: Fields = {}
        read = self._read
        for name, value in scope["headers"]:
            if name in read:
                fields[name] = value
        target: Target | None = None
        started = self._clock.monotonic() if self._access_log else 0.0
        try:
            target, handlers = self._routes.get(scope.get("raw_path", b"")) or self._route(scope)
            handler = handlers.get(scope["method"])
            if handler is not None:
                answer = await handler(target, receive, fields)
            else:
                allowed = ", ".join(handlers).encode()
                answer = Answer(405, error_body("Method Not Allowed"), (JSON, (b"allow", allowed)))
        except (Gone, asyncio.CancelledError):
            # The caller has gone, or the server ends and its patience is over.
            return
        except Exception as error:
            answer = self._failed(error, scope, target, fields)
        if answer.chunks is not None:
            await self._send_chunks(answer, answer.chunks, fields, send)
        else:
            headers = [*answer.headers, (CONTENT_LENGTH, b"%d" % len(answer.body))]
            if _REQUEST_ID in fields or answer.status >= 400:
                headers.append((_REQUEST_ID, self._request_id(fields)))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": answer.body})
        if self._access_log:
            milliseconds = (self._clock.monotonic() - started) * 1000
            marks = self._marks(target, fields)
            _ACCESS.info("%s %r %d %.1f ms", scope["method"], scope["path"], answer.status, milliseconds, extra=marks)

    async def _send_chunks(self, answer: Answer, chunks: Chunks, fields: Fields, send: Send) -> None:
        headers = list(answer.headers)
        if _REQUEST_ID in fields:
            headers.append((_REQUEST_ID, self._request_id(fields)))
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            return  # the server ends, and its patience is over
        finally:
            chunks.close()

    def _route(self, scope: Scope) -> Route:
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        root: bytes = scope.get("root_path", "").encode()
        target = target_of(raw_path.removeprefix(root))
        if target is None:
            raise NotFound("Not Found")
        route = (target, {method: self._handler(target.verb, method) for method in METHODS[target.verb]})
        if len(raw_path) <= _KEPT_PATH_BYTES:
            if len(self._routes) >= _KEPT_ROUTES:
                self._routes.clear()
            self._routes[raw_path] = route
        return route

    def _handler(self, verb: str, method: str) -> Handler:
        if method == "POST":
            verb = UPDATES.get(verb, verb)
        return self._handlers.get(verb, self._missing_extension)

    def _request_id(self, fields: Fields) -> bytes:
        """The caller's own where it is presentable, else a new one, which then stays in `fields`."""
        given = fields.get(_REQUEST_ID)
        if given is None or not _SANE_ID.fullmatch(given):
            given = fields[_REQUEST_ID] = f"{self._id_prefix}-{next(self._id_numbers):x}".encode()
        return given

    def _marks(self, target: Target | None, fields: Fields) -> dict[str, str]:
        """What says in a log line which request it is about."""
        marks = {"request_id": self._request_id(fields).decode()}
        if target is not None and target.model:
            marks |= {"model": target.model, "version": target.version}
        trace = _TRACE.fullmatch(fields.get(_TRACEPARENT, b""))
        if trace is not None:
            marks |= {"trace_id": trace[1].decode(), "span_id": trace[2].decode()}
        return marks

    def _failed(self, error: Exception, scope: Scope, target: Target | None, fields: Fields) -> Answer:
        extra = self._marks(target, fields)
        if not isinstance(error, EkibenError):
            _LOG.error("unexpected error in %s %r", scope["method"], scope["path"], exc_info=error, extra=extra)
            return Answer(500, error_body(f"internal error [request id: {extra['request_id']}]"))
        # A caller's mistakes and an overload are counted, not written down one by one.
        level = logging.WARNING if error.code is Code.INTERNAL else logging.DEBUG
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "%s %r failed: %r", scope["method"], scope["path"], error.message, extra=extra)
        headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
        if error.code is Code.UNSUPPORTED:
            headers = (JSON, (_ACCEPT_ENCODING, ENCODINGS))
        elif isinstance(error, QueueFull):
            headers = (JSON, (b"retry-after", b"%d" % error.retry_after_s))
        return Answer(http_status(error), error_body(error.message), headers)

    async def _infer(
        self, target: Target, receive: Receive, fields: Fields, recording: Recording | None = None
    ) -> Answer:
        if self._traces.wanted and recording is None:
            recording = self._traces.begin("HTTP", target.model, fields.get(_TRACEPARENT), fields.get(_TRACESTATE))
            if recording is not None:
                return await self._recorded(target, receive, fields, recording)
        if len(fields.get(CONTENT_LENGTH, b"")) >= self._limit_digits:
            check_declared(fields, self._body_limit)
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body") or message["type"] != "http.request" or len(body) > self._body_limit:
            body = await whole_body(message, receive, self._body_limit)
        if recording is not None:
            self._traces.read(recording)
        if CONTENT_ENCODING in fields:
            body = await unpacked(body, fields[CONTENT_ENCODING], self._unpacked_limit)
        if len(body) <= self._inline_limit and _HEADER_LENGTH not in fields:
            call = self._decoder.decode(target.model, target.version, body)
        else:
            call = await self._call(target, body, fields.get(_HEADER_LENGTH))
        request = call.request
        if recording is not None:
            self._traces.decoded(recording, request)
        alive: Callable[[], bool]
        watch: Watch | None = None
        cycle: Any = getattr(receive, "__self__", None)
        if hasattr(cycle, "disconnected"):
            # uvicorn's own flag: it costs nothing to have, and only a look to ask.
            alive = lambda: not cycle.disconnected  # noqa: E731 - annotated above
        else:
            watch = Watch(receive)
            alive = watch.alive
        request.alive = alive
        classes = None
        if call.classifies:
            # Before the wait: the version may be unloading by the time that its answer is there.
            view = self._engine.version(request.model, request.version)
            classes = Classes(view.labels, bool(view.settings.batching.max_batch_size))
        try:
            response = await (self._engine.infer(request) if call.shared is None else self._shared(call))
        except Cancelled:
            if not alive():
                raise Gone from None
            raise
        except Decoupled:
            raise Unsupported(_DECOUPLED) from None
        finally:
            if watch is not None:
                watch.close()
        if not alive():
            raise Gone
        if sum(tensor.size for tensor in response.outputs.values()) <= _INLINE_ELEMENTS:
            reply = encode_reply(call, response, classes)
        else:
            reply = await asyncio.to_thread(encode_reply, call, response, classes)
        body = reply.body
        headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
        if reply.header_length >= 0:
            headers = (_OCTETS, (_HEADER_LENGTH, b"%d" % reply.header_length))
        if _ACCEPT_ENCODING in fields and len(body) >= _WORTH_PACKING_BYTES:
            encoding = chosen_encoding(fields[_ACCEPT_ENCODING])
            if encoding:
                headers = (*headers, (CONTENT_ENCODING, encoding))
                if len(body) <= _INLINE_PACK_BYTES:
                    body = compressed(body, encoding)
                else:
                    body = await asyncio.to_thread(compressed, body, encoding)
        return Answer(200, body, headers)

    async def _recorded(self, target: Target, receive: Receive, fields: Fields, recording: Recording) -> Answer:
        """The same for a request that is traced."""
        try:
            answer = await self._infer(target, receive, fields, recording)
        except BaseException as error:
            self._traces.end(recording, Cancelled("the caller went away") if isinstance(error, Gone) else error)
            raise
        self._traces.replied(recording)
        return answer

    async def _call(self, target: Target, body: bytes, length_field: bytes | None) -> InferCall:
        json_length = -1 if length_field is None else header_length(length_field, len(body))
        if json_length == 0:
            view = self._engine.version(target.model, target.version)
            batched = bool(view.settings.batching.max_batch_size)
            return self._decoder.decode_raw(target.model, target.version, body, view.default, batched)
        text_length = len(body) if json_length < 0 else json_length
        if text_length > self._json_limit:
            raise TooLarge(
                f"the JSON of this request is {text_length} bytes long, and json_limit_bytes is {self._json_limit}; "
                "send large tensors in binary"
            )
        if len(body) <= _INLINE_DECODE_BYTES:
            return self._decoder.decode(target.model, target.version, body, json_length)
        # In a thread the others get their turns, except while one of the parsers runs.
        decoder = InferDecoder(self._depth_limit)
        return await asyncio.to_thread(decoder.decode, target.model, target.version, body, json_length)

    async def _server_metadata(self, _target: Target, _receive: Receive, _fields: Fields) -> Answer:
        return Answer(200, self._metadata)

    async def _server_live(self, _target: Target, _receive: Receive, _fields: Fields) -> Answer:
        return Answer(200, b"", ())

    async def _server_ready(self, _target: Target, _receive: Receive, _fields: Fields) -> Answer:
        if self._engine.ready():
            return Answer(200, b"", ())
        return Answer(400, error_body("Server not ready"))

    async def _model_ready(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        if self._engine.model_ready(target.model, target.version):
            return Answer(200, b"", ())
        return Answer(400, error_body("Model version not ready"))

    async def _model_metadata(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        view = self._engine.version(target.model, target.version)
        versions = self._engine.ready_versions(target.model)
        return Answer(200, model_metadata_body(view.model, versions, view.platform, view.default))

    async def _model_config(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        view = self._engine.version(target.model, target.version)
        return Answer(200, model_config_body(view.model, view.platform, view.settings, view.default))

    async def _statistics(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        return Answer(200, statistics_body(self._engine.statistics(target.model, target.version)))

    async def _index(self, _target: Target, receive: Receive, fields: Fields) -> Answer:
        body = await small_body(receive, fields, _IndexBody)
        return Answer(200, index_body([msgspec.structs.asdict(entry) for entry in self._engine.index(body.ready)]))

    async def _load(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        # Nothing here keeps the files while the model loads.
        await self._engine.load(target.model, await self._override(target.model, receive, fields))
        return Answer(200, b"")

    async def _override(self, model: str, receive: Receive, fields: Fields) -> LoadOverride | None:
        body = await read_body(receive, fields, self._body_limit, self._unpacked_limit)
        if len(body) <= SMALL_BODY_BYTES:
            return override_in_json(model, body)
        return await asyncio.to_thread(override_in_json, model, body)

    async def _unload(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        body = await read_body(receive, fields, SMALL_BODY_BYTES, SMALL_BODY_BYTES)
        await self._engine.unload(target.model, dependents=dependents_in_json(target.model, body))
        return Answer(200, b"")

    async def _missing_extension(self, _target: Target, _receive: Receive, _fields: Fields) -> Answer:
        raise Unsupported("this server does not have this extension")
