"""Entries that may share a batch, in the order in which they are to be taken.

A `Fifo` is all that a queue without priorities needs. A `Ranked` keeps a lane for each rank in use. In both an entry
that has left the queue may still stand between others (its `taken` is set) and is passed over, but never in front.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias, final

from ekiben.engine.entry import NEVER, Entry

__all__ = ["Fifo", "Group", "Lane", "Ranked"]

Lane: TypeAlias = deque[Entry]


@final
class Fifo(deque[Entry]):
    """In order of arrival. Never empty while it is in a queue."""

    __slots__ = ("rows",)

    def __init__(self, entry: Entry) -> None:
        super().__init__((entry,))
        self.rows = entry.rows
        """Of those that wait; the queue keeps it."""

    @property
    def arrived(self) -> float:
        """When the oldest came."""
        return self[0].arrived

    def standing(self, in_order: bool) -> tuple[int, float]:
        """The smallest of several groups goes first. `in_order`: of arrival, whatever the ranks."""
        return 0, self[0].arrived

    def lane(self, in_order: bool) -> Lane:
        """Where the next entry stands in front; empty: there is none."""
        return self

    def trim(self) -> int:
        """Drop those in front that have left. How many they were."""
        return _trimmed(self)

    def take_out(self, unwanted: Callable[[Entry], bool]) -> list[Entry]:
        """Take out those that wait and are unwanted; those that have left go too."""
        kept, removed = _divided(self, unwanted)
        self.clear()
        self.extend(kept)
        self.rows = sum(entry.rows for entry in kept)
        return removed


@final
class Ranked:
    """By rank, and in order of arrival within one. What a Fifo has, and no lane is ever empty."""

    __slots__ = ("_lanes", "rows")

    def __init__(self, entry: Entry) -> None:
        self._lanes: dict[int, Lane] = {entry.rank: deque((entry,))}
        """By rank, ascending."""
        self.rows = entry.rows

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def arrived(self) -> float:
        return min(lane[0].arrived for lane in self._lanes.values())

    def append(self, entry: Entry) -> None:
        """Put an entry into its rank's lane: behind all others, but for one that was late sooner than an older one."""
        lane = self._lanes.get(entry.rank)
        if lane is None:
            self._lanes = dict(sorted([*self._lanes.items(), (entry.rank, deque((entry,)))]))
            return
        place = len(lane)
        while place and lane[place - 1].arrived > entry.arrived:
            place -= 1
        lane.insert(place, entry)

    def standing(self, in_order: bool) -> tuple[int, float]:
        if in_order:
            return 0, self.arrived
        rank, lane = next(iter(self._lanes.items()))
        return rank, lane[0].arrived

    def lane(self, in_order: bool) -> Lane:
        if in_order and self._lanes:
            return min(self._lanes.values(), key=lambda lane: lane[0].arrived)
        return next(iter(self._lanes.values()), deque())

    def trim(self) -> int:
        dropped = 0
        for rank, lane in list(self._lanes.items()):
            dropped += _trimmed(lane)
            if not lane:
                del self._lanes[rank]
        return dropped

    def take_out(self, unwanted: Callable[[Entry], bool]) -> list[Entry]:
        divided = {rank: _divided(lane, unwanted) for rank, lane in self._lanes.items()}
        self._lanes = {rank: deque(kept) for rank, (kept, _) in divided.items() if kept}
        self.rows = sum(entry.rows for kept, _ in divided.values() for entry in kept)
        return [entry for _, removed in divided.values() for entry in removed]


Group: TypeAlias = Fifo | Ranked


def _trimmed(lane: Lane) -> int:
    dropped = 0
    while lane and lane[0].taken != NEVER:
        lane.popleft()
        dropped += 1
    return dropped


def _divided(lane: Lane, unwanted: Callable[[Entry], bool]) -> tuple[list[Entry], list[Entry]]:
    kept: list[Entry] = []
    removed: list[Entry] = []
    for entry in lane:
        if entry.taken == NEVER:
            (removed if unwanted(entry) else kept).append(entry)
    return kept, removed
