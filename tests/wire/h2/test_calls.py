"""gRPC over the machine: request headers, messages, statuses."""

import gzip
import zlib
from typing import Any
from urllib.parse import unquote

import pytest

from ekiben.wire.h2 import (
    Call,
    Cancelled,
    Ended,
    ErrorCode,
    GrpcError,
    Limits,
    Memory,
    Opened,
    Received,
    Status,
    unpacked,
)
from ekiben.wire.h2.codes import DATA, END_HEADERS, END_STREAM, HEADERS, WINDOW_UPDATE
from ekiben.wire.h2.heads import timeout_seconds
from ekiben.wire.h2.messages import Assembler
from ekiben.wire.h2.replies import frame
from tests.wire.h2.peer import STREAM, UNARY, Kind, Peer, message, open_window, request_fields, settings

WHOLE = END_HEADERS | END_STREAM


def replaced(name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return [(each, value if each == name else old) for each, old in request_fields()]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"250m", 0.25),
        (b"7u", 7e-6),
        (b"99999999n", 0.099999999),
        (b"0S", 0),
    ],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert timeout_seconds(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"1s", b"123456789S", b"-1S", b"1.5S", b" 1S"])
def test_malformed_timeouts(value: bytes) -> None:
    with pytest.raises(GrpcError, match="grpc-timeout") as caught:
        timeout_seconds(value)
    assert caught.value.status == Status.INTERNAL


REFUSED = [
    (request_fields(b"/test.Service/Nothing"), 12, 200),
    (replaced(b":method", b"GET"), 13, 405),
    (replaced(b"content-type", b"application/json"), 13, 415),
    (replaced(b"content-type", b"application/grpc-web"), 13, 415),
    (request_fields()[:-2], 13, 415),
    (request_fields(UNARY, (b"grpc-encoding", b"snappy")), 12, 200),
    (request_fields(UNARY, (b"grpc-timeout", b"soon")), 13, 200),
    (request_fields(UNARY, (b"key-bin", b"!!!")), 13, 200),
]


@pytest.mark.parametrize(("fields", "status", "http_status"), REFUSED)
@pytest.mark.parametrize("ends", [False, True])
def test_calls_that_are_refused(fields: list[tuple[bytes, bytes]], status: int, http_status: int, ends: bool) -> None:
    peer = Peer()
    assert peer.send(peer.headers(1, fields, WHOLE if ends else END_HEADERS)) == []
    assert peer.status(1) == status
    assert peer.fields(1)[0][b":status"] == b"%d" % http_status
    assert peer.resets == ({} if ends else {1: ErrorCode.NO_ERROR})
    if not ends:
        peer.send(frame(DATA, END_STREAM, 1, message(b"x")))  # was on its way
    assert len(peer.resets) == (not ends)
    assert peer.gone is None


def test_an_unknown_encoding_is_told_the_known_ones() -> None:
    peer = Peer()
    peer.send(peer.headers(1, request_fields(UNARY, (b"grpc-encoding", b"snappy"))))
    assert peer.fields(1)[0][b"grpc-accept-encoding"] == b"identity, gzip, deflate"


@pytest.mark.parametrize(
    "content_type", [b"application/grpc", b"application/grpc+proto", b"Application/gRPC", b"application/grpc;a=b"]
)
def test_content_types(content_type: bytes) -> None:
    peer = Peer()
    fields = replaced(b"content-type", content_type)
    assert len(peer.send(peer.headers(1, fields), frame(DATA, END_STREAM, 1, message(b"")))) == 1


def test_metadata() -> None:
    peer = Peer()
    own = ((b"key", b"value"), (b"raw-bin", b"AAEC/w"), (b"raw-bin", b"AAEC/w=="), (b"user-agent", b"test"))
    (call,) = peer.send(peer.call(1, b"", *own, (b"grpc-trace", b"x"), (b"key", b"again")))
    assert isinstance(call, Call)
    assert call.head.path == UNARY
    assert call.head.metadata == (
        (b"key", b"value"),
        (b"raw-bin", b"\0\1\2\xff"),
        (b"raw-bin", b"\0\1\2\xff"),
        (b"key", b"again"),
    )


