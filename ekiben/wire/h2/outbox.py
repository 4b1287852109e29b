"""The sending side: frames in order, within the peer's windows.

A reply that fits goes straight to the output; what does not waits in its call's queue, and the waiting calls take
turns, a frame each, when the peer opens a window.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeAlias, final

from ekiben.wire.h2.call import Call
from ekiben.wire.h2.codes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_WINDOW,
    SMALLEST_FRAME_BYTES,
    START_WINDOW,
    ErrorCode,
)
from ekiben.wire.h2.faults import ConnectionFault
from ekiben.wire.h2.heads import MethodT
from ekiben.wire.h2.replies import FRAME, OK_TRAILERS, REPLY_HEADERS, SMALL_REPLY, frame, headers

__all__ = ["Outbox", "Reply"]

Reply: TypeAlias = bytes | bytearray | memoryview | list[bytes | memoryview]
"""A message to send: whole, or in parts that are sent one after another without being joined first."""

_HEADERS_START, _HEADERS_BLOCK, _DATA_HEAD, _TRAILERS_START, _TRAILERS_BLOCK = SMALL_REPLY
_UNARY_BYTES = sum(len(piece) for piece in (_HEADERS_START, _HEADERS_BLOCK, _TRAILERS_START, _TRAILERS_BLOCK)) + 8 + 14

_PREFIX: Final = struct.Struct(">BI")
_PREFIX_BYTES: Final = 5
_WORTHY_BYTES: Final = 1024
"""A peer that opens its window by a few bytes at a time earns nothing by the frames it gets."""


@final
class Outbox(Generic[MethodT]):
    """One connection's output. Never raises for anything a handler does to a call that is already over."""

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray | memoryview] = []
        """Frames for the wire, in order."""
        self.queued_bytes = 0
        """Of `pieces`."""
        self.waiting_bytes = 0
        """Reply bytes for which the peer has no window yet."""
        self.unwritten_bytes = 0
        """Bytes taken that the socket has not got rid of, where it takes no more; 0 else."""
        self.data_frames = 0
        """Sent so far: what a peer earns its WINDOW_UPDATEs and PINGs with."""
        self.window = START_WINDOW
        self.stream_window = START_WINDOW
        """What the peer gives to each new stream."""
        self.frame_bytes = SMALLEST_FRAME_BYTES
        self.waiting: dict[int, Call[MethodT]] = {}

    @property
    def backlog_bytes(self) -> int:
        """All that the peer could have read and has not."""
        return self.waiting_bytes + (self.unwritten_bytes + self.queued_bytes if self.unwritten_bytes else 0)

    def control(self, piece: bytes) -> None:
        """Send a frame that no window holds back."""
        self.pieces.append(piece)
        self.queued_bytes += len(piece)

    def unary(self, call: Call[MethodT], message: bytes | bytearray | memoryview) -> bool:
        """Send a whole unpacked reply if it fits in one frame and now; False otherwise."""
        size = len(message)
        framed = size + 5
        if framed > self.frame_bytes or framed > self.window or framed > call.window or call.answered:
            return False
        self.window -= framed
        self.data_frames += 1
        call.finished = True
        stream_id = call.stream_id
        stream = stream_id.to_bytes(4, "big")
        self.pieces += (
            _HEADERS_START,
            stream,
            _HEADERS_BLOCK,
            _DATA_HEAD.pack(framed << 8, 0, stream_id, 0, size),
            message,
            _TRAILERS_START,
            stream,
            _TRAILERS_BLOCK,
        )
        self.queued_bytes += size + _UNARY_BYTES
        return True

    def message(self, call: Call[MethodT], message: Reply, *, packed: bool, now: float) -> None:
        """Send one message of a reply, headers first where it is the first."""
        if not call.answered:
            call.answered = True
            block = headers(call.head.reply_encoding) if call.head.reply_encoding else REPLY_HEADERS
            self.control(frame(HEADERS, END_HEADERS, call.stream_id, block))
        parts = message if isinstance(message, list) else (message,)
        size = sum(map(len, message)) if isinstance(message, list) else len(message)
        framed = size + 5
        if call.queue is None and framed <= self.frame_bytes and framed <= self.window and framed <= call.window:
            self.window -= framed
            call.window -= framed
            self.data_frames += 1
            self.pieces += (_DATA_HEAD.pack(framed << 8 | DATA, 0, call.stream_id, packed, size), *parts)
            self.queued_bytes += framed + 9
            return
        if call.queue is None:
            call.queue = deque()
            call.since = now
            self.waiting[call.stream_id] = call
        call.queue.append(memoryview(b"%c" % packed + size.to_bytes(4, "big")))
        call.queue.extend(memoryview(part).cast("B") for part in parts if len(part))
        self.waiting_bytes += framed
        if call.window > 0 and self.window > 0:
            self.pump(now)

    def messages(self, call: Call[MethodT], messages: Sequence[bytes]) -> bool:
        """Send messages of a reply in one frame if they fit in it, after headers that are out, and now; else False."""
        framed = sum(map(len, messages)) + _PREFIX_BYTES * len(messages)
        if (
            framed > self.frame_bytes
            or framed > self.window
            or framed > call.window
            or call.queue is not None
            or not call.answered
        ):
            return False
        self.window -= framed
        call.window -= framed
        self.data_frames += 1
        pieces = self.pieces
        pieces.append(FRAME.pack(framed << 8 | DATA, 0, call.stream_id))
        for message in messages:
            pieces += (_PREFIX.pack(0, len(message)), message)
        self.queued_bytes += framed + 9
        return True

    def end(self, call: Call[MethodT], block: bytes = OK_TRAILERS) -> bool:
        """End a reply with trailers, after what waits of it. Whether it is all on its way."""
        call.finished = True
        if call.queue is not None:
            call.trailers = block
            return False
        self.control(frame(HEADERS, END_HEADERS | END_STREAM, call.stream_id, block))
        return True

    def drop(self, call: Call[MethodT]) -> None:
        """Forget what waits of a call."""
        if call.queue is not None:
            self.waiting_bytes -= sum(len(part) for part in call.queue)
            call.queue = None
            self.waiting.pop(call.stream_id, None)

    def pump(self, now: float) -> list[Call[MethodT]]:
        """Send what the windows allow; the calls whose end went out."""
        done: list[Call[MethodT]] = []
        ready = deque(call for call in self.waiting.values() if call.window > 0)
        while ready and self.window > 0:
            call = ready.popleft()
            self._frame(call, now)
            if not call.queue:
                call.queue = None
                del self.waiting[call.stream_id]
                if call.trailers is not None and self.end(call, call.trailers):
                    done.append(call)
            elif call.window > 0:
                ready.append(call)
        return done

    def open_window(self, increment: int) -> None:
        """The peer takes more on the connection (RFC 9113 §6.9.1)."""
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"connection window over {LARGEST_WINDOW}")

    def take(self) -> bytes:
        """All output so far, joined; the caller writes it."""
        pieces = self.pieces
        joined = b"".join(pieces)
        self.pieces = []
        self.queued_bytes = 0
        return joined

    def _frame(self, call: Call[MethodT], now: float) -> None:
        queue = call.queue
        assert queue, "only a call that waits is pumped"
        room = min(self.frame_bytes, self.window, call.window)
        parts: list[memoryview] = []
        size = 0
        while queue and size < room:
            part = queue.popleft()
            if len(part) > room - size:
                queue.appendleft(part[room - size :])
                part = part[: room - size]
            parts.append(part)
            size += len(part)
        self.window -= size
        call.window -= size
        call.since = now
        self.waiting_bytes -= size
        if size >= _WORTHY_BYTES or not queue:
            self.data_frames += 1
        self.pieces.append(FRAME.pack(size << 8 | DATA, 0, call.stream_id))
        self.pieces += parts
        self.queued_bytes += size + 9
