"""A server's side of an HTTP/2 connection for gRPC: bytes in → events out, replies in → bytes out. No socket, no clock.

    receive(data, now) ─► frames, here ─► streams.py: one call's life ─► [Event]
                             └► control.py: SETTINGS, PING, GOAWAY
    reply / send / finish / fail ─► outbox.py: windows and order ─► take() ─► bytes
    tick(now) ─► what ends with time

No threads: all methods are called from one loop and none blocks. Times are seconds on a clock that never goes back.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Generic, final

from ekiben.wire.h2 import replies
from ekiben.wire.h2.call import Call, Event
from ekiben.wire.h2.codes import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_STREAM_ID,
    LARGEST_WINDOW,
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
)
from ekiben.wire.h2.control import Control
from ekiben.wire.h2.faults import ConnectionFault, GrpcError, StreamFault
from ekiben.wire.h2.heads import MethodT
from ekiben.wire.h2.limits import Limits, Memory
from ekiben.wire.h2.outbox import Outbox, Reply
from ekiben.wire.h2.streams import Streams

__all__ = ["Connection"]

_UNPACK: Final = replies.FRAME.unpack_from
_HEAD_BYTES: Final = 9
_ANY: Final = -1
_UPDATES_COUNTED: Final = 64
"""WINDOW_UPDATEs are so frequent that they are paid for by the dozen."""
_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}


@final
class Connection(Generic[MethodT]):
    """The machine. `methods` says by path which calls there are; calls of other paths are refused here.

    `memory` is shared by the connections of a port. The server's preface is ready to be taken at once.
    After each call of any method: write what `take` gives, and close when `closed`.
    """

    def __init__(self, methods: Mapping[bytes, MethodT], limits: Limits, memory: Memory, now: float) -> None:
        self.closed = False
        """Over: nothing that arrives is looked at any more."""
        self.faulty = False
        """Over because the client broke a rule or a limit, or the server shut it: a GOAWAY says why."""
        self._limits = limits
        self._outbox: Outbox[MethodT] = Outbox()
        self._streams = Streams(methods, limits, memory, self._outbox)
        self._control = Control(limits, self._streams, self._outbox, now)
        self._now = now
        self._expected = SETTINGS  # the only frame that may come next, or _ANY
        self._preface_left = PREFACE
        self._rest = b""  # the start of a frame
        self._skip_bytes = 0  # to be dropped: padding, frames nobody knows
        self._data_bytes = 0  # of a DATA frame that has begun
        self._data_pad = 0
        self._data_stream = 0
        self._data_ends = False
        self._block = bytearray()  # a header block that is continued
        self._block_stream = 0
        self._block_ends = False
        self._block_frames = 0
        self._updates = 0  # WINDOW_UPDATE frames
        self._owed = 0  # bytes received, not yet given back to the connection's window
        self._refill_bytes = (limits.connection_window_bytes + 1) // 2  # what is owed at most

    # ---- what a socket does

    def receive(self, data: bytes, now: float) -> list[Event[MethodT]]:
        """What the client's next bytes mean. They are kept alive by the messages that are views of them."""
        if self.closed:
            return []
        self._now = now
        self._control.heard = now
        try:
            self._read(data)
        except ConnectionFault as fault:
            self._fault(fault)
        return self._events()

    def take(self) -> bytes:
        """The bytes to write now."""
        if self._control.left and not self._streams.calls:
            self.closed = True
        return self._outbox.take() if self._outbox.pieces else b""

    @property
    def has_output(self) -> bool:
        """Whether `take` gives anything."""
        return bool(self._outbox.pieces)

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._streams.calls)

    def unwritten(self, size: int) -> None:
        """How much of what was taken the socket still holds because the peer does not read; 0: it takes more again.

        While it is not 0, `take` should wait, and `unwritten` be called before each `tick`.
        """
        self._outbox.unwritten_bytes = size

    def tick(self, now: float) -> list[Event[MethodT]]:
        """Let time pass: deadlines, stalls, keepalive, age. Meant to be called about once a second."""
        if self.closed:
            return []
        self._now = now
        try:
            self._control.tick(now)
        except ConnectionFault as fault:
            self._fault(fault)
        return self._events()

    def drain(self, now: float) -> None:
        """Ask the client to go: calls that are open end in peace, new ones go elsewhere. `closed` when all are done."""
        if not self.closed:
            self._control.leave(now)

    def shut(self, text: str = "") -> list[Event[MethodT]]:
        """End the connection now, with GOAWAY (NO_ERROR)."""
        if not self.closed:
            self._fault(ConnectionFault(ErrorCode.NO_ERROR, text))
        return self._events()

    def lost(self) -> list[Event[MethodT]]:
        """The connection is gone: every call is cancelled."""
        self.closed = True
        self._streams.lost()
        return self._events()

    # ---- what handlers do; nothing happens for a call that is over

    def reply(self, call: Call[MethodT], message: Reply, *, packed: bool = False) -> None:
        """A unary call's whole reply: headers, message, status OK. The message must not change until it is written.

        packed: the message is compressed as call.head.reply_encoding says.
        """
        self._streams.reply(call, message, self._now, packed=packed)

    def send(self, call: Call[MethodT], message: Reply, *, packed: bool = False) -> None:
        """One message of a streaming call's reply."""
        if not call.finished and self._streams.alive(call):
            self._outbox.message(call, message, packed=packed, now=self._now)

    def send_all(self, call: Call[MethodT], messages: Sequence[bytes]) -> None:
        """Several messages of a streaming call's reply, not packed, which share frames where they can."""
        if not call.finished and self._streams.alive(call) and not self._outbox.messages(call, messages):
            for message in messages:
                self._outbox.message(call, message, packed=False, now=self._now)

    def finish(self, call: Call[MethodT]) -> None:
        """A streaming call's end, with status OK."""
        self._streams.finish(call)

    def fail(self, call: Call[MethodT], error: GrpcError) -> None:
        """A call's end with an error status."""
        self._streams.fail(call, error)

    def consumed(self, call: Call[MethodT], size: int, messages: int = 1) -> bool:
        """A streaming handler is done with messages, `size` bytes as received: more may come in their place.

        Whether there is something to tell the client.
        """
        return self._streams.consumed(call, size, messages)

    # ---- frames

    def _events(self) -> list[Event[MethodT]]:
        events = self._streams.events
        if events:
            self._streams.events = []
        return events

    def _fault(self, fault: ConnectionFault) -> None:
        self._outbox.control(replies.goaway(max(self._streams.last_id, 0), fault.code, fault.text))
        self.closed = self.faulty = True
        self._streams.lost()

    def _read(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = 0
        if self._preface_left:
            position = self._preface(data)
        if self._data_bytes or self._skip_bytes:
            position = self._inside(data, position)
        size = len(data)
        streams = self._streams
        while size - position >= _HEAD_BYTES:
            word, flags, stream_id = _UNPACK(data, position)
            kind = word & 0xFF
            length = word >> 8
            stream_id &= LARGEST_STREAM_ID
            start = position + _HEAD_BYTES
            stop = start + length
            if self._expected != _ANY and kind != self._expected:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame type {kind}, expected {self._expected}")
            if length > self._limits.frame_bytes:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            try:
                if kind == DATA:
                    if stop <= size and not flags & PADDED:
                        if not flags:
                            after, charged = streams.run(stream_id, data, position, size)
                            if charged:
                                position = after
                                self._charge(charged, flags, stream_id)
                                continue
                        position = stop
                        owed = self._owed + length
                        if stream_id and length and owed < self._refill_bytes:
                            self._owed = owed
                        else:
                            self._charge(length, flags, stream_id)
                        streams.data(stream_id, data, start, stop, length, flags & END_STREAM != 0, self._now)
                        continue
                    if flags & PADDED and length and start >= size:
                        break  # the padding's size is still to come
                    position = self._begin_data(data, start, length, flags, stream_id)
                    continue
                if stop > size:
                    if self._skipped(kind, length):
                        self._skip_bytes = stop - size
                        return
                    break
                position = stop
                if kind == HEADERS:
                    self._headers(data, start, stop, flags, stream_id)
                elif kind == WINDOW_UPDATE and length == 4:
                    self._window_update(stream_id, int.from_bytes(data[start:stop], "big") & LARGEST_WINDOW)
                else:
                    self._other(kind, flags, stream_id, data[start:stop])
            except StreamFault as fault:
                streams.broken(fault, self._now)
        if position < size:
            self._rest = data[position:]

    def _preface(self, data: bytes) -> int:
        left = self._preface_left
        part = data[: len(left)]
        if not left.startswith(part):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 with prior knowledge")
        self._preface_left = left[len(part) :]
        return len(part)

    def _charge(self, length: int, flags: int, stream_id: int) -> None:
        """Take a DATA frame off the connection's window, and give it back at half."""
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        if not length and not flags & END_STREAM:
            self._control.idle_frame(self._now)
        owed = self._owed + length
        if owed >= self._refill_bytes:
            if owed > self._limits.connection_window_bytes:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
            self._outbox.control(replies.window_update(0, owed))
            owed = 0
        self._owed = owed

    def _begin_data(self, data: bytes, start: int, length: int, flags: int, stream_id: int) -> int:
        """A DATA frame that is padded, or not here to its end: its bytes go on as they come."""
        self._charge(length, flags, stream_id)
        pad = 0
        if flags & PADDED:
            if not length:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "padded frame without the padding's size")
            if data[start] >= length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
            pad = data[start]
            start += 1
        self._data_bytes = length - pad - (1 if flags & PADDED else 0)
        self._data_pad = pad
        self._data_stream = stream_id
        self._data_ends = flags & END_STREAM != 0
        if not self._data_bytes:
            self._skip_bytes = pad
            self._streams_data(data, start, start, length, self._data_ends)
            return self._inside(data, start)
        self._streams_data(data, start, start, length, False)  # the frame's whole size is charged at once
        return self._inside(data, start)

    def _inside(self, data: bytes, position: int) -> int:
        """Bytes of a frame that has begun; the position after those that are here."""
        if self._data_bytes:
            stop = min(len(data), position + self._data_bytes)
            self._data_bytes -= stop - position
            done = not self._data_bytes
            if done:
                self._skip_bytes = self._data_pad
            self._streams_data(data, position, stop, 0, done and self._data_ends)
            position = stop
        if self._skip_bytes and not self._data_bytes:
            stop = min(len(data), position + self._skip_bytes)
            self._skip_bytes -= stop - position
            position = stop
        return position

    def _streams_data(self, data: bytes, start: int, stop: int, charged: int, ends: bool) -> None:
        try:
            self._streams.data(self._data_stream, data, start, stop, charged, ends, self._now)
        except StreamFault as fault:
            self._streams.broken(fault, self._now)

    def _skipped(self, kind: int, length: int) -> bool:
        """For a frame that is not here to its end: whether it is of no interest. Raises if waiting for it is no use."""
        if kind > CONTINUATION:
            self._control.idle_frame(self._now)
            return True
        if _SIZES.get(kind, length) != length:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame type {kind} of {length} bytes")
        if length > self._limits.header_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"frame type {kind} of {length} bytes")
        return False

    def _headers(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & (PADDED | PRIORITY_FLAG):
            pad = 0
            if flags & PADDED:
                pad = data[start] if start < stop else stop
                start += 1
            if flags & PRIORITY_FLAG:
                start += 5
            if start + pad > stop:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding or priority longer than its frame")
            stop -= pad
        if stop - start > self._limits.header_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"header block of {stop - start} bytes")
        if flags & END_HEADERS:
            self._streams.headers(stream_id, data[start:stop], flags & END_STREAM != 0, self._now)
            return
        self._block = bytearray(data[start:stop])
        self._block_stream = stream_id
        self._block_ends = flags & END_STREAM != 0
        self._block_frames = 0
        self._expected = CONTINUATION

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expected != CONTINUATION or stream_id != self._block_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"CONTINUATION on stream {stream_id} continues nothing")
        self._block_frames += 1
        self._block += payload
        if self._block_frames > self._limits.continuation_frames or len(self._block) > self._limits.header_bytes:
            text = f"header block of {self._block_frames} CONTINUATION frames and {len(self._block)} bytes"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)
        if flags & END_HEADERS:
            self._expected = _ANY
            block = bytes(self._block)
            self._block.clear()
            self._streams.headers(stream_id, block, self._block_ends, self._now)

    def _window_update(self, stream_id: int, increment: int) -> None:
        self._updates += 1
        if not self._updates % _UPDATES_COUNTED:
            self._control.idle_frame(self._now, _UPDATES_COUNTED)
        if stream_id:
            self._streams.window(stream_id, increment, self._now)
        else:
            self._control.window(increment, self._now)

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        size = _SIZES.get(kind)
        if size is not None and len(payload) != size:
            if kind == PRIORITY and stream_id:
                return  # a stream error where the stream is known; PRIORITY means nothing here
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame type {kind} of {len(payload)} bytes")
        if kind == CONTINUATION:
            self._continuation(flags, stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        elif kind == RST_STREAM:
            if not stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on stream 0")
            self._control.idle_frame(self._now)
            self._streams.reset(stream_id, self._now)
        else:
            self._control.frame(kind, flags, stream_id, payload, self._now)
            if kind == SETTINGS:
                self._expected = _ANY
