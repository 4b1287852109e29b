"""Streaming calls on asyncio: what a handler of many messages holds, and how it is called.

A handler is a Receiver, called on the loop for each message (the fast way), or a coroutine (`streaming`).
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, final

from ekiben.doors.grpc_calls import Receiver
from ekiben.wire.compression import compressed
from ekiben.wire.h2 import (
    Call,
    Cancelled,
    Connection,
    Ended,
    GrpcError,
    Guard,
    Memory,
    Opened,
    Received,
    Reply,
    too_much,
    unpacked,
)

__all__ = [
    "INLINE_PACK_BYTES",
    "INLINE_UNPACK_BYTES",
    "WORTH_PACKING_BYTES",
    "Link",
    "Receiver",
    "StreamCall",
    "Streaming",
    "streaming",
]

INLINE_UNPACK_BYTES: Final = 4 << 10
"""Compressed messages up to here are unpacked on the loop: they come to 4 MiB at deflate's best ratio."""
INLINE_PACK_BYTES: Final = 64 << 10
"""Replies up to here are packed on the loop."""
WORTH_PACKING_BYTES: Final = 128
_TOLD_MESSAGES: Final = 32
_TOLD_BYTES: Final = 16 << 10
"""Consumed messages that are told to the machine at once: so few are never in the way of the next."""


class Link(Protocol):
    """The connection of a call."""

    machine: Connection[Any]
    loop: asyncio.AbstractEventLoop
    memory: Memory
    message_bytes: int
    paused: bool
    """Whether the socket takes no more."""

    def flush_soon(self) -> None:
        """Write at the end of this loop turn."""
        ...

    async def drained(self, call: Call[Any]) -> None:
        """Wait until what was sent of a call is on its way."""
        ...

    def error_of(self, error: BaseException, path: bytes) -> GrpcError:
        """What a client is told of an exception."""
        ...


@final
class Streaming:
    """A method with many requests or many replies: `open` is called on the loop when a call begins.

    `guard` says who may call.
    """

    __slots__ = ("guard", "open")
    streaming: Final = True

    def __init__(self, open: "Callable[[StreamCall], Receiver]", guard: Guard | None = None) -> None:
        self.open = open
        self.guard = guard


