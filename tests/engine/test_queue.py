"""The queue: pure, so every rule is one line of a table."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from ekiben.engine.entry import Entry
from ekiben.engine.queue import Queue
from ekiben.errors import QueueFull
from ekiben.types import Batching, Request


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def entry(loop: asyncio.AbstractEventLoop, rows: int = 1, key: str = "k", arrived: float = 0.0) -> Entry:
    return Entry(Request("m", {"x": np.zeros((rows, 1), np.float32)}), rows, key, arrived, loop.create_future())


@pytest.mark.parametrize(
    ("batching", "arrivals", "now", "rows", "reason"),
    [
        (Batching(max_batch_size=8), [(1, 0.0)] * 3, 0.0, [1, 1, 1], "idle"),
        (Batching(max_batch_size=8), [(1, 0.0)] * 9, 0.0, [1] * 8, "full"),
        (Batching(max_batch_size=8), [(5, 0.0), (5, 0.0)], 0.0, [5], "full"),
        (Batching(max_batch_size=8), [(3, 0.0), (6, 0.0), (1, 0.0)], 0.0, [3], "full"),
        (Batching(max_batch_size=8), [(8, 0.0), (1, 0.0)], 0.0, [8], "full"),
        (Batching(max_batch_size=0), [(1, 0.0), (1, 0.0)], 0.0, [1], "full"),
        (Batching(max_batch_size=1), [(1, 0.0), (1, 0.0)], 0.0, [1], "full"),
        (Batching(max_batch_size=8, max_delay_us=2000), [(1, 0.0)] * 3, 0.001, [], ""),
        (Batching(max_batch_size=8, max_delay_us=2000), [(1, 0.0), (1, 0.001)], 0.002, [1, 1], "delay"),
        (Batching(max_batch_size=8, max_delay_us=2000), [(1, 0.0)] * 8, 0.0, [1] * 8, "full"),
        (
            Batching(max_batch_size=8, max_delay_us=2000, preferred_sizes=(4,)),
            [(1, 0.0)] * 5,
            0.0,
            [1] * 4,
            "preferred",
        ),
        (
            Batching(max_batch_size=8, max_delay_us=2000, preferred_sizes=(2, 4)),
            [(1, 0.0)] * 3,
            0.0,
            [1, 1],
            "preferred",
        ),
        (
            Batching(max_batch_size=8, max_delay_us=2000, preferred_sizes=(4, 2)),
            [(1, 0.0)] * 5,
            0.0,
            [1] * 4,
            "preferred",
        ),
        (Batching(max_batch_size=8, max_delay_us=2000, preferred_sizes=(4,)), [(1, 0.0)] * 3, 0.001, [], ""),
        (Batching(max_batch_size=8, max_delay_us=2000, preferred_sizes=(16,)), [(1, 0.0)] * 3, 0.0, [], ""),
        (Batching(max_batch_size=8, preferred_sizes=(4,)), [(1, 0.0)] * 3, 0.0, [1] * 3, "idle"),
        (Batching(max_batch_size=8, max_delay_us=2000, target_latency_ms=100), [(1, 0.0)], 0.0, [1], "idle"),
        (Batching(max_batch_size=8), [(0, 0.0), (2, 0.0)], 0.0, [0, 2], "idle"),
        (Batching(max_batch_size=8), [], 0.0, [], ""),
    ],
)
def test_release(
    loop: asyncio.AbstractEventLoop,
    batching: Batching,
    arrivals: list[tuple[int, float]],
    now: float,
    rows: list[int],
    reason: str,
) -> None:
    queue = Queue("m", batching)
    for size, arrived in arrivals:
        queue.offer(entry(loop, size, arrived=arrived))
    taken = queue.take(now)
    assert ([found.rows for found in taken.entries], taken.reason) == (rows, reason)
    assert queue.rows == sum(size for size, _ in arrivals) - sum(rows)


def test_only_equal_keys_ride_together_and_the_oldest_group_goes_first(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8))
    for key, arrived in [("b", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0)]:
        queue.offer(entry(loop, key=key, arrived=arrived))
    assert [(e.key, e.arrived) for e in queue.take(5.0).entries] == [("b", 1.0), ("b", 3.0)]
    assert [(e.key, e.arrived) for e in queue.take(5.0).entries] == [("a", 2.0), ("a", 4.0)]
    assert len(queue) == 0


def test_a_group_that_waits_does_not_hold_up_one_that_is_full(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=2, max_delay_us=1_000_000))
    for key, arrived in [("slow", 0.0), ("full", 0.1), ("full", 0.1)]:
        queue.offer(entry(loop, key=key, arrived=arrived))
    assert [e.key for e in queue.take(0.2).entries] == ["full", "full"]
    assert queue.take(0.2).entries == []
    assert queue.next_event(0.2) == 1.0


def test_cancelled_and_expired_entries_fall_out_and_free_their_room(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=2, timeout_us=1_000_000))
    old, cancelled, gone, kept, last = [entry(loop, arrived=t) for t in (0.0, 0.5, 0.6, 0.7, 0.8)]
    gone.request.alive = lambda: False
    for each in (old, cancelled, gone, kept, last):
        queue.offer(each)
    cancelled.future.cancel()
    taken = queue.take(1.2)
    assert taken.expired == [old]
    assert taken.cancelled == [cancelled, gone]
    assert taken.entries == [kept, last]
    assert queue.rows == 0


def test_expire_and_next_event(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, max_delay_us=3_000_000, timeout_us=1_000_000))
    first, second = entry(loop, arrived=0.0), entry(loop, arrived=0.5)
    queue.offer(first)
    queue.offer(second)
    assert queue.next_event(0.0) == 1.0
    assert queue.expire(0.9) == []
    assert queue.expire(1.0) == [first]
    assert queue.next_event(1.0) == 1.5
    assert queue.drain() == [second]
    assert (len(queue), queue.rows, queue.next_event(9.0)) == (0, 0, float("inf"))


def test_the_queue_is_bounded_in_rows(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, max_queue_rows=10))
    waiting = [entry(loop, 5), entry(loop, 5)]
    for each in waiting:
        queue.offer(each)
    with pytest.raises(
        QueueFull, match=r"Exceeds maximum queue size: 2 requests of 10 rows wait, 1 more.*max_queue_rows 10"
    ):
        queue.offer(entry(loop, 1))
    waiting[0].future.cancel()
    assert queue.sweep() == [waiting[0]]
    queue.offer(entry(loop, 5))
    assert queue.rows == 10


def test_requests_without_rows_are_bounded_too(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, max_queue_rows=3))
    for _ in range(3):
        queue.offer(entry(loop, 0))
    with pytest.raises(QueueFull):
        queue.offer(entry(loop, 0))
    assert len(queue.take(0.0).entries) == 3
    assert len(queue) == 0


def test_what_is_due_already_is_no_event(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, max_delay_us=1_000_000))
    queue.offer(entry(loop, key="a"))
    queue.offer(entry(loop, key="b", arrived=0.5))
    assert queue.next_event(1.0) == 1.5
    assert queue.next_event(1.5) == float("inf")
