"""The runner: the main of the child process that executes one model version.

`python -m ekiben.runner.worker CONTROL_DESCRIPTOR PARENT_PID MODEL:VERSION` (the last is for people reading `ps`).

Threads: the main one loads every instance (frameworks like that best) and then serves the first; each other instance
has one thread. One more waits for the control channel to close and then ends the process, whatever else is running;
if native code keeps the interpreter from running it, the kernel's parent-death signal does the same.
"""

import contextlib
import ctypes
import gc
import itertools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, final

import numpy as np

from ekiben.errors import LoadFailed
from ekiben.runner.arena import Arena
from ekiben.runner.channel import (
    PACKET_BYTES,
    Call,
    Load,
    LoadReport,
    Reply,
    pack,
    receive_descriptors,
    receive_document,
    resolve,
    send_document,
    unpack,
)
from ekiben.runner.results import checked, printable, text_of
from ekiben.runner.streaming import StreamInstance
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext, Session, decoupled, load_failed
from ekiben.runtimes.table import load_session
from ekiben.types import DATATYPES, Signature, Tensor, TensorSpec

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1
_AWAKE_NS: Final = 250_000
_SOON_NS: Final = 1_000_000
_EXIT_FAILED: Final = 1


class _Wait:
    """How an instance waits for its next call: asleep, or for a moment awake.

    Being woken costs a lone caller more than a small model's whole run. So after its call the instance looks for the
    next one for a quarter of a millisecond, giving the core away in between, if the last one came that soon. Callers
    that come seldom, and batches, find it asleep.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.lone = False
        """Whether the last call was Batch.lone."""
        self._channel = channel
        self._soon = False

    def packet_into(self, buffer: bytearray) -> int:
        """The length of the next packet, 0 when the channel has closed."""
        started_ns = time.perf_counter_ns()
        if self.lone and self._soon:
            while time.perf_counter_ns() - started_ns < _AWAKE_NS:
                try:
                    return self._channel.recv_into(buffer, 0, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    os.sched_yield()
        length = self._channel.recv_into(buffer)
        self._soon = time.perf_counter_ns() - started_ns < _SOON_NS
        return length


@final
class Instance:
    """One session with the socket and the slots that feed it."""

    def __init__(self, session: Session, channel: socket.socket, arenas: Sequence[Arena]) -> None:
        self.session = session
        self.channel = channel
        self.arenas = arenas
        self.datatypes = {
            (name, spec.name): spec.datatype
            for name, signature in session.signatures.items()
            for spec in signature.outputs
        }

    def serve(self) -> None:
        """Answer calls until the channel closes."""
        buffer = bytearray(2 * PACKET_BYTES)
        packet = memoryview(buffer)
        wait = _Wait(self.channel)
        while True:
            try:
                length = wait.packet_into(buffer)
                if not length:
                    return
                started_ns = time.perf_counter_ns()
                message = unpack(packet[:length])
                arena = self.arenas[message.slot]
                call = resolve(message, arena)
                if not isinstance(call, Call):
                    raise TypeError(f"a runner cannot take a {type(call).__name__}")
                self.channel.send(pack(self._answer(call, arena, started_ns), arena))
                wait.lone = call.lone
            except (BrokenPipeError, ConnectionResetError):
                return

    def _answer(self, call: Call, arena: Arena, started_ns: int) -> Reply:
        try:
            inputs = {place.name: arena.view(place) for place in call.inputs}
            read_ns = time.perf_counter_ns()
            results = self.session.run(call.signature, inputs, call.outputs)
            ran_ns = time.perf_counter_ns()
            placed, end = arena.write(list(checked(results, call.outputs)), call.end)
            written_ns = time.perf_counter_ns()
        except BaseException as error:  # a model may even call sys.exit(); only this batch has failed
            traceback.print_exc()
            return Reply(call.slot, arena.size_bytes, [], 0, 0, 0, text_of(error), call.end)
        return Reply(
            call.slot,
            arena.size_bytes,
            placed,
            read_ns - started_ns,
            ran_ns - read_ns,
            written_ns - ran_ns,
            None,
            end,
        )


def main(arguments: Sequence[str]) -> NoReturn:
    """Load, report, serve, and leave at once: no exit handlers, no destructors, no waiting for a model's threads.

    Output is unbuffered (the engine sets PYTHONUNBUFFERED), so nothing is lost by that.
    """
    control_descriptor, parent = int(arguments[0]), int(arguments[1])
    die_with(parent)
    ignore_terminal_signals()
    try:
        run(socket.socket(fileno=control_descriptor))
    except BaseException:
        traceback.print_exc()
        os._exit(_EXIT_FAILED)
    os._exit(0)


def die_with(parent: int) -> None:
    """Have the kernel end this process with the engine's, even while native code runs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(_EXIT_FAILED)


