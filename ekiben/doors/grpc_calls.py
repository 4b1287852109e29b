"""What a gRPC door is to the transport under it: methods by path, which take and give whole messages.

A handler raises EkibenError for what the caller may read (doors.status has the gRPC code); anything else is a fault of
ours, which the transport logs and answers with INTERNAL. The transport cancels what a handler gave when the call ends.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

__all__ = ["Call", "Head", "Methods", "Pending", "Receiver", "Receiving", "Replies", "Streaming", "Unary", "field"]


class Head(Protocol):
    """A call's headers."""

    @property
    def metadata(self) -> tuple[tuple[bytes, bytes], ...]:
        """The caller's own fields, names in lower case, in order."""
        ...


class Call(Protocol):
    """What the transport knows of a call."""

    @property
    def deadline(self) -> float | None:
        """When the client gives up, on the server's clock; None: it waits for ever."""
        ...

    @property
    def head(self) -> Head: ...


def field(call: Call, name: bytes) -> bytes | None:
    """The first field of that name in the caller's metadata, None for none."""
    return next((value for given, value in call.head.metadata if given == name), None)


class Pending(Awaitable[bytes]):
    """An answer that is on its way: the transport waits for `future` by a callback, without a task, then asks `reply`.

    Cancelling the future gives the answer up; awaiting this gives the reply.
    """

    future: asyncio.Future[Any]

    @abstractmethod
    def reply(self, value: Any) -> bytes:
        """The message for what came out of `future`."""


Unary: TypeAlias = Callable[[memoryview, Call], bytes | Awaitable[bytes]]
"""One message in, one out, at once or from an awaitable: a Pending costs no task.

The message stays valid for as long as anybody holds a view of it.
"""

Streaming: TypeAlias = Callable[[AsyncIterator[memoryview], Call], AsyncIterator[bytes]]
"""Any number of messages in and out; also for one message in or out, if the other side is a stream."""


class Replies(Call, Protocol):
    """The sending side of a call with many messages, for its Receiver. Nothing happens on a call that is over."""

    def send_all(self, messages: Sequence[bytes]) -> bool:
        """Send some messages, without waiting. False: the client is behind in reading, until `drained`."""
        ...

    async def drained(self) -> None:
        """Wait until the client takes more."""
        ...

    def consumed(self, count: int = 1) -> None:
        """So many of the oldest messages not yet consumed are dealt with: the client may send others."""
        ...

    def finish(self) -> None:
        """End the call with status OK."""
        ...


class Receiver(Protocol):
    """Its reading side. No method may block; what is raised ends the call."""

    def messages(self, messages: list[bytes | memoryview]) -> int:
        """The client's next messages, in order; how many of them, from the first, are dealt with at once.

        For the others `Replies.consumed` must follow later, or the client will be stopped.
        """
        ...

    def ended(self) -> None:
        """The client has sent its last message."""
        ...

    def cancelled(self) -> None:
        """The call is over: nothing that is sent will arrive."""
        ...


Receiving: TypeAlias = Callable[[Replies], Receiver]
"""As Streaming, but without a task or a generator: it is called when a call begins. For messages that must be cheap."""


class Methods(msgspec.Struct, frozen=True):
    """Handlers by the path of their method, `/package.Service/Method`."""

    unary: Mapping[str, Unary]
    streaming: Mapping[str, Streaming] = {}
    receiving: Mapping[str, Receiving] = {}

    def paths(self) -> Iterator[str]:
        """Every method's path."""
        yield from self.unary
        yield from self.streaming
        yield from self.receiving
