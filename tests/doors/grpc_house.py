"""gRPC doors behind grpcio's own asyncio server: another transport than ours, for tests of what the doors say."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.grpc_calls import Methods, Receiving, Streaming, Unary
from ekiben.doors.status import grpc_status
from ekiben.errors import EkibenError

SERVICE = "/inference.GRPCInferenceService/"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Called(NamedTuple):
    """A call as handlers see it: its metadata, and itself as its head."""

    metadata: tuple[tuple[bytes, bytes], ...] = ()
    deadline: float | None = None

    @property
    def head(self) -> "Called":
        return self


def _called(context: Any) -> Called:
    fields = context.invocation_metadata()
    left_seconds = context.time_remaining()
    deadline = None if left_seconds is None else SYSTEM_CLOCK.monotonic() + left_seconds
    metadata = ((key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in fields)
    return Called(tuple(metadata), deadline)


ENDLESS = Called()
"""A call whose client waits for ever."""


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    def __init__(self, doors: Sequence[Methods]) -> None:
        self.unary = {path: handler for door in doors for path, handler in door.unary.items()}
        self.streaming = {path: _streaming(handler) for door in doors for path, handler in door.streaming.items()}
        self.streaming |= {path: _receiving(handler) for door in doors for path, handler in door.receiving.items()}

    def service(self, details: Any) -> Any:
        if details.method in self.unary:
            return grpc.unary_unary_rpc_method_handler(_unary(self.unary[details.method]))
        if details.method in self.streaming:
            return grpc.stream_stream_rpc_method_handler(self.streaming[details.method])
        return None


def _unary(handler: Unary) -> Any:
    async def answer(data: bytes, context: Any) -> bytes:
        try:
            reply = handler(memoryview(data), _called(context))
            return await reply if inspect.isawaitable(reply) else reply
        except EkibenError as error:
            await context.abort(_code(error), error.message)
            raise

    return answer


def _streaming(handler: Streaming) -> Any:
    async def views(requests: AsyncIterator[bytes]) -> AsyncIterator[memoryview]:
        async for data in requests:
            yield memoryview(data)

    async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for reply in handler(views(requests), _called(context)):
                yield reply
        except EkibenError as error:
            await context.abort(_code(error), error.message)

    return answer


class _Replies:
    """What a Receiver sends, for a generator to yield; None ends it."""

    def __init__(self, called: Called) -> None:
        self.deadline = called.deadline
        self.head = called
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.over = False

    def send_all(self, messages: Sequence[bytes]) -> bool:
        for message in messages:
            self.sent.put_nowait(message)
        return True

    async def drained(self) -> None:
        pass

    def consumed(self, count: int = 1) -> None:
        pass

    def finish(self) -> None:
        self.over = True
        self.sent.put_nowait(None)


def _receiving(handler: Receiving) -> Any:
    async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        replies = _Replies(_called(context))
        receiver = handler(replies)

        async def read() -> None:
            async for data in requests:
                receiver.messages([data])
            receiver.ended()

        reader = asyncio.create_task(read())
        try:
            while (reply := await replies.sent.get()) is not None:
                yield reply
        finally:
            reader.cancel()
            if not replies.over:
                receiver.cancelled()

    return answer


def _code(error: EkibenError) -> Any:
    return next(code for code in grpc.StatusCode if code.value[0] == grpc_status(error))


@contextlib.asynccontextmanager
async def serving(*doors: Methods) -> AsyncIterator[str]:
    """The address of a server with these doors."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_Handler(doors),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(channel: Any, path: str, message: bytes) -> bytes:
    """A unary call; raises grpc.aio.AioRpcError."""
    return bytes(await channel.unary_unary(path)(message, timeout=60))


async def stream(channel: Any, path: str, messages: Sequence[bytes]) -> list[bytes]:
    """A stream's replies to all these messages."""

    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message
            await asyncio.sleep(0)

    return [bytes(reply) async for reply in channel.stream_stream(path)(requests(), timeout=60)]


async def received(handler: Receiving, messages: Sequence[bytes], called: Called) -> list[bytes]:
    """What a Receiver sends to all these messages."""
    replies = _Replies(called)
    receiver = handler(replies)
    receiver.messages([memoryview(message) for message in messages])
    receiver.ended()
    sent: list[bytes] = []
    while (reply := await replies.sent.get()) is not None:
        sent.append(reply)
    return sent