def test_a_head_is_kept_until_the_table_changes() -> None:
    peer = Peer()
    heads = []
    for number, path in enumerate((UNARY, UNARY, UNARY, STREAM, UNARY, STREAM, UNARY)):
        events = peer.send(peer.headers(2 * number + 1, request_fields(path)))
        events += peer.send(frame(DATA, END_STREAM, 2 * number + 1, message(b"")))
        event = events[0]
        assert isinstance(event, Call | Opened)
        heads.append(event.head if isinstance(event, Call) else event.call.head)
    assert [head.path for head in heads] == [UNARY, UNARY, UNARY, STREAM, UNARY, STREAM, UNARY]
    assert heads[0] is not heads[1]  # the first block filled the table
    assert heads[1] is heads[2]
    assert heads[3] is not heads[5]
    assert heads[4] is heads[6]


def test_a_whole_unary_call() -> None:
    peer = Peer()
    (call,) = peer.send(peer.call(1))
    assert isinstance(call, Call)
    assert (bytes(call.message), call.deadline, call.stream_id) == (b"hello", None, 1)
    peer.machine.reply(call, b"world")
    peer.take()
    first, last = peer.fields(1)
    assert first == {b":status": b"200", b"content-type": b"application/grpc"}
    assert last == {b"grpc-status": b"0"}
    assert peer.body(1) == message(b"world")
    assert [each.flags & END_STREAM for each in peer.got] == [0, 0, 1]
    peer.machine.reply(call, b"again")
    peer.machine.finish(call)
    assert not peer.machine.has_output


def test_a_large_message_is_a_view_of_what_was_read() -> None:
    peer = Peer()
    data = peer.call(1, bytes(100_000))
    (call,) = peer.send(data)
    assert isinstance(call, Call)
    assert isinstance(call.message.obj, bytes)
    assert len(call.message.obj) == len(data)


WRONG = [
    ([frame(DATA, END_STREAM, 1, b"")], 12),
    ([frame(DATA, END_STREAM, 1, message(b"a") + message(b"b"))], 12),
    ([frame(DATA, 0, 1, message(b"a")), frame(DATA, END_STREAM, 1, message(b"b"))], 12),
    ([frame(DATA, END_STREAM, 1, message(b"abc")[:-1])], 13),
    ([frame(DATA, END_STREAM, 1, b"\0\0")], 13),
    ([frame(DATA, END_STREAM, 1, message(b"a", flag=2))], 13),
    ([frame(DATA, END_STREAM, 1, message(b"a", flag=1))], 13),
]


@pytest.mark.parametrize(("sent", "status"), WRONG)
def test_requests_that_are_no_message(sent: list[bytes], status: int) -> None:
    peer = Peer()
    assert peer.send(peer.headers(1), *sent) == []
    assert peer.status(1) == status
    assert peer.gone is None
    assert peer.memory.used_bytes == 0


def test_a_message_may_be_followed_by_an_empty_end_or_by_trailers() -> None:
    peer = Peer()
    (first,) = peer.send(peer.headers(1), frame(DATA, 0, 1, message(b"a")), frame(DATA, END_STREAM, 1, b""))
    (second,) = peer.send(peer.headers(3), frame(DATA, 0, 3, message(b"b")), peer.headers(3, [(b"x", b"y")], WHOLE))
    assert [bytes(call.message) for call in (first, second) if isinstance(call, Call)] == [b"a", b"b"]


@pytest.mark.parametrize("text", ["", "plain", "100 %", "line\nend", "é 駅弁 \U0001f371", "x" * 3000, "駅" * 3000])
def test_messages_of_statuses_survive(text: str) -> None:
    peer = Peer()
    (call,) = peer.send(peer.call(1))
    assert isinstance(call, Call)
    peer.machine.fail(call, GrpcError(3, text))
    peer.take()
    (fields,) = peer.fields(1)
    assert unquote(fields.get(b"grpc-message", b"").decode("ascii")) == text[:1024]
    assert peer.status(1) == 3


def test_an_error_after_replies_is_trailers() -> None:
    peer = Peer()
    opened, received = peer.send(peer.headers(1, request_fields(STREAM)), frame(DATA, 0, 1, message(b"a")))
    assert isinstance(opened, Opened)
    assert isinstance(received, Received)
    peer.machine.send(opened.call, b"one")
    peer.machine.fail(opened.call, GrpcError(Status.ABORTED, "enough"))
    peer.take()
    assert peer.body(1) == message(b"one")
    assert peer.fields(1)[1] == {b"grpc-status": b"10", b"grpc-message": b"enough"}
    assert peer.resets == {1: ErrorCode.NO_ERROR}


def open_stream(*hello: bytes) -> tuple[Peer, Call[Any]]:
    peer = Peer()
    events = peer.send(*hello, peer.headers(1, request_fields(STREAM)))
    (opened,) = events
    assert isinstance(opened, Opened)
    return peer, opened.call


