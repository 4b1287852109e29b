"""gRPC on asyncio: a thin Protocol around the HTTP/2 machine, and a table of handlers.

    socket ─► GrpcProtocol ─► Connection (wire/h2) ─┬► unary call ─► Unary.start ─► bytes, future or coroutine ─┐
                  ▲                                 └► streaming ──► Streaming.open ─► Receiver ◄─► StreamCall ──┤
                  └── one write a loop turn ◄────────────────────────────────────────────────────────────────────┘

All on one event loop. The Protocol does not care what its transport is: TLS is the listener's affair.
"""

import asyncio
import contextlib
import functools
import logging
import math
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast, final

import msgspec

from ekiben.clock import SYSTEM_CLOCK, Clock
from ekiben.doors.grpc_calls import Receiver
from ekiben.doors.grpc_stream import (
    INLINE_PACK_BYTES,
    INLINE_UNPACK_BYTES,
    WORTH_PACKING_BYTES,
    StreamCall,
    Streaming,
    streaming,
)
from ekiben.wire.compression import compressed
from ekiben.wire.h2 import (
    Call,
    Cancelled,
    Connection,
    Event,
    GrpcError,
    Guard,
    Limits,
    Memory,
    Opened,
    Received,
    Reply,
    Status,
    too_much,
    unpacked,
)

__all__ = [
    "GrpcProtocol",
    "GrpcServer",
    "Handler",
    "Receiver",
    "StreamCall",
    "Streaming",
    "Unary",
    "UnaryCall",
    "streaming",
]

_LOG: Final = logging.getLogger("ekiben.doors.grpc_server")
_TICK_S: Final = 1.0
_TELL_S: Final = 1.0
_LINGER_S: Final = 1.0
"""A connection that broke the rules may still read why before its socket goes."""


@final
class Unary:
    """A method with one request and one reply.

    `start` is called on the loop with the whole request, and must not block. It returns the reply, or a future or
    coroutine of it; a coroutine costs a task, a future does not, and is cancelled with its call. `finish` makes the
    reply of what they come to; without it that is the reply. Either may raise. `guard` says who may call.
    """

    __slots__ = ("finish", "guard", "start")
    streaming: Final = False

    def __init__(
        self,
        start: "Callable[[UnaryCall], Any]",
        finish: "Callable[[UnaryCall, Any], Reply] | None" = None,
        guard: Guard | None = None,
    ) -> None:
        self.start = start
        self.finish = finish
        self.guard = guard


Handler: TypeAlias = Unary | Streaming
UnaryCall: TypeAlias = Call[Handler]
"""`head.path`, `head.metadata`, `message`, `deadline` (on the server's clock), and `state` for its handler's use."""


@final
class GrpcServer:
    """All connections of one port. `loop.create_server(server.protocol, …)` makes it listen.

    `translate` gives the status for exceptions that are not GrpcError, or None for those whose text must not reach a
    client. `memory` bounds what all clients together leave half sent, unread or unpacked. A connection over
    `max_connections` is closed at once.
    """

    def __init__(
        self,
        handlers: Mapping[bytes, Handler],
        limits: Limits | None = None,
        *,
        translate: Callable[[Exception], GrpcError | None] = lambda _: None,
        memory: Memory | None = None,
        max_connections: int = sys.maxsize,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.handlers = handlers
        self.limits = limits or Limits()
        self.translate = translate
        self.memory = memory or Memory()
        self.now = clock.monotonic
        self.protocols: set[GrpcProtocol] = set()
        self._max_connections = max_connections
        self._refused = 0  # connections, since the log told of them
        self._told = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Future[None] | None = None

    def protocol(self) -> "GrpcProtocol":
        """A new connection's Protocol."""
        return GrpcProtocol(self)

    async def close(self, grace_s: float) -> None:
        """Let every client go: open calls have `grace_s` to end. The listener is the caller's to close, before."""
        self._leaving = asyncio.get_running_loop().create_future()
        for protocol in list(self.protocols):
            protocol.drain()
        if self.protocols:
            await asyncio.wait((self._leaving,), timeout=grace_s)
        for protocol in list(self.protocols):
            protocol.shut()
        if self._timer is not None:
            self._timer.cancel()

    def error_of(self, error: BaseException, path: bytes) -> GrpcError:
        """What a client is told of an exception."""
        if isinstance(error, GrpcError):
            return error
        if isinstance(error, asyncio.CancelledError):
            return GrpcError(Status.CANCELLED, "Cancelled on the server side")
        told = self.translate(error) if isinstance(error, Exception) else None
        if told is None:
            _LOG.error("gRPC handler of %s failed", path.decode("latin-1"), exc_info=error)
            return GrpcError(Status.INTERNAL, "internal error")
        return told

    def connected(self, protocol: "GrpcProtocol") -> bool:
        """A connection begins; False: there are too many."""
        if len(self.protocols) >= self._max_connections:
            self._refused += 1
            now = self.now()
            if now - self._told >= _TELL_S:
                text = "gRPC: %d refused, for %d connections are open (setting grpc_max_connections)"
                _LOG.warning(text, self._refused, len(self.protocols))
                self._refused = 0
                self._told = now
            return False
        self.protocols.add(protocol)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        if self._leaving is not None:
            protocol.drain()
        return True

    def disconnected(self, protocol: "GrpcProtocol") -> None:
        """A connection is gone."""
        self.protocols.discard(protocol)
        if not self.protocols and self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)

    def _tick(self) -> None:
        self._timer = None
        for protocol in list(self.protocols):
            protocol.tick()
        if self.protocols:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)


