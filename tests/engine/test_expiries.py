"""The heap of what happens when."""

import asyncio

import pytest

from ekiben.engine.entry import NEVER, Entry
from ekiben.engine.expiries import Expiries
from ekiben.types import Request


@pytest.fixture
def entries() -> list[Entry]:
    loop = asyncio.new_event_loop()
    made = [Entry(Request("m", {}), 1, "k", 0.0, loop.create_future()) for _ in range(500)]
    loop.close()
    return made


def test_those_whose_time_has_come_come_out_in_order(entries: list[Entry]) -> None:
    expiries = Expiries()
    first, second, third, fourth = entries[:4]
    for when, entry in ((3.0, third), (1.0, first), (4.0, fourth), (1.0, second)):
        expiries.add(when, entry, 4)
    assert expiries.next() == 1.0
    assert expiries.due(0.5) == []
    assert expiries.due(3.0) == [first, second, third]
    assert expiries.next() == 4.0
    assert expiries.due(9.0) == [fourth]
    assert (expiries.next(), len(expiries)) == (NEVER, 0)


def test_those_that_have_left_are_passed_over(entries: list[Entry]) -> None:
    expiries = Expiries()
    for when, entry in enumerate(entries[:4]):
        expiries.add(when, entry, 4)
    entries[0].taken = entries[2].taken = 0.0
    assert expiries.next() == 1
    assert expiries.due(9.0) == [entries[1], entries[3]]


def test_those_that_have_left_are_not_kept_in_numbers(entries: list[Entry]) -> None:
    expiries = Expiries()
    for when, entry in enumerate(entries):
        expiries.add(-when, entry, 1)
        if when:
            entry.taken = 0.0
        assert len(expiries) <= 20
    assert expiries.next() == 0
