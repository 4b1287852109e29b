"""What the engine writes into the traces of requests, over a fake executor and a clock that stands still."""

from typing import Any

import numpy as np
import pytest

from ekiben.engine.scheduler import Scheduler
from ekiben.errors import InferenceFailed, QueueFull, QueueTimeout, RunnerDied
from ekiben.runner.base import Executed, Raised
from ekiben.types import Request, Response, Tensor, Trace
from tests.engine.test_scheduler import Bench, double, failure, run

START = 1000.0
"""Of the bench's clock."""


def ask(bench: Bench, *values: float, trace: Trace | None = None) -> Any:
    rows = np.array([[value, value] for value in values], np.float32)
    return bench.scheduler.offer(Request("m", {"x": rows}, trace=trace), len(values), "k")


def executed(batch_rows: int, input_s: float, compute_s: float, output_s: float) -> Executed:
    outputs: dict[str, Tensor] = {name: np.zeros((batch_rows, 2), np.float32) for name in "yz"}
    return Executed(outputs, int(input_s * 1e9), int(compute_s * 1e9), int(output_s * 1e9))


def traced_left(scheduler: Scheduler) -> int:
    return len(scheduler._traced)


def test_the_points_in_time_of_a_request() -> None:
    async def test() -> None:
        bench, trace = Bench(), Trace()
        future, other = ask(bench, 1, 2, trace=trace), ask(bench, 3)
        bench.clock.advance(0.25)
        await bench.turns()
        bench.clock.advance(1.0)
        bench.executor.complete(executed(3, 0.125, 0.25, 0.0625))
        assert isinstance(await future, Response)
        assert isinstance(await other, Response)
        await bench.turns()
        assert trace == Trace(
            version="1",
            rows=2,
            batch_rows=3,
            attempts=1,
            queued=START,
            taken=START + 0.25,
            submitted=START + 0.25,
            compute_start=START + 1.25 - 0.4375,
            input_end=START + 1.25 - 0.3125,
            output_start=START + 1.25 - 0.0625,
            compute_end=START + 1.25,
            answered=START + 1.25,
        )
        assert traced_left(bench.scheduler) == 0

    run(test)


def test_computing_never_begins_before_the_batch_was_handed_over() -> None:
    async def test() -> None:
        bench, trace = Bench(), Trace()
        future = ask(bench, 1, trace=trace)
        await bench.turns()
        bench.executor.complete(executed(1, 5.0, 5.0, 5.0))
        await future
        assert trace.compute_start == trace.input_end == trace.output_start == trace.submitted == START

    run(test)


def test_a_request_that_runs_again_alone_has_the_times_of_the_last_run() -> None:
    async def test() -> None:
        bench, trace = Bench(slots=1), Trace()
        future, bad = ask(bench, 1, trace=trace), ask(bench, -1)
        await bench.turns()
        bench.clock.advance(1.0)
        bench.executor.complete(Raised("boom"))
        await bench.turns()
        assert (trace.taken, trace.submitted, trace.attempts, trace.batch_rows) == (START + 1, START + 1, 2, 1)
        assert trace.compute_start == trace.compute_end == 0.0
        bench.clock.advance(1.0)
        bench.executor.answer(double)
        await future
        assert (trace.queued, trace.compute_end) == (START, START + 2)
        await bench.turns()
        bench.executor.complete(Raised("boom"))
        await failure(bad)

    run(test)


def test_a_failed_run_says_how_long_it_took_and_nothing_of_its_steps() -> None:
    async def test() -> None:
        bench, trace = Bench(), Trace()
        future = ask(bench, 1, trace=trace)
        await bench.turns()
        bench.clock.advance(2.0)
        bench.executor.complete(Raised("boom"))
        assert isinstance(await failure(future), InferenceFailed)
        await bench.turns()
        assert (trace.compute_start, trace.compute_end, trace.answered) == (START, START + 2, START + 2)
        assert trace.input_end == trace.output_start == 0.0
        assert traced_left(bench.scheduler) == 0

    run(test)


def test_a_runner_that_dies_twice() -> None:
    async def test() -> None:
        bench, trace = Bench(), Trace()
        future = ask(bench, 1, trace=trace)
        for _ in range(2):
            await bench.turns()
            bench.clock.advance(1.0)
            bench.executor.die()
            bench.executor.up = True
            bench.scheduler.kick()
        assert isinstance(await failure(future), RunnerDied)
        await bench.turns()
        assert (trace.attempts, trace.submitted, trace.compute_end) == (2, START + 1, START + 2)
        assert traced_left(bench.scheduler) == 0

    run(test)


def test_requests_that_never_run_leave_nothing_behind() -> None:
    async def test() -> None:
        bench = Bench(slots=1, timeout_us=1_000_000, max_queue_rows=2)
        first = ask(bench, 1)
        await bench.turns()
        gone, late, refused = Trace(), Trace(), Trace()
        cancelled = ask(bench, 1, trace=gone)
        expired = ask(bench, 1, trace=late)
        with pytest.raises(QueueFull):
            ask(bench, 1, trace=refused)
        assert refused == Trace()
        cancelled.cancel()
        bench.clock.advance(2.0)
        bench.executor.answer(double)
        await first
        assert isinstance(await failure(expired), QueueTimeout)
        await bench.turns()
        assert (gone.queued, gone.taken) == (START, 0.0)
        assert (late.queued, late.taken, late.answered) == (START, 0.0, START + 2)
        assert traced_left(bench.scheduler) == 0

    run(test)