def test_messages_sent_together_share_a_frame() -> None:
    peer, call = open_stream()
    peer.machine.send_all(call, [b"a", b"", b"ccc"])
    peer.machine.send_all(call, [b"d", b"e"])
    peer.take()
    assert peer.body(1) == b"".join(map(message, (b"a", b"", b"ccc", b"d", b"e")))
    assert len(peer.of(DATA)[-1].payload) == 12
    assert len(peer.of(HEADERS)) == 1


@pytest.mark.parametrize("hello", [settings((4, 0)), settings((4, 20)), settings((4, 1 << 20)), b""])
def test_messages_sent_together_keep_to_windows_and_frame_sizes(hello: bytes) -> None:
    peer, call = open_stream(hello)
    bodies = [b"first", *[bytes([number]) * 9_000 for number in range(20)], b"last"]
    peer.machine.send_all(call, bodies[:1])
    peer.machine.send_all(call, bodies[1:])
    peer.machine.finish(call)
    peer.take()
    whole = b"".join(map(message, bodies))
    assert len(peer.body(1)) < len(whole)
    while len(peer.body(1)) < len(whole):
        before = len(peer.body(1))
        peer.send(open_window(0, 1000), open_window(1, 1000))
        assert 0 < len(peer.body(1)) - before <= 1000
    assert peer.body(1) == whole
    assert max(len(each.payload) for each in peer.of(DATA)) <= 16_384
    assert peer.status(1) == 0


def test_messages_sent_together_on_a_call_that_is_over_go_nowhere() -> None:
    peer, call = open_stream()
    peer.machine.finish(call)
    peer.take()
    peer.got.clear()
    peer.machine.send_all(call, [b"a"])
    peer.take()
    assert peer.got == []


def test_messages_may_be_consumed_several_at_a_time() -> None:
    peer = Peer(Limits(stream_window_bytes=65_535))
    body = frame(DATA, 0, 1, message(bytes(10_000)))
    opened, _ = peer.send(peer.headers(1, request_fields(STREAM)), body * 6)
    assert isinstance(opened, Opened)
    peer.send(body * 4)
    assert len(peer.of(WINDOW_UPDATE)) == 1  # no second, for the reader is behind by a window
    assert peer.memory.used_bytes > 0
    assert peer.machine.consumed(opened.call, 100_000, 10)
    peer.take()
    assert len(peer.of(WINDOW_UPDATE)) == 2
    assert (opened.call.unread, peer.memory.used_bytes) == (0, 0)


@pytest.mark.parametrize("reserved", [0, 1 << 31])
@pytest.mark.parametrize("step", [1, 13, 14, 15, 30, 100, 1000])
def test_a_run_of_messages_may_be_cut_anywhere_and_hold_anything(step: int, reserved: int) -> None:
    bodies = [b"a", b"", b"bc" * 20, b"d" * 20_000, b"e", b"f"]
    wire = b"".join(frame(DATA, 0, 1 | reserved, message(body)) for body in bodies)
    wire += frame(DATA, 0, 1, message(b"g")[:3]) + frame(DATA, 0, 1, message(b"g")[3:] + message(b"h"))
    wire += frame(DATA, 0, 1, b"") + frame(DATA, 0, 1, message(b"i")) + frame(DATA, END_STREAM, 1, message(b"j"))
    peer, _ = open_stream()
    events = [event for at in range(0, len(wire), step) for event in peer.send(wire[at : at + step])]
    got = [bytes(each) for event in events if isinstance(event, Received) for each in event.messages]
    assert got == [*bodies, b"g", b"h", b"i", b"j"]
    assert isinstance(events[-1], Ended)
    assert peer.gone is None


def test_a_run_of_messages_keeps_to_the_windows_and_to_the_memory() -> None:
    many = frame(DATA, 0, 1, message(bytes(9_995))) * 8
    for limits, code in (
        (Limits(stream_window_bytes=65_535, frame_bytes=16_384), None),
        (Limits(connection_window_bytes=65_535), ErrorCode.FLOW_CONTROL_ERROR),
    ):
        peer = Peer(limits)
        peer.send(peer.headers(1, request_fields(STREAM)), many)
        assert peer.gone is code
        peer.send(many, many)
        if code is None:  # no more than one window ahead of the handler
            assert peer.resets == {1: ErrorCode.FLOW_CONTROL_ERROR}
    peer = Peer(memory=Memory(150_000))
    events = peer.send(peer.headers(1, request_fields(STREAM)), many, many)
    assert isinstance(events[-1], Cancelled)
    assert peer.status(1) == Status.RESOURCE_EXHAUSTED
    assert peer.memory.used_bytes == 0


