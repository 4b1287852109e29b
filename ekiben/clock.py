"""The clock is passed in, so that tests own the time."""

import time
from typing import Final, Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock"]


class Clock(Protocol):
    """Where durations and dates come from. Never blocks."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def epoch(self) -> float:
        """Seconds since 1970-01-01 UTC, for timestamps that people or protocols read."""
        ...


class SystemClock:
    """The machine's own clock."""

    monotonic = staticmethod(time.monotonic)
    epoch = staticmethod(time.time)


SYSTEM_CLOCK: Final = SystemClock()
