"""When a batch may be handed to an instance that is still busy with another.

Pure: the time is passed in. Handing over early hides the copy into shared memory and the hop to the runner;
handing over late lets more requests gather. So a fast model gets its next batch at once, since the hop then costs more
than what could still gather, and a slow one gets it shortly before the running batch is expected to end.
"""

from collections import deque
from typing import Final

__all__ = ["Pace"]

_FAST_SECONDS: Final = 0.001
_LEAD_SHARE: Final = 0.1
_SHORTEST_LEAD_SECONDS: Final = 0.002
_LONGEST_LEAD_SECONDS: Final = 0.005
_WEIGHT: Final = 0.2
"""Of the newest run in the moving average."""


class Pace:
    """What each instance is doing, and how long batches of each size take."""

    def __init__(self) -> None:
        self._running: dict[int, deque[int]] = {}
        """Rows of the batches handed to an instance, the one that runs first."""
        self._opens: dict[int, float] = {}
        """When a busy instance may be handed another batch."""
        self._seconds: dict[int, float] = {}
        """Rows → how long a batch of that size computes."""

    def started(self, instance: int, rows: int, now: float) -> None:
        """A batch was handed over."""
        running = self._running.setdefault(instance, deque())
        running.append(rows)
        if len(running) == 1:
            self._opens[instance] = self._opening(rows, now)

    def finished(self, instance: int, now: float, compute_seconds: float | None) -> None:
        """The instance's oldest batch ended; None: it did not run to its end."""
        running = self._running[instance]
        rows = running.popleft()
        if compute_seconds is not None:
            known = self._seconds.get(rows, compute_seconds)
            self._seconds[rows] = known + (compute_seconds - known) * _WEIGHT
        if running:
            self._opens[instance] = self._opening(running[0], now)

    def busy(self, instance: int) -> bool:
        """Whether the instance runs a batch."""
        return bool(self._running.get(instance))

    def may_start(self, instance: int, now: float) -> bool:
        """Whether the instance should be handed a batch that is not full."""
        return not self._running.get(instance) or now >= self._opens[instance]

    def next_opening(self, now: float) -> float:
        """When a busy instance may next be handed another batch; infinity: none is going to."""
        times = (self._opens[instance] for instance, running in self._running.items() if len(running) == 1)
        return min((time for time in times if time > now), default=float("inf"))

    def seconds(self, rows: int) -> float:
        """How long a batch of that size computes, as far as is known: as long as one of the nearest size that ran."""
        nearest = min(self._seconds, key=lambda known: abs(known - rows), default=rows)
        return self._seconds.get(nearest, 0.0)

    def _opening(self, rows: int, now: float) -> float:
        seconds = self.seconds(rows)
        if seconds <= _FAST_SECONDS:
            return now
        lead = min(max(seconds * _LEAD_SHARE, _SHORTEST_LEAD_SECONDS), _LONGEST_LEAD_SECONDS)
        return now + max(seconds - lead, 0.0)