def test_a_streaming_call_without_replies_has_headers_and_trailers() -> None:
    peer = Peer()
    (opened, _) = peer.send(peer.headers(1, request_fields(STREAM), WHOLE))
    assert isinstance(opened, Opened)
    peer.machine.finish(opened.call)
    peer.take()
    assert [sorted(fields) for fields in peer.fields(1)] == [[b":status", b"content-type"], [b"grpc-status"]]


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_packed_messages(encoding: bytes) -> None:
    peer = Peer()
    body = gzip.compress(b"hello") if encoding == b"gzip" else zlib.compress(b"hello")
    fields = request_fields(UNARY, (b"grpc-encoding", encoding), (b"grpc-accept-encoding", b"identity, deflate, gzip"))
    (call,) = peer.send(peer.headers(1, fields), frame(DATA, END_STREAM, 1, message(body, flag=1)))
    assert isinstance(call, Call)
    assert call.packed
    assert call.head.reply_encoding == encoding
    assert bytes(unpacked(call.message, encoding, 5)) == b"hello"
    peer.machine.reply(call, body, packed=True)
    peer.take()
    assert peer.fields(1)[0][b"grpc-encoding"] == encoding
    assert peer.body(1) == message(body, flag=1)


def test_unpacking_is_bounded_and_checked() -> None:
    with pytest.raises(GrpcError, match="larger than max") as large:
        unpacked(memoryview(gzip.compress(bytes(1001))), b"gzip", 1000)
    assert large.value.status == Status.RESOURCE_EXHAUSTED
    for broken in (b"", b"junk", gzip.compress(b"x")[:-1], gzip.compress(b"x") + b"y"):
        with pytest.raises(GrpcError) as caught:
            unpacked(memoryview(broken), b"gzip", 1000)
        assert caught.value.status == Status.INTERNAL


@pytest.mark.parametrize("step", [1, 2, 4, 5, 6, 7, 100])
def test_messages_are_put_together_from_any_pieces(step: int) -> None:
    bodies = [b"", b"a", b"", bytes(range(50)), b"z" * 9]
    wire = b"".join(message(body) for body in bodies)
    assembler = Assembler(100)
    got = [
        bytes(body) for at in range(0, len(wire), step) for body, _ in assembler.feed(memoryview(wire)[at : at + step])
    ]
    assert got == bodies
    assert not assembler.partial


def test_statuses_are_errors() -> None:
    for status in (0, 17, -1):
        with pytest.raises(ValueError, match="not an error status"):
            GrpcError(status)


@pytest.mark.parametrize("field", ["frame_bytes", "stream_window_bytes", "header_bytes", "message_bytes"])
def test_limits_are_checked(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        Limits(**{field: 0})


def test_headers_frames_of_a_small_reply_are_constants() -> None:
    peer = Peer()
    for number in (1, 3):
        (call,) = peer.send(peer.call(number))
        assert isinstance(call, Call)
        peer.machine.reply(call, b"")
    peer.take()
    first, second = ([each.payload for each in peer.of(HEADERS) if each.stream_id == number] for number in (1, 3))
    assert first == second


def test_a_guard_refuses_by_the_headers_and_is_asked_once_for_the_same_ones() -> None:
    asked: list[object] = []

    def guard(metadata: tuple[tuple[bytes, bytes], ...]) -> None:
        asked.append(metadata)
        if (b"key", b"right") not in metadata:
            raise GrpcError(Status.UNAVAILABLE, "who are you?")

    kinds = {UNARY: Kind(False, guard), STREAM: Kind(True, guard)}
    peer = Peer(methods=kinds)
    for path, wrong, right in ((UNARY, 1, 3), (STREAM, 5, 7)):
        assert peer.send(peer.headers(wrong, request_fields(path, (b"key", b"wrong")))) == []
        assert (peer.status(wrong), peer.resets[wrong]) == (Status.UNAVAILABLE, ErrorCode.NO_ERROR)
        assert peer.send(frame(DATA, END_STREAM, wrong, message(b"late"))) == []
        fields = request_fields(path, (b"key", b"right"))
        assert peer.send(peer.headers(right, fields), frame(DATA, END_STREAM, right, message(b"hello"))) != []
    before = len(asked)
    for stream_id in (9, 11, 13):
        peer.send(peer.headers(stream_id, request_fields(UNARY, (b"key", b"wrong")), WHOLE))
        assert peer.status(stream_id) == Status.UNAVAILABLE
    assert len(asked) - before <= 2
