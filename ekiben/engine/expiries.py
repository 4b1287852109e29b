"""When something happens to waiting entries, the soonest first: they have waited too long, or are late."""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from ekiben.engine.entry import NEVER, Entry

__all__ = ["Expiries"]

_SLACK: Final = 16


class Expiries(list[tuple[float, int, Entry]]):
    """A heap of those to whom it happens: (when, a number for ties, who). Empty while there are none.

    Entries that left the queue stay in it for a while: they are passed over, and dropped before they outnumber those
    that wait.
    """

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def add(self, when: float, entry: Entry, waiting: int) -> None:
        """Watch an entry. `waiting` entries are in the queue."""
        heappush(self, (when, next(self._numbers), entry))
        if len(self) > 2 * waiting + _SLACK:
            self[:] = [item for item in self if item[2].taken == NEVER]
            heapify(self)

    def due(self, now: float) -> list[Entry]:
        """Take out the waiting entries whose time has come, in order of their times."""
        found: list[Entry] = []
        while self and self[0][0] <= now:
            entry = heappop(self)[2]
            if entry.taken == NEVER:
                found.append(entry)
        return found

    def next(self) -> float:
        """The time of the first that still waits; infinity: there is none."""
        while self and self[0][2].taken != NEVER:
            heappop(self)
        return self[0][0] if self else NEVER
