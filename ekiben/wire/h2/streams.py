"""All calls of one connection: how each begins, receives its messages, is answered and ends.

A call leaves `calls` when its reply is out, or when either side resets it. What a client still sends for a call that
we ended first is expected, and dropped; its stream is kept in mind for that ("forgotten").
"""

import struct
from collections.abc import Mapping
from typing import Final, Generic, final

from ekiben.wire.h2 import replies
from ekiben.wire.h2.call import Call, Cancelled, Ended, Event, Opened, Received
from ekiben.wire.h2.codes import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_STREAM_ID,
    LARGEST_WINDOW,
    ErrorCode,
    Status,
)
from ekiben.wire.h2.faults import ConnectionFault, GrpcError, StreamFault
from ekiben.wire.h2.heads import HeadDecoder, Malformed, MethodT, check_trailers
from ekiben.wire.h2.inbox import COPIED_BYTES, FREE_BYTES, MESSAGE_COST_BYTES, Inbox
from ekiben.wire.h2.limits import Budget, Limits, Memory
from ekiben.wire.h2.messages import too_much
from ekiben.wire.h2.outbox import Outbox, Reply

__all__ = ["Streams"]

_FORGOTTEN_STREAMS: Final = 4096
_MESSAGE: Final = struct.Struct(">IBIBI")
"""A DATA frame's head, and that of the message it begins with."""


