"""The queue of one model version: who waits, who may ride together, and when a batch is released.

Pure: the time is passed in, nothing is awaited, no timer is set. The scheduler calls `take` whenever an
instance is free, and asks `next_event` when to look again if it got nothing.

    offer ──► group of one key ──► take ──► batch (oldest first, whole requests, at most max_batch_size rows)
      │             │
      │             └─ cancelled or expired entries fall out before they cost anything
      └─ QueueFull

A key is everything that must be equal for two requests to share a batch: signature, which inputs are there,
their trailing shapes. Fixed policy: release when the group is full, when a preferred size is reached, when
the oldest has waited `max_delay_us`, or at once where no delay is set.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final

import msgspec

from ekiben.errors import QueueFull
from ekiben.types import Batching, Request, Response

__all__ = ["Entry", "Queue", "Taken"]

_NEVER: Final = float("inf")


class Entry:
    """One waiting request."""

    __slots__ = ("arrived", "expires", "future", "key", "request", "retried", "rows", "taken")

    def __init__(
        self, request: Request, rows: int, key: Hashable, arrived: float, future: asyncio.Future[Response]
    ) -> None:
        self.request = request
        self.rows = rows
        self.key = key
        self.arrived = arrived
        self.expires = _NEVER
        self.future = future
        self.taken = arrived
        """When it left the queue for its first execution."""
        self.retried = False
        """Whether a runner has died under it already."""

    def alive(self) -> bool:
        """Whether somebody still waits for the answer."""
        if self.future.done():
            return False
        alive = self.request.alive
        return alive is None or alive()


class Taken(msgspec.Struct, frozen=True):
    """What `take` found."""

    entries: list[Entry]
    """To be run together; empty when nothing is due."""
    reason: str
    """Why they were released: full, preferred, delay or idle."""
    cancelled: list[Entry]
    expired: list[Entry]


class Queue:
    """Waiting requests of one version, grouped by key."""

    def __init__(self, model: str, batching: Batching) -> None:
        """`batching` is resolved: max_batch_size is not None, and 0 means that every request runs alone."""
        self.rows = 0
        self._waiting = 0
        self._model = model
        self._largest = max(batching.max_batch_size or 1, 1)
        self._delay = 0.0 if batching.target_latency_ms is not None else batching.max_delay_us / 1e6
        self._preferred = tuple(sorted(size for size in batching.preferred_sizes if size <= self._largest))
        self._bound = batching.max_queue_rows
        self._timeout = batching.timeout_us / 1e6
        self._groups: dict[Hashable, deque[Entry]] = {}
        self._group_rows: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return self._waiting

    def offer(self, entry: Entry) -> None:
        """Take a request in. Raises QueueFull when its rows do not fit."""
        rows = entry.rows
        if self.rows + rows > self._bound or self._waiting >= self._bound:
            raise QueueFull(
                f"model '{self._model}': Exceeds maximum queue size: {self._waiting} requests of {self.rows} rows "
                f"wait, {rows} more rows would exceed max_queue_rows {self._bound}"
            )
        if self._timeout:
            entry.expires = entry.arrived + self._timeout
        key = entry.key
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = deque((entry,))
            self._group_rows[key] = rows
        else:
            group.append(entry)
            self._group_rows[key] += rows
        self.rows += rows
        self._waiting += 1

    def take(self, now: float) -> Taken:
        """The batch that is due now, if any; the oldest group's first."""
        cancelled: list[Entry] = []
        expired: list[Entry] = []
        while True:
            key, limit, reason = self._due(now)
            if limit == 0:
                return Taken([], "", cancelled, expired)
            entries = self._pop(key, limit, now, cancelled, expired)
            if entries:
                return Taken(entries, reason, cancelled, expired)

    def full(self) -> bool:
        """Whether some group could fill a batch to max_batch_size."""
        return any(rows >= self._largest for rows in self._group_rows.values())

    def expire(self, now: float) -> list[Entry]:
        """Take out the entries whose time is over. All wait equally long, so they are at the heads of their groups."""
        expired: list[Entry] = []
        if self._timeout:
            for key in [key for key, group in self._groups.items() if group[0].expires <= now]:
                group = self._groups[key]
                while group and group[0].expires <= now:
                    expired.append(group.popleft())
                    self._group_rows[key] -= expired[-1].rows
                if not group:
                    del self._groups[key], self._group_rows[key]
            self.rows -= sum(entry.rows for entry in expired)
            self._waiting -= len(expired)
        return expired

    def sweep(self) -> list[Entry]:
        """Take out the entries that nobody waits for any more."""
        return self._remove(lambda entry: not entry.alive())

    def next_event(self, now: float) -> float:
        """The next time after `now` at which `take` or `expire` finds more than now; infinity: never."""
        times = (
            time
            for group in self._groups.values()
            for time in (group[0].arrived + self._delay, group[0].expires)
            if time > now
        )
        return min(times, default=_NEVER)

    def drain(self) -> list[Entry]:
        """Take everything out, oldest of each group first."""
        return self._remove(lambda _: True)

    def _due(self, now: float) -> tuple[Hashable, int, str]:
        """Key, row limit and reason of the oldest releasable group; a limit of 0 means that none is."""
        best: tuple[Hashable, int, str] = (None, 0, "")
        oldest = _NEVER
        for key, group in self._groups.items():
            arrived = group[0].arrived
            if arrived < oldest:
                limit, reason = self._limit(self._group_rows[key], arrived, now)
                if limit:
                    best, oldest = (key, limit, reason), arrived
        return best

    def _limit(self, rows: int, arrived: float, now: float) -> tuple[int, str]:
        if rows >= self._largest:
            return self._largest, "full"
        for size in reversed(self._preferred):
            if size <= rows:
                return size, "preferred"
        if not self._delay:
            return self._largest, "idle"
        if now >= arrived + self._delay:
            return self._largest, "delay"
        return 0, ""

    def _pop(self, key: Hashable, limit: int, now: float, cancelled: list[Entry], expired: list[Entry]) -> list[Entry]:
        group = self._groups[key]
        entries: list[Entry] = []
        room, gone = limit, 0
        while group:
            entry = group[0]
            if not entry.alive():
                cancelled.append(entry)
            elif entry.expires <= now:
                expired.append(entry)
            elif entry.rows <= room or not entries:
                entry.taken = now
                entries.append(entry)
                room -= entry.rows
            else:
                break
            group.popleft()
            self._waiting -= 1
            gone += entry.rows
            if room <= 0:
                break
        self.rows -= gone
        if group:
            self._group_rows[key] -= gone
        else:
            del self._groups[key], self._group_rows[key]
        return entries

    def _remove(self, unwanted: Callable[[Entry], bool]) -> list[Entry]:
        removed = [entry for entry in self._entries() if unwanted(entry)]
        gone = set(map(id, removed))
        for key in list(self._groups):
            kept = deque(entry for entry in self._groups[key] if id(entry) not in gone)
            if kept:
                self._groups[key] = kept
                self._group_rows[key] = sum(entry.rows for entry in kept)
            else:
                del self._groups[key], self._group_rows[key]
        self.rows = sum(self._group_rows.values())
        self._waiting -= len(removed)
        return removed

    def _entries(self) -> Iterator[Entry]:
        for group in self._groups.values():
            yield from group
