"""The queue under any events: nobody is lost, nobody comes out twice, the order and the counts are right."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiben.engine.entry import NEVER, Entry
from ekiben.engine.queue import Queue
from ekiben.errors import QueueFull
from ekiben.types import Batching, QueuePolicy, Request

_SIZES = st.sampled_from([0, 1, 2, 5])
_SECONDS = st.sampled_from([0, 1, 2, 5])
_BATCHINGS = st.builds(
    lambda size, delay, preferred, rows, patience, action, allowed, policies: Batching(
        max_batch_size=size,
        max_delay_us=delay * 1_000_000,
        preferred_sizes=preferred,
        max_queue_rows=rows,
        timeout_us=patience * 1_000_000,
        timeout_action=action,
        allow_timeout_override=allowed,
        priority_levels=3 if policies is not None else 0,
        default_priority=2 if policies is not None else 0,
        priority_policies=policies or {},
    ),
    _SIZES,
    _SECONDS,
    st.lists(st.integers(1, 4), max_size=2).map(tuple),
    st.sampled_from([4, 30]),
    _SECONDS,
    st.sampled_from(["reject", "delay"]),
    st.booleans(),
    st.none()
    | st.dictionaries(
        st.integers(1, 3),
        st.builds(
            QueuePolicy,
            max_queue_rows=st.none() | st.just(3),
            timeout_us=st.none() | st.just(1_000_000),
            timeout_action=st.sampled_from([None, "reject", "delay"]),
        ),
        max_size=2,
    ),
)
_OFFER = st.tuples(
    st.just("offer"),
    st.tuples(
        st.integers(0, 3),  # rows
        st.sampled_from("ab"),  # key
        st.integers(0, 4),  # priority
        st.sampled_from([0, 0, 0, 1, 3, 9]),  # its own timeout
        st.sampled_from([None, None, -1, 2, 4]),  # its deadline, from now on
    ),
)
_EVENTS = st.lists(
    _OFFER
    | _OFFER
    | st.tuples(st.sampled_from(["take", "take", "expire", "sweep", "next", "nearly"]), st.none())
    | st.tuples(st.sampled_from(["pass", "cancel"]), st.integers(0, 3)),
    max_size=60,
)


class Story:
    """A queue, and what must be true of it by what has happened to it."""

    def __init__(self, batching: Batching, loop: asyncio.AbstractEventLoop) -> None:
        self.batching = batching
        self.queue = Queue("m", batching)
        self.loop = loop
        self.now = 0.0
        self.inside: dict[int, Entry] = {}
        """By the number of their request, in order of arrival."""
        self.out: Counter[int] = Counter()
        self.offered = 0

    def offer(self, wish: tuple[int, str, int, int, int | None]) -> None:
        rows, key, priority, timeout, deadline = wish
        number = self.offered = self.offered + 1
        until = None if deadline is None else self.now + deadline
        request = Request("m", {}, id=str(number), priority=priority, timeout_us=timeout * 1_000_000, deadline=until)
        entry = Entry(request, rows, key, self.now, self.loop.create_future())
        level = [each for each in self.inside.values() if self.level(each) == self.level(entry)]
        policy = self.batching.priority_policies.get(self.level(entry), QueuePolicy())
        bound = self.batching.max_queue_rows if policy.max_queue_rows is None else policy.max_queue_rows
        if sum(each.rows for each in level) + rows > bound or len(level) >= bound:
            with pytest.raises(QueueFull):
                self.queue.offer(entry)
        else:
            self.queue.offer(entry)
            self.inside[number] = entry

    def level(self, entry: Entry) -> int:
        levels, priority = self.batching.priority_levels, entry.request.priority
        return 0 if not levels else priority if 1 <= priority <= levels else self.batching.default_priority

    def over(self, entry: Entry) -> float:
        """When its patience ends."""
        policy = self.batching.priority_policies.get(self.level(entry), QueuePolicy())
        patience_us = self.batching.timeout_us if policy.timeout_us is None else policy.timeout_us
        own_us = entry.request.timeout_us if self.batching.allow_timeout_override else 0
        wishes = [wish for wish in (patience_us, own_us) if wish]
        return entry.arrived + min(wishes) / 1e6 if wishes else NEVER

    def delays(self, entry: Entry) -> bool:
        policy = self.batching.priority_policies.get(self.level(entry), QueuePolicy())
        return (policy.timeout_action or self.batching.timeout_action) == "delay"

    def refused_at(self, entry: Entry) -> float:
        deadline = NEVER if entry.request.deadline is None else entry.request.deadline
        return deadline if self.delays(entry) else min(deadline, self.over(entry))

    def leave(self, entries: list[Entry]) -> list[int]:
        numbers = [int(entry.request.id) for entry in entries]
        for number in numbers:
            self.out[number] += 1
            assert number in self.inside, "it is not there, or has come out before"
            del self.inside[number]
        return numbers

    def take(self) -> bool:
        before = dict(self.inside)
        taken = self.queue.take(self.now)
        refused = {number for number, entry in before.items() if self.refused_at(entry) <= self.now}
        assert set(self.leave(taken.expired)) == refused
        assert all(before[number].future.done() for number in self.leave(taken.cancelled))
        numbers = self.leave(taken.entries)
        batch = [before[number] for number in numbers]
        assert not any(entry.future.done() for entry in batch)
        assert len({entry.key for entry in batch}) <= 1
        assert len(batch) <= 1 or sum(entry.rows for entry in batch) <= max(self.batching.max_batch_size or 1, 1)
        for number, entry in zip(numbers, batch, strict=True):
            if self.over(entry) > self.now:
                older = [
                    other
                    for other, each in self.inside.items()
                    if other < number and each.key == entry.key and self.level(each) == self.level(entry)
                ]
                assert all(self.over(self.inside[other]) <= self.now for other in older), "an older one was passed over"
        return bool(taken.expired or taken.cancelled or taken.entries)

    def expire(self) -> bool:
        due = {number for number, entry in self.inside.items() if self.refused_at(entry) <= self.now}
        assert set(self.leave(self.queue.expire(self.now))) == due
        return bool(due)

    def to_the_next_event(self, nearly: bool) -> None:
        """Everything due is out; then nothing is to be found before the next event, and something at it."""
        self.expire()
        assert self.queue.next_event(self.now) > self.now, "what is due now is no event to wait for"
        while self.take():
            pass
        event = self.queue.next_event(self.now)
        assert event > self.now
        if event == NEVER:
            self.now += 100
            assert not self.expire()
            assert not self.take()
            return
        self.now = (self.now + event) / 2
        assert not self.expire()
        assert not self.take()
        assert self.queue.next_event(self.now) == event
        if not nearly:
            self.now = event
            found = self.expire()
            assert self.take() or found

    def cancel(self, number: int) -> None:
        for entry in list(self.inside.values())[number : number + 1]:
            entry.future.cancel()

    def check(self) -> None:
        assert self.queue.rows == sum(entry.rows for entry in self.inside.values())
        assert len(self.queue) == len(self.inside)
        by_key = Counter[str]()
        for entry in self.inside.values():
            by_key[str(entry.key)] += entry.rows
        assert self.queue.full() == any(rows >= max(self.batching.max_batch_size or 1, 1) for rows in by_key.values())


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@settings(max_examples=300, deadline=None)
@given(batching=_BATCHINGS, events=_EVENTS)
def test_whatever_happens(
    batching: Batching, events: list[tuple[str, object]], loop: asyncio.AbstractEventLoop
) -> None:
    story = Story(batching, loop)
    for what, detail in events:
        match what, detail:
            case "offer", tuple():
                story.offer(detail)
            case "pass", int():
                story.now += detail
            case "cancel", int():
                story.cancel(detail)
            case "take", _:
                story.take()
            case "expire", _:
                story.expire()
            case "sweep", _:
                gone = {number for number, entry in story.inside.items() if entry.future.done()}
                assert set(story.leave(story.queue.sweep())) == gone
            case _:
                story.to_the_next_event(nearly=what == "nearly")
        story.check()
    story.leave(story.queue.drain())
    assert not story.inside
    story.check()
    assert set(story.out.values()) <= {1}
