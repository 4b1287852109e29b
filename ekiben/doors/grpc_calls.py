"""What a gRPC door is to the transport under it: methods by path, which take and give whole messages.

A handler raises EkibenError for what the caller may read (doors.status has the gRPC code); anything else is a fault of
ours, which the transport logs and answers with INTERNAL. The transport cancels what a handler gave when the call ends.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

__all__ = ["Call", "Methods", "Pending", "Streaming", "Unary"]


class Call(Protocol):
    """What the transport knows of a call."""

    @property
    def deadline(self) -> float | None:
        """When the client gives up, on the server's clock; None: it waits for ever."""
        ...


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


class Methods(msgspec.Struct, frozen=True):
    """Handlers by the path of their method, `/package.Service/Method`."""

    unary: Mapping[str, Unary]
    streaming: Mapping[str, Streaming]
