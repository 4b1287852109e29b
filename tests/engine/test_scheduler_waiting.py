"""The scheduler over a fake executor: priorities, timeouts, deadlines, refusals."""

import asyncio
from typing import Any

import numpy as np
import pytest

from ekiben.errors import DeadlineExceeded, EkibenError, QueueFull, QueueTimeout
from ekiben.runner.base import Executed
from tests.engine.test_scheduler import Bench, double, failure, run, sizes


def test_a_better_level_runs_first() -> None:
    async def test() -> None:
        bench = Bench(slots=1, max_batch_size=1, priority_levels=2, default_priority=2)
        running = [bench.ask(1)]
        await bench.turns()
        running += [bench.ask(2), bench.ask(3, priority=1), bench.ask(4)]
        await bench.turns()
        while bench.executor.running:
            bench.executor.answer(double)
            await bench.turns()
        assert [batch.inputs[0].parts[0][0, 0] for batch in bench.executor.batches] == [1, 3, 2, 4]
        assert [(await future).outputs["y"][0, 0] for future in running] == [2, 4, 6, 8]

    run(test)


@pytest.mark.parametrize(
    ("wishes", "kind", "words", "reason"),
    [
        ({"timeout_us": 20_000}, QueueTimeout, "Request timeout expired: it waited over 20000 µs", "queue_timeout"),
        ({"deadline": 1000.02}, DeadlineExceeded, "Request timeout expired: .* 20000 µs", "deadline"),
        ({"deadline": 1000.02, "timeout_us": 30_000}, DeadlineExceeded, "Request timeout expired", "deadline"),
        ({"deadline": 1000.02, "timeout_us": 10_000}, QueueTimeout, "waited over 10000 µs", "queue_timeout"),
    ],
)
def test_a_request_gives_up_when_it_said_so_and_is_counted(
    wishes: dict[str, Any], kind: type[EkibenError], words: str, reason: str
) -> None:
    async def test() -> None:
        bench = Bench(slots=1)
        running, patient = bench.ask(1), bench.ask(2)
        await bench.turns()
        late = bench.ask(3, **wishes)
        await bench.turns()
        bench.clock.advance(0.03)
        with pytest.raises(kind, match=words) as caught:
            await asyncio.wait_for(late, 60)
        assert type(caught.value) is kind
        assert bench.scheduler.counters.failed == {reason: 1}
        while bench.executor.running:
            bench.executor.answer(double)
            await bench.turns()
        assert sizes(bench) == [2], "it cost no execution"
        assert [(await future).outputs["y"][0, 0] for future in (running, patient)] == [2, 4]

    run(test)


def test_what_came_after_its_deadline_never_runs() -> None:
    async def test() -> None:
        bench = Bench()
        late = bench.ask(1, deadline=999.0)
        await bench.turns()
        assert bench.executor.batches == []
        assert isinstance(await failure(late), DeadlineExceeded)

    run(test)


def test_the_nearest_deadline_sets_the_timer_even_when_it_comes_last() -> None:
    async def test() -> None:
        bench = Bench(slots=0)
        waiting = [bench.ask(1, timeout_us=3_600_000_000), bench.ask(2, timeout_us=1_800_000_000)]
        await bench.turns()
        hurried = bench.ask(3, timeout_us=1_000)
        await bench.turns()
        bench.clock.advance(0.002)
        assert isinstance(await asyncio.wait_for(failure(hurried), 60), QueueTimeout)
        assert [future.done() for future in waiting] == [False, False]

    run(test)


def test_a_timer_that_rings_early_is_set_again() -> None:
    async def test() -> None:
        bench = Bench(slots=0)
        late = bench.ask(1, timeout_us=1_000)
        await bench.turns()
        rung = asyncio.Event()
        asyncio.get_running_loop().call_later(0.003, rung.set)
        await rung.wait()  # the scheduler's own timer, set for an earlier time, has rung: our clock stood still
        await bench.turns()
        assert not late.done()
        bench.clock.advance(0.002)
        assert isinstance(await asyncio.wait_for(failure(late), 60), QueueTimeout)

    run(test)


@pytest.mark.parametrize("timeout_us", [(1 << 64) - 1, 10**15])
def test_a_timeout_of_ages_is_one(timeout_us: int) -> None:
    async def test() -> None:
        bench = Bench()
        future = bench.ask(1, timeout_us=timeout_us)
        await bench.turns()
        bench.executor.answer(double)
        assert (await future).outputs["y"][0, 0] == 2
        bench.executor.up = False
        waiting = bench.ask(2, timeout_us=timeout_us)
        await bench.turns()
        assert not waiting.done()

    run(test)


def test_a_retry_after_the_deadline_does_not_run() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(1, deadline=1001.0), bench.ask(2)]
        await bench.turns()
        bench.executor.die()
        bench.clock.advance(2)
        bench.executor.up = True
        bench.scheduler.resume()
        await bench.turns()
        bench.executor.answer(double)
        assert isinstance(await failure(futures[0]), DeadlineExceeded)
        assert (await futures[1]).outputs["y"][0, 0] == 4
        assert bench.scheduler.counters.failed == {"deadline": 1}

    run(test)


@pytest.mark.parametrize(("compute_seconds", "retry_after_s"), [(0.01, 1), (1.0, 1), (2.4, 3)])
def test_a_refusal_says_when_there_may_be_room(compute_seconds: float, retry_after_s: int) -> None:
    async def test() -> None:
        bench = Bench(slots=1, max_queue_rows=1)
        bench.ask(1)
        await bench.turns()
        outputs = {"y": np.zeros((1, 2), np.float32), "z": np.zeros((1, 2), np.float32)}
        bench.executor.complete(Executed(outputs, 1, int(compute_seconds * 1e9), 1))
        bench.executor.up = False
        bench.ask(2)
        for _ in range(2):
            with pytest.raises(QueueFull) as caught:
                bench.ask(3)
            assert caught.value.retry_after_s == retry_after_s

    run(test)


def test_late_requests_run_after_the_others_where_the_model_delays_them() -> None:
    async def test() -> None:
        bench = Bench(slots=1, max_batch_size=1, timeout_us=10_000, timeout_action="delay")
        futures = [bench.ask(1), bench.ask(2)]
        await bench.turns()
        bench.clock.advance(0.02)
        futures.append(bench.ask(3))
        await bench.turns()
        while bench.executor.running:
            bench.executor.answer(double)
            await bench.turns()
        assert [batch.inputs[0].parts[0][0, 0] for batch in bench.executor.batches] == [1, 3, 2]
        assert [(await future).outputs["y"][0, 0] for future in futures] == [2, 4, 6]
        assert bench.scheduler.counters.failed == {}

    run(test)
