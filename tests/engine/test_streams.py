"""Streams over a fake executor: one at a time, back-pressure, callers that leave or dawdle, deaths, drains."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from ekiben.engine.replies import MOST_RESPONSES, Replies
from ekiben.engine.streams import StreamScheduler
from ekiben.errors import (
    Cancelled,
    Decoupled,
    ExecutionTimeout,
    InferenceFailed,
    NotReady,
    QueueFull,
    QueueTimeout,
    RunnerDied,
)
from ekiben.runner.base import Died, Executed, Raised
from ekiben.testing import FakeExecutor, ManualClock, until
from ekiben.types import Batching, ModelSettings, Request, Signature, Tensor, TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, 2)),),
    outputs=(TensorSpec("y", "FP32", (-1, 2)), TensorSpec("z", "FP32", (-1, 2))),
)
END = Executed({}, 1_000, 1_000, 1_000)


class Bench:
    """A scheduler with a fake executor and a clock that stands still."""

    def __init__(self, slots: int = 2, instances: int = 1, execution_timeout_ms: float = 0, **batching: Any) -> None:
        self.clock = ManualClock()
        self.executor = FakeExecutor(slots=slots, instances=instances)
        settings = ModelSettings(
            batching=Batching(**{"max_batch_size": 8, **batching}), execution_timeout_ms=execution_timeout_ms
        )
        signatures = {"serving_default": SIGNATURE}
        self.scheduler = StreamScheduler("m", "1", settings, signatures, self.executor, self.clock)
        self.counters = self.scheduler.counters

    def ask(self, *values: float, outputs: tuple[str, ...] = (), alive: Callable[[], bool] | None = None) -> Replies:
        rows = np.array([[value, value] for value in values], np.float32).reshape(len(values), 2)
        return self.scheduler.stream(Request("m", {"x": rows}, outputs=outputs, alive=alive), len(values), "k")

    async def turns(self, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def begin(self, *values: float, **request: Any) -> Replies:
        """Ask, and wait until it runs."""
        before = len(self.executor.batches)
        replies = self.ask(*values, **request)
        await self.turns()
        assert len(self.executor.batches) == before + 1
        return replies

    @property
    def said(self) -> list[bool]:
        """What the executor was told at each advance: to stop or not."""
        return [stop for _, stop in self.executor.advanced]


def outputs(value: float, rows: int = 1) -> dict[str, Tensor]:
    return {"y": np.full((rows, 2), value, np.float32), "z": np.full((rows, 2), -value, np.float32)}


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def values(replies: Replies) -> list[float]:
    return [float(each.outputs["y"][0, 0]) async for each in replies]


def test_responses_come_as_they_are_computed_and_the_runner_goes_on_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        for number in range(3):
            bench.executor.respond(outputs(number, rows=number))
            response = await anext(replies)
            assert (response.model, response.version) == ("m", "1")
            assert [(name, array.shape) for name, array in response.outputs.items()] == [
                ("y", (number, 2)),
                ("z", (number, 2)),
            ]
            assert bench.said == [False] * (number + 1)
        bench.executor.complete(END)
        assert await values(replies) == []
        assert bench.counters.released == {"full": 1}

    run(test)


def test_only_wanted_outputs_are_given() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1, outputs=("z",))
        assert bench.executor.batches[0].outputs == ["z"]
        bench.executor.respond({"z": outputs(3)["z"]})
        bench.executor.complete(END)
        assert [list(each.outputs) async for each in replies] == [["z"]]

    run(test)


def test_a_stream_is_one_success_with_all_its_time() -> None:
    async def test() -> None:
        bench = Bench()
        replies = bench.ask(1, 2)
        bench.clock.advance(1)
        await bench.turns()
        for number in range(3):
            bench.clock.advance(1)
            bench.executor.respond(outputs(number))
        bench.executor.complete(END)
        assert await values(replies) == [0, 1, 2]
        statistics = bench.counters.statistics("m", "1")
        assert (statistics.success.count, statistics.success.ns) == (1, 4_000_000_000)
        assert (statistics.queue.ns, statistics.inference_count, statistics.execution_count) == (1_000_000_000, 2, 1)
        assert (statistics.compute_infer.ns, statistics.fail.count, statistics.last_inference_ms) == (
            4_000,
            0,
            1004_000,
        )

    run(test)


def test_streams_never_share_a_batch_nor_wait_behind_one_in_an_instance() -> None:
    async def test() -> None:
        bench = Bench(slots=2, instances=2)
        streams = [bench.ask(), bench.ask(), bench.ask(1, 1), bench.ask(2)]  # two of them have no rows at all
        await bench.turns()
        assert {slot.instance for slot, _, _ in bench.executor.running} == {0, 1}
        for number in (2, 3, 4, 4, 4):
            assert len(bench.executor.batches) == number
            if bench.executor.running:
                bench.executor.complete(END)
                await bench.turns()
        assert [len(batch.inputs[0].parts) for batch in bench.executor.batches] == [1] * 4
        for stream in streams:
            assert await values(stream) == []

    run(test)


def test_one_response_is_not_what_a_stream_has() -> None:
    async def test() -> None:
        bench = Bench()
        with pytest.raises(Decoupled, match="model 'm' version 1 is decoupled"):
            bench.scheduler.offer(Request("m", {}), 1, "k")
        assert bench.counters.failed == {"decoupled": 1}

    run(test)


# Back-pressure


def test_the_runner_waits_while_enough_responses_wait_for_the_caller() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        for number in range(MOST_RESPONSES):
            bench.executor.respond(outputs(number))
        assert bench.said == [False] * (MOST_RESPONSES - 1)
        await anext(replies)
        assert bench.said == [False] * MOST_RESPONSES
        await anext(replies)
        assert bench.said == [False] * MOST_RESPONSES  # once for each response
        bench.executor.complete(END)
        assert await values(replies) == list(range(2, MOST_RESPONSES))

    run(test)


def test_a_caller_that_dawdles_loses_its_stream_and_frees_the_instance() -> None:
    async def test() -> None:
        bench = Bench(execution_timeout_ms=20)
        replies = await bench.begin(1)
        after = bench.ask(2)
        for number in range(MOST_RESPONSES):
            bench.executor.respond(outputs(number))
        await until(lambda: bench.said[-1])
        assert not replies.full
        bench.executor.complete(END)
        with pytest.raises(Cancelled, match="no response for longer than execution_timeout_ms 20"):
            await anext(replies)
        assert bench.counters.failed == {"cancelled": 1}
        await bench.turns()
        bench.executor.respond(outputs(5))
        bench.executor.complete(END)
        assert await values(after) == [5]

    run(test)


def test_a_caller_that_takes_in_time_keeps_its_stream() -> None:
    async def test() -> None:
        bench = Bench(execution_timeout_ms=20)
        replies = await bench.begin(1)
        for number in range(MOST_RESPONSES):
            bench.executor.respond(outputs(number))
        await anext(replies)
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.04, later.set)  # timers fire in their order
        await later.wait()
        assert True not in bench.said
        bench.executor.complete(END)
        assert len(await values(replies)) == MOST_RESPONSES - 1

    run(test)


# Callers that leave


def test_a_caller_that_closes_stops_the_model_at_its_next_response() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        bench.executor.respond(outputs(1))
        replies.close()
        assert bench.said == [False]
        bench.executor.respond(outputs(2))
        assert bench.said == [False, True]
        bench.executor.complete(END)
        assert bench.counters.failed == {"cancelled": 1}
        assert bench.scheduler.in_flight == 0

    run(test)


def test_a_caller_that_closes_while_the_runner_waits_stops_it_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        for number in range(MOST_RESPONSES):
            bench.executor.respond(outputs(number))
        replies.close()
        assert bench.said == [False] * (MOST_RESPONSES - 1) + [True]
        replies.close()
        assert len(bench.said) == MOST_RESPONSES

    run(test)


def test_a_caller_seen_to_be_gone_stops_the_model() -> None:
    async def test() -> None:
        bench = Bench()
        here = [True]
        replies = await bench.begin(1, alive=lambda: here[0])
        bench.executor.respond(outputs(1))
        here[0] = False
        bench.executor.respond(outputs(2))
        assert bench.said == [False, True]
        bench.executor.complete(END)
        await anext(replies)
        with pytest.raises(Cancelled):
            await anext(replies)
        assert bench.counters.failed == {"cancelled": 1}

    run(test)


def test_a_caller_that_leaves_while_it_waits_costs_no_execution() -> None:
    async def test() -> None:
        bench = Bench()
        first = await bench.begin(1)
        second, third = bench.ask(2), bench.ask(3)
        second.close()
        bench.executor.complete(END)
        await bench.turns()
        assert [float(batch.inputs[0].parts[0][0, 0]) for batch in bench.executor.batches] == [1, 3]
        for replies in (first, third):
            replies.close()

    run(test)


@pytest.mark.parametrize("outcome", [Raised("late"), Died("late"), Died("late", timed_out=True)])
def test_how_a_stream_ends_that_nobody_waits_for_is_of_no_interest(outcome: Raised | Died) -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        bench.executor.respond(outputs(1))
        replies.close()
        bench.executor.complete(outcome)
        await bench.turns()
        assert bench.counters.failed == {"cancelled": 1}
        assert len(bench.executor.batches) == 1
        assert bench.scheduler.in_flight == 0

    run(test)


# What goes wrong


def test_an_error_comes_after_the_responses_before_it() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        bench.executor.respond(outputs(1))
        bench.executor.complete(Raised("no more"))
        await anext(replies)
        with pytest.raises(InferenceFailed, match="model 'm' version 1 failed: no more"):
            await anext(replies)
        assert bench.counters.failed == {"model_failed": 1}

    run(test)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"y": outputs(1)["y"]}, "did not return output 'z'"),
        ({"y": np.zeros((1, 2), np.int32), "z": outputs(1)["z"]}, "output 'y' has dtype 'int32'"),
    ],
)
def test_a_response_that_is_not_as_declared_ends_the_stream(given: dict[str, Tensor], words: str) -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        bench.executor.respond(outputs(1))
        bench.executor.respond(given)
        assert bench.said == [False, True]
        bench.executor.complete(END)
        await anext(replies)
        with pytest.raises(InferenceFailed, match=words):
            await anext(replies)
        assert bench.counters.failed == {"model_failed": 1}

    run(test)


def test_a_stream_whose_runner_died_is_run_again_only_if_nothing_was_given() -> None:
    async def test() -> None:
        bench = Bench(instances=2)
        begun, fresh = bench.ask(1), bench.ask(2)
        await bench.turns()
        bench.executor.respond(outputs(1))
        bench.executor.die("killed")
        await anext(begun)
        with pytest.raises(RunnerDied, match="died in mid-stream: killed"):
            await anext(begun)
        bench.executor.up = True
        bench.scheduler.resume()
        await bench.turns()
        assert [float(batch.inputs[0].parts[0][0, 0]) for batch in bench.executor.batches] == [1, 2, 2]
        bench.executor.respond(outputs(7))
        bench.executor.complete(END)
        assert await values(fresh) == [7]
        assert bench.counters.failed == {"runner_died": 1}

    run(test)


def test_a_stream_that_kills_its_runner_twice_before_it_begins_fails() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        for _ in range(2):
            bench.executor.die("killed")
            bench.executor.up = True
            bench.scheduler.resume()
            await bench.turns()
        with pytest.raises(RunnerDied, match="not for the first time"):
            await anext(replies)

    run(test)


def test_a_response_that_takes_too_long_is_said_to_have() -> None:
    async def test() -> None:
        bench = Bench(execution_timeout_ms=500)
        replies = await bench.begin(1)
        bench.executor.respond(outputs(1))
        bench.executor.complete(Died("hung", timed_out=True))
        await anext(replies)
        with pytest.raises(ExecutionTimeout, match="longer than execution_timeout_ms 500"):
            await anext(replies)

    run(test)


def test_a_runner_that_dies_while_it_waits_for_the_caller() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        for number in range(MOST_RESPONSES):
            bench.executor.respond(outputs(number))
        bench.executor.die()
        taken = [await anext(replies) for _ in range(MOST_RESPONSES)]
        assert len(taken) == MOST_RESPONSES
        with pytest.raises(RunnerDied):
            await anext(replies)
        assert len(bench.said) == MOST_RESPONSES - 1

    run(test)


# The queue


def test_a_full_queue_refuses_unless_somebody_in_it_has_left() -> None:
    async def test() -> None:
        bench = Bench(max_queue_rows=2)
        running = await bench.begin(1)
        waiting = [bench.ask(2), bench.ask(3)]
        with pytest.raises(QueueFull):
            bench.ask(4)
        bench.clock.advance(1)
        waiting[0].close()
        bench.ask(5)
        assert bench.counters.failed == {"queue_full": 1, "cancelled": 1}
        running.close()

    run(test)


def test_a_stream_may_wait_only_so_long() -> None:
    async def test() -> None:
        bench = Bench(timeout_us=1000)
        running = await bench.begin(1)
        late = bench.ask(2)
        bench.clock.advance(1)
        bench.executor.complete(END)
        with pytest.raises(QueueTimeout):
            await anext(late)
        running.close()

    run(test)


def test_a_drain_waits_for_what_streams_and_refuses_the_rest() -> None:
    async def test() -> None:
        bench = Bench()
        replies = await bench.begin(1)
        draining = asyncio.create_task(bench.scheduler.drain())
        await bench.turns()
        with pytest.raises(NotReady, match="unloading"):
            bench.ask(2)
        bench.executor.respond(outputs(1))
        await bench.turns()
        assert not draining.done()
        bench.executor.complete(END)
        await draining
        assert await values(replies) == [1]

    run(test)


def test_what_waits_is_refused_when_the_runner_is_down_for_long() -> None:
    async def test() -> None:
        bench = Bench()
        bench.executor.up = False
        replies = bench.ask(1)
        bench.scheduler.suspend("it died")
        with pytest.raises(NotReady, match="it died"):
            await anext(replies)

    run(test)


def test_a_stream_that_was_late_still_holds_its_instance_until_its_caller_takes() -> None:
    async def test() -> None:
        bench = Bench(timeout_us=1000, timeout_action="delay")
        first = await bench.begin(1)
        late = bench.ask(2)
        bench.clock.advance(1)
        bench.scheduler.kick()
        await bench.turns()
        bench.executor.complete(END)
        await bench.turns()
        assert [one async for one in first] == []
        assert len(bench.executor.batches) == 2
        for value in range(MOST_RESPONSES):
            bench.executor.respond(outputs(value))
        said = len(bench.said)
        await anext(late)
        assert bench.said[said:] == [False]
        bench.executor.complete(END)

    run(test)
