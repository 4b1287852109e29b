"""The scheduler of a decoupled version: each request runs alone and has a stream of responses.

    stream ─► Queue ─► Executor.submit ─► _done (more) ─► Replies.put ─► the caller takes
                              ▲                 │                             │
                              │                 └──► Executor.advance ◄───────┘ there is room again, or nobody is there

A stream holds its instance until it ends, so the next one waits in the queue, where it may expire, and not behind it in
the instance's second slot.
"""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn, cast

from msgspec.structs import replace

from ekiben.clock import Clock
from ekiben.engine.batch import split
from ekiben.engine.entry import Entry
from ekiben.engine.replies import Replies
from ekiben.engine.scheduler import Scheduler
from ekiben.errors import Cancelled, Decoupled, InferenceFailed, QueueFull, RunnerDied
from ekiben.runner.base import Batch, Executed, Executor, Outcome, Slot
from ekiben.types import ModelSettings, Request, Response, Signature

__all__ = ["StreamScheduler"]

_ALONE: Final = ""
"""The key of every stream: which of them waits longest is all that counts."""
_OVER: Final = Executed({}, 0, 0, 0)


class _Stream(Entry):
    """A request that waits for its stream, or has it."""

    __slots__ = ("compute_ns", "input_ns", "later", "output_ns", "replies", "timer", "withheld")

    def __init__(self, request: Request, rows: int, arrived: float, future: asyncio.Future[Response]) -> None:
        super().__init__(request, rows, _ALONE, arrived, future)
        self.replies: Replies
        self.later: _Stream | None = None
        """What stands in its place since it is late."""
        self.withheld: Slot | None = None
        """Where the runner waits to be told to go on, while enough responses wait for the caller."""
        self.timer: asyncio.TimerHandle | None = None
        """How long it may."""
        self.input_ns = self.compute_ns = self.output_ns = 0

    def late(self) -> "_Stream":
        late = self.later = _Stream(self.request, self.rows, self.arrived, self.future)
        late.replies = self.replies
        late.rank = self.rank + 1
        late.expires = self.expires
        return late


class StreamScheduler(Scheduler):
    """As Scheduler, for a decoupled version. A caller that takes nothing for as long as the model may compute loses its
    stream, so that it does not hold an instance for ever.
    """

    def __init__(
        self,
        model: str,
        version: str,
        settings: ModelSettings,
        signatures: Mapping[str, Signature],
        executor: Executor,
        clock: Clock,
    ) -> None:
        # Without a batch dimension the queue gives one request at a time, and nobody counts rows.
        alone = replace(settings.batching, max_batch_size=0, max_delay_us=0, preferred_sizes=(), target_latency_ms=None)
        super().__init__(model, version, replace(settings, batching=alone), signatures, executor, clock)
        self._patience_seconds = settings.execution_timeout_ms / 1e3

    def offer(self, request: Request, rows: int, key: Hashable) -> NoReturn:
        """Raises Decoupled: a stream is not one response."""
        self.counters.failed[Decoupled.reason] += 1
        raise Decoupled(
            f"model '{self._model}' version {self._version} is decoupled: it answers with a stream of responses, and "
            "this call takes exactly one"
        )

    def stream(self, request: Request, rows: int, key: Hashable) -> Replies:
        if self._refusal:
            raise self._refused()
        entry = _Stream(request, max(rows, 1), self._clock.monotonic(), self._loop.create_future())
        try:
            self._queue.offer(entry)
        except QueueFull as error:
            self._offer_again(entry, error)
        entry.replies = Replies(entry.future, partial(self._moved, entry))
        self.kick()
        return entry.replies

    def _run_batch(self, slot: Slot, now: float) -> bool:
        return not self._pace.busy(slot.instance) and super()._run_batch(slot, now)

    def _done(self, slot: Slot, entries: list[Entry], batch: Batch, outcome: Outcome) -> None:
        entry = cast("_Stream", entries[0])
        if isinstance(outcome, Executed):
            entry.input_ns += outcome.input_ns
            entry.compute_ns += outcome.compute_ns
            entry.output_ns += outcome.output_ns
            if outcome.more:
                self._responded(entry, batch, outcome)
                self._advance(entry, slot)
                return
        self._stop_waiting(entry)
        # How a stream ended that nobody waits for any more is of no interest.
        super()._done(slot, entries, batch, _OVER if entry.future.done() else outcome)

    def _responded(self, entry: _Stream, batch: Batch, outcome: Executed) -> None:
        if not entry.alive():
            return
        try:
            (outputs,) = split([entry], batch, self._signatures[batch.signature], outcome.outputs, self._batched)
        except InferenceFailed as error:
            self._raised([entry], str(error))
        else:
            entry.replies.put(Response(self._model, self._version, outputs))

    def _advance(self, entry: _Stream, slot: Slot) -> None:
        """Have the runner go on, or stop, or wait while enough responses wait for the caller."""
        if not entry.alive():
            if not entry.future.done():
                self._cancel([entry])
            self._executor.advance(slot, stop=True)
        elif not entry.replies.full:
            self._executor.advance(slot, stop=False)
        else:
            entry.withheld = slot
            if self._patience_seconds:
                entry.timer = self._loop.call_later(self._patience_seconds, self._give_up, entry)

    def _moved(self, entry: _Stream) -> None:
        """The caller took a response, or will take no more."""
        while entry.later is not None:
            entry = entry.later
        slot = entry.withheld
        if slot is not None:
            self._stop_waiting(entry)
            self._advance(entry, slot)

    def _give_up(self, entry: _Stream) -> None:
        slot = entry.withheld
        if slot is not None:
            self._stop_waiting(entry)
            self._fail(
                entry,
                Cancelled(
                    f"model '{self._model}' version {self._version}: the caller took no response for longer than "
                    f"execution_timeout_ms {self._settings.execution_timeout_ms:g}, so its stream was stopped"
                ),
            )
            entry.replies.drop()
            self._executor.advance(slot, stop=True)

    def _stop_waiting(self, entry: _Stream) -> None:
        entry.withheld = None
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    def _answer(self, entries: list[Entry], batch: Batch, outcome: Executed) -> None:
        """The stream has ended, or the runner has stopped it."""
        entry = cast("_Stream", entries[0])
        now = self._clock.monotonic()
        counters = self.counters
        counters.executed(entry.rows, entry.input_ns, entry.compute_ns, entry.output_ns)
        if entry.future.done():
            if entry.future.cancelled():
                counters.failed[Cancelled.reason] += 1
                counters.failed_ns += int((now - entry.arrived) * 1e9)
            return
        entry.future.set_result(Response(self._model, self._version, {}))
        counters.succeeded += 1
        counters.succeeded_ns += int((now - entry.arrived) * 1e9)
        counters.queue_ns += int((entry.taken - entry.arrived) * 1e9)
        counters.last_inference_ms = int(self._clock.epoch() * 1000)

    def _died(self, entries: Sequence[Entry], reason: str, timed_out: bool) -> None:
        entry = cast("_Stream", entries[0])
        if entry.replies.begun and not timed_out:
            self._fail(
                entry,
                RunnerDied(f"model '{self._model}' version {self._version}: the runner died in mid-stream: {reason}"),
            )
        else:
            super()._died(entries, reason, timed_out)
