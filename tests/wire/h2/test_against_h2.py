"""The machine against an independent client: the h2 library, with random cuts, interleavings and windows."""

import struct
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from ekiben.wire.h2 import Call, Connection, Ended, Limits, Memory, Opened, Received
from tests.wire.h2.peer import METHODS, STREAM, UNARY, message, request_fields

SIZES = some.one_of(some.integers(0, 300), some.integers(0, 70_000))
CALLS = some.lists(some.tuples(some.booleans(), some.lists(SIZES, min_size=1, max_size=4)), min_size=1, max_size=8)


def blob(size: int, seed: int) -> bytes:
    return bytes((seed + at) & 255 for at in range(251)) * (size // 251 + 1)


class Pair:
    """An h2 client and the machine, joined by wires that are cut anywhere."""

    def __init__(self, limits: Limits, window: int, frame_bytes: int, draw: some.DrawFn | Any) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.client.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_bytes,
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self.client.max_inbound_frame_size = frame_bytes
        self.client.initiate_connection()
        self.memory = Memory()
        self.machine: Connection[Any] = Connection(METHODS, limits, self.memory, 0.0)
        self.draw = draw
        self.replies: dict[int, bytearray] = {}
        self.statuses: dict[int, int] = {}
        self.streams: dict[int, list[bytes]] = {}
        self.requests: dict[int, bytes] = {}
        self.held: list[Call[Any]] = []

    def cut(self, data: bytes) -> list[bytes]:
        if len(data) < 2:
            return [data]
        cuts = sorted(self.draw(some.lists(some.integers(1, len(data) - 1), max_size=4)))
        return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def exchange(self) -> bool:
        """Carry all bytes that wait, both ways; whether there were any."""
        out, back = self.client.data_to_send(), self.machine.take()
        for piece in self.cut(out) if out else ():
            for event in self.machine.receive(piece, 0.0):
                self.handle(event)
        for piece in self.cut(back) if back else ():
            for heard in self.client.receive_data(piece):
                self.hear(heard)
        return bool(out or back)

    def handle(self, event: Any) -> None:
        if isinstance(event, Call):
            self.requests[event.stream_id] = bytes(event.message)
            self.held.append(event)
            if self.draw(some.booleans()):  # answers come in any order, later or at once
                at = self.draw(some.integers(0, len(self.held) - 1))
                self.answer(self.held.pop(at))
        elif isinstance(event, Opened):
            self.streams[event.call.stream_id] = []
        elif isinstance(event, Received):
            for message in event.messages:
                self.streams[event.call.stream_id].append(bytes(message))
                self.machine.send(event.call, bytes(message))
                self.machine.consumed(event.call, len(message))
        elif isinstance(event, Ended):
            self.machine.finish(event.call)

    def answer(self, call: Call[Any]) -> None:
        reply = bytes(call.message)
        self.machine.reply(call, [reply[:7], memoryview(reply)[7:]] if self.draw(some.booleans()) else reply)

    def hear(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.replies.setdefault(event.stream_id, bytearray()).extend(event.data)
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            self.statuses[event.stream_id] = int(dict(event.headers)[b"grpc-status"])
        assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(
    data=some.data(),
    calls=CALLS,
    window=some.sampled_from([100, 1000, 65_535, 1 << 20]),
    frame_bytes=some.sampled_from([16_384, 100_000]),
    limits=some.builds(
        Limits,
        stream_window_bytes=some.sampled_from([65_535, 100_000, 4 << 20]),
        connection_window_bytes=some.sampled_from([65_535, 100_000, 16 << 20]),
        frame_bytes=some.sampled_from([16_384, 1 << 20]),
    ),
)
def test_every_call_gets_its_own_bytes_back(
    data: Any, calls: list[tuple[bool, list[int]]], window: int, frame_bytes: int, limits: Limits
) -> None:
    pair = Pair(limits, window, frame_bytes, data.draw)
    pair.exchange()
    sending: dict[int, bytes] = {}
    expected: dict[int, list[bytes]] = {}
    for number, (streaming, sizes) in enumerate(calls):
        stream_id = 2 * number + 1
        pair.client.send_headers(stream_id, request_fields(STREAM if streaming else UNARY))
        messages = [blob(size, number)[:size] for size in (sizes if streaming else sizes[:1])]
        expected[stream_id] = messages
        sending[stream_id] = b"".join(message(each) for each in messages)
    while sending:
        stream_id = data.draw(some.sampled_from(sorted(sending)))
        left = sending[stream_id]
        room = min(pair.client.local_flow_control_window(stream_id), pair.client.max_outbound_frame_size)
        size = min(len(left), room, data.draw(some.sampled_from([1, 4, 5, 6, 1000, 1 << 20])))
        if size < 10 <= room and len(left) > 1000:
            size = min(len(left), room)  # not by the byte for ever
        if size or not left:
            pad = data.draw(some.sampled_from([None, None, 0, 1])) if size + 2 <= room else None
            pair.client.send_data(stream_id, left[:size], end_stream=size == len(left), pad_length=pad)
            sending[stream_id] = left[size:]
            if size == len(left):
                del sending[stream_id]
        if not size or data.draw(some.booleans()):
            pair.exchange()
    while pair.exchange() or pair.held:
        while pair.held:
            pair.answer(pair.held.pop())
    for stream_id, messages in expected.items():
        whole = b"".join(struct.pack(">BI", 0, len(each)) + each for each in messages)
        assert bytes(pair.replies[stream_id]) == whole
        assert pair.statuses[stream_id] == 0
        got = pair.streams[stream_id] if stream_id in pair.streams else [pair.requests[stream_id]]
        assert got == messages
    assert pair.machine.calls == 0
    assert pair.memory.used_bytes == 0


@settings(max_examples=200, deadline=None)
@given(junk=some.binary(max_size=300), cut=some.integers(1, 50))
def test_junk_never_raises(junk: bytes, cut: int) -> None:
    pair = Pair(Limits(), 65_535, 16_384, None)
    pair.machine.receive(pair.client.data_to_send(), 0.0)
    for at in range(0, len(junk), cut):
        pair.machine.receive(junk[at : at + cut], 0.0)
    pair.machine.tick(100.0)
    pair.machine.take()
    assert pair.memory.used_bytes == 0


@settings(max_examples=300, deadline=None)
@given(
    frames=some.lists(
        some.tuples(some.integers(0, 10), some.integers(0, 255), some.integers(0, 7), some.binary(max_size=40)),
        max_size=12,
    )
)
def test_any_frames_never_raise(frames: list[tuple[int, int, int, bytes]]) -> None:
    pair = Pair(Limits(), 65_535, 16_384, None)
    pair.client.send_headers(1, request_fields(UNARY))
    pair.client.send_headers(3, request_fields(STREAM))
    pair.machine.receive(pair.client.data_to_send(), 0.0)
    for kind, flags, stream_id, payload in frames:
        pair.machine.receive(struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload, 0.0)
    pair.machine.lost()
    pair.machine.take()
    assert pair.memory.used_bytes == 0
