"""The time that a check may take, which both of its clients look at."""

import time
from typing import final

from ekiben.clock import Clock
from ekiben.conformance.verdicts import NoReply

__all__ = ["Deadline"]


@final
class Deadline:
    """Set again before each check."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._end = clock.monotonic() + seconds

    def restart(self, seconds: float | None = None) -> None:
        """From now on there are `seconds`; None: as many as at the start."""
        self._end = self._clock.monotonic() + (self.seconds if seconds is None else seconds)

    def wait(self, seconds: float) -> None:
        """Let that much time pass, for what the server does meanwhile. Raises NoReply when there is none left."""
        time.sleep(min(seconds, self.remaining()))

    def remaining(self) -> float:
        """Seconds left. Raises NoReply when there are none."""
        left = self._end - self._clock.monotonic()
        if left <= 0:
            raise NoReply("expected an answer in time; got none")
        return left
