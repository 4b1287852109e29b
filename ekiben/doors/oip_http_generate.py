"""The generate extension over HTTP: a flat JSON object in, and out one of them, or a stream of server-sent events.

    body ─► GenerateDecoder ─► Engine.stream ─► Replies ─┬─ generate: exactly one ─► Answer
                                                         └─ generate_stream: `data: {…}` each ─► Answer with Chunks

The status is decided by the first response: what fails before it is an ordinary error, what fails later an event.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, final

from ekiben.doors.http_calls import (
    CONTENT_ENCODING,
    Answer,
    Chunks,
    Fields,
    Gone,
    Handler,
    Presence,
    Receive,
    check_declared,
    presence,
    whole_body,
)
from ekiben.engine.engine import Engine, Replies
from ekiben.errors import Cancelled, Code, EkibenError, InvalidRequest, TooLarge
from ekiben.settings import Settings
from ekiben.types import Request, Response
from ekiben.wire.compression import decompressed
from ekiben.wire.generate import GenerateDecoder, encode_generated, error_event, event
from ekiben.wire.oip_paths import Target

__all__ = ["OipGenerate"]

_LOG: Final = logging.getLogger("ekiben.doors.oip_http")
_INLINE_BYTES: Final = 64 << 10
"""Larger bodies are unpacked and read in a thread."""
_INLINE_ELEMENTS: Final = 1 << 17
"""Responses up to here are written on the loop."""
_EVENTS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""The last has proxies pass each event on at once."""


@final
class OipGenerate:
    """Built once per engine; used on its loop."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._body_limit = settings.body_limit_bytes
        self._unpacked_limit = settings.decompressed_limit_bytes
        self._json_limit = settings.json_limit_bytes
        self._depth_limit = settings.json_depth_limit
        self._decoder = GenerateDecoder(settings.json_depth_limit)
        self.handlers: Final[Mapping[str, Handler]] = {
            "generate": self._generate,
            "generate_stream": self._generate_stream,
        }

    async def _generate(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        request = await self._request(target, receive, fields)
        caller = presence(receive)
        request.alive = caller.alive
        try:
            replies = self._engine.stream(request)
            try:
                responses = await _at_most_two(replies, caller)
            finally:
                replies.close()
        finally:
            caller.close()
        if len(responses) != 1:
            raise InvalidRequest(
                "generate expects model to produce exactly 1 response, "
                "use generate stream for model that generates various number of responses"
            )
        return Answer(200, await _encoded(request.id, responses[0]))

    async def _generate_stream(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        request = await self._request(target, receive, fields)
        caller = presence(receive)
        request.alive = caller.alive
        events: _Events | None = None
        try:
            events = _Events(self._engine.stream(request), caller, request)
            await events.begin()
        except BaseException:
            if events is not None:
                events.close()
            caller.close()
            raise
        return Answer(200, b"", _EVENTS, events)

    async def _request(self, target: Target, receive: Receive, fields: Fields) -> Request:
        check_declared(fields, self._body_limit)
        body = await whole_body(await receive(), receive, self._body_limit)
        view = self._engine.version(target.model, target.version)
        batched = bool(view.settings.batching.max_batch_size)
        encoding = fields.get(CONTENT_ENCODING)
        if encoding is not None:
            body = await asyncio.to_thread(decompressed, body, encoding, self._unpacked_limit)
        if len(body) > self._json_limit:
            raise TooLarge(
                f"the JSON of this request is {len(body)} bytes long, and json_limit_bytes is {self._json_limit}"
            )
        arguments = (target.model, target.version, body, view.signatures, batched)
        if len(body) <= _INLINE_BYTES:
            return self._decoder.decode(*arguments)
        return await asyncio.to_thread(GenerateDecoder(self._depth_limit).decode, *arguments)


@final
class _Events(Chunks):
    """The responses to a request as events. Ends early where the caller has left."""

    def __init__(self, replies: Replies, caller: Presence, request: Request) -> None:
        self._replies = replies
        self._caller = caller
        self._request = request
        self._first: bytes | None = None
        self._over = False

    async def begin(self) -> None:
        """Wait for the first. Raises the error that came in its place, or Gone."""
        try:
            self._first = event(await _encoded(self._request.id, await anext(self._replies)))
        except StopAsyncIteration:
            self._over = True
        except Cancelled:
            if not self._caller.alive():
                raise Gone from None
            raise

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        if first is not None:
            return first
        if self._over or not self._caller.alive():
            raise StopAsyncIteration
        try:
            return event(await _encoded(self._request.id, await anext(self._replies)))
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._over = True
            return error_event(self._told(error))

    def close(self) -> None:
        self._over = True
        self._replies.close()
        self._caller.close()

    def _told(self, error: Exception) -> str:
        """What the caller may read of an error, which is in the log where it is not its own."""
        what = f"stream of model '{self._request.model}'"
        if not isinstance(error, EkibenError):
            _LOG.error("unexpected error in a %s", what, exc_info=error)
            return "internal error"
        _LOG.log(logging.WARNING if error.code is Code.INTERNAL else logging.DEBUG, "%s: %r", what, error.message)
        return error.message


async def _at_most_two(replies: Replies, caller: Presence) -> list[Response]:
    responses: list[Response] = []
    try:
        async for response in replies:
            responses.append(response)
            if len(responses) == 2:
                break
    except Cancelled:
        if not caller.alive():
            raise Gone from None
        raise
    return responses


async def _encoded(identity: str, response: Response) -> bytes:
    if sum(tensor.size for tensor in response.outputs.values()) <= _INLINE_ELEMENTS:
        return encode_generated(identity, response)
    return await asyncio.to_thread(encode_generated, identity, response)