@final
class StreamCall:
    """A streaming call, for its handler. Nothing happens on a call that is over."""

    __slots__ = (
        "_call",
        "_consumed",
        "_consumed_bytes",
        "_inbox",
        "_link",
        "_receiver",
        "_sizes",
        "_unpacking",
        "deadline",
        "head",
        "state",
    )

    def __init__(self, link: Link, call: Call[Any]) -> None:
        self.head = call.head
        self.deadline = call.deadline
        self.state: object = None
        """For the handler's own use."""
        self._link = link
        self._call = call
        self._receiver: Receiver | None = None
        self._inbox: deque[Received[Any] | Ended[Any]] = deque()  # behind a message that is being unpacked
        self._unpacking = False
        self._sizes: deque[tuple[int, int]] = deque()  # of messages not consumed: on the wire, and unpacked
        self._consumed = self._consumed_bytes = 0  # which the machine has not been told of

    def send(self, message: Reply) -> bool:
        """Send one message; it must not change until it is written. Never waits.

        False: the client is behind in reading, and `drained` says when it is not.
        """
        encoding = self.head.reply_encoding
        packed = False
        if encoding:
            whole = b"".join(message) if isinstance(message, list) else bytes(message)
            packed = WORTH_PACKING_BYTES <= len(whole) < INLINE_PACK_BYTES
            message = compressed(whole, encoding) if packed else whole
        self._link.machine.send(self._call, message, packed=packed)
        self._link.flush_soon()
        return self._call.queue is None and not self._link.paused

    def send_all(self, messages: Sequence[bytes]) -> bool:
        """The same for several messages, which is cheaper than one by one."""
        if self.head.reply_encoding:
            for message in messages:
                self.send(message)
        else:
            self._link.machine.send_all(self._call, messages)
            self._link.flush_soon()
        return self._call.queue is None and not self._link.paused

    async def drained(self) -> None:
        """Wait until the client takes more: after each `send` of a handler that has much to say."""
        await self._link.drained(self._call)

    def finish(self) -> None:
        """End the call with status OK."""
        self._link.machine.finish(self._call)
        self._over()

    def fail(self, error: BaseException) -> None:
        """End the call with an error: a GrpcError as it is, others as the server translates them."""
        if not self._call.finished:
            self._link.machine.fail(self._call, self._link.error_of(error, self.head.path))
            self._over()

    def consumed(self, count: int = 1) -> None:
        """So many of the oldest messages not yet consumed are dealt with. Not from within `Receiver.messages`."""
        for _ in range(min(count, len(self._sizes))):
            size, unpacked_bytes = self._sizes.popleft()
            if unpacked_bytes:
                self._link.memory.give(unpacked_bytes)
            self._consume(1, size)

    @property
    def over(self) -> bool:
        """Whether the call has ended, by either side."""
        return self._call.finished

    # ---- what the protocol calls

    def begin(self) -> None:
        """Open the handler."""
        handler = self.head.method
        assert isinstance(handler, Streaming)
        try:
            self._receiver = handler.open(self)
        except Exception as error:
            self.fail(error)

    def received(self, event: Received[Any]) -> None:
        """Pass on messages, as `event` does, where nothing is in their way: the usual case."""
        if event.packed or self._unpacking or self._inbox:
            self.event(event)
        else:
            self._deliver(event.messages)

    def event(self, event: Received[Any] | Ended[Any] | Cancelled[Any] | Opened[Any]) -> None:
        """Pass on what the client did, in order."""
        receiver = self._receiver
        if receiver is None:
            return
        try:
            if isinstance(event, Cancelled):
                self._over()
                receiver.cancelled()
            elif self._call.finished or isinstance(event, Opened):
                return
            elif self._inbox or self._unpacking:
                self._inbox.append(event)
            elif isinstance(event, Ended):
                receiver.ended()
            elif event.packed:
                self._unpack(event.messages[0])
            else:
                self._deliver(event.messages)
        except Exception as error:
            self.fail(error)

    def _unpack(self, message: bytes | memoryview) -> None:
        limit = self._link.message_bytes
        if len(message) > INLINE_UNPACK_BYTES:
            self._unpacking = True
            work = self._link.loop.run_in_executor(None, unpacked, message, self.head.encoding, limit)
            work.add_done_callback(functools.partial(self._unpacked, len(message)))
        else:
            self._deliver_unpacked(len(message), unpacked(message, self.head.encoding, limit))

    def _unpacked(self, size: int, work: "asyncio.Future[memoryview]") -> None:
        self._unpacking = False
        try:
            message = work.result()
            if not self._call.finished:
                self._deliver_unpacked(size, message)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
        while self._inbox and not self._unpacking:
            waiting = list(self._inbox)
            self._inbox.clear()
            for event in waiting:
                self.event(event)

    def _deliver_unpacked(self, size: int, message: memoryview) -> None:
        if not self._link.memory.take(len(message)):
            raise too_much()
        self._sizes.append((size, len(message)))
        if self._receiver is not None and self._receiver.messages([message]) and self._sizes:
            self._sizes.pop()
            self._link.memory.give(len(message))
            self._consume(1, size)

    def _deliver(self, messages: list[bytes | memoryview]) -> None:
        if self._receiver is None or self._call.finished:
            return
        try:
            done = self._receiver.messages(messages)
        except Exception as error:
            self.fail(error)
            return
        if done < len(messages):
            self._sizes.extend((len(message), 0) for message in messages[done:])
        self._consume(done, sum(map(len, messages[:done])))

    def _consume(self, count: int, size: int) -> None:
        self._consumed += count
        self._consumed_bytes += size
        if self._consumed >= _TOLD_MESSAGES or self._consumed_bytes >= _TOLD_BYTES:
            if self._link.machine.consumed(self._call, self._consumed_bytes, self._consumed):
                self._link.flush_soon()
            self._consumed = self._consumed_bytes = 0

    def _over(self) -> None:
        """Free what was unpacked."""
        while self._sizes:
            self._link.memory.give(self._sizes.popleft()[1])
        self._inbox.clear()
        self._link.flush_soon()


def streaming(
    function: Callable[[StreamCall, AsyncIterator[memoryview]], Awaitable[None]], guard: Guard | None = None
) -> Streaming:
    """A streaming method as a coroutine: it reads the messages, sends with its call, and returning is the end."""
    return Streaming(lambda call: _Reader(call, function), guard)


@final
class _Reader:
    """Runs a coroutine over a call's messages."""

    def __init__(
        self, call: StreamCall, function: Callable[[StreamCall, AsyncIterator[memoryview]], Awaitable[None]]
    ) -> None:
        self._call = call
        self._messages: deque[memoryview] = deque()
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(function))

    def messages(self, messages: list[bytes | memoryview]) -> int:
        self._messages.extend(map(memoryview, messages))
        self._wake()
        return 0

    def ended(self) -> None:
        self._ended = True
        self._wake()

    def cancelled(self) -> None:
        self._task.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self, function: Callable[[StreamCall, AsyncIterator[memoryview]], Awaitable[None]]) -> None:
        try:
            await function(self._call, self._read())
            self._call.finish()
        except Exception as error:
            self._call.fail(error)
        except asyncio.CancelledError as error:
            self._call.fail(error)
            raise

    async def _read(self) -> AsyncIterator[memoryview]:
        while True:
            if self._messages:
                yield self._messages.popleft()
                self._call.consumed()
            elif self._ended:
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
