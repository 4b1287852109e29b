"""The queue's rules for those who wait: priorities, timeouts, deadlines, bounds."""

import asyncio
import weakref
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from ekiben.engine.entry import Entry
from ekiben.engine.queue import Queue
from ekiben.errors import QueueFull
from ekiben.types import Batching, QueuePolicy, Request


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def of(
    loop: asyncio.AbstractEventLoop,
    arrived: float,
    priority: int = 0,
    timeout_us: int = 0,
    deadline: float | None = None,
    rows: int = 1,
    key: str = "k",
) -> Entry:
    """An entry that says how it wants to wait."""
    request = Request("m", {}, priority=priority, timeout_us=timeout_us, deadline=deadline)
    return Entry(request, rows, key, arrived, loop.create_future())


def arrivals(entries: list[Entry]) -> list[float]:
    return [entry.arrived for entry in entries]


THREE: Final[dict[str, Any]] = {"priority_levels": 3, "default_priority": 2}


@pytest.mark.parametrize(
    ("batching", "priorities", "batches"),
    [
        # arrivals are 0, 1, 2, …
        (Batching(max_batch_size=8, **THREE), [3, 2, 1, 2, 1], [[2, 4, 1, 3, 0]]),
        (Batching(max_batch_size=2, **THREE), [3, 2, 1, 2, 1], [[2, 4], [1, 3], [0]]),
        (Batching(max_batch_size=1, **THREE), [3, 1, 2], [[1], [2], [0]]),
        (Batching(max_batch_size=0, **THREE), [3, 1, 2], [[1], [2], [0]]),
        (Batching(max_batch_size=8, **THREE), [3, 0, 1, 4, 1 << 64], [[2, 1, 3, 4, 0]]),
        (Batching(max_batch_size=8, priority_levels=1, default_priority=1), [3, 1, 2], [[0, 1, 2]]),
        (Batching(max_batch_size=8), [3, 1, 2], [[0, 1, 2]]),
        (Batching(max_batch_size=4, preferred_sizes=(2,), max_delay_us=9_000_000, **THREE), [3, 3, 1], [[2, 0]]),
        # seven batches leave an older one waiting, the eighth does not; from then on they are counted again
        (
            Batching(max_batch_size=1, priority_levels=2, default_priority=1),
            [2, 2, *[1] * 16],
            [*([n] for n in range(2, 9)), [0], *([n] for n in range(9, 16)), [1], [16], [17]],
        ),
        (
            Batching(max_batch_size=2, priority_levels=2, default_priority=1),
            [2, 2, 2, *[1] * 18],
            [*([n, n + 1] for n in range(3, 17, 2)), [0, 1], [17, 18], [19, 20], [2]],
        ),
        # as long as nobody older waits nobody is overtaken
        (
            Batching(max_batch_size=1, priority_levels=2, default_priority=1),
            [*[1] * 20, 2],
            [[n] for n in range(21)],
        ),
    ],
)
def test_priorities(
    loop: asyncio.AbstractEventLoop, batching: Batching, priorities: list[int], batches: list[list[int]]
) -> None:
    queue = Queue("m", batching)
    for number, priority in enumerate(priorities):
        queue.offer(of(loop, number, priority))
    found = [arrivals(queue.take(50.0 if batching.max_delay_us == 0 else 0.0).entries) for _ in batches]
    assert found == batches


def test_the_level_decides_among_groups_and_the_eighth_batch_is_the_oldest_ones(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = Queue("m", Batching(max_batch_size=1, priority_levels=2, default_priority=2))
    queue.offer(of(loop, 0.0, 2, key="low"))
    for number in range(1, 10):
        queue.offer(of(loop, number, 1, key="high"))
    keys = [queue.take(50.0).entries[0].key for _ in range(10)]
    assert keys == ["high"] * 7 + ["low"] + ["high"] * 2


def test_a_batch_that_nobody_older_waited_for_starts_the_count_again(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=1, priority_levels=2, default_priority=2))
    for round_ in range(3):
        start = 100.0 * round_
        queue.offer(of(loop, start, 2))
        for number in range(1, 8):
            queue.offer(of(loop, start + number, 1))
        taken = [queue.take(1e6).entries[0].arrived - start for _ in range(8)]
        assert taken == [1, 2, 3, 4, 5, 6, 7, 0], "seven may pass, each time"


def test_the_best_level_decides_which_due_group_is_first_but_a_group_must_be_due(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = Queue("m", Batching(max_batch_size=2, max_delay_us=5_000_000, priority_levels=2, default_priority=2))
    queue.offer(of(loop, 0.0, 2, key="low"))
    queue.offer(of(loop, 4.0, 1, key="high"))
    assert queue.next_event(4.0) == 5.0
    assert queue.take(4.0).entries == []
    assert arrivals(queue.take(5.0).entries) == [0.0]
    queue.offer(of(loop, 6.0, 2, key="low"))
    assert arrivals(queue.take(11.0).entries) == [4.0]
    assert arrivals(queue.take(11.0).entries) == [6.0]


def test_a_group_waits_for_the_delay_of_its_oldest_whatever_its_level(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=2, max_delay_us=5_000_000, priority_levels=2, default_priority=2))
    queue.offer(of(loop, 0.0, 2))
    queue.offer(of(loop, 1.0, 1, rows=2))
    taken = queue.take(1.0)
    assert (arrivals(taken.entries), taken.reason) == ([1.0], "full")
    assert queue.next_event(1.0) == 5.0
    assert (arrivals(queue.take(5.0).entries), queue.next_event(5.0)) == ([0.0], float("inf"))


