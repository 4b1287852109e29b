"""An instance whose session answers a call with a stream of responses.

    Call ─► Reply(more) ─► Next ─► Reply(more) ─► Next ─► … ─► Reply

The runner computes one response at a time and waits for a Next in between. That is all the back-pressure there is, and
the only place where a stream can be stopped.
"""

import contextlib
import socket
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import final

from ekiben.runner.arena import Arena, Placed
from ekiben.runner.channel import PACKET_BYTES, Call, Next, Reply, pack, resolve, unpack_step
from ekiben.runner.results import checked, text_of
from ekiben.runtimes.base import DecoupledSession

__all__ = ["StreamInstance"]


class _Gone(Exception):
    """The engine has closed the channel."""


@final
class StreamInstance:
    """One decoupled session with the socket and the slots that feed it."""

    def __init__(self, session: DecoupledSession, channel: socket.socket, arenas: Sequence[Arena]) -> None:
        self._session = session
        self._channel = channel
        self._arenas = arenas
        self._waiting: deque[Call] = deque()
        """Calls that came while another one's stream ran."""
        self._buffer = bytearray(2 * PACKET_BYTES)
        self._packet = memoryview(self._buffer)

    def serve(self) -> None:
        """Answer calls, one after the other, until the channel closes."""
        with contextlib.suppress(_Gone):
            while True:
                call = self._waiting.popleft() if self._waiting else self._receive()
                if not isinstance(call, Call):
                    raise TypeError(f"no stream waits for {call}")
                self._send(self._answer(call))

    def _answer(self, call: Call) -> Reply:
        """Send each response as it is there; returns the stream's end."""
        arena = self._arenas[call.slot]
        input_ns = compute_ns = 0
        try:
            started_ns = time.perf_counter_ns()
            inputs = {place.name: arena.view(place) for place in call.inputs}
            resumed_ns = time.perf_counter_ns()
            input_ns = resumed_ns - started_ns
            with contextlib.closing(self._session.stream(call.signature, inputs, call.outputs)) as responses:
                for results in responses:
                    computed_ns = time.perf_counter_ns()
                    placed, end = arena.write(list(checked(results, call.outputs)), call.end)
                    output_ns = time.perf_counter_ns() - computed_ns
                    self._send(self._reply(call, placed, end, input_ns, computed_ns - resumed_ns, output_ns, more=True))
                    input_ns = 0
                    stop = self._next(call.slot).stop
                    resumed_ns = time.perf_counter_ns()
                    if stop:
                        break
            compute_ns = time.perf_counter_ns() - resumed_ns
        except _Gone:
            raise
        except BaseException as error:  # a model may even call sys.exit(); only this stream has failed
            traceback.print_exc()
            return Reply(call.slot, arena.size_bytes, [], 0, 0, 0, text_of(error), call.end)
        return self._reply(call, [], call.end, input_ns, compute_ns, 0, more=False)

    def _reply(
        self, call: Call, placed: list[Placed], end: int, input_ns: int, compute_ns: int, output_ns: int, *, more: bool
    ) -> Reply:
        size_bytes = self._arenas[call.slot].size_bytes
        return Reply(call.slot, size_bytes, placed, input_ns, compute_ns, output_ns, None, end, more)

    def _next(self, slot: int) -> Next:
        """Wait for the engine to say what becomes of the stream in this slot."""
        while isinstance(message := self._receive(), Call):
            self._waiting.append(message)
        if message.slot != slot:
            raise TypeError(f"slot {slot} waits, and not slot {message.slot}")
        return message

    def _receive(self) -> Call | Next:
        try:
            length = self._channel.recv_into(self._buffer)
        except ConnectionResetError:
            length = 0
        if not length:
            raise _Gone
        step = unpack_step(self._packet[:length])
        if isinstance(step, Next):
            return step
        call = resolve(step, self._arenas[step.slot])
        if not isinstance(call, Call):
            raise TypeError(f"a runner cannot take a {type(call).__name__}")
        return call

    def _send(self, reply: Reply) -> None:
        try:
            self._channel.send(pack(reply, self._arenas[reply.slot]))
        except (BrokenPipeError, ConnectionResetError):
            raise _Gone from None
