"""What a hostile or broken client can do to a connection, and where it ends."""

import struct
from collections.abc import Callable

import pytest

from ekiben.wire.h2 import Call, Cancelled, ErrorCode, GrpcError, Limits, Memory, Opened
from ekiben.wire.h2.codes import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    Setting,
)
from ekiben.wire.h2.replies import frame, ping, reset
from tests.wire.h2.peer import HELLO, STREAM, UNARY, Peer, message, open_window, request_fields, settings

E = ErrorCode


def flood(peer: Peer, make: Callable[[int], bytes], most: int) -> int:
    """How many times the peer gets away with it, until it is closed."""
    for count in range(most):
        peer.send(make(count))
        peer.got[:-1] = []
        if peer.machine.closed:
            return count
    return most


FLOODS: list[tuple[str, Callable[[Peer, int], bytes], int]] = [
    ("PING", lambda p, n: ping(bytes(8), ack=False), 1001),
    ("SETTINGS", lambda p, n: settings(), 1001),
    ("changing SETTINGS", lambda p, n: settings((Setting.INITIAL_WINDOW_SIZE, n)), 1001),
    ("answers to no PING", lambda p, n: ping(bytes(8), ack=True), 10_001),
    ("answers to no SETTINGS", lambda p, n: frame(SETTINGS, 1, 0, b""), 10_001),
    ("PRIORITY", lambda p, n: frame(PRIORITY, 0, 1, bytes(5)), 10_001),
    ("unknown frames", lambda p, n: frame(0x42, 0, 1, b""), 10_001),
    ("WINDOW_UPDATE", lambda p, n: open_window(0, 1), 10_100),
    ("GOAWAY", lambda p, n: frame(GOAWAY, 0, 0, bytes(8)), 10_001),
    ("empty DATA", lambda p, n: frame(DATA, 0, 1, b""), 10_001),
    ("late WINDOW_UPDATE", lambda p, n: open_window(3, 1), 10_100),
    ("RST_STREAM of nothing", lambda p, n: reset(3, E.CANCEL), 10_001),
]


@pytest.mark.parametrize(("what", "make", "most"), FLOODS, ids=[row[0] for row in FLOODS])
def test_a_flood_ends_the_connection(what: str, make: Callable[[Peer, int], bytes], most: int) -> None:
    peer = Peer()
    peer.send(peer.headers(1, request_fields(STREAM)), peer.headers(3, request_fields(STREAM)), reset(3, E.CANCEL))
    assert flood(peer, lambda n: make(peer, n), most) < most
    assert peer.gone == E.ENHANCE_YOUR_CALM


def test_the_same_frames_in_measure_do_not() -> None:
    peer = Peer()
    for second in range(2000):
        peer.now = float(second)
        peer.send(*[ping(bytes(8), ack=False)] * 50, *[open_window(0, 1)] * 500)
    assert peer.gone is None


def test_rapid_reset() -> None:
    peer = Peer(Limits(concurrent_streams=100))
    sent = flood(peer, lambda n: peer.call(2 * n + 1) + reset(2 * n + 1, E.CANCEL), 5000)
    assert sent == 1200
    assert peer.gone == E.ENHANCE_YOUR_CALM
    assert peer.machine.calls == 0


def test_calls_given_up_now_and_then_are_normal() -> None:
    peer = Peer(Limits(concurrent_streams=100))
    for number in range(5000):
        first, second = 4 * number + 1, 4 * number + 3
        (call, _) = peer.send(peer.call(first), peer.call(second))
        assert isinstance(call, Call)
        peer.machine.reply(call, b"")
        peer.take()
        peer.send(reset(second, E.CANCEL), open_window(0, 100))
        peer.got.clear()
    assert peer.gone is None


def test_resets_that_the_server_is_made_to_send_count_too() -> None:
    peer = Peer(Limits(concurrent_streams=100))
    sent = flood(peer, lambda n: peer.call(2 * n + 1) + open_window(2 * n + 1, 0), 5000)
    assert sent == 1200
    assert peer.gone == E.ENHANCE_YOUR_CALM