@pytest.mark.parametrize(
    ("batching", "waits", "expired"),
    [
        # how each wants to wait: (timeout in s, deadline); when each is refused, all having come at 0
        (Batching(), [(0, None), (3, None), (0, 2.0), (5, 1.0), (1, 5.0)], {1.0: [3, 4], 2.0: [2], 3.0: [1]}),
        (
            Batching(timeout_us=4_000_000),
            [(0, None), (3, None), (9, None), (0, 2.0)],
            {2.0: [3], 3.0: [1], 4.0: [0, 2]},
        ),
        (
            Batching(timeout_us=4_000_000, allow_timeout_override=False),
            [(0, None), (3, None), (0, 2.0)],
            {2.0: [2], 4.0: [0, 1]},
        ),
        (Batching(allow_timeout_override=False), [(3, None), (3, 5.0)], {5.0: [1]}),
        (
            Batching(timeout_us=4_000_000, timeout_action="delay"),
            [(0, None), (3, None), (0, 2.0), (0, 9.0)],
            {2.0: [2], 9.0: [3]},
        ),
        (Batching(), [(0, -5.0)], {0.0: [0]}),
    ],
)
def test_who_is_refused_when(
    loop: asyncio.AbstractEventLoop,
    batching: Batching,
    waits: list[tuple[int, float | None]],
    expired: dict[float, list[int]],
) -> None:
    queue = Queue("m", batching)
    entries = [of(loop, 0.0, timeout_us=seconds * 1_000_000, deadline=deadline) for seconds, deadline in waits]
    for each in entries:
        queue.offer(each)
    found: dict[float, list[int]] = {}
    futures = [each.future for each in entries]
    now = 0.0
    while True:
        gone = queue.expire(now)
        if gone:
            found[now] = sorted(futures.index(each.future) for each in gone)
        assert queue.rows == len(queue) == len(entries) - sum(map(len, found.values()))
        event = queue.next_event(now)
        if event == float("inf"):
            break
        assert event > now
        now = event
    assert found == expired
    assert len(queue.drain()) == len(entries) - sum(map(len, expired.values()))


def test_a_level_has_its_own_timeout(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(
        "m", Batching(**THREE, timeout_us=9_000_000, priority_policies={3: QueuePolicy(timeout_us=2_000_000)})
    )
    first, second = of(loop, 0.0, 1), of(loop, 0.0, 3)
    queue.offer(first)
    queue.offer(second)
    assert queue.expire(2.0) == [second]
    assert queue.expire(9.0) == [first]


def test_a_late_request_ranks_behind_those_of_its_level_and_better_ones_that_are_not(
    loop: asyncio.AbstractEventLoop,
) -> None:
    batching = Batching(max_batch_size=1, timeout_us=5_000_000, timeout_action="delay", **THREE)
    queue = Queue("m", batching)
    for arrived, priority in ((0.0, 2), (1.0, 1), (2.0, 2), (3.0, 3), (4.0, 2), (6.0, 2), (7.0, 1)):
        queue.offer(of(loop, arrived, priority))
    taken = [arrivals(queue.take(7.5).entries)[0] for _ in range(7)]
    assert taken == [7.0, 1.0, 4.0, 6.0, 0.0, 2.0, 3.0]
    assert (len(queue), queue.rows) == (0, 0)


def test_late_requests_are_not_late_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=1, timeout_us=1_000_000, timeout_action="delay"))
    queue.offer(of(loop, 0.0))
    taken = []
    for number in range(1, 11):
        queue.offer(of(loop, 2 + number / 100))
        taken += arrivals(queue.take(2 + number / 100).entries)
    assert taken == [2.01, 2.02, 2.03, 2.04, 2.05, 2.06, 2.07, 0.0, 2.08, 2.09]