def ignore_terminal_signals() -> None:
    """A supervisor's or terminal's stop signal reaches us too; but we end when the engine closes its channel.

    They have been blocked since before this process began, so none is lost in between.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))


def run(control: socket.socket) -> None:
    """Everything between set-up and the end; returns once every instance's channel is closed."""
    load = receive_document(control, Load)
    places: list[tuple[socket.socket, list[Arena]]] = []
    for _ in load.instances:
        channel, *arenas = receive_descriptors(control, 3)
        places.append((socket.socket(fileno=channel), [Arena(arena) for arena in arenas]))
    threading.Thread(target=_end_with_channel, args=(control,), daemon=True, name="control").start()
    try:
        sessions = [_load_warm(load, number) for number in range(len(load.instances))]
    except LoadFailed as error:
        send_document(control, LoadReport({}, (), printable(str(error))))
        return
    except BaseException as error:
        traceback.print_exc()
        reason = f"model '{load.model}' version {load.version} could not be loaded: {type(error).__name__}: {error}"
        send_document(control, LoadReport({}, (), printable(reason)))
        return
    instances = [_instance(session, *place) for session, place in zip(sessions, places, strict=True)]
    # What loading made stays: keep the collector from walking it again during requests.
    gc.collect()
    gc.freeze()
    devices = tuple(session.device for session in sessions)
    streams = decoupled(sessions[0]) is not None
    send_document(control, LoadReport(dict(sessions[0].signatures), devices, decoupled=streams))
    threads = [threading.Thread(target=_serve_or_end, args=(instance,), daemon=True) for instance in instances[1:]]
    for thread in threads:
        thread.start()
    instances[0].serve()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.close()


def _instance(session: Session, channel: socket.socket, arenas: Sequence[Arena]) -> Instance | StreamInstance:
    streaming = decoupled(session)
    return Instance(session, channel, arenas) if streaming is None else StreamInstance(streaming, channel, arenas)


def _end_with_channel(control: socket.socket) -> None:
    try:
        control.recv(1)
    finally:
        os._exit(0)


def _serve_or_end(instance: Instance | StreamInstance) -> None:
    """A thread that fails outside a model's own code must not leave a runner with a deaf instance."""
    try:
        instance.serve()
    except BaseException:
        traceback.print_exc()
        os._exit(_EXIT_FAILED)


def _load_warm(load: Load, number: int) -> Session:
    """One loaded session that has run once."""
    plan, settings = load.instances[number], load.settings
    largest = settings.batching.max_batch_size
    context = LoadContext(
        model=load.model,
        version=load.version,
        path=Path(load.path),
        file=settings.file,
        device=plan.device,
        threads=plan.threads,
        signatures=settings.signatures,
        batched=None if largest is None else largest > 0,
        parameters=settings.parameters,
        decoupled=settings.decoupled,
    )
    session = load_session(settings.runtime, context)
    if settings.decoupled is not None and settings.decoupled != (decoupled(session) is not None):
        gives = "one response" if settings.decoupled else "a stream of responses"
        said = str(settings.decoupled).lower()
        raise load_failed(context, f"its configuration says decoupled: {said}, but it gives {gives} to each request")
    _warm_up(load, session)
    return session


def _warm_up(load: Load, session: Session) -> None:
    """One inference on zeros, so that the first request does not pay for lazy initialisation; of a stream its start.

    A model may refuse such an input with good reason (a sequence of one sample, an empty string): that is said in the
    log, and it counts as loaded all the same. A crash or a hang here does fail the load.
    """
    signature = session.signatures[DEFAULT_SIGNATURE]
    wanted = [spec.name for spec in signature.outputs]
    streaming = decoupled(session)
    try:
        if streaming is None:
            list(checked(session.run(DEFAULT_SIGNATURE, _zeros(signature), wanted), wanted))
        else:
            with contextlib.closing(streaming.stream(DEFAULT_SIGNATURE, _zeros(signature), wanted)) as responses:
                for results in itertools.islice(responses, 1):
                    list(checked(results, wanted))
    except Exception as error:
        sys.stderr.write(
            f"model '{load.model}' version {load.version}: the warm-up inference on zeros raised "
            f"{type(error).__name__}: {text_of(error)}\n"
        )


def _zeros(signature: Signature) -> dict[str, Tensor]:
    return {spec.name: _zero(spec) for spec in signature.inputs if not spec.optional}


def _zero(spec: TensorSpec) -> Tensor:
    shape = [1 if size == -1 else size for size in spec.shape]
    return np.full(shape, b"" if spec.datatype == "BYTES" else 0, dtype=DATATYPES[spec.datatype])


if __name__ == "__main__":
    main(sys.argv[1:])
