"""What an HTTP door is made of: a handler takes what a path asks for and the request's body, and gives an Answer.

A handler raises EkibenError for what the caller may read (doors.status has the HTTP status); anything else is a fault
of ours, which the door logs and answers with 500.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar, final

import msgspec

from ekiben.errors import InvalidRequest, TooLarge
from ekiben.wire.compression import decompressed
from ekiben.wire.oip_paths import Target

__all__ = [
    "CONTENT_ENCODING",
    "CONTENT_LENGTH",
    "JSON",
    "SMALL_BODY_BYTES",
    "Answer",
    "Chunks",
    "Fields",
    "Gone",
    "Handler",
    "Presence",
    "Receive",
    "Scope",
    "Send",
    "Watch",
    "check_declared",
    "presence",
    "read_body",
    "small_body",
    "too_large",
    "unpacked",
    "whole_body",
]

JSON: Final = (b"content-type", b"application/json")
CONTENT_LENGTH: Final = b"content-length"
CONTENT_ENCODING: Final = b"content-encoding"
SMALL_BODY_BYTES: Final = 1 << 20
_INLINE_UNPACK_BYTES: Final = 4 << 10
"""Compressed bodies up to here are unpacked on the loop: they come to 4 MiB at deflate's best ratio."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Fields: TypeAlias = dict[bytes, bytes]
"""Request headers that the door reads, by lower-case name."""


class Chunks(AsyncIterator[bytes]):
    """A body that is still being made, piece by piece; raises nothing."""

    @abstractmethod
    def close(self) -> None:
        """Called once it is not wanted any more, however far it came."""


class Answer(msgspec.Struct, gc=False):
    """A reply, but for the headers that all have."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
    chunks: Chunks | None = None
    """The body where it is not there as a whole."""


Handler: TypeAlias = Callable[[Target, Receive, Fields], Awaitable[Answer]]


class Gone(Exception):
    """The caller left: there is nobody to answer."""


class Presence(Protocol):
    """Says whether a caller is still there."""

    def alive(self) -> bool: ...
    def close(self) -> None: ...


@final
class Watch:
    """Presence where only `receive` knows: a task waits for the caller to leave."""

    def __init__(self, receive: Receive) -> None:
        self._gone = False
        self._task = asyncio.create_task(self._wait(receive))

    def alive(self) -> bool:
        return not self._gone

    def close(self) -> None:
        self._task.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True


@final
class _Cycle:
    """Presence by uvicorn's own flag."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle

    def alive(self) -> bool:
        return not self._cycle.disconnected

    def close(self) -> None:
        """Nothing runs."""


def presence(receive: Receive) -> Presence:
    """Of the caller whose body is read. To be closed."""
    cycle = getattr(receive, "__self__", None)
    return _Cycle(cycle) if hasattr(cycle, "disconnected") else Watch(receive)


_Body = TypeVar("_Body")


def check_declared(fields: Fields, limit: int) -> None:
    """Refuse a body that says itself that it is over the limit, before any of it is read."""
    declared = fields.get(CONTENT_LENGTH, b"")
    if len(declared) > 19 or (declared.isdigit() and int(declared) > limit):
        raise too_large(limit)


def too_large(limit: int) -> TooLarge:
    """The refusal of a body over the limit."""
    # What is not read yet stays unread: the HTTP server discards it, so the connection is usable and nothing is kept.
    setting = "" if limit == SMALL_BODY_BYTES else " (setting body_limit_bytes)"
    return TooLarge(f"request body is over {limit} bytes{setting}")


async def whole_body(message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
    """All of a body whose first message is there. Refuses one over the limit as soon as that is known."""
    pieces: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise Gone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await receive()


async def unpacked(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A body without its Content-Encoding; in a thread where that may take long. Raises as `decompressed` does."""
    if len(body) <= _INLINE_UNPACK_BYTES:
        return decompressed(body, encoding, limit)
    return await asyncio.to_thread(decompressed, body, encoding, limit)


async def read_body(receive: Receive, fields: Fields, limit: int, unpacked_limit: int) -> bytes:
    """All of a body, of `limit` bytes at most as it is sent, and without its Content-Encoding of `unpacked_limit`."""
    check_declared(fields, limit)
    body = await whole_body(await receive(), receive, limit)
    return await unpacked(body, fields[CONTENT_ENCODING], unpacked_limit) if CONTENT_ENCODING in fields else body


async def small_body(receive: Receive, fields: Fields, kind: type[_Body]) -> _Body:
    """A body of JSON, 1 MiB at most, as `kind` has it; without a body `kind`'s defaults. Raises InvalidRequest."""
    body = await read_body(receive, fields, SMALL_BODY_BYTES, SMALL_BODY_BYTES)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from None