def test_more_calls_than_allowed_are_refused() -> None:
    peer = Peer(Limits(concurrent_streams=3))
    events = peer.send(*(peer.call(number) for number in (1, 3, 5, 7, 9)))
    assert len(events) == 3
    assert peer.resets == {7: E.REFUSED_STREAM, 9: E.REFUSED_STREAM}
    assert isinstance(events[0], Call)
    peer.machine.reply(events[0], b"")
    assert len(peer.send(peer.call(11))) == 1


@pytest.mark.parametrize("piece", [0, 1, 1000])
def test_continuation_flood(piece: int) -> None:
    peer = Peer()
    peer.send(peer.headers(1, flags=0))
    assert flood(peer, lambda n: frame(CONTINUATION, 0, 1, bytes(piece)), 17) <= 16
    assert peer.gone == E.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("kind", [HEADERS, CONTINUATION, SETTINGS, GOAWAY, PING, RST_STREAM])
def test_a_long_frame_is_refused_by_its_head(kind: int) -> None:
    peer = Peer()
    if kind == CONTINUATION:
        peer.send(peer.headers(1, flags=0))
    peer.send(struct.pack(">IBI", (1 << 20) << 8 | kind, 0, 1))
    assert peer.gone in (E.ENHANCE_YOUR_CALM, E.FRAME_SIZE_ERROR)


def test_an_hpack_bomb() -> None:
    peer = Peer()
    entry = b"\x40\x01a" + b"\x7f\xd1\x0e" + b"x" * 2000  # one large field into the table, then named again and again
    bomb = frame(HEADERS, END_HEADERS | END_STREAM, 1, entry + b"\xbe" * 10_000)
    peer.send(bomb)
    assert peer.gone == E.ENHANCE_YOUR_CALM


def test_heads_kept_are_few_and_small() -> None:
    peer = Peer()
    for number in range(1000):
        block = peer.encoder.encode(request_fields()) + b"\x00\x01x" + bytes((5,)) + b"%05d" % number
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, block))
        peer.got.clear()
    kept = peer.machine._streams._heads.kept
    assert 0 < len(kept) <= 128


def test_zero_windows_hold_back_a_bounded_backlog_and_not_for_ever() -> None:
    peer = Peer(Limits(backlog_bytes=100_000, stalled_s=60))
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 0)))
    for number in range(20):
        for call in peer.send(peer.call(2 * number + 1)):
            assert isinstance(call, Call)
            peer.machine.reply(call, bytes(20_000))
    assert peer.machine.calls == 5
    assert set(peer.resets.values()) == {E.REFUSED_STREAM}
    peer.tick(59.0)
    assert peer.machine.calls == 5
    peer.tick(61.0)
    assert peer.machine.calls == 0
    assert [peer.resets[number] for number in (1, 3, 5, 7, 9)] == [E.ENHANCE_YOUR_CALM] * 5
    assert len(peer.send(peer.call(101))) == 1


def test_a_connection_without_window_is_closed() -> None:
    peer = Peer(Limits(keepalive_s=0))
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 1 << 20)))
    (call,) = peer.send(peer.call(1))
    assert isinstance(call, Call)
    peer.machine.reply(call, bytes(100_000))
    for now in (1.0, 50.0):
        peer.tick(now)
    peer.send(open_window(0, 2000))  # progress
    for now in (62.0, 110.0):
        peer.tick(now)
    assert peer.gone is None
    peer.tick(130.0)
    assert peer.gone == E.ENHANCE_YOUR_CALM
    assert peer.machine.calls == 0


def test_a_socket_that_takes_nothing_is_closed_and_new_calls_are_refused() -> None:
    peer = Peer(Limits(backlog_bytes=1000, keepalive_s=0))
    peer.machine.unwritten(2000)
    peer.send(peer.call(1))
    assert peer.resets == {1: E.REFUSED_STREAM}
    for now, left in ((1.0, 2000), (50.0, 1000), (100.0, 1000)):
        peer.machine.unwritten(left)
        peer.tick(now)
    assert peer.gone is None
    peer.tick(111.0)
    assert peer.gone == E.ENHANCE_YOUR_CALM


