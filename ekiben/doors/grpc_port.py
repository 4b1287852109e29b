"""The gRPC port: every service's methods on one server, and where it listens.

Methods (grpc_calls) ─► handlers of the transport (grpc_server), some with a guard ─► loop.create_server, maybe in TLS
"""

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any, Final, final

from ekiben.doors.grpc_calls import Methods, Pending, Streaming, Unary
from ekiben.doors.grpc_server import GrpcServer, Handler, StreamCall, UnaryCall, streaming
from ekiben.doors.grpc_server import Streaming as StreamingHandler
from ekiben.doors.grpc_server import Unary as UnaryHandler
from ekiben.doors.grpc_tls import Certificates, Negotiated, ServedContext
from ekiben.doors.status import grpc_status
from ekiben.errors import EkibenError, InvalidSettings
from ekiben.tls import TlsFiles
from ekiben.wire.h2 import GrpcError, Guard, Limits, Memory

__all__ = ["GrpcPort"]

_LOG: Final = logging.getLogger("ekiben.doors.grpc_port")
_GRACE_SECONDS: Final = 5.0
_HANDSHAKE_S: Final = 10.0
_GOODBYE_S: Final = 2.0
"""How long a client may take to close its side of TLS."""
_LARGEST_MESSAGE_BYTES: Final = (1 << 32) - 1
"""A message's length has four bytes."""
_RECEIVE_BYTES: Final = 256 << 20
"""Of a connection: half-received and unread messages; of the port four times as many."""


@final
class GrpcPort:
    """One listening port with several services. Lives on the engine's loop."""

    def __init__(
        self,
        services: Iterable[Methods],
        message_limit_bytes: int,
        guards: Mapping[str, Guard] | None = None,
        *,
        max_connections: int = 10_000,
        max_connection_age_s: float = 0.0,
    ) -> None:
        """A message over `message_limit_bytes` is answered RESOURCE_EXHAUSTED. `guards` are by a method's path.

        Half of the files that this process may open are left to others, whatever `max_connections` is.
        `max_connection_age_s` 0: clients are never asked to connect again.
        """
        message_bytes = min(message_limit_bytes, _LARGEST_MESSAGE_BYTES)
        limits = Limits(
            message_bytes=message_bytes,
            receive_bytes=max(2 * message_bytes, _RECEIVE_BYTES),
            max_age_s=max_connection_age_s,
        )
        self._server = GrpcServer(
            _handlers(services, guards or {}),
            limits,
            translate=_told,
            memory=Memory(4 * limits.receive_bytes),
            max_connections=_most_connections(max_connections),
        )
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int, tls: TlsFiles | None = None, handshake_s: float = _HANDSHAKE_S) -> int:
        """Start listening; the port, which was chosen if `port` is 0. With `tls` a handshake must end in `handshake_s`.

        Raises InvalidSettings when the port is taken, or the files of `tls` cannot be used.
        """
        factory: Any = self._server.protocol
        options: dict[str, Any] = {}
        if tls is not None:
            factory = partial(Negotiated, self._server.protocol)
            options = {
                "ssl": ServedContext(Certificates(tls)),
                "ssl_handshake_timeout": handshake_s,
                "ssl_shutdown_timeout": _GOODBYE_S,
            }
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(factory, host, port, backlog=2048, **options)
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


def _most_connections(wanted: int) -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or wanted <= files // 2:
        return wanted
    text = "gRPC: %d connections at most, not %d: this process may open %d files (ulimit -n)"
    _LOG.info(text, files // 2, wanted, files)
    return files // 2


def _handlers(services: Iterable[Methods], guards: Mapping[str, Guard]) -> dict[bytes, Handler]:
    handlers: dict[bytes, Handler] = {}
    for methods in services:
        for path, unary in methods.unary.items():
            handlers[path.encode()] = UnaryHandler(_start(unary), _finish, guards.get(path))
        for path, handler in methods.streaming.items():
            handlers[path.encode()] = streaming(_stream(handler), guards.get(path))
        for path, receive in methods.receiving.items():
            handlers[path.encode()] = StreamingHandler(receive, guards.get(path))
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
