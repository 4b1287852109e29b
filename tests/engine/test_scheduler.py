"""The scheduler over a fake executor: batches, retries, deaths, cancellation, deadlines."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from ekiben.engine.scheduler import Scheduler
from ekiben.errors import (
    Cancelled,
    EkibenError,
    ExecutionTimeout,
    InferenceFailed,
    NotReady,
    QueueFull,
    QueueTimeout,
    RunnerDied,
)
from ekiben.runner.base import Died, Executed, Raised
from ekiben.testing import FakeExecutor, ManualClock
from ekiben.types import Batching, ModelSettings, Request, Response, Signature, Tensor, TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, 2)),),
    outputs=(TensorSpec("y", "FP32", (-1, 2)), TensorSpec("z", "FP32", (-1, 2))),
)


class Bench:
    """A scheduler with a fake executor and a clock that stands still."""

    def __init__(self, slots: int = 2, **batching: Any) -> None:
        self.clock = ManualClock()
        self.executor = FakeExecutor(slots=slots)
        settings = ModelSettings(batching=Batching(**{"max_batch_size": 8, **batching}))
        self.scheduler = Scheduler("m", "1", settings, {"serving_default": SIGNATURE}, self.executor, self.clock)

    def ask(self, *values: float, **wishes: Any) -> Any:
        rows = np.array([[value, value] for value in values], np.float32)
        return self.scheduler.offer(Request("m", {"x": rows}, **wishes), len(values), "k")

    async def turns(self, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


def double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"y": inputs["x"] * 2, "z": -inputs["x"]}


def picky(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    if (inputs["x"] < 0).any():
        raise ValueError("negative input")
    return double(inputs)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]  # a coroutine function, seen as an Awaitable


async def failure(future: asyncio.Future[Response]) -> EkibenError:
    with pytest.raises(EkibenError) as caught:
        await future
    return caught.value


def sizes(bench: Bench) -> list[int]:
    return [sum(len(part) for part in batch.inputs[0].parts) for batch in bench.executor.batches]


def test_what_arrives_in_one_turn_rides_together_and_each_gets_its_own_rows() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(1), bench.ask(2, 3), bench.ask(4, outputs=("z",))]
        await bench.turns()
        assert sizes(bench) == [4]
        bench.executor.answer(double)
        answers = [await future for future in futures]
        assert [answer.outputs["y"].tolist() for answer in answers[:2]] == [[[2, 2]], [[4, 4], [6, 6]]]
        assert list(answers[2].outputs) == ["z"]
        assert answers[2].outputs["z"].tolist() == [[-4, -4]]
        statistics = bench.scheduler.counters.statistics("m", "1")
        assert (statistics.inference_count, statistics.execution_count, statistics.success.count) == (4, 1, 3)
        assert bench.scheduler.counters.released == {"idle": 1}

    run(test)


def test_only_wanted_outputs_are_asked_of_the_model() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(1, outputs=("z",)), bench.ask(2, outputs=("z",))]
        await bench.turns()
        assert bench.executor.batches[0].outputs == ["z"]
        bench.executor.answer(double)
        assert [list((await future).outputs) for future in futures] == [["z"], ["z"]]

    run(test)


def test_of_four_in_a_batch_with_one_cancelled_three_are_answered() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(value) for value in range(4)]
        await bench.turns()
        assert sizes(bench) == [4]
        futures[1].cancel()
        bench.executor.answer(double)
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Response, asyncio.CancelledError, Response, Response]
        assert [answers[i].outputs["y"][0, 0] for i in (0, 2, 3)] == [0, 4, 6]  # type: ignore[union-attr]

    run(test)


def test_a_caller_that_left_while_it_waited_costs_no_execution() -> None:
    async def test() -> None:
        bench = Bench(slots=1)
        first = bench.ask(1)
        await bench.turns()
        waiting, left, cancelled = bench.ask(2), bench.ask(3, alive=lambda: False), bench.ask(4)
        cancelled.cancel()
        bench.executor.answer(double)
        await bench.turns()
        assert sizes(bench) == [1, 1]
        bench.executor.answer(double)
        assert (await first).outputs["y"][0, 0] == 2
        assert (await waiting).outputs["y"][0, 0] == 4
        assert isinstance(await failure(left), Cancelled)
        assert bench.scheduler.counters.failed == {"cancelled": 2}

    run(test)


def test_one_poisoned_request_in_a_full_batch_fails_alone() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(value) for value in (0, 1, -1, 3, 4, 5, 6, 7)]
        await bench.turns()
        while bench.executor.running:
            bench.executor.answer(picky)
            await bench.turns()
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [index for index, answer in enumerate(answers) if isinstance(answer, BaseException)] == [2]
        assert str(answers[2]) == "model 'm' version 1 failed: negative input"
        assert isinstance(answers[2], InferenceFailed)
        assert bench.scheduler.counters.released == {"full": 1, "retry": 8}

    run(test)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda inputs: {"y": inputs["x"][:-1], "z": inputs["x"]}, "output 'y' has shape"),
        (lambda inputs: {"y": inputs["x"]}, "did not return output 'z'"),
        (lambda inputs: {"y": inputs["x"].astype(np.float64), "z": inputs["x"]}, "output 'y' has dtype 'float64'"),
        (lambda inputs: {"y": np.zeros((), np.float32), "z": inputs["x"]}, "output 'y' has shape []"),
    ],
)
def test_outputs_are_checked_after_every_run(answer: Callable[[dict[str, Tensor]], Any], words: str) -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(1), bench.ask(2)]
        await bench.turns()
        while bench.executor.running:
            bench.executor.answer(answer)
            await bench.turns()
        for future in futures:
            error = await failure(future)
            assert words in str(error)
            assert isinstance(error, InferenceFailed)

    run(test)


def test_requests_whose_runner_died_are_run_again_one_by_one_on_an_idle_runner() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(1), bench.ask(2)]
        await bench.turns()
        futures.append(bench.ask(3))
        await bench.turns()
        assert sizes(bench) == [2, 1]
        bench.executor.die()
        await bench.turns()
        assert bench.executor.running == []
        bench.executor.up = True
        bench.scheduler.resume()
        late = bench.ask(9)
        for expected in range(3):
            await bench.turns()
            assert len(bench.executor.running) == 1, f"retry {expected} must run alone"
            bench.executor.answer(double)
        await bench.turns()
        bench.executor.answer(double)
        assert [(await future).outputs["y"][0, 0] for future in [*futures, late]] == [2, 4, 6, 18]

    run(test)


def test_what_kills_the_runner_twice_is_told_so_and_its_neighbours_are_answered() -> None:
    async def test() -> None:
        bench = Bench()
        killer, neighbour = bench.ask(-1), bench.ask(2)
        await bench.turns()
        bench.executor.die("killed by signal 11")
        bench.executor.up = True
        bench.scheduler.resume()
        await bench.turns()
        bench.executor.die("killed by signal 11")
        bench.executor.up = True
        bench.scheduler.resume()
        await bench.turns()
        bench.executor.answer(double)
        error = await failure(killer)
        assert isinstance(error, RunnerDied)
        assert "killed by signal 11" in str(error)
        assert (await neighbour).outputs["y"][0, 0] == 4

    run(test)


def test_a_request_that_hung_alone_is_not_tried_again() -> None:
    async def test() -> None:
        bench = Bench()
        future = bench.ask(1)
        await bench.turns()
        bench.executor.complete(Died("execution limit", timed_out=True))
        await bench.turns()
        assert isinstance(await failure(future), ExecutionTimeout)
        assert bench.executor.running == []

    run(test)


def test_a_queue_that_is_full_refuses_and_makes_room_of_cancelled_ones() -> None:
    async def test() -> None:
        bench = Bench(slots=0, max_queue_rows=2)
        first, second = bench.ask(1), bench.ask(2)
        with pytest.raises(QueueFull):
            bench.ask(3)
        first.cancel()
        bench.clock.advance(1)
        third = bench.ask(3)
        assert bench.scheduler.queue_rows == 2
        assert not second.done()
        assert not third.done()
        assert bench.scheduler.counters.failed == {"queue_full": 1, "cancelled": 1}

    run(test)


def test_a_request_that_waits_too_long_is_told_so() -> None:
    async def test() -> None:
        bench = Bench(slots=1, timeout_us=20_000)
        running = bench.ask(1)
        await bench.turns()
        late = bench.ask(2)
        await bench.turns()
        bench.clock.advance(0.03)
        error = await asyncio.wait_for(failure(late), 5)
        assert isinstance(error, QueueTimeout)
        assert "Request timeout expired" in str(error)
        bench.executor.answer(double)
        assert (await running).outputs["y"][0, 0] == 2

    run(test)


def test_a_delay_is_kept_by_a_timer() -> None:
    async def test() -> None:
        bench = Bench(max_delay_us=5_000)
        future = bench.ask(1)
        await bench.turns()
        assert bench.executor.running == []
        bench.clock.advance(0.006)
        while not bench.executor.running:  # noqa: ASYNC110  # the timer is the loop's own
            await asyncio.sleep(0)
        bench.executor.answer(double)
        await future
        assert bench.scheduler.counters.released == {"delay": 1}

    run(test)


def test_draining_answers_what_was_accepted_and_refuses_the_rest() -> None:
    async def test() -> None:
        bench = Bench(slots=1)
        futures = [bench.ask(1)]
        await bench.turns()
        futures.append(bench.ask(2))
        drained = asyncio.ensure_future(bench.scheduler.drain())
        await bench.turns()
        with pytest.raises(NotReady, match="is not at ready state"):
            bench.ask(3)
        assert not drained.done()
        while bench.executor.running:
            bench.executor.answer(double)
            await bench.turns()
        await drained
        assert [(await future).outputs["y"][0, 0] for future in futures] == [2, 4]

    run(test)


def test_while_suspended_nothing_hangs() -> None:
    async def test() -> None:
        bench = Bench(slots=1)
        bench.executor.up = False
        future = bench.ask(1)
        await bench.turns()
        bench.scheduler.suspend("down")
        error = await failure(future)
        assert isinstance(error, NotReady)
        assert str(error).endswith("is not at ready state: down")
        with pytest.raises(NotReady):
            bench.ask(2)
        bench.executor.up = True
        bench.scheduler.resume()
        future = bench.ask(3)
        await bench.turns()
        bench.executor.answer(double)
        assert (await future).outputs["y"][0, 0] == 6

    run(test)


def test_a_slow_model_gathers_while_it_runs_and_a_fast_one_keeps_two_batches_going() -> None:
    async def test() -> None:
        bench = Bench()
        bench.ask(1)
        await bench.turns()
        bench.ask(2)
        await bench.turns()
        assert sizes(bench) == [1, 1], "nothing is known yet: overlap"
        outputs = {"y": np.zeros((1, 2), np.float32), "z": np.zeros((1, 2), np.float32)}

        def answer_both() -> None:
            for _ in range(2):
                bench.executor.complete(Executed(outputs, 1, 50_000_000, 1))

        answer_both()
        bench.ask(3)
        await bench.turns()
        bench.ask(4)
        await bench.turns()
        assert sizes(bench) == [1, 1, 1], "the second waits while one runs"
        bench.clock.advance(0.046)
        bench.scheduler.kick()
        await bench.turns()
        assert sizes(bench) == [1, 1, 1, 1], "until that is about to end"
        answer_both()
        bench.ask(5)
        await bench.turns()
        for value in range(8):
            bench.ask(value)
        await bench.turns()
        assert sizes(bench) == [1, 1, 1, 1, 1, 8], "or the second is full"

    run(test)


def test_callers_that_left_before_their_retry_do_not_hold_up_the_queue() -> None:
    async def test() -> None:
        bench = Bench()
        lost = [bench.ask(1), bench.ask(2)]
        await bench.turns()
        bench.executor.die()
        for future in lost:
            future.cancel()
        waiting = bench.ask(3)
        bench.executor.up = True
        bench.scheduler.resume()
        await bench.turns()
        bench.executor.answer(double)
        assert (await waiting).outputs["y"][0, 0] == 6

    run(test)


def test_what_was_in_flight_when_the_version_was_suspended_does_not_wait_for_it() -> None:
    async def test() -> None:
        bench = Bench()
        future = bench.ask(1)
        await bench.turns()
        bench.scheduler.suspend("it died three times in a row")
        bench.executor.die()
        assert isinstance(await failure(future), RunnerDied)

    run(test)


def test_a_raised_batch_of_one_is_not_run_again() -> None:
    async def test() -> None:
        bench = Bench()
        future = bench.ask(1)
        await bench.turns()
        bench.executor.complete(Raised("boom"))
        await bench.turns()
        assert "boom" in str(await failure(future))
        assert bench.executor.running == []

    run(test)