def test_a_window_opened_by_the_byte_is_not_free() -> None:
    peer = Peer()
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 0)))
    (call,) = peer.send(peer.call(1))
    assert isinstance(call, Call)
    peer.machine.reply(call, bytes(60_000))
    assert flood(peer, lambda n: open_window(1, 1), 20_000) < 10_100
    assert peer.gone == E.ENHANCE_YOUR_CALM


def test_a_message_over_the_limit() -> None:
    peer = Peer(Limits(message_bytes=1000, receive_bytes=1000))
    peer.send(peer.headers(1), frame(DATA, 0, 1, message(bytes(1001))[:10]))
    assert peer.status(1) == 8
    assert peer.fields(1)[0][b"grpc-message"] == b"Received message larger than max (1001 vs. 1000)"
    assert peer.resets == {1: E.NO_ERROR}
    peer.send(frame(DATA, END_STREAM, 1, bytes(996)))  # was on its way
    assert len(peer.send(peer.call(3, bytes(1000)))) == 1
    assert peer.gone is None


@pytest.mark.parametrize("streaming", [False, True])
def test_messages_half_sent_are_bounded_by_connection_and_port(streaming: bool) -> None:
    memory = Memory(limit_bytes=1_500_000)
    limits = Limits(message_bytes=1_000_000, receive_bytes=1_000_000)
    path = STREAM if streaming else UNARY
    first, second = Peer(limits, memory), Peer(limits, memory)
    half = message(bytes(900_000))[:600_000]
    first.send(first.headers(1, request_fields(path)), frame(DATA, 0, 1, half))
    assert memory.used_bytes == pytest.approx(600_000, abs=10)
    first.send(first.headers(3, request_fields(path)), frame(DATA, 0, 3, half))
    assert first.status(3) == 8
    second.send(second.headers(1, request_fields(path)), frame(DATA, 0, 1, half))
    assert not second.got
    third = Peer(limits, memory)
    third.send(third.headers(1, request_fields(path)), frame(DATA, 0, 1, half))
    assert third.status(1) == 8
    assert len(third.send(third.call(3))) == 1  # small calls go on
    first.machine.lost()
    second.send(reset(1, E.CANCEL))
    assert memory.used_bytes == 0


def test_a_streaming_client_cannot_run_ahead_of_its_reader() -> None:
    peer = Peer(Limits(stream_window_bytes=100_000))
    (opened,) = peer.send(peer.headers(1, request_fields(STREAM)))
    assert isinstance(opened, Opened)
    for _ in range(10):
        assert len(peer.send(frame(DATA, 0, 1, message(bytes(9_000))))) == 1
    updates = [each for each in peer.got if each.stream_id == 1]
    assert sum(int.from_bytes(each.payload, "big") for each in updates) == pytest.approx(54_000, abs=50)
    for _ in range(10):
        peer.machine.consumed(opened.call, 9_000)
    for _ in range(20):
        peer.send(frame(DATA, 0, 1, message(bytes(9_000))))
    assert peer.resets == {1: E.FLOW_CONTROL_ERROR}


def test_empty_messages_that_wait_are_not_free() -> None:
    peer = Peer(Limits(stream_window_bytes=1 << 16))
    peer.send(peer.headers(1, request_fields(STREAM)))
    empty = frame(DATA, 0, 1, message(b"") * 100)
    received = 0
    while not peer.resets and received < 100_000:
        received += len(peer.send(empty))
    assert peer.resets == {1: E.FLOW_CONTROL_ERROR}
    assert received < 30_000


