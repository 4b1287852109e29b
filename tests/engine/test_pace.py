"""When a busy instance may be handed another batch."""

import pytest

from ekiben.engine.pace import Pace


def paced(seconds: float) -> Pace:
    """A pace that has seen one batch of 4 rows take that long."""
    pace = Pace()
    pace.started(0, 4, 0.0)
    pace.finished(0, seconds, seconds)
    return pace


@pytest.mark.parametrize(
    ("seconds", "opens"),
    [(0.0005, 10.0), (0.001, 10.0), (0.0015, 10.0), (0.004, 10.002), (0.03, 10.027), (1.0, 10.995)],
)
def test_a_fast_batch_leaves_room_at_once_and_a_slow_one_shortly_before_it_ends(seconds: float, opens: float) -> None:
    pace = paced(seconds)
    assert pace.may_start(0, 10.0)
    pace.started(0, 4, 10.0)
    assert pace.may_start(0, opens)
    assert not pace.may_start(0, opens - 1e-6) or opens == 10.0
    assert pace.next_opening(9.0) == pytest.approx(opens)


def test_a_size_that_was_never_seen_counts_as_the_nearest_and_as_fast_when_there_is_none() -> None:
    pace = paced(1.0)
    pace.started(0, 3, 10.0)
    assert not pace.may_start(0, 10.0)
    fresh = Pace()
    fresh.started(0, 3, 10.0)
    assert fresh.may_start(0, 10.0)


def test_the_next_batch_is_timed_from_when_the_one_before_it_ended() -> None:
    pace = paced(1.0)
    pace.started(0, 4, 10.0)
    pace.started(0, 4, 10.99)
    assert pace.next_opening(10.0) == float("inf"), "two batches are all that an instance holds"
    pace.finished(0, 11.5, 1.0)
    assert not pace.may_start(0, 12.49)
    assert pace.may_start(0, 12.496)


def test_instances_are_apart_and_a_batch_that_failed_teaches_nothing() -> None:
    pace = paced(1.0)
    pace.started(0, 4, 10.0)
    assert pace.may_start(1, 10.0)
    pace.finished(0, 10.1, None)
    pace.started(0, 4, 20.0)
    assert pace.next_opening(20.0) == pytest.approx(20.995)
