"""What the server says, as bytes: reply headers and trailers as constant header blocks, and the small frames.

No field is ever indexed (RFC 7541 §6.2.2), so a block is the same bytes on every connection at any time.
"""

import struct
from typing import Final

from ekiben.wire.h2.codes import (
    ACK,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
)

__all__ = [
    "FRAME",
    "OK_TRAILERS",
    "REPLY_HEADERS",
    "SETTINGS_ACK",
    "SMALL_REPLY",
    "frame",
    "goaway",
    "headers",
    "ping",
    "refusal",
    "reset",
    "settings",
    "trailers",
    "window_update",
]

FRAME: Final = struct.Struct(">IBI")
"""A frame's nine bytes: length and type in one word, flags, stream."""

_MESSAGE_CHARACTERS: Final = 1024
"""Longer texts are cut: clients refuse trailers over 8 KiB, and each character may take twelve bytes as %-escapes."""
_UNRESERVED: Final = frozenset(range(0x20, 0x7F)) - {ord("%")}
_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10\x10application/grpc"
"""Static name 31 (`content-type`)."""
_ACCEPTED: Final = b"identity, gzip, deflate"


def _length(size: int) -> bytes:
    """A string's length, not Huffman-coded (RFC 7541 §5.1, §5.2)."""
    if size < 127:
        return bytes((size,))
    size -= 127
    encoded = bytearray((127,))
    while size >= 128:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


def _field(name: bytes, value: bytes) -> bytes:
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def headers(encoding: bytes) -> bytes:
    """The header block of a reply whose messages are packed with `encoding` (b"" for none)."""
    block = _STATUS_200 + _CONTENT_TYPE
    return block + _field(b"grpc-encoding", encoding) if encoding else block


def trailers(status: int, message: str) -> bytes:
    """The header block that ends a call, with the message percent-encoded (PROTOCOL-HTTP2.md, Status-Message)."""
    block = _field(b"grpc-status", b"%d" % status)
    if not message:
        return block
    raw = message[:_MESSAGE_CHARACTERS].encode("utf-8", "replace")
    escaped = b"".join(b"%c" % byte if byte in _UNRESERVED else b"%%%02X" % byte for byte in raw)
    return block + _field(b"grpc-message", escaped)


def refusal(status: int, message: str, http_status: int = 200, *, tell_encodings: bool = False) -> bytes:
    """The only header block of a call that is refused before any message (Trailers-Only)."""
    start = _STATUS_200 if http_status == 200 else b"\x08\x03%d" % http_status
    block = start + _CONTENT_TYPE + trailers(status, message)
    return block + _field(b"grpc-accept-encoding", _ACCEPTED) if tell_encodings else block


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """A whole frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: tuple[tuple[int, int], ...]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values))


def ping(data: bytes, *, ack: bool) -> bytes:
    """A PING, or its answer."""
    return frame(PING, ACK if ack else 0, 0, data)


def goaway(last_stream_id: int, code: ErrorCode, text: str) -> bytes:
    """A GOAWAY with a text for whoever debugs the client."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + text.encode("utf-8", "replace")[:256])


def reset(stream_id: int, code: ErrorCode) -> bytes:
    """A RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", code))


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE, for the connection where `stream_id` is 0."""
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")
REPLY_HEADERS: Final = headers(b"")
OK_TRAILERS: Final = trailers(0, "")

_HEADERS_START: Final = (len(REPLY_HEADERS) << 8 | HEADERS).to_bytes(4, "big") + bytes((END_HEADERS,))
_TRAILERS_START: Final = (len(OK_TRAILERS) << 8 | HEADERS).to_bytes(4, "big") + bytes((END_HEADERS | END_STREAM,))
SMALL_REPLY: Final = (_HEADERS_START, REPLY_HEADERS, struct.Struct(">IBIBI"), _TRAILERS_START, OK_TRAILERS)
"""The pieces of a whole unary reply: a frame start is followed by the stream's four bytes, the struct is the DATA
frame's head and the message's prefix."""
