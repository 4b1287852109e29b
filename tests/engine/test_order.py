"""Answers in the order of the questions."""

import asyncio
import weakref
from typing import Any

import numpy as np
import pytest

from ekiben.engine.order import OrderedScheduler
from ekiben.errors import InferenceFailed, QueueFull, QueueTimeout
from ekiben.runner.base import Raised
from ekiben.testing import FakeExecutor, ManualClock
from ekiben.types import Batching, ModelSettings, Request, Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 1)),), (TensorSpec("y", "FP32", (-1, 1)),))


class Bench:
    """An ordered scheduler of a model on two instances, and the order in which its futures were done."""

    def __init__(self, max_queue_rows: int = 100) -> None:
        self.executor = FakeExecutor(slots=1, instances=2)
        batching = Batching(max_batch_size=1, preserve_ordering=True, max_queue_rows=max_queue_rows)
        settings = ModelSettings(batching=batching)
        self.scheduler = OrderedScheduler(
            "m", "1", settings, {"serving_default": SIGNATURE}, self.executor, ManualClock()
        )
        self.done: list[int] = []

    def ask(self, number: int, **wishes: Any) -> Any:
        request = Request("m", {"x": np.full((1, 1), number, np.float32)}, **wishes)
        future = self.scheduler.offer(request, 1, "k")
        future.add_done_callback(lambda _: self.done.append(number))
        return future

    def answer(self, index: int) -> None:
        self.executor.answer(lambda inputs: {"y": inputs["x"]}, index)


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def test_an_answer_waits_for_those_before_it() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(number) for number in range(3)]
        await turns()
        bench.answer(1)
        await turns()
        bench.answer(1)
        await turns()
        assert bench.done == []
        bench.answer(0)
        await turns()
        assert bench.done == [0, 1, 2]
        assert [(await future).outputs["y"][0, 0] for future in futures] == [0, 1, 2]

    asyncio.run(test())


def test_errors_keep_the_order_too() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(0), bench.ask(1), bench.ask(2, deadline=0.0)]
        await turns()
        bench.executor.complete(Raised("boom"), 1)
        await turns()
        assert bench.done == []
        bench.answer(0)
        await turns()
        assert bench.done == [0, 1, 2]
        assert (await futures[0]).outputs["y"][0, 0] == 0
        with pytest.raises(InferenceFailed, match="boom"):
            await futures[1]
        with pytest.raises(QueueTimeout):
            await futures[2]

    asyncio.run(test())


def test_a_caller_that_leaves_holds_nobody_up_and_frees_its_place() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(number) for number in range(5)]
        await turns()
        bench.answer(1)
        futures[0].cancel()
        futures[3].cancel()
        await turns()
        assert bench.done == [0, 3, 1]
        while bench.executor.running:
            bench.answer(0)
            await turns()
        assert bench.done == [0, 3, 1, 2, 4]
        assert len(bench.executor.batches) == 4, "what was cancelled before it ran did not run"

    asyncio.run(test())


def test_draining_waits_for_all() -> None:
    async def test() -> None:
        bench = Bench()
        futures = [bench.ask(number) for number in range(3)]
        drained = asyncio.ensure_future(bench.scheduler.drain())
        await turns()
        assert not drained.done()
        while bench.executor.running:
            bench.answer(0)
            await turns()
        await drained
        assert [(await future).outputs["y"][0, 0] for future in futures] == [0, 1, 2]

    asyncio.run(test())


def test_what_is_held_back_is_bounded() -> None:
    async def test() -> None:
        bench = Bench(max_queue_rows=3)
        futures = [bench.ask(number) for number in range(3)]
        for _ in range(2):
            await turns()
            bench.answer(1)
        with pytest.raises(QueueFull, match="3 requests wait, run or are held back"):
            bench.ask(3)
        assert bench.scheduler.counters.failed == {"queue_full": 1}
        bench.answer(0)
        await turns()
        assert bench.done == [0, 1, 2]
        futures.append(bench.ask(3))
        await turns()
        bench.answer(0)
        assert [(await future).outputs["y"][0, 0] for future in futures] == [0, 1, 2, 3]

    asyncio.run(test())


def test_callers_that_left_are_neither_counted_nor_kept() -> None:
    async def test() -> None:
        bench = Bench(max_queue_rows=3)
        stuck = bench.ask(0)
        await turns()
        kept = []
        for number in range(1, 200):
            left = bench.ask(number)
            kept.append(weakref.ref(left))
            await turns()
            left.cancel()
            await turns()
            if len(bench.executor.running) > 1:
                bench.answer(1)
            bench.executor.batches.clear()
        del left
        assert bench.scheduler.queue_rows == 0
        assert sum(future() is not None for future in kept) < 30
        bench.answer(0)
        await turns()
        assert (await stuck).outputs["y"][0, 0] == 0

    asyncio.run(test())
