"""Repeated measurements of one thing, and of two things side by side."""

import statistics
from collections.abc import Iterable

import msgspec

__all__ = ["Spread", "ratios", "short", "spread"]


class Spread(msgspec.Struct, frozen=True):
    """What is reported of some repeats."""

    median: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return f"{short(self.median)} [{short(self.minimum)} … {short(self.maximum)}]"


def spread(values: Iterable[float]) -> Spread:
    """Raises statistics.StatisticsError if there are none."""
    found = sorted(values)
    return Spread(median=statistics.median(found), minimum=found[0], maximum=found[-1])


def ratios(over: Iterable[float], under: Iterable[float]) -> Spread:
    """Of runs taken in pairs: each pair's ratio, because the machine drifts from one pair to the next."""
    return spread(first / second for first, second in zip(over, under, strict=True))


def short(value: float) -> str:
    """Three digits that matter, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