def test_data_beyond_the_connections_window() -> None:
    peer = Peer(Limits(connection_window_bytes=1 << 16, stream_window_bytes=1 << 20))
    peer.send(peer.headers(1), struct.pack(">IBI", 70_000 << 8, 0, 1))
    assert peer.gone == E.FLOW_CONTROL_ERROR


def test_half_open_streams_end() -> None:
    peer = Peer(Limits(keepalive_s=0))
    peer.send(peer.headers(1), peer.headers(3), frame(DATA, 0, 3, b"\0\0\0\0\x09abc"))
    peer.send(peer.headers(5, request_fields(STREAM)))
    peer.send(peer.headers(7, request_fields(STREAM)), frame(DATA, 0, 7, b"\0\0\0\0\x09abc"))
    events = peer.tick(61.0)
    assert peer.resets == {1: E.CANCEL, 3: E.CANCEL, 7: E.CANCEL}  # an open stream may be silent between messages
    assert [event.call.stream_id for event in events if isinstance(event, Cancelled)] == [7]
    assert peer.machine.calls == 1


@pytest.mark.parametrize("hello", [b"", PREFACE[:10], PREFACE])
def test_no_handshake(hello: bytes) -> None:
    peer = Peer(hello=hello)
    peer.tick(9.0)
    assert peer.gone is None
    peer.tick(11.0)
    assert peer.gone == E.SETTINGS_TIMEOUT


def test_keepalive() -> None:
    peer = Peer()
    peer.tick(59.0)
    assert not peer.got
    peer.tick(61.0)
    (asked,) = peer.of(PING)
    peer.now = 70.0
    peer.send(ping(asked.payload, ack=True))
    peer.tick(129.0)
    assert len(peer.of(PING)) == 1
    peer.tick(131.0)
    peer.tick(152.0)
    assert peer.gone == E.NO_ERROR
    assert peer.machine.closed


def test_an_old_connection_goes_without_losing_a_call() -> None:
    peer = Peer(Limits(max_age_s=100, keepalive_s=0))
    (first,) = peer.send(peer.call(1))
    peer.tick(101.0)
    (asked,) = peer.of(PING)
    assert peer.of(GOAWAY)[0].payload[:8] == struct.pack(">II", (1 << 31) - 1, 0)
    (second,) = peer.send(peer.call(3))  # was on its way
    peer.send(ping(asked.payload, ack=True))
    assert peer.of(GOAWAY)[1].payload[:8] == struct.pack(">II", 3, 0)
    assert peer.send(peer.call(5)) == []  # GOAWAY has told that it will not be looked at
    for call in (first, second):
        assert isinstance(call, Call)
        assert not peer.machine.closed
        peer.machine.reply(call, b"")
        peer.take()
    assert peer.machine.closed
    assert [peer.status(number) for number in (1, 3)] == [0, 0]


def test_an_old_connection_with_an_endless_call_goes_too() -> None:
    peer = Peer(Limits(max_age_s=100, keepalive_s=0))
    peer.send(peer.headers(1, request_fields(STREAM)))
    peer.tick(101.0)
    peer.tick(107.0)  # the PING is never answered
    assert len(peer.of(GOAWAY)) == 2
    events = peer.tick(131.0)
    assert [type(event) for event in events] == [Cancelled]
    assert peer.machine.closed


def test_deadlines() -> None:
    peer = Peer()
    (call,) = peer.send(peer.call(1, b"", (b"grpc-timeout", b"500m")))
    assert isinstance(call, Call)
    assert call.deadline == 0.5
    assert peer.tick(0.4) == []
    (cancelled,) = peer.tick(1.0)
    assert isinstance(cancelled, Cancelled)
    assert peer.status(1) == 4
    peer.machine.reply(call, b"late")
    peer.machine.fail(call, GrpcError(13, "late"))
    assert not peer.machine.has_output


def test_others_are_unaffected() -> None:
    memory = Memory()
    bad, good = Peer(memory=memory), Peer(memory=memory)
    bad.send(HELLO)
    assert bad.gone is not None
    assert len(good.send(good.call(1))) == 1
