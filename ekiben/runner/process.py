"""One life of a runner process, from spawn to its end. It is never restarted: the supervisor makes another.

Everything here runs on the engine's event loop. A process is seen to end by its pidfd; whatever it had answered by
then still counts, and every other batch in flight gets Died.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, final

import msgspec

from ekiben.errors import LoadFailed
from ekiben.runner.arena import Arena
from ekiben.runner.base import Batch, Died, Done, Executed, Outcome, Raised, Slot
from ekiben.runner.channel import (
    PACKET_BYTES,
    Call,
    InstancePlan,
    Load,
    LoadReport,
    Next,
    Reply,
    pack,
    pack_next,
    receive_document,
    resolve,
    send_descriptors,
    send_document,
    unpack,
)
from ekiben.runner.output import OutputPipe
from ekiben.runner.spawn import spawn
from ekiben.types import ModelSettings, Tensor, VersionSource

__all__ = ["RunnerProcess", "plan_instances"]

_LOST_REPORT_SECONDS: Final = 1.0
_NEVER: Final = float("inf")
SLOTS: Final = 2
"""Batches in flight per instance: one running, one ready in the arena behind it."""

STOP_SECONDS: Final = 5.0
"""How long a stopping runner may finish what it runs and close its sessions, before it is killed."""

_LOG: Final = logging.getLogger(__name__)


def plan_instances(settings: ModelSettings, cores: int) -> tuple[InstancePlan, ...]:
    """Each instance's device and threads; threads not set are the usable cores divided over all instances."""
    total = sum(group.count for group in settings.instances)
    return tuple(
        InstancePlan(group.device, group.threads or max(1, cores // total))
        for group in settings.instances
        for _ in range(group.count)
    )


class _InFlight(msgspec.Struct, gc=False):
    """A batch that was sent and not answered."""

    slot: "_ArenaSlot"
    done: Done


@final
class _ArenaSlot:
    """A Slot: one arena of one instance of one process."""

    __slots__ = ("arena", "channel", "instance", "number")

    def __init__(self, channel: "_Channel", number: int) -> None:
        self.instance = channel.number
        self.channel = channel
        self.number = number
        self.arena = Arena.create()


@final
class _Channel:
    """The engine's end of one instance."""

    __slots__ = (
        "fed", "free", "in_flight", "number", "process", "running_since", "slots", "socket", "theirs", "timer", "unsent"
    )  # fmt: skip

    def __init__(self, process: "RunnerProcess", number: int) -> None:
        self.process = process
        self.number = number
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.slots = [_ArenaSlot(self, slot) for slot in range(SLOTS)]
        self.free = deque(self.slots)
        self.in_flight: deque[_InFlight] = deque()
        """Oldest first; the runner answers in this order."""
        self.fed = 0
        """Which of the process's batches was its last, counted from 1."""
        self.running_since = 0.0
        """Loop time at which the oldest one became the one that runs, or its stream was last told to go on; infinity:
        its stream waits to be told.
        """
        self.timer: asyncio.TimerHandle | None = None
        self.unsent: deque[bytes] = deque()

    def close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.socket.close()
        self.theirs.close()
        for slot in self.slots:
            slot.arena.close()


@final
class RunnerProcess:
    """A child process with its channels. `on_end` is called once, when a loaded process has ended by itself."""

    def __init__(
        self, source: VersionSource, settings: ModelSettings, cores: int, on_end: Callable[["RunnerProcess"], None]
    ) -> None:
        """Spawn it. Raises OSError when the machine has no room for it."""
        self._loop = asyncio.get_running_loop()
        self._name = f"model '{source.model}' version {source.version}"
        self._on_end = on_end
        self._limit_seconds = settings.execution_timeout_ms / 1e3
        self._load_limit_seconds = settings.load_timeout_ms / 1e3
        self._buffer = bytearray(2 * PACKET_BYTES)
        self._packet = memoryview(self._buffer)
        self._ended = asyncio.Event()
        self._report: asyncio.Future[LoadReport] = self._loop.create_future()
        self.serving = False
        """Loaded, and neither ended nor stopping."""
        self._loaded = False
        self._decoupled = False
        self._stopping = False
        self.answered = False
        """Whether a batch was ever answered."""
        self.reason = ""
        """How it ended, once it has."""
        plans = plan_instances(settings, cores)
        with contextlib.ExitStack() as undo:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._control.close)
            undo.callback(theirs.close)
            self._channels: list[_Channel] = []
            self._fed = 0
            for number in range(len(plans)):
                self._channels.append(_Channel(self, number))
                undo.callback(self._channels[-1].close)
            self._output = OutputPipe(self._loop)
            undo.callback(self._output.close)
            send_document(self._control, Load(source.model, source.version, source.path, settings, plans))
            for channel in self._channels:
                send_descriptors(
                    self._control, [channel.theirs.fileno(), *(slot.arena.descriptor for slot in channel.slots)]
                )
                channel.theirs.close()
            self._process = spawn(theirs, self._output, plans, f"{source.model}:{source.version}")
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            undo.pop_all()
        self._output.close_writer()
        theirs.close()
        self._control.setblocking(False)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.add_reader(self._control.fileno(), self._on_report)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load(self) -> LoadReport:
        """Wait until every instance is loaded and warm; the process serves from then on.

        Raises LoadFailed with the reason; the process has ended then, as it has when this is cancelled.
        """
        limit = self._load_limit_seconds
        try:
            try:
                async with asyncio.timeout(limit or None):
                    report = await self._report
            except TimeoutError:
                raise LoadFailed(f"{self._name} was not loaded within load_timeout_ms ({limit * 1e3:g})") from None
            if report.error:
                raise LoadFailed(report.error)
            if self._ended.is_set():
                raise LoadFailed(self.reason)
        except BaseException:
            self._kill()
            await self._ended.wait()
            raise
        for channel in self._channels:
            self._loop.add_reader(channel.socket.fileno(), self._on_reply, channel)
        self._decoupled = report.decoupled
        self._loaded = self.serving = True
        return report

    def idle(self) -> Slot | None:
        """A free slot of the instance with the fewest batches in flight; of equals the one that was fed first."""
        if not self.serving:
            return None
        best = self._channels[0]
        for channel in self._channels:
            if (len(channel.in_flight), channel.fed) < (len(best.in_flight), best.fed):
                best = channel
        return best.free[0] if best.free else None

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        """As Executor.submit."""
        if not isinstance(slot, _ArenaSlot):
            raise TypeError(f"a {type(slot).__name__} is no slot of a runner")
        channel = slot.channel
        if not self.serving or channel.process is not self:
            self._loop.call_soon(done, Died(f"the runner of {self._name} has ended"))
            return
        channel.free.remove(slot)
        try:
            inputs, end = slot.arena.write(batch.inputs, 0)
            call = Call(slot.number, slot.arena.size_bytes, batch.signature, inputs, batch.outputs, end, batch.lone)
            packet = pack(call, slot.arena)
        except Exception as error:
            # Parts that do not fit together, items that are not bytes, no memory: this batch cannot run.
            channel.free.append(slot)
            self._loop.call_soon(done, Raised(str(error)))
            return
        if not channel.in_flight:
            self._start_clock(channel)
        channel.in_flight.append(_InFlight(slot, done))
        self._fed += 1
        channel.fed = self._fed
        self._send(channel, packet)

    def advance(self, slot: Slot, stop: bool) -> None:
        """As Executor.advance."""
        if not isinstance(slot, _ArenaSlot):
            raise TypeError(f"a {type(slot).__name__} is no slot of a runner")
        channel = slot.channel
        if self.serving and channel.process is self:
            self._start_clock(channel)
            self._send(channel, pack_next(Next(slot.number, stop)))

    async def stop(self) -> None:
        """End it: at once while it loads, else after what it runs, within STOP_SECONDS. Batches in flight get Died."""
        graceful = self.serving
        self.serving = False
        self._stopping = True
        self._fail_all(f"the runner of {self._name} was stopped")
        try:
            if graceful:
                for channel in self._channels:
                    self._forget(channel)
                    channel.socket.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), STOP_SECONDS)
        finally:
            self._kill()
            await self._ended.wait()

    # The life of a batch

    def _send(self, channel: _Channel, packet: bytes) -> None:
        if channel.unsent:
            channel.unsent.append(packet)
            return
        try:
            channel.socket.send(packet)
        except BlockingIOError:
            channel.unsent.append(packet)
            self._loop.add_writer(channel.socket.fileno(), self._send_rest, channel)
        except (BrokenPipeError, ConnectionResetError):
            return  # its pidfd tells the rest

    def _send_rest(self, channel: _Channel) -> None:
        packets = list(channel.unsent)
        channel.unsent.clear()
        self._loop.remove_writer(channel.socket.fileno())
        for packet in packets:
            self._send(channel, packet)

    def _on_reply(self, channel: _Channel) -> None:
        answer = self._receive(channel)
        if answer is not None:
            done, outcome = answer
            done(outcome)

    def _receive(self, channel: _Channel) -> tuple[Done, Outcome] | None:
        """Take one reply from the channel; the slot is free again. None: nothing there, or no more to come."""
        try:
            length = channel.socket.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            length = 0
        if not length:
            self._kill()
            return None
        try:
            in_flight = channel.in_flight[0]
            message = unpack(self._packet[:length])
            arena = in_flight.slot.arena
            reply = resolve(message, arena)
            if not isinstance(reply, Reply) or reply.slot != in_flight.slot.number:
                raise TypeError(f"the runner answered {reply}")
            outcome: Outcome
            if reply.error is not None:
                outcome = Raised(reply.error)
            else:
                outputs: Mapping[str, Tensor] = {place.name: arena.copy(place) for place in reply.outputs}
                outcome = Executed(outputs, reply.input_ns, reply.compute_ns, reply.output_ns, reply.more)
            arena.trim(reply.end)
            if reply.more:
                if not self._decoupled:
                    raise TypeError(f"the runner answered {reply}, and more to come")
                channel.running_since = _NEVER
                self.answered = True
                return in_flight.done, outcome
        except Exception:
            # A model that scribbles over the runner's memory can make it say anything.
            self._kill()
            raise
        channel.in_flight.popleft()
        channel.free.append(in_flight.slot)
        if channel.in_flight:
            self._start_clock(channel)
        self.answered = True
        return in_flight.done, outcome

    # The execution limit

    def _start_clock(self, channel: _Channel) -> None:
        channel.running_since = self._loop.time()
        if channel.timer is None and self._limit_seconds > 0:
            channel.timer = self._loop.call_later(self._limit_seconds, self._on_timer, channel)

    def _on_timer(self, channel: _Channel) -> None:
        """One timer serves many batches: it is never cancelled, only set again for what runs when it fires."""
        channel.timer = None
        if not channel.in_flight or channel.running_since == _NEVER:
            return
        overdue_at = channel.running_since + self._limit_seconds
        if self._loop.time() < overdue_at:
            channel.timer = self._loop.call_at(overdue_at, self._on_timer, channel)
            return
        answer = self._receive(channel)  # it may have answered while the loop was busy
        if answer is not None:
            done, outcome = answer
            done(outcome)
            return
        if not self.serving:
            return
        limit_ms = self._limit_seconds * 1e3
        self.reason = f"the runner of {self._name} ran a batch longer than execution_timeout_ms ({limit_ms:g})"
        hung = channel.in_flight.popleft()
        self._loop.call_soon(hung.done, Died(self.reason, timed_out=True))
        self._fail_all(self.reason)
        self._kill()

    # The end

    def _kill(self) -> None:
        self.serving = False
        for channel in self._channels:
            self._forget(channel)
        if self._process.returncode is None:
            # The group: what a model started ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _forget(self, channel: _Channel) -> None:
        if channel.socket.fileno() >= 0:
            self._loop.remove_reader(channel.socket.fileno())
            self._loop.remove_writer(channel.socket.fileno())

    def _fail_all(self, reason: str) -> None:
        for channel in self._channels:
            for in_flight in channel.in_flight:
                self._loop.call_soon(in_flight.done, Died(reason))
            channel.in_flight.clear()

    def _on_report(self) -> None:
        """Take the load report; the end of the channel instead of one is told by the pidfd."""
        self._loop.remove_reader(self._control.fileno())
        try:
            report = receive_document(self._control, LoadReport)
        except (BlockingIOError, ConnectionResetError):
            return
        except EOFError as error:
            # If the process has ended, its pidfd is about to say more. If not, the descriptor was lost on the way.
            lost = LoadReport({}, (), f"{self._name}: its load report could not be received: {error}")
            self._loop.call_later(_LOST_REPORT_SECONDS, self._take_report, lost)
            return
        except msgspec.DecodeError as error:
            report = LoadReport({}, (), f"{self._name} loaded as something that cannot be served: {error}")
        self._take_report(report)

    def _take_report(self, report: LoadReport) -> None:
        if not self._report.done():
            self._report.set_result(report)

    def _on_exit(self) -> None:
        """The process has ended: settle everything that depends on it, and close every descriptor."""
        for channel in self._channels:
            self._drain(channel)
        self._kill()
        status = self._process.wait()
        if not self.reason:
            how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
            self.reason = f"the runner of {self._name} {how}"
        self._fail_all(self.reason)
        self._on_report()
        if not self._report.done():
            words = self._output.last_lines()
            said = f"; its last output:\n{words}" if words else ""
            self._report.set_result(LoadReport({}, (), f"{self.reason} while it loaded{said}"))
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._control.close()
        self._output.close()
        for channel in self._channels:
            channel.close()
        self._ended.set()
        if self._loaded and not self._stopping:
            self._on_end(self)

    def _drain(self, channel: _Channel) -> None:
        """Deliver what was answered before the end."""
        try:
            while channel.in_flight and (answer := self._receive(channel)) is not None:
                done, outcome = answer
                self._loop.call_soon(done, outcome)
        except Exception:
            _LOG.exception("the last answers of the runner of %s cannot be read", self._name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
