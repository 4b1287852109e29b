"""Moves requests of one version from its queue through its runner to their callers.

Everything happens on the event loop, without a lock and without a task per request:

    offer ─► Queue ─► _kick (once per loop turn) ─► Executor.submit ─► _done ─► the callers' futures
                        ▲ an instance is free, a deadline came, the runner is back

A batch that raises is run again one request at a time, so that only the guilty one fails. Requests whose
runner died are run again once, each alone on an otherwise idle runner: what kills a runner twice is to blame,
and no neighbour can be hit twice by the same killer.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Final

from ekiben.clock import Clock
from ekiben.engine.batch import collate, split
from ekiben.engine.entry import NEVER, Entry
from ekiben.engine.pace import Pace
from ekiben.engine.queue import Queue
from ekiben.engine.replies import Replies
from ekiben.engine.tracing import trace_outcome, trace_submitted
from ekiben.errors import (
    Cancelled,
    DeadlineExceeded,
    EkibenError,
    ExecutionTimeout,
    InferenceFailed,
    NotReady,
    QueueFull,
    QueueTimeout,
    RunnerDied,
)
from ekiben.metrics import VersionCounters
from ekiben.runner.base import Batch, Died, Executed, Executor, Outcome, Raised, Slot
from ekiben.types import ModelSettings, Request, Response, Signature, Trace

__all__ = ["Scheduler"]

_LOG: Final = logging.getLogger("ekiben.engine")
_SWEEP_SECONDS: Final = 0.1
"""A full queue looks for cancelled entries at most this often, so that refusing stays cheap."""


class Scheduler:
    """The queue, the runner and the counters of one loaded version."""

    def __init__(
        self,
        model: str,
        version: str,
        settings: ModelSettings,
        signatures: Mapping[str, Signature],
        executor: Executor,
        clock: Clock,
    ) -> None:
        """The first of `signatures` is the default one; `settings.batching.max_batch_size` is resolved."""
        self.counters = VersionCounters()
        self.in_flight = 0
        """Batches handed to the runner and not answered yet."""
        self._model = model
        self._version = version
        self._settings = settings
        self._signatures = signatures
        self._executor = executor
        self._clock = clock
        self._batched = bool(settings.batching.max_batch_size)
        self._queue = Queue(model, settings.batching)
        self._singles: deque[Entry] = deque()
        """Requests to run alone because their batch raised."""
        self._suspects: deque[Entry] = deque()
        """Requests to run alone on an idle runner because a runner died under them."""
        self._pace = Pace()
        self._suspect_running = False
        self._swept = 0.0
        self._kicked = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = NEVER
        self._refusal = ""
        """Why nothing is accepted now; '': it is."""
        self._suspended = False
        self._drained: asyncio.Event | None = None
        self._default = next(iter(signatures))
        self._traced: set[Entry] = set()
        """Requests on their way whose trace is to be written."""
        self._loop = asyncio.get_running_loop()

    @property
    def queue_rows(self) -> int:
        """Rows that wait for a batch."""
        return self._queue.rows + len(self._singles) + len(self._suspects)

    def offer(self, request: Request, rows: int, key: Hashable) -> asyncio.Future[Response]:
        """Queue an admitted request. The future ends with a response or an EkibenError; cancelling it frees the place.

        Raises QueueFull, and NotReady once the version is draining.
        """
        if self._refusal:
            raise self._refused()
        now = self._clock.monotonic()
        future: asyncio.Future[Response] = self._loop.create_future()
        entry = Entry(request, rows, key, now, future)
        try:
            self._queue.offer(entry)
        except QueueFull as error:
            self._offer_again(entry, error)
        if request.trace is not None:
            self._trace(entry, request.trace)
        self.kick()
        return future

    def stream(self, request: Request, rows: int, key: Hashable) -> Replies:
        """As `offer`, for a caller that takes any number of responses."""
        return Replies(self.offer(request, rows, key))

    def _trace(self, entry: Entry, trace: Trace) -> None:
        trace.version, trace.rows, trace.queued = self._version, entry.rows, entry.arrived
        self._traced.add(entry)

        def over(_: asyncio.Future[Response]) -> None:
            self._traced.discard(entry)
            trace.answered = self._clock.monotonic()

        entry.future.add_done_callback(over)

    def kick(self) -> None:
        """Look for work once in the next turn of the loop: whatever arrives in this one rides together."""
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    async def drain(self) -> None:
        """Refuse new requests from now on and return once all that was accepted is answered."""
        self._refusal = self._not_ready("it is unloading")
        if self._pending():
            self._drained = asyncio.Event()
            await self._drained.wait()

    def suspend(self, why: str) -> None:
        """Nothing can run for a while: fail what waits and what is still to come back, and refuse until `resume`."""
        self._suspended = True
        self._refusal = self._not_ready(why)
        for entry in [*self._queue.drain(), *self._singles, *self._suspects]:
            self._fail(entry, NotReady(self._refusal))
        self._singles.clear()
        self._suspects.clear()
        self.kick()

    def resume(self) -> None:
        """The runner is back."""
        self._suspended = False
        if self._drained is None:
            self._refusal = ""
        self.kick()

    def _refused(self) -> NotReady:
        self.counters.failed[NotReady.reason] += 1
        return NotReady(self._refusal)

    def _offer_again(self, entry: Entry, refusal: QueueFull) -> None:
        """Queue it in the place of somebody who has gone. Raises QueueFull where there is none."""
        if entry.arrived - self._swept < _SWEEP_SECONDS:
            raise self._full(refusal)
        self._swept = entry.arrived
        self._cancel(self._queue.sweep())
        try:
            self._queue.offer(entry)
        except QueueFull as error:
            raise self._full(error) from None

    def _full(self, error: QueueFull) -> QueueFull:
        """The error for a request that found the queue full, counted."""
        self.counters.failed[QueueFull.reason] += 1
        seconds = self._pace.seconds(self._settings.batching.max_batch_size or 1)
        error.retry_after_s = max(math.ceil(seconds), 1)
        return error

    def _not_ready(self, why: str) -> str:
        return f"Request for unknown model: '{self._model}' version {self._version} is not at ready state: {why}"

    def _pending(self) -> bool:
        return bool(len(self._queue) or self._singles or self._suspects or self.in_flight)

    def _kick(self) -> None:
        self._kicked = False
        now = self._clock.monotonic()
        for entry in self._queue.expire(now):
            self._expire(entry)
        while not self._suspect_running and (slot := self._executor.idle()) is not None:
            if self._suspects:
                if self.in_flight:
                    break
                self._run_alone(slot, self._suspects, now, suspect=True)
            elif self._singles:
                self._run_alone(slot, self._singles, now, suspect=False)
            elif not self._run_batch(slot, now):
                break
        self._plan(now)

    def _run_alone(self, slot: Slot, waiting: deque[Entry], now: float, *, suspect: bool) -> None:
        while waiting:
            entry = waiting.popleft()
            deadline = entry.request.deadline
            if deadline is not None and deadline <= now:
                self._fail(entry, self._too_late(entry, deadline))
                continue
            if not entry.alive():
                self._cancel([entry])
                continue
            self._suspect_running = suspect
            self._submit(slot, [entry], "retry")
            return

    def _run_batch(self, slot: Slot, now: float) -> bool:
        if not self._pace.may_start(slot.instance, now) and not self._queue.full():
            return False
        taken = self._queue.take(now)
        if taken.cancelled:
            self._cancel(taken.cancelled)
        for entry in taken.expired:
            self._expire(entry)
        if not taken.entries:
            return False
        self._submit(slot, taken.entries, taken.reason)
        return True

    def _submit(self, slot: Slot, entries: list[Entry], reason: str) -> None:
        name = entries[0].request.signature or self._default
        lone = len(entries) == 1 and not self.in_flight and not len(self._queue)
        batch = collate(entries, name, self._signatures[name], lone=lone)
        rows = sum(entry.rows for entry in entries)
        self.counters.released[reason] += 1
        self.in_flight += 1
        now = self._clock.monotonic()
        self._pace.started(slot.instance, rows, now)
        self._executor.submit(slot, batch, partial(self._done, slot, entries, batch))
        if self._traced:
            trace_submitted(entries, rows, now, self._clock.monotonic())

    def _done(self, slot: Slot, entries: list[Entry], batch: Batch, outcome: Outcome) -> None:
        self.in_flight -= 1
        self._suspect_running = False
        now = self._clock.monotonic()
        compute_seconds = outcome.compute_ns / 1e9 if isinstance(outcome, Executed) else None
        self._pace.finished(slot.instance, now, compute_seconds)
        if self._traced:
            trace_outcome(entries, outcome, now)
        match outcome:
            case Executed():
                self._answer(entries, batch, outcome)
            case Raised(message):
                self._raised(entries, message)
            case Died(reason, timed_out):
                self._died(entries, reason, timed_out)
        self.kick()

    def _answer(self, entries: list[Entry], batch: Batch, outcome: Executed) -> None:
        try:
            answers = split(entries, batch, self._signatures[batch.signature], outcome.outputs, self._batched)
        except InferenceFailed as error:
            self._raised(entries, str(error))
            return
        now = self._clock.monotonic()
        counters = self.counters
        total = waited = 0.0
        rows = answered = 0
        for entry, outputs in zip(entries, answers, strict=True):
            rows += entry.rows
            if entry.future.done():
                counters.failed[Cancelled.reason] += 1
                continue
            entry.future.set_result(Response(self._model, self._version, outputs))
            answered += 1
            total += now - entry.arrived
            waited += entry.taken - entry.arrived
        counters.executed(rows, outcome.input_ns, outcome.compute_ns, outcome.output_ns)
        counters.succeeded += answered
        counters.succeeded_ns += int(total * 1e9)
        counters.queue_ns += int(waited * 1e9)
        counters.last_inference_ms = int(self._clock.epoch() * 1000)

    def _raised(self, entries: Sequence[Entry], message: str) -> None:
        if len(entries) > 1:
            self._singles.extend(entries)
            return
        self._fail(entries[0], InferenceFailed(f"model '{self._model}' version {self._version} failed: {message}"))

    def _died(self, entries: Sequence[Entry], reason: str, timed_out: bool) -> None:
        where = f"model '{self._model}' version {self._version}"
        for entry in entries:
            if timed_out and len(entries) == 1:
                limit = self._settings.execution_timeout_ms
                self._fail(entry, ExecutionTimeout(f"{where} ran longer than execution_timeout_ms {limit:g}"))
            elif entry.retried or self._suspended:
                self._fail(
                    entry,
                    RunnerDied(f"{where}: the runner died under this request, and not for the first time: {reason}"),
                )
            else:
                entry.retried = True
                self._suspects.append(entry)
        _LOG.warning("%s: the runner died with %d requests in flight: %s", where, len(entries), reason)

    def _fail(self, entry: Entry, error: EkibenError) -> None:
        self.counters.failed[error.reason] += 1
        self.counters.failed_ns += int((self._clock.monotonic() - entry.arrived) * 1e9)
        if not entry.future.done():
            entry.future.set_exception(error)

    def _cancel(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._fail(entry, Cancelled("the caller went away"))
            if not entry.future.cancelled():
                entry.future.exception()  # nobody may be there to look at it

    def _expire(self, entry: Entry) -> None:
        if entry.expires == entry.request.deadline:
            self._fail(entry, self._too_late(entry, entry.expires))
            return
        limit_us = round((entry.expires - entry.arrived) * 1e6)
        self._fail(entry, QueueTimeout(f"model '{self._model}': Request timeout expired: it waited over {limit_us} µs"))

    def _too_late(self, entry: Entry, deadline: float) -> DeadlineExceeded:
        left_us = max(round((deadline - entry.arrived) * 1e6), 0)
        return DeadlineExceeded(
            f"model '{self._model}': Request timeout expired: its caller's deadline came {left_us} µs after it"
        )

    def _plan(self, now: float) -> None:
        """Set the timer for the queue's next deadline, and say so when nothing is left to do."""
        due = self._queue.next_event(now)
        if self._queue.rows and self._executor.idle() is not None:
            due = min(due, self._pace.next_opening(now))
        if self._timer is not None and due != self._timer_due:
            self._timer.cancel()
            self._timer = None
        if due != NEVER:
            if self._timer is None:
                self._timer = self._loop.call_later(due - now, self._ring)
                self._timer_due = due
        elif self._drained is not None and not self._pending():
            self._drained.set()

    def _ring(self) -> None:
        """The timer's time has come."""
        self._timer = None
        self.kick()
