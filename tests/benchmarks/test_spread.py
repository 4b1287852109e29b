import statistics

import pytest

from benchmarks.spread import Spread, ratios, short, spread


def test_a_spread_is_median_minimum_and_maximum() -> None:
    assert spread([3, 1, 2]) == Spread(median=2, minimum=1, maximum=3)
    assert spread([4, 1, 2, 3]).median == 2.5


def test_nothing_has_no_spread() -> None:
    with pytest.raises(statistics.StatisticsError):
        spread([])


def test_ratios_are_taken_in_pairs() -> None:
    assert ratios([10, 30, 20], [1, 2, 4]) == Spread(median=10, minimum=5, maximum=15)


def test_pairs_need_two() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios([1, 2], [1])


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (100, "100"), (99.94, "99.9"), (0.12345, "0.123"), (0, "0"), (1 / 3, "0.333")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_spread_reads_as_one_cell() -> None:
    assert str(Spread(median=2, minimum=1.5, maximum=1000)) == "2 [1.5 … 1,000]"