@final
class GrpcProtocol(asyncio.Protocol):
    """One connection."""

    _transport: asyncio.Transport

    def __init__(self, server: GrpcServer) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.memory = server.memory
        self.message_bytes = server.limits.message_bytes
        self.error_of = server.error_of
        limits = server.limits
        if limits.max_age_s:  # not all at once
            limits = msgspec.structs.replace(limits, max_age_s=limits.max_age_s * random.uniform(0.9, 1.1))
        self.machine: Connection[Handler] = Connection(server.handlers, limits, server.memory, server.now())
        self._scheduled = False
        self.paused = False
        self._ending: asyncio.TimerHandle | None = None
        self._lost = False
        self._unpacked_bytes: dict[int, int] = {}  # by stream, of unary calls
        self._drains: list[asyncio.Future[None]] = []

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        # uvloop's are transports in all but their base class.
        self._transport = cast("asyncio.Transport", transport)
        if self.server.connected(self):
            self.flush()
            return
        # Without a word: a client that got SETTINGS takes it for a connection, and comes again at once after a GOAWAY;
        # one that got nothing waits longer each time.
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle all that has come, and write what can be answered at once."""
        for event in self.machine.receive(data, self.server.now()):
            if type(event) is Call and not event.packed:
                self._start(event)
            elif type(event) is Received:
                stream = event.call.work
                assert isinstance(stream, StreamCall)
                stream.received(event)
            else:
                self._handle(event)
        if self._drains:
            self._wake_drains()
        if not self._scheduled and (self.machine.has_output or self.machine.closed):
            self.flush()

    def eof_received(self) -> bool:
        """A client that will send no more gets no answers either: as grpcio does."""
        return False

    def pause_writing(self) -> None:
        """The client does not read."""
        self.paused = True
        self.machine.unwritten(max(1, self._transport.get_write_buffer_size()))

    def resume_writing(self) -> None:
        """The client reads again."""
        self.paused = False
        self.machine.unwritten(0)
        self.flush()
        self._wake_drains()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls."""
        self._lost = True
        if self._ending is not None:
            self._ending.cancel()
        for event in self.machine.lost():
            self._handle(event)
        self._wake_drains()
        self.server.disconnected(self)

    # ---- what the server calls

    def tick(self) -> None:
        """Let time pass."""
        if self.paused:
            self.machine.unwritten(max(1, self._transport.get_write_buffer_size()))
        for event in self.machine.tick(self.server.now()):
            self._handle(event)
        self.flush()

    def drain(self) -> None:
        """Ask the client to go."""
        self.machine.drain(self.server.now())
        self.flush_soon()

    def shut(self) -> None:
        """End the connection."""
        for event in self.machine.shut("server is closing"):
            self._handle(event)
        self.flush()
        self._transport.close()

    # ---- output

    def flush_soon(self) -> None:
        """Write at the end of this loop turn, with what else there will be."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write now, if the client reads."""
        self._scheduled = False
        machine = self.machine
        if self._lost or self._ending is not None or (self.paused and not machine.closed):
            return
        data = machine.take()
        if data:
            self._transport.write(data)
        if machine.closed:
            self._end()

    async def drained(self, call: Call[Handler]) -> None:
        """Wait until what was sent of a call is on its way."""
        while not self._lost and not call.finished and (self.paused or call.queue is not None):
            waiter = self.loop.create_future()
            self._drains.append(waiter)
            await waiter

    def _wake_drains(self) -> None:
        drains, self._drains = self._drains, []
        for waiter in drains:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        """Close so that the client can still read the GOAWAY: closing with bytes unread would reset the connection."""
        self._ending = self.loop.call_later(_LINGER_S, self._transport.abort)
        if self.machine.faulty and self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone before
                self._transport.write_eof()
                return
        self._transport.close()

    # ---- unary calls

    def _start(self, call: Call[Handler]) -> None:
        handler = call.head.method
        assert isinstance(handler, Unary)
        try:
            result = handler.start(call)
            if isinstance(result, asyncio.Future):
                call.work = result
                result.add_done_callback(functools.partial(self._done, call))
            elif isinstance(result, bytes | bytearray | memoryview | list):
                self._answer(call, result)
            elif asyncio.iscoroutine(result):
                call.work = task = self.loop.create_task(result)
                task.add_done_callback(functools.partial(self._done, call))
            else:
                self._finish(call, handler, result)
        except Exception as error:
            self._failed(call, error)

    def _done(self, call: Call[Handler], future: "asyncio.Future[Any]") -> None:
        """A unary call's work has come to an end."""
        call.work = None
        handler = call.head.method
        assert isinstance(handler, Unary)
        try:
            self._finish(call, handler, future.result())
        except (Exception, asyncio.CancelledError) as error:
            self._failed(call, error)

    def _finish(self, call: Call[Handler], handler: Unary, result: Any) -> None:
        if call.finished:
            return
        self._answer(call, result if handler.finish is None else handler.finish(call, result))

    def _answer(self, call: Call[Handler], reply: Reply) -> None:
        if self._unpacked_bytes:
            self._free(call)
        encoding = call.head.reply_encoding
        if encoding and not call.finished:
            whole = b"".join(reply) if isinstance(reply, list) else bytes(reply)
            if len(whole) >= INLINE_PACK_BYTES:
                work = self.loop.run_in_executor(None, compressed, whole, encoding)
                call.work = work
                work.add_done_callback(functools.partial(self._packed, call))
                return
            if len(whole) >= WORTH_PACKING_BYTES:
                self.machine.reply(call, compressed(whole, encoding), packed=True)
                self.flush_soon()
                return
        self.machine.reply(call, reply)
        if not self._scheduled:
            self.flush_soon()

    def _packed(self, call: Call[Handler], work: "asyncio.Future[bytes]") -> None:
        call.work = None
        if not work.cancelled():
            self.machine.reply(call, work.result(), packed=True)
            self.flush_soon()

    def _failed(self, call: Call[Handler], error: BaseException) -> None:
        self._free(call)
        if not call.finished:
            self.machine.fail(call, self.error_of(error, call.head.path))
            self.flush_soon()

    def _unpack(self, call: Call[Handler]) -> None:
        """A unary call whose message is compressed: on a thread where it may take long."""
        limit = self.message_bytes
        if len(call.message) > INLINE_UNPACK_BYTES:
            work = self.loop.run_in_executor(None, unpacked, call.message, call.head.encoding, limit)
            call.work = work
            work.add_done_callback(functools.partial(self._unpacked, call))
            return
        try:
            message = unpacked(call.message, call.head.encoding, limit)
        except GrpcError as error:
            self._failed(call, error)
        else:
            self._start_unpacked(call, message)

    def _unpacked(self, call: Call[Handler], work: "asyncio.Future[memoryview]") -> None:
        call.work = None
        if call.finished or work.cancelled():
            return
        error = work.exception()
        if error is not None:
            self._failed(call, error)
        else:
            self._start_unpacked(call, work.result())

    def _start_unpacked(self, call: Call[Handler], message: memoryview) -> None:
        if not self.memory.take(len(message)):
            self._failed(call, too_much())
            return
        self._unpacked_bytes[call.stream_id] = len(message)
        call.message = message
        self._start(call)

    def _free(self, call: Call[Handler]) -> None:
        self.memory.give(self._unpacked_bytes.pop(call.stream_id, 0))

    # ---- everything else

    def _handle(self, event: Event[Handler]) -> None:
        if isinstance(event, Call):
            if event.packed:
                self._unpack(event)
            else:
                self._start(event)
            return
        call = event.call
        if isinstance(event, Opened):
            call.work = stream = StreamCall(self, call)
            stream.begin()
        elif isinstance(call.work, StreamCall):
            call.work.event(event)
        elif isinstance(event, Cancelled):
            self._free(call)
            if isinstance(call.work, asyncio.Future):
                call.work.cancel()
