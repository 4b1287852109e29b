"""One call: a stream, its message and what the machine has to remember of it; and the events a call goes through."""

from collections import deque
from typing import Final, Generic, TypeAlias, final

import msgspec

from ekiben.wire.h2.heads import Head, MethodT
from ekiben.wire.h2.messages import Assembler

__all__ = ["Call", "Cancelled", "Ended", "Event", "Opened", "Received"]

NO_MESSAGE: Final = memoryview(b"")


@final
class Call(Generic[MethodT]):
    """A call as its handler sees it. The first attributes are for handlers, the rest belongs to the machine.

    As an event, it is a whole unary call: its one message is there and the client has said all it will.
    """

    __slots__ = (
        "answered",
        "assembler",
        "body_bytes",
        "credit",
        "deadline",
        "finished",
        "head",
        "message",
        "messages",
        "owed",
        "packed",
        "queue",
        "remote_ended",
        "since",
        "state",
        "stream_id",
        "surfaced",
        "taken",
        "trailers",
        "unread",
        "window",
        "work",
    )

    def __init__(self, stream_id: int, head: Head[MethodT], now: float, credit: int, window: int) -> None:
        self.stream_id = stream_id
        self.head = head
        self.message = NO_MESSAGE
        """A unary call's request; a view of received bytes, which it keeps alive."""
        self.deadline = None if head.timeout_s is None else now + head.timeout_s
        """On the caller's clock; None: the client waits for ever."""
        self.state: object = None
        """For the handler; the machine does not look."""
        self.work: object = None
        """For the owner of the connection: what to cancel with the call."""

        self.packed = False  # `message` is compressed as head.encoding says
        self.body_bytes = 0  # of all DATA
        self.messages = 0  # received whole
        self.assembler: Assembler | None = None  # only where a message came in pieces
        self.credit = credit  # bytes the client may still send: its window for this stream
        self.owed = 0  # bytes received, not yet given back as WINDOW_UPDATE
        self.unread = 0  # bytes of whole messages that the handler has not consumed
        self.taken = 0  # bytes counted in the port's memory
        self.remote_ended = False
        self.surfaced = False  # an event has told of it
        self.since = now  # of the last progress, for stalls

        self.window = window  # bytes we may still send
        self.answered = False  # reply headers are out
        self.finished = False  # the reply's end is out or queued
        self.queue: deque[memoryview] | None = None  # reply bytes that wait for window
        self.trailers: bytes | None = None  # the end that waits behind them


@final
class Opened(Generic[MethodT]):
    """A streaming call begins; its messages follow."""

    __slots__ = ("call",)

    def __init__(self, call: Call[MethodT]) -> None:
        self.call = call


class Received(msgspec.Struct, Generic[MethodT], gc=False, eq=False):
    """Messages of a streaming call, one or more, packed as head.encoding says if `packed`: then it is one."""

    call: Call[MethodT]
    messages: list[bytes | memoryview]
    packed: bool


@final
class Ended(Generic[MethodT]):
    """The client of a streaming call has sent its last message."""

    __slots__ = ("call",)

    def __init__(self, call: Call[MethodT]) -> None:
        self.call = call


@final
class Cancelled(Generic[MethodT]):
    """The call is over without its handler: reset, broken, past its deadline or lost with the connection."""

    __slots__ = ("call",)

    def __init__(self, call: Call[MethodT]) -> None:
        self.call = call


Event: TypeAlias = Call[MethodT] | Opened[MethodT] | Received[MethodT] | Ended[MethodT] | Cancelled[MethodT]
