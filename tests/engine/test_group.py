"""Groups: the order in which entries stand, with gaps where some have left."""

import asyncio
from collections.abc import Iterator

import pytest

from ekiben.engine.entry import Entry
from ekiben.engine.group import Fifo, Group, Ranked
from ekiben.types import Request


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def entry(loop: asyncio.AbstractEventLoop, arrived: float, rank: int = 0) -> Entry:
    made = Entry(Request("m", {}), 1, "k", arrived, loop.create_future())
    made.rank = rank
    return made


def order(group: Group, in_order: bool) -> list[float]:
    """When those arrived that come out, one after the other."""
    found = []
    group.trim()
    while lane := group.lane(in_order):
        found.append(lane.popleft().arrived)
        group.trim()
    return found


def test_ranks_go_first_or_arrivals_do(loop: asyncio.AbstractEventLoop) -> None:
    for in_order, expected in ((False, [2.0, 5.0, 1.0, 4.0, 0.0, 3.0]), (True, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])):
        group = Ranked(entry(loop, 0.0, 4))
        for arrived, rank in ((1.0, 2), (2.0, 0), (3.0, 4), (4.0, 2), (5.0, 0)):
            group.append(entry(loop, arrived, rank))
        assert group.arrived == 0.0
        assert group.standing(False) == (0, 2.0)
        assert group.standing(True) == (0, 0.0)
        assert order(group, in_order) == expected
        assert not group


def test_what_becomes_late_after_a_younger_one_stands_before_it(loop: asyncio.AbstractEventLoop) -> None:
    group = Ranked(entry(loop, 3.0, 1))
    for arrived in (1.0, 5.0, 4.0, 1.0):
        group.append(entry(loop, arrived, 1))
    assert order(group, in_order=False) == [1.0, 1.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("kind", [Fifo, Ranked])
def test_those_that_have_left_never_stand_in_front(kind: type[Group], loop: asyncio.AbstractEventLoop) -> None:
    entries = [entry(loop, float(number)) for number in range(5)]
    group = kind(entries[0])
    for each in entries[1:]:
        group.append(each)
        group.rows += 1
    for number in (0, 1, 3):
        entries[number].taken = 9.0
    assert group.trim() == 2
    assert group.arrived == 2.0
    assert group.take_out(lambda each: each.arrived == 4.0) == [entries[4]]
    assert group.rows == 1
    assert order(group, in_order=False) == [2.0]
