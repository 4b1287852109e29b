"""The receiving side of calls whose messages do not come whole in one frame, or wait for their handler.

Messages are put together, what they hold is counted in the port's memory, and windows are opened again.
"""

from typing import Final, Generic, final

from ekiben.wire.h2 import replies
from ekiben.wire.h2.call import Call, Event, Received
from ekiben.wire.h2.codes import Status
from ekiben.wire.h2.faults import GrpcError
from ekiben.wire.h2.heads import MethodT
from ekiben.wire.h2.limits import Limits, Memory
from ekiben.wire.h2.messages import Assembler, too_much
from ekiben.wire.h2.outbox import Outbox

__all__ = ["COPIED_BYTES", "FREE_BYTES", "MESSAGE_COST_BYTES", "Inbox"]

COPIED_BYTES: Final = 16 << 10
"""Smaller messages are copied out of what was read, so that one of them does not keep a whole read in memory."""
MESSAGE_COST_BYTES: Final = 256
"""What a message that waits counts more than its size, so that empty ones are not free."""
FREE_BYTES: Final = 64 << 10
"""A call that holds no more is not counted: the number of calls is limited already."""


@final
class Inbox(Generic[MethodT]):
    """What one connection's calls hold."""

    def __init__(self, limits: Limits, memory: Memory, outbox: Outbox[MethodT]) -> None:
        self._limits = limits
        self._memory = memory
        self._outbox = outbox
        self._held_bytes = 0  # of this connection, in the port's memory

    def messages(self, call: Call[MethodT], chunk: memoryview, events: list[Event[MethodT]]) -> None:
        """Put messages together; a streaming call's become events. Raises GrpcError for what ends the call."""
        if call.assembler is None:
            call.assembler = Assembler(self._limits.message_bytes)
        group: list[bytes | memoryview] | None = None
        for message, packed in call.assembler.feed(chunk):
            if packed and not call.head.encoding:
                raise GrpcError(Status.INTERNAL, "message is compressed, but there is no grpc-encoding")
            if call.messages and not call.head.streams:
                raise GrpcError(Status.UNIMPLEMENTED, "unary call with more than one request message")
            call.messages += 1
            call.unread += len(message) + MESSAGE_COST_BYTES
            if len(message) < COPIED_BYTES:
                message = memoryview(bytes(message))
            if call.head.streams:
                if group is not None and not packed:
                    group.append(message)
                else:
                    event = Received(call, [message], packed)
                    events.append(event)
                    group = None if packed else event.messages
            else:
                call.message = message
                call.packed = packed
        if not call.assembler.partial:
            call.assembler = None
        if not self.count(call):
            raise too_much()

    def count(self, call: Call[MethodT]) -> bool:
        """Keep the port's memory in step with what a call holds; False when that is too much."""
        holds = call.unread if call.assembler is None else call.unread + call.assembler.held_bytes
        if holds <= FREE_BYTES:
            holds = 0
        more = holds - call.taken
        if more <= 0:
            self._memory.give(-more)
        elif self._held_bytes + more > self._limits.receive_bytes or not self._memory.take(more):
            return False
        call.taken = holds
        self._held_bytes += more
        return True

    def refill(self, call: Call[MethodT]) -> bool:
        """Open a stream's window again, unless its handler is behind by a whole one. Whether it was done."""
        window = self._limits.stream_window_bytes
        if call.owed * 2 < window or call.unread >= window:
            return False
        self._outbox.control(replies.window_update(call.stream_id, call.owed))
        call.credit += call.owed
        call.owed = 0
        return True

    def release(self, call: Call[MethodT]) -> None:
        """A call is over, and holds nothing."""
        self._memory.give(call.taken)
        self._held_bytes -= call.taken
        call.taken = 0
        call.assembler = None