def test_a_late_request_is_still_refused_at_its_deadline_and_dropped_when_cancelled(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = Queue("m", Batching(max_batch_size=8, timeout_us=1_000_000, timeout_action="delay"))
    doomed, cancelled, kept = of(loop, 0.0, deadline=3.0), of(loop, 0.1), of(loop, 0.2)
    for each in (doomed, cancelled, kept):
        queue.offer(each)
    assert queue.expire(2.0) == []
    cancelled.future.cancel()
    assert queue.next_event(2.0) == 3.0
    taken = queue.take(3.0)
    assert [each.future for each in taken.expired] == [doomed.future]
    assert [each.future for each in taken.cancelled] == [cancelled.future]
    assert [each.future for each in taken.entries] == [kept.future]
    assert (len(queue), queue.rows) == (0, 0)


def test_a_late_request_that_has_its_new_place_keeps_its_deadline(loop: asyncio.AbstractEventLoop) -> None:
    batching = Batching(max_batch_size=2, max_delay_us=9_000_000, timeout_us=1_000_000, timeout_action="delay")
    queue = Queue("m", batching)
    queue.offer(of(loop, 0.0, deadline=3.0))
    assert queue.take(2.0).entries == []
    assert queue.next_event(2.0) == 3.0
    assert [entry.expires for entry in queue.expire(3.0)] == [3.0]
    assert (len(queue), queue.rows, queue.next_event(3.0)) == (0, 0, float("inf"))


def test_becoming_late_wakes_nobody(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, timeout_us=1_000_000, timeout_action="delay"))
    queue.offer(of(loop, 0.0))
    assert queue.next_event(0.0) == float("inf")


def test_each_level_has_its_own_bound(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue(
        "m", Batching(max_batch_size=8, max_queue_rows=2, **THREE, priority_policies={1: QueuePolicy(max_queue_rows=3)})
    )
    for priority, room in ((3, 2), (1, 3), (0, 2)):
        for number in range(room):
            queue.offer(of(loop, number, priority))
        with pytest.raises(
            QueueFull, match=f"{room} requests of {room} rows wait at priority level {priority or 2}, 1 more"
        ):
            queue.offer(of(loop, 9.0, priority))
    assert queue.rows == 7
    assert len(queue.take(10.0).entries) == 7
    for priority in (1, 1, 1, 2, 2, 3, 3):
        queue.offer(of(loop, 11.0, priority))
    with pytest.raises(QueueFull):
        queue.offer(of(loop, 12.0, 3, rows=0))


@pytest.mark.parametrize("how", ["expire", "cancel", "sweep", "drain"])
def test_whoever_leaves_a_level_makes_room_there(how: str, loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, max_queue_rows=1, timeout_us=1_000_000, **THREE))
    entries = [of(loop, 0.0, priority) for priority in (1, 2, 3)]
    for each in entries:
        queue.offer(each)
    if how == "expire":
        assert queue.expire(1.0) == entries
    elif how == "drain":
        assert queue.drain() == entries
    else:
        for each in entries:
            each.future.cancel()
        assert (queue.sweep() if how == "sweep" else queue.take(0.5).cancelled) == entries
    for priority in (1, 2, 3):
        queue.offer(of(loop, 2.0, priority))
    assert (len(queue), queue.rows) == (3, 3)


def test_expired_and_cancelled_ones_in_the_middle_leave_the_order_as_it_was(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=4))
    entries = [of(loop, number, timeout_us=(number % 3 == 1) * 20_000_000) for number in range(10)]
    for each in entries:
        queue.offer(each)
    assert arrivals(queue.expire(30.0)) == [1, 4, 7]
    entries[5].future.cancel()
    assert queue.rows == 7
    taken = queue.take(30.0)
    assert (arrivals(taken.entries), arrivals(taken.cancelled), taken.expired) == ([0, 2, 3, 6], [5], [])
    assert arrivals(queue.take(30.0).entries) == [8, 9]
    assert (len(queue), queue.rows) == (0, 0)


def test_what_has_expired_behind_one_that_waits_is_not_kept(loop: asyncio.AbstractEventLoop) -> None:
    """The oldest has no timeout; thousands come and go behind it."""
    queue = Queue("m", Batching(max_batch_size=8))
    queue.offer(of(loop, 0.0))
    tensors = [np.zeros(1) for _ in range(3000)]
    alive = [weakref.ref(tensor) for tensor in tensors]
    for number, tensor in enumerate(tensors):
        request = Request("m", {"x": tensor}, timeout_us=1_000_000)
        queue.offer(Entry(request, 1, "k", float(number), loop.create_future()))
        queue.expire(float(number))
        queue.next_event(float(number))
    del request, tensor, tensors
    assert sum(reference() is not None for reference in alive) < 50


def test_what_was_taken_is_not_kept_for_its_timeout(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8))
    tensor = np.zeros(1)
    reference = weakref.ref(tensor)
    queue.offer(Entry(Request("m", {"x": tensor}, timeout_us=1_000_000_000), 1, "k", 0.0, loop.create_future()))
    assert len(queue.take(0.0).entries) == 1
    assert queue.next_event(0.0) == float("inf")
    del tensor
    assert reference() is None


def test_what_was_taken_is_not_kept_for_the_time_when_it_would_be_late(loop: asyncio.AbstractEventLoop) -> None:
    queue = Queue("m", Batching(max_batch_size=8, timeout_us=1_000_000_000, timeout_action="delay"))
    tensor = np.zeros(1)
    reference = weakref.ref(tensor)
    queue.offer(Entry(Request("m", {"x": tensor}), 1, "k", 0.0, loop.create_future()))
    assert len(queue.take(0.0).entries) == 1
    assert queue.next_event(0.0) == float("inf")
    del tensor
    assert reference() is None
