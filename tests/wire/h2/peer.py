"""A client of the machine that can break every rule: frames by hand, and what comes back, read."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hpack import Decoder, Encoder

from ekiben.wire.h2 import Connection, Event, Guard, Limits, Memory
from ekiben.wire.h2.codes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
)
from ekiben.wire.h2.replies import frame

UNARY: Final = b"/test.Service/Unary"
STREAM: Final = b"/test.Service/Stream"


class Kind:
    """A method, for all that the machine wants to know."""

    def __init__(self, streaming: bool, guard: Guard | None = None) -> None:
        self.streaming = streaming
        self.guard = guard


METHODS: Final = {UNARY: Kind(False), STREAM: Kind(True)}
HELLO: Final = PREFACE + frame(SETTINGS, 0, 0, b"")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frames(data: bytes) -> list[Frame]:
    """Bytes of whole frames, taken apart."""
    found = []
    while data:
        word, flags, stream_id = struct.unpack_from(">IBI", data)
        end = 9 + (word >> 8)
        found.append(Frame(word & 255, flags, stream_id, data[9:end]))
        data = data[end:]
    return found


def request_fields(path: bytes = UNARY, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    ]


def message(data: bytes, flag: int = 0) -> bytes:
    """gRPC's framing."""
    return struct.pack(">BI", flag, len(data)) + data


class Peer:
    """One connection to the machine. Each `send` returns the machine's events and keeps its frames in `got`."""

    def __init__(
        self,
        limits: Limits | None = None,
        memory: Memory | None = None,
        *,
        hello: bytes = HELLO,
        methods: Mapping[bytes, Kind] = METHODS,
    ) -> None:
        self.memory = memory or Memory()
        self.machine: Connection[Any] = Connection(methods, limits or Limits(), self.memory, 0.0)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.now = 0.0
        self.got: list[Frame] = []
        self.send(hello)
        self.got.clear()

    def send(self, *data: bytes) -> list[Event[Any]]:
        events = self.machine.receive(b"".join(data), self.now)
        self.take()
        return events

    def take(self) -> None:
        self.got += frames(self.machine.take())

    def tick(self, now: float) -> list[Event[Any]]:
        self.now = now
        events = self.machine.tick(now)
        self.take()
        return events

    def headers(
        self, stream_id: int, fields: Sequence[tuple[bytes, bytes]] | None = None, flags: int = END_HEADERS
    ) -> bytes:
        return frame(HEADERS, flags, stream_id, self.encoder.encode(fields or request_fields()))

    def call(self, stream_id: int, data: bytes = b"hello", *more: tuple[bytes, bytes]) -> bytes:
        """A whole unary call."""
        return self.headers(stream_id, request_fields(UNARY, *more)) + frame(DATA, END_STREAM, stream_id, message(data))

    def of(self, kind: int) -> list[Frame]:
        return [each for each in self.got if each.kind == kind]

    @property
    def gone(self) -> ErrorCode | None:
        """The code of the last GOAWAY."""
        found = self.of(GOAWAY)
        return ErrorCode(int.from_bytes(found[-1].payload[4:8], "big")) if found else None

    @property
    def resets(self) -> dict[int, ErrorCode]:
        return {each.stream_id: ErrorCode(int.from_bytes(each.payload, "big")) for each in self.of(RST_STREAM)}

    def fields(self, stream_id: int) -> list[dict[bytes, bytes]]:
        """The header blocks of a reply, in order."""
        return [
            dict(self.decoder.decode(each.payload, raw=True))
            for each in self.of(HEADERS)
            if each.stream_id == stream_id
        ]

    def body(self, stream_id: int) -> bytes:
        return b"".join(each.payload for each in self.of(DATA) if each.stream_id == stream_id)

    def status(self, stream_id: int) -> int:
        """The gRPC status that ended a call."""
        return int(self.fields(stream_id)[-1][b"grpc-status"])


def open_window(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *value) for value in values))
