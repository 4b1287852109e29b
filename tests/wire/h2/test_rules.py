"""RFC 9113's errors, one row each: what is sent, and which error of which scope answers."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ekiben.wire.h2 import Call, Event, Limits, Received
from ekiben.wire.h2.codes import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
)
from ekiben.wire.h2.replies import frame, goaway, ping, reset
from tests.wire.h2.peer import STREAM, UNARY, Peer, message, open_window, request_fields, settings

E = ErrorCode
OPEN = END_HEADERS
WHOLE = END_HEADERS | END_STREAM
FRAME_BYTES = 1 << 20

CONNECTION_ERRORS: list[tuple[str, str, Callable[[Peer], bytes], ErrorCode]] = [
    (
        "4.1",
        "frame over MAX_FRAME_SIZE",
        lambda p: struct.pack(">IBI", (FRAME_BYTES + 1) << 8, 0, 1),
        E.FRAME_SIZE_ERROR,
    ),
    (
        "4.3",
        "header block that is not HPACK",
        lambda p: frame(HEADERS, WHOLE, 1, b"\xff\xff\xff\xff\xff\xff"),
        E.COMPRESSION_ERROR,
    ),
    ("4.3", "index beyond the table", lambda p: frame(HEADERS, WHOLE, 1, b"\xfe"), E.COMPRESSION_ERROR),
    ("4.3", "header block cut short", lambda p: frame(HEADERS, WHOLE, 1, b"\x40\x05ab"), E.COMPRESSION_ERROR),
    (
        "4.3",
        "a frame inside a header block",
        lambda p: p.headers(1, flags=0) + ping(b"12345678", ack=False),
        E.PROTOCOL_ERROR,
    ),
    ("5.1", "DATA on an idle stream", lambda p: frame(DATA, 0, 1, b"x"), E.PROTOCOL_ERROR),
    ("5.1", "RST_STREAM on an idle stream", lambda p: reset(1, E.CANCEL), E.PROTOCOL_ERROR),
    ("5.1", "WINDOW_UPDATE on an idle stream", lambda p: open_window(1, 1), E.PROTOCOL_ERROR),
    ("5.1.1", "HEADERS on an even stream", lambda p: p.headers(2), E.PROTOCOL_ERROR),
    ("5.1.1", "HEADERS on a stream that was passed over", lambda p: p.headers(5) + p.headers(3), E.PROTOCOL_ERROR),
    (
        "5.4.1",
        "HEADERS of a call that is over",
        lambda p: p.headers(1) + reset(1, E.CANCEL) + p.headers(1, flags=WHOLE),
        E.STREAM_CLOSED,
    ),
    ("6.1", "DATA on stream 0", lambda p: frame(DATA, 0, 0, b"x"), E.PROTOCOL_ERROR),
    (
        "6.1",
        "padding as long as the frame",
        lambda p: p.headers(1) + frame(DATA, PADDED, 1, b"\x05abcd"),
        E.PROTOCOL_ERROR,
    ),
    (
        "6.1",
        "padded DATA without the padding's size",
        lambda p: p.headers(1) + frame(DATA, PADDED, 1, b""),
        E.FRAME_SIZE_ERROR,
    ),
    ("6.2", "HEADERS on stream 0", lambda p: frame(HEADERS, WHOLE, 0, b"\x82"), E.PROTOCOL_ERROR),
    (
        "6.2",
        "HEADERS with too much padding",
        lambda p: frame(HEADERS, WHOLE | PADDED, 1, b"\x05\x82"),
        E.PROTOCOL_ERROR,
    ),
    (
        "6.2",
        "HEADERS too short for its priority",
        lambda p: frame(HEADERS, WHOLE | PRIORITY_FLAG, 1, b"\0\0"),
        E.PROTOCOL_ERROR,
    ),
    ("6.3", "PRIORITY on stream 0", lambda p: frame(PRIORITY, 0, 0, bytes(5)), E.PROTOCOL_ERROR),
    ("6.4", "RST_STREAM on stream 0", lambda p: reset(0, E.CANCEL), E.PROTOCOL_ERROR),
    ("6.4", "RST_STREAM of 3 bytes", lambda p: p.headers(1) + frame(RST_STREAM, 0, 1, bytes(3)), E.FRAME_SIZE_ERROR),
    ("6.5", "SETTINGS on a stream", lambda p: frame(SETTINGS, 0, 1, b""), E.PROTOCOL_ERROR),
    ("6.5", "SETTINGS of 5 bytes", lambda p: frame(SETTINGS, 0, 0, bytes(5)), E.FRAME_SIZE_ERROR),
    ("6.5", "acknowledgement with a payload", lambda p: frame(SETTINGS, ACK, 0, bytes(6)), E.FRAME_SIZE_ERROR),
    ("6.5.2", "ENABLE_PUSH 2", lambda p: settings((Setting.ENABLE_PUSH, 2)), E.PROTOCOL_ERROR),
    (
        "6.5.2",
        "INITIAL_WINDOW_SIZE over 2^31-1",
        lambda p: settings((Setting.INITIAL_WINDOW_SIZE, 1 << 31)),
        E.FLOW_CONTROL_ERROR,
    ),
    ("6.5.2", "MAX_FRAME_SIZE under 16384", lambda p: settings((Setting.MAX_FRAME_SIZE, 16383)), E.PROTOCOL_ERROR),
    ("6.5.2", "MAX_FRAME_SIZE over 2^24-1", lambda p: settings((Setting.MAX_FRAME_SIZE, 1 << 24)), E.PROTOCOL_ERROR),
    (
        "6.6",
        "PUSH_PROMISE from a client",
        lambda p: p.headers(1) + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)),
        E.PROTOCOL_ERROR,
    ),
    ("6.7", "PING on a stream", lambda p: frame(PING, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    ("6.7", "PING of 7 bytes", lambda p: frame(PING, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    ("6.8", "GOAWAY on a stream", lambda p: frame(GOAWAY, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    ("6.8", "GOAWAY of 7 bytes", lambda p: frame(GOAWAY, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    ("6.9", "connection WINDOW_UPDATE of 0", lambda p: open_window(0, 0), E.PROTOCOL_ERROR),
    ("6.9", "WINDOW_UPDATE of 3 bytes", lambda p: frame(WINDOW_UPDATE, 0, 0, bytes(3)), E.FRAME_SIZE_ERROR),
    ("6.9.1", "connection window over 2^31-1", lambda p: open_window(0, (1 << 31) - 1), E.FLOW_CONTROL_ERROR),
    (
        "6.9.2",
        "INITIAL_WINDOW_SIZE takes a stream's window over 2^31-1",
        lambda p: p.headers(1) + open_window(1, 1 << 20) + settings((Setting.INITIAL_WINDOW_SIZE, (1 << 31) - 1)),
        E.FLOW_CONTROL_ERROR,
    ),
    ("6.10", "CONTINUATION of nothing", lambda p: frame(CONTINUATION, END_HEADERS, 1, b""), E.PROTOCOL_ERROR),
    (
        "6.10",
        "CONTINUATION on another stream",
        lambda p: p.headers(1, flags=0) + frame(CONTINUATION, END_HEADERS, 3, b""),
        E.PROTOCOL_ERROR,
    ),
    ("6.10", "HEADERS inside a header block", lambda p: p.headers(1, flags=0) + p.headers(3), E.PROTOCOL_ERROR),
    (
        "5.5",
        "unknown frame inside a header block",
        lambda p: p.headers(1, flags=0) + frame(0x42, 0, 1, b""),
        E.PROTOCOL_ERROR,
    ),
]

MISSING = [(name, [f for f in request_fields() if f[0] != name]) for name in (b":method", b":scheme", b":path")]

STREAM_ERRORS: list[tuple[str, str, Callable[[Peer], bytes], ErrorCode]] = [
    ("5.1", "DATA after END_STREAM", lambda p: p.call(1) + frame(DATA, 0, 1, b"x"), E.STREAM_CLOSED),
    ("5.1", "HEADERS after END_STREAM", lambda p: p.call(1) + p.headers(1, [(b"a", b"b")], WHOLE), E.STREAM_CLOSED),
    (
        "5.1",
        "DATA after RST_STREAM",
        lambda p: p.headers(1) + reset(1, E.CANCEL) + frame(DATA, 0, 1, b"x"),
        E.STREAM_CLOSED,
    ),
    ("6.9", "stream WINDOW_UPDATE of 0", lambda p: p.headers(1) + open_window(1, 0), E.PROTOCOL_ERROR),
    (
        "6.9.1",
        "stream window over 2^31-1",
        lambda p: p.headers(1) + open_window(1, (1 << 31) - 1),
        E.FLOW_CONTROL_ERROR,
    ),
    (
        "6.9.1",
        "DATA beyond the stream's window",
        lambda p: p.headers(1) + frame(DATA, 0, 1, b"\0\0\xff\0\0" + bytes(FRAME_BYTES - 5)),
        E.FLOW_CONTROL_ERROR,
    ),
    ("8.1", "trailers without END_STREAM", lambda p: p.headers(1) + p.headers(1, [(b"a", b"b")]), E.PROTOCOL_ERROR),
    (
        "8.1",
        "pseudo-header in trailers",
        lambda p: p.headers(1) + p.headers(1, [(b":path", b"/")], WHOLE),
        E.PROTOCOL_ERROR,
    ),
    (
        "8.1.1",
        "content-length that is not the body's",
        lambda p: p.call(1, b"hello", (b"content-length", b"11")),
        E.PROTOCOL_ERROR,
    ),
    (
        "8.1.1",
        "two content-lengths",
        lambda p: p.call(1, b"", (b"content-length", b"5"), (b"content-length", b"6")),
        E.PROTOCOL_ERROR,
    ),
    ("8.2.1", "upper-case name", lambda p: p.call(1, b"", (b"X-Key", b"1")), E.PROTOCOL_ERROR),
    ("8.2.1", "space in a name", lambda p: p.call(1, b"", (b"x key", b"1")), E.PROTOCOL_ERROR),
    ("8.2.1", "empty name", lambda p: p.call(1, b"", (b"", b"1")), E.PROTOCOL_ERROR),
    ("8.2.1", "line end in a value", lambda p: p.call(1, b"", (b"x", b"1\r\ny: 2")), E.PROTOCOL_ERROR),
    ("8.2.1", "NUL in a value", lambda p: p.call(1, b"", (b"x", b"1\0")), E.PROTOCOL_ERROR),
    ("8.2.1", "value that begins with a space", lambda p: p.call(1, b"", (b"x", b" 1")), E.PROTOCOL_ERROR),
    ("8.2.2", "connection", lambda p: p.call(1, b"", (b"connection", b"close")), E.PROTOCOL_ERROR),
    ("8.2.2", "transfer-encoding", lambda p: p.call(1, b"", (b"transfer-encoding", b"chunked")), E.PROTOCOL_ERROR),
    ("8.2.2", "te that is not trailers", lambda p: p.call(1, b"", (b"te", b"gzip")), E.PROTOCOL_ERROR),
    (
        "8.3",
        "unknown pseudo-header",
        lambda p: p.headers(1, [(b":foo", b"1"), *request_fields()], WHOLE),
        E.PROTOCOL_ERROR,
    ),
    (
        "8.3",
        "reply's pseudo-header",
        lambda p: p.headers(1, [(b":status", b"200"), *request_fields()], WHOLE),
        E.PROTOCOL_ERROR,
    ),
    (
        "8.3",
        "pseudo-header after a field",
        lambda p: p.headers(1, [(b"x", b"1"), *request_fields()], WHOLE),
        E.PROTOCOL_ERROR,
    ),
    (
        "8.3.1",
        "repeated pseudo-header",
        lambda p: p.headers(1, [(b":path", UNARY), *request_fields()], WHOLE),
        E.PROTOCOL_ERROR,
    ),
    ("8.3.1", "empty :path", lambda p: p.headers(1, request_fields(b""), WHOLE), E.PROTOCOL_ERROR),
    *(
        ("8.3.1", f"no {name.decode()}", lambda p, fields=fields: p.headers(1, fields, WHOLE), E.PROTOCOL_ERROR)
        for name, fields in MISSING
    ),
]


@pytest.mark.parametrize(
    ("section", "what", "sent", "code"), CONNECTION_ERRORS, ids=[f"§{row[0]} {row[1]}" for row in CONNECTION_ERRORS]
)
def test_a_connection_error_is_a_goaway(
    section: str, what: str, sent: Callable[[Peer], bytes], code: ErrorCode
) -> None:
    peer = Peer()
    peer.send(sent(peer))
    assert peer.gone == code
    assert peer.machine.closed
    assert peer.send(peer.call(99)) == []


@pytest.mark.parametrize(
    ("section", "what", "sent", "code"), STREAM_ERRORS, ids=[f"§{row[0]} {row[1]}" for row in STREAM_ERRORS]
)
def test_a_stream_error_is_a_reset_and_others_go_on(
    section: str, what: str, sent: Callable[[Peer], bytes], code: ErrorCode
) -> None:
    peer = Peer(Limits(stream_window_bytes=1 << 16))
    peer.send(sent(peer))
    assert peer.resets == {1: code}
    assert peer.gone is None
    (call,) = peer.send(peer.call(101))
    peer.machine.reply(call, b"still here")  # type: ignore[arg-type]  # a whole unary call
    peer.take()
    assert peer.body(101) == message(b"still here")


@pytest.mark.parametrize("cut", range(1, len(PREFACE)))
def test_a_preface_is_known_by_its_first_wrong_byte(cut: int) -> None:
    peer = Peer(hello=b"")
    peer.send(PREFACE[:cut])
    assert peer.gone is None
    peer.send(b"x")
    assert peer.gone == E.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [ping(bytes(8), ack=False), frame(SETTINGS, ACK, 0, b""), open_window(0, 1)])
def test_settings_come_first(first: bytes) -> None:
    peer = Peer(hello=b"")  # §3.4
    peer.send(PREFACE + first)
    assert peer.gone == E.PROTOCOL_ERROR


def test_what_must_be_ignored_is_ignored() -> None:
    peer = Peer()
    peer.send(
        frame(0x42, 0xFF, 7, b"unknown"),  # §5.5
        frame(0x42, 0, 0, bytes(1 << 19)),
        settings((0x99, 1)),  # §6.5.2
        frame(PRIORITY, 0, 9, bytes(5)),  # §5.3.2
        frame(PRIORITY, 0, 9, bytes(4)),  # §6.3: an error of a stream that is not there
        goaway(0, E.NO_ERROR, "bye"),  # §6.8
        frame(GOAWAY, 0, 0, bytes(8) + b"debug"),
    )
    peer.send(peer.call(1))
    peer.send(reset(1, E.CANCEL), reset(1, E.CANCEL), open_window(1, 1))  # §5.1: these may cross
    assert peer.gone is None
    assert peer.resets == {}


def test_reserved_bits_are_ignored() -> None:
    peer = Peer()
    high = 1 << 31
    whole = peer.call(1)
    word, flags, stream = struct.unpack_from(">IBI", whole)
    (call,) = peer.send(struct.pack(">IBI", word, flags | 0x40, stream | high) + whole[9:])  # §4.1
    peer.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", high | 5)))  # §6.9
    assert peer.gone is None
    assert bytes(call.message) == b"hello"  # type: ignore[union-attr]  # a whole unary call


def test_padding_and_priority_are_taken_off_at_any_cut() -> None:
    reference = Peer()
    block = reference.encoder.encode(request_fields())
    body = message(bytes(range(200)))
    wire = frame(HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, b"\x03" + bytes(5) + block + b"pad")
    wire += frame(DATA, PADDED, 1, b"\x07" + body[:50] + b"padding") + frame(DATA, PADDED, 1, b"\x00")
    wire += frame(DATA, PADDED, 1, b"\x02" + b"\0\0") + frame(
        DATA, PADDED | END_STREAM, 1, b"\xff" + body[50:] + bytes(255)
    )
    for size in (1, 2, 3, 7, 50, len(wire)):
        peer = Peer()
        events = [event for at in range(0, len(wire), size) for event in peer.send(wire[at : at + size])]
        assert [bytes(event.message) for event in events if isinstance(event, Call)] == [bytes(range(200))]
        assert peer.gone is None


def test_a_header_block_may_come_in_pieces() -> None:
    peer = Peer()
    block = peer.encoder.encode(request_fields(UNARY, (b"x-key", b"value")))
    pieces = [frame(CONTINUATION, 0, 1, block[at : at + 20]) for at in range(20, len(block), 20)]
    wire = frame(HEADERS, END_STREAM, 1, block[:20]) + b"".join(pieces) + frame(CONTINUATION, END_HEADERS, 1, b"")
    peer.send(wire)
    assert peer.status(1) == 12  # END_STREAM came with HEADERS: no message


def test_a_ping_is_answered_with_its_bytes() -> None:
    peer = Peer()
    peer.send(ping(b"12345678", ack=False), ping(b"unasked.", ack=True))  # §6.7
    assert [(each.flags, each.payload) for each in peer.of(PING)] == [(ACK, b"12345678")]


def test_windows_may_become_negative() -> None:
    peer = Peer()  # §6.9.2
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 10)))
    (call,) = peer.send(peer.call(1))
    peer.machine.reply(call, b"x" * 30)  # type: ignore[arg-type]  # a whole unary call
    peer.take()
    assert len(peer.body(1)) == 10
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 0)), open_window(1, 10))
    assert len(peer.body(1)) == 10
    peer.send(open_window(1, 100))
    assert peer.body(1) == message(b"x" * 30)
    assert peer.status(1) == 0


def test_a_streaming_call_is_surfaced_at_once() -> None:
    peer = Peer()
    events = peer.send(peer.headers(1, request_fields(STREAM)), frame(DATA, 0, 1, message(b"a") + message(b"b")))
    assert [type(event).__name__ for event in events] == ["Opened", "Received"]


def seen(events: list[Event[Any]]) -> list[tuple[int, bool, list[bytes]]]:
    """Stream, whether packed, and bodies of all that was received."""
    received = [event for event in events if isinstance(event, Received)]
    return [(each.call.stream_id, each.packed, [bytes(body) for body in each.messages]) for each in received]


def test_messages_that_come_together_are_told_of_together_and_in_order() -> None:
    peer = Peer()
    path = request_fields(STREAM, (b"grpc-encoding", b"gzip"))
    one, other = [frame(DATA, 0, number, message(b"%d" % number)) for number in (1, 3)]
    two = frame(DATA, 0, 1, message(b"a") + message(b"b"))
    mixed = frame(DATA, 0, 1, message(b"c") + message(b"d", flag=1) + message(b"e") + message(b"f"))
    events = peer.send(peer.headers(1, path), peer.headers(3, path), one, one, other, one, one, two, mixed)
    assert seen(events) == [
        (1, False, [b"1", b"1"]),
        (3, False, [b"3"]),
        (1, False, [b"1", b"1"]),
        (1, False, [b"a", b"b"]),
        (1, False, [b"c"]),
        (1, True, [b"d"]),
        (1, False, [b"e", b"f"]),
    ]
    assert seen(peer.send(one)) == [(1, False, [b"1"])]
