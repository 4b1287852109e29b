"""The points in time that a batch has in common, written into the traces of those of its requests that have one."""

from collections.abc import Sequence

from ekiben.engine.entry import Entry
from ekiben.runner.base import Executed, Outcome

__all__ = ["trace_outcome", "trace_submitted"]


def trace_submitted(entries: Sequence[Entry], rows: int, started: float, submitted: float) -> None:
    """A batch was put together from `started` on, and lies in the runner's memory now.

    For what runs again the time up to `started` was spent waiting.
    """
    for entry in entries:
        trace = entry.request.trace
        if trace is not None:
            trace.taken = started if trace.attempts else entry.taken
            trace.attempts += 1
            trace.batch_rows = rows
            trace.submitted = submitted
            trace.compute_start = trace.input_end = trace.output_start = trace.compute_end = 0.0


def trace_outcome(entries: Sequence[Entry], outcome: Outcome, now: float) -> None:
    """What came of it. The runner tells how long its steps took: they are placed so that they end now.

    A batch that failed says nothing of its steps: it ran from when it was handed over.
    """
    start = input_end = output_start = 0.0
    if isinstance(outcome, Executed):
        output_start = now - outcome.output_ns / 1e9
        input_end = output_start - outcome.compute_ns / 1e9
        start = input_end - outcome.input_ns / 1e9
    for entry in entries:
        trace = entry.request.trace
        if trace is not None:
            trace.compute_start = max(start, trace.submitted)
            trace.compute_end = now
            if output_start:
                trace.input_end = max(input_end, trace.submitted)
                trace.output_start = max(output_start, trace.submitted)
