"""The gRPC port: every service's methods on one server, and where it listens.

Methods (grpc_calls) ─► handlers of the transport (grpc_server) ─► loop.create_server
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, final

from ekiben.doors.grpc_calls import Methods, Pending, Streaming, Unary
from ekiben.doors.grpc_server import GrpcServer, Handler, StreamCall, UnaryCall, streaming
from ekiben.doors.grpc_server import Unary as UnaryHandler
from ekiben.doors.status import grpc_status
from ekiben.errors import EkibenError, InvalidSettings
from ekiben.wire.h2 import GrpcError, Limits

__all__ = ["GrpcPort"]

_GRACE_SECONDS: Final = 5.0


@final
class GrpcPort:
    """One listening port with several services. Lives on the engine's loop."""

    def __init__(self, services: Iterable[Methods], message_limit_bytes: int) -> None:
        """A message over `message_limit_bytes` is answered RESOURCE_EXHAUSTED."""
        self._server = GrpcServer(_handlers(services), Limits(message_bytes=message_limit_bytes), translate=_told)
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start listening; the port, which was chosen if `port` is 0. Raises InvalidSettings when it is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._server.protocol, host, port, backlog=2048)
        except OSError as error:
            raise InvalidSettings(
                f"grpc_port {port} on {host} cannot be listened on: {error.strerror or error}; choose another with "
                "--grpc-port"
            ) from None
        sockets: Iterable[socket.socket] = self._listener.sockets
        return int(next(iter(sockets)).getsockname()[1])

    async def close(self) -> None:
        """Take no new connection, let open calls end for a moment, then close what is left."""
        if self._listener is not None:
            self._listener.close()
        await self._server.close(_GRACE_SECONDS)


def _handlers(services: Iterable[Methods]) -> dict[bytes, Handler]:
    handlers: dict[bytes, Handler] = {}
    for methods in services:
        handlers |= {path.encode(): UnaryHandler(_start(unary), _finish) for path, unary in methods.unary.items()}
        handlers |= {path.encode(): streaming(_stream(handler)) for path, handler in methods.streaming.items()}
    return handlers


def _start(unary: Unary) -> Any:
    def start(call: UnaryCall) -> Any:
        answer = unary(call.message, call)
        if isinstance(answer, Pending):
            # A future and no task: the transport waits for it by a callback, and cancels it with the call.
            call.state = answer
            return answer.future
        return answer

    return start


def _finish(call: UnaryCall, value: Any) -> Any:
    return call.state.reply(value) if isinstance(call.state, Pending) else value


def _stream(handler: Streaming) -> Any:
    async def run(call: StreamCall, messages: AsyncIterator[memoryview]) -> None:
        async for reply in handler(messages, call):
            call.send(reply)
            await call.drained()

    return run


def _told(error: Exception) -> GrpcError | None:
    return GrpcError(grpc_status(error), error.message) if isinstance(error, EkibenError) else None