@final
class Streams(Generic[MethodT]):
    """The calls, by stream. Raises StreamFault or ConnectionFault for what the peer does, nothing for handlers."""

    def __init__(
        self, methods: Mapping[bytes, MethodT], limits: Limits, memory: Memory, outbox: Outbox[MethodT]
    ) -> None:
        self.calls: dict[int, Call[MethodT]] = {}
        self.events: list[Event[MethodT]] = []
        self.last_id = -1
        """The newest stream the client has opened."""
        self.accepted_to = LARGEST_STREAM_ID
        """Streams after this one are ignored: a GOAWAY has said so."""
        self._limits = limits
        self._outbox = outbox
        self._inbox: Inbox[MethodT] = Inbox(limits, memory, outbox)
        self._heads = HeadDecoder(methods, limits)
        self._kept = self._heads.kept
        self._forgotten: dict[int, None] = {}
        self._passed_over: list[range] = []  # streams that were never opened, and cannot be any more
        self._small_bytes = min(COPIED_BYTES, limits.message_bytes + 5, limits.frame_bytes)
        self._settled = 0  # calls answered to their end
        self._resets = Budget(burst=2 * limits.concurrent_streams + 1000, per_second=200, per_earned=1)

    # ---- what the client sends

    def headers(self, stream_id: int, block: bytes, ends: bool, now: float) -> None:
        """A whole header block: a call begins, or a client's trailers."""
        if stream_id <= self.last_id:
            self._trailers(stream_id, block, ends)
            return
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}: clients use odd streams")
        if stream_id != self.last_id + 2 and len(self._passed_over) < _FORGOTTEN_STREAMS:
            self._passed_over.append(range(self.last_id + 2, stream_id, 2))
        self.last_id = stream_id
        head = self._kept.get(block)
        if head is None:
            try:
                head = self._heads.head(block)
            except Malformed as error:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, stream_id, str(error)) from None
        if stream_id > self.accepted_to:
            self._forget(stream_id)
            return
        if len(self.calls) >= self._limits.concurrent_streams or (
            self._outbox.backlog_bytes > self._limits.backlog_bytes
        ):
            raise StreamFault(ErrorCode.REFUSED_STREAM, stream_id, "too many calls at once, or replies not taken")
        call = Call(stream_id, head, now, self._limits.stream_window_bytes, self._outbox.stream_window)
        self.calls[stream_id] = call
        method = head.method
        if head.refused is not None or method is None:
            call.remote_ended = ends
            self.fail(call, head.refused or GrpcError(Status.UNIMPLEMENTED, "Method not found"), head.http_status)
            return
        if method.streaming:
            call.surfaced = True
            self.events.append(Opened(call))
        if ends:
            self._remote_end(call)

    def data(self, stream_id: int, data: bytes, start: int, stop: int, charged: int, ends: bool, now: float) -> None:
        """A piece of a DATA frame, data[start:stop]; `charged` is what its frame takes of the stream's window."""
        call = self.calls.get(stream_id)
        if call is None:
            self._stray(stream_id)
            return
        size = stop - start
        call.credit -= charged
        if call.credit < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, stream_id, "DATA beyond the stream's window")
        if call.remote_ended:
            raise StreamFault(ErrorCode.STREAM_CLOSED, stream_id, "DATA after END_STREAM")
        call.body_bytes += size
        if call.finished:
            if ends:
                call.remote_ended = True
            return
        if (
            size >= 5
            and call.assembler is None
            and not call.head.streams
            and data[start] == 0
            and int.from_bytes(data[start + 1 : start + 5], "big") == size - 5
            and size <= self._limits.message_bytes
            and ends
            and not call.messages
            and call.head.content_length in (-1, call.body_bytes)
        ):  # a whole unary call, as nearly all are
            start += 5
            call.remote_ended = True
            call.surfaced = True
            call.message = memoryview(data[start:stop]) if size < COPIED_BYTES else memoryview(data)[start:stop]
            self.events.append(call)
            return
        call.owed += charged
        call.since = now
        if size:
            try:
                self._inbox.messages(call, memoryview(data)[start:stop], self.events)
            except GrpcError as error:
                self._refuse(call, error)
                return
        if ends:
            self._remote_end(call)
        else:
            self._inbox.refill(call)

    def run(self, stream_id: int, data: bytes, position: int, size: int) -> tuple[int, int]:
        """Take frames of a streaming call that follow each other, as long as each is a whole message, small and plain.

        The position after them, and what they take of the connection's window: 0 where there is none.
        """
        call = self.calls.get(stream_id)
        if call is None or not call.head.streams or call.finished or call.remote_ended or call.assembler is not None:
            return position, 0
        messages: list[bytes | memoryview] = []
        left = call.credit
        while size - position >= _MESSAGE.size:
            word, flags, other_id, packed, length = _MESSAGE.unpack_from(data, position)
            framed = length + 5
            start = position + _MESSAGE.size
            stop = start + length
            if (
                word != framed << 8 | DATA
                or flags
                or other_id != stream_id
                or packed
                or framed > self._small_bytes
                or framed > left
                or stop > size
            ):
                break
            messages.append(data[start:stop])
            left -= framed
            position = stop
        if not messages:
            return position, 0
        charged = call.credit - left
        call.credit = left
        call.body_bytes += charged
        call.owed += charged
        call.unread += charged + len(messages) * (MESSAGE_COST_BYTES - 5)
        self.events.append(Received(call, messages, False))
        if call.unread > call.taken + FREE_BYTES and not self._inbox.count(call):
            self._refuse(call, too_much())
        elif call.owed * 2 >= self._limits.stream_window_bytes:
            self._inbox.refill(call)
        return position, charged

    def reset(self, stream_id: int, now: float) -> None:
        """The client gives a call up."""
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id > self.last_id or not stream_id & 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on idle stream {stream_id}")
            return
        self._cancel(call)
        self._pay_reset(now)

    def window(self, stream_id: int, increment: int, now: float) -> None:
        """The client takes more of one reply."""
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id > self.last_id or not stream_id & 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
            return
        if increment == 0:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, stream_id, "WINDOW_UPDATE of 0")
        call.window += increment
        if call.window > LARGEST_WINDOW:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, stream_id, f"stream window over {LARGEST_WINDOW}")
        if call.queue is not None:
            self.pump(now)

    def resize_windows(self, size: int, now: float) -> None:
        """The client's INITIAL_WINDOW_SIZE changes all streams' windows (RFC 9113 §6.9.2)."""
        change = size - self._outbox.stream_window
        self._outbox.stream_window = size
        for call in self.calls.values():
            call.window += change
            if call.window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"stream window over {LARGEST_WINDOW}")
        if change > 0:
            self.pump(now)

    def broken(self, fault: StreamFault, now: float) -> None:
        """Answer a StreamFault: the stream is reset, and its client pays for it."""
        self._outbox.control(replies.reset(fault.stream_id, fault.code))
        self._forget(fault.stream_id)
        call = self.calls.get(fault.stream_id)
        if call is not None:
            self._cancel(call)
        self._pay_reset(now)

    # ---- what handlers do

    def alive(self, call: Call[MethodT]) -> bool:
        """Whether anything may still be sent for a call."""
        return not call.finished and self.calls.get(call.stream_id) is call

    def reply(self, call: Call[MethodT], message: Reply, now: float, *, packed: bool) -> None:
        """A unary call's whole reply."""
        if call.finished or self.calls.get(call.stream_id) is not call:
            return
        outbox = self._outbox
        if isinstance(message, list) and sum(map(len, message)) < COPIED_BYTES:
            message = b"".join(message)
        if packed or isinstance(message, list) or not outbox.unary(call, message):
            outbox.message(call, message, packed=packed, now=now)
            if not outbox.end(call):
                return
        self._settle(call)

    def finish(self, call: Call[MethodT]) -> None:
        """A streaming call's end, with status OK."""
        if self.alive(call):
            if not call.answered:
                call.answered = True
                self._outbox.control(replies.frame(HEADERS, END_HEADERS, call.stream_id, replies.REPLY_HEADERS))
            if self._outbox.end(call):
                self._settle(call)

    def fail(self, call: Call[MethodT], error: GrpcError, http_status: int = 200) -> None:
        """A call's end with an error; after the replies sent so far."""
        if not self.alive(call):
            return
        if call.answered:
            if self._outbox.end(call, replies.trailers(error.status, error.message)):
                self._settle(call)
            return
        call.finished = True
        tell = error.status == Status.UNIMPLEMENTED
        block = replies.refusal(error.status, error.message, http_status, tell_encodings=tell)
        self._outbox.control(replies.frame(HEADERS, END_HEADERS | END_STREAM, call.stream_id, block))
        self._settle(call)

    def consumed(self, call: Call[MethodT], size: int, messages: int) -> bool:
        """A streaming handler is done with messages of `size` bytes together: the client may send as many more.

        Whether there is something to tell the client.
        """
        if self.calls.get(call.stream_id) is call:
            call.unread -= size + messages * MESSAGE_COST_BYTES
            if call.taken:
                self._inbox.count(call)
            if not call.remote_ended and call.owed * 2 >= self._limits.stream_window_bytes:
                return self._inbox.refill(call)
        return False

    # ---- what time does

    def expire(self, now: float) -> None:
        """End the calls whose deadline has passed, or that have not moved for too long."""
        stalled = now - self._limits.stalled_s
        for call in list(self.calls.values()):
            if call.deadline is not None and now >= call.deadline and not call.finished:
                if call.surfaced:
                    self.events.append(Cancelled(call))
                self.fail(call, GrpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            elif call.queue is not None:
                if call.since < stalled and self._outbox.window > 0:  # else the connection is to blame
                    self._abandon(call, ErrorCode.ENHANCE_YOUR_CALM)
            elif (
                not call.remote_ended
                and call.since < stalled
                and (not call.head.streams or (call.assembler is not None and call.assembler.partial))
            ):
                self._abandon(call, ErrorCode.CANCEL)

    def lost(self) -> None:
        """The connection is gone, and all its calls."""
        for call in list(self.calls.values()):
            self._cancel(call)

    def pump(self, now: float) -> None:
        """Send what waits, as far as the windows allow."""
        for call in self._outbox.pump(now):
            self._settle(call)

    # ---- inside

    def _remote_end(self, call: Call[MethodT]) -> None:
        call.remote_ended = True
        if call.head.content_length not in (-1, call.body_bytes):
            raise StreamFault(
                ErrorCode.PROTOCOL_ERROR,
                call.stream_id,
                f"content-length {call.head.content_length}, but {call.body_bytes} bytes of DATA",
            )
        if call.finished:
            return
        if call.assembler is not None and call.assembler.partial:
            self._refuse(call, GrpcError(Status.INTERNAL, "the request ends inside a message"))
        elif call.head.streams:
            self.events.append(Ended(call))
        elif not call.messages:
            self._refuse(call, GrpcError(Status.UNIMPLEMENTED, "unary call without a request message"))
        else:
            call.unread = 0
            self._inbox.count(call)
            call.surfaced = True
            self.events.append(call)

    def _trailers(self, stream_id: int, block: bytes, ends: bool) -> None:
        fields = self._heads.fields(block)  # first: the table must keep up
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id in self._forgotten:
                return
            new = not stream_id & 1 or any(stream_id in passed for passed in self._passed_over)
            code = ErrorCode.PROTOCOL_ERROR if new else ErrorCode.STREAM_CLOSED
            raise ConnectionFault(code, f"HEADERS on closed stream {stream_id}")
        if call.remote_ended:
            raise StreamFault(ErrorCode.STREAM_CLOSED, stream_id, "HEADERS after END_STREAM")
        if not ends:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, stream_id, "trailers without END_STREAM")
        try:
            check_trailers(fields)
        except Malformed as error:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, stream_id, str(error)) from None
        self._remote_end(call)

    def _stray(self, stream_id: int) -> None:
        """DATA for no call."""
        if stream_id in self._forgotten:
            return
        if stream_id > self.last_id or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"DATA on idle stream {stream_id}")
        raise StreamFault(ErrorCode.STREAM_CLOSED, stream_id, "DATA on a closed stream")

    def _refuse(self, call: Call[MethodT], error: GrpcError) -> None:
        """End a call for what its client sent: its handler is told, if it knows of it."""
        if call.surfaced:
            self.events.append(Cancelled(call))
        self.fail(call, error)

    def _settle(self, call: Call[MethodT]) -> None:
        """A call's reply is out to its end."""
        del self.calls[call.stream_id]
        self._settled += 1
        if call.taken:
            self._inbox.release(call)
        if not call.remote_ended:  # the reply is whole, the rest of the request is not wanted (RFC 9113 §8.1)
            self._outbox.control(replies.reset(call.stream_id, ErrorCode.NO_ERROR))
            self._forget(call.stream_id)

    def _cancel(self, call: Call[MethodT]) -> None:
        """A call is over without its reply."""
        del self.calls[call.stream_id]
        self._outbox.drop(call)
        self._inbox.release(call)
        if call.surfaced and not call.finished:
            self.events.append(Cancelled(call))
        call.finished = True

    def _abandon(self, call: Call[MethodT], code: ErrorCode) -> None:
        self._outbox.control(replies.reset(call.stream_id, code))
        self._forget(call.stream_id)
        self._cancel(call)

    def _forget(self, stream_id: int) -> None:
        forgotten = self._forgotten
        forgotten[stream_id] = None
        if len(forgotten) > _FORGOTTEN_STREAMS:
            del forgotten[next(iter(forgotten))]

    def _pay_reset(self, now: float) -> None:
        if not self._resets.spend(now, self._settled):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams reset")
