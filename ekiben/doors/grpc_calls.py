"""What a gRPC door is to the transport under it: methods by path, which take and give whole messages.

A handler raises EkibenError for what the caller may read (doors.status has the gRPC code); anything else is a fault of
ours, which the transport logs and answers with INTERNAL. The transport cancels what a handler gave when the call ends.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec

__all__ = ["Call", "Methods", "Streaming", "Unary"]

Call: TypeAlias = object
"""What the transport knows of a call; no handler looks at it yet."""

Unary: TypeAlias = Callable[[memoryview, Call], bytes | Awaitable[bytes]]
"""One message in, one out. The message stays valid for as long as anybody holds a view of it."""

Streaming: TypeAlias = Callable[[AsyncIterator[memoryview], Call], AsyncIterator[bytes]]
"""Any number of messages in and out; also for one message in or out, if the other side is a stream."""


class Methods(msgspec.Struct, frozen=True):
    """Handlers by the path of their method, `/package.Service/Method`."""

    unary: Mapping[str, Unary]
    streaming: Mapping[str, Streaming]
