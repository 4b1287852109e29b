"""The queue of one model version: who waits, who may ride together, and when a batch is released.

Pure: the time is passed in, nothing is awaited, no timer is set. The scheduler calls `take` whenever an
instance is free, and asks `next_event` when to look again if it got nothing.

    offer ──► group of one key ──► take ──► batch (best level first, oldest first, whole requests, at most
      │             │                              max_batch_size rows)
      │             └─ cancelled and expired entries fall out before they cost anything
      └─ QueueFull

A key is everything that must be equal for two requests to share a batch: signature, which inputs are there,
their trailing shapes. Fixed policy: release when the group is full, when a preferred size is reached, when
the oldest has waited `max_delay_us`, or at once where no delay is set.

Priorities are strict, but nobody starves: after seven batches in a row that left an older request waiting,
the next is filled in order of arrival. Requests that are late (timeout_action delay) rank behind those of
their level that are not.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

import msgspec

from ekiben.engine.entry import NEVER, Entry
from ekiben.engine.expiries import Expiries
from ekiben.engine.group import Fifo, Group, Ranked
from ekiben.engine.levels import Level, levels_of
from ekiben.errors import QueueFull
from ekiben.types import Batching, Request

__all__ = ["Queue", "Taken"]

_IN_A_ROW: Final = 7
"""Batches that may leave an older request waiting."""
_SLACK: Final = 16


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
        self._levels = levels_of(batching)
        self._bound = self._levels[0].bound
        self._default = max(batching.default_priority, 1)
        self._several = len(self._levels) > 1
        self._ranked = self._several or any(level.delays for level in self._levels)
        self._timed = any(level.timeout_s for level in self._levels)
        self._new_group: type[Fifo] | type[Ranked] = Ranked if self._ranked else Fifo
        self._groups: dict[Hashable, Group] = {}
        self._expiries = Expiries()
        """Of those to be refused."""
        self._becoming_late = Expiries()
        """Of those to rank behind the others."""
        self._left = 0
        """Entries that have left and still stand between others."""
        self._overtaken = 0
        """Batches in a row that left an older request waiting."""

    def __len__(self) -> int:
        return self._waiting

    def offer(self, entry: Entry) -> None:
        """Take a request in. Raises QueueFull when its rows do not fit."""
        rows = entry.rows
        if self._several:
            self._enter(entry)
        elif self.rows + rows > self._bound or self._waiting >= self._bound:
            raise self._full(self._levels[0], self.rows, self._waiting, rows)
        key = entry.key
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = self._new_group(entry)
        else:
            group.append(entry)
            group.rows += rows
        self.rows += rows
        self._waiting += 1
        request = entry.request
        if self._timed or request.timeout_us or request.deadline is not None:
            self._limit_wait(entry, request)

    def take(self, now: float) -> Taken:
        """The batch that is due now, if any; that of the group with the best level, and the oldest of those."""
        cancelled: list[Entry] = []
        expired = self.expire(now) if self._expiries else []
        if self._becoming_late:
            self._put_back(now)
        while True:
            key, limit, reason = self._due(now)
            if limit == 0:
                return Taken([], "", cancelled, expired)
            entries = self._pop(key, limit, now, cancelled)
            if entries:
                if self._ranked:
                    self._overtaken = self._overtaken + 1 if self._left_older(entries) else 0
                return Taken(entries, reason, cancelled, expired)

    def full(self) -> bool:
        """Whether some group could fill a batch to max_batch_size."""
        return any(group.rows >= self._largest for group in self._groups.values())

    def expire(self, now: float) -> list[Entry]:
        """Take out the entries that have waited too long."""
        if not self._expiries or self._expiries[0][0] > now:
            return []
        expired = self._expiries.due(now)
        for entry in expired:
            group = self._leave(entry, now)
            group.rows -= entry.rows
            if not group:
                del self._groups[entry.key]
        self._count_out(expired)
        self._tidy()
        return expired

    def sweep(self) -> list[Entry]:
        """Take out the entries that nobody waits for any more."""
        return self._remove(lambda entry: not entry.alive())

    def next_event(self, now: float) -> float:
        """The next time at which `take` or `expire` finds more than at `now`; infinity: never.

        `expire` was called at `now`. What is offered later may bring it forward.
        """
        event = self._expiries.next() if self._expiries else NEVER
        if self._becoming_late:
            self._becoming_late.next()  # no event, but those that have left are not to be kept for it
        if self._delay:
            times = (group.arrived + self._delay for group in self._groups.values())
            event = min(event, min((time for time in times if time > now), default=NEVER))
        return event

    def drain(self) -> list[Entry]:
        """Take everything out, best and oldest of each group first."""
        return self._remove(lambda _: True)

    def _enter(self, entry: Entry) -> None:
        """Give an entry its level's rank, and count it there."""
        priority = entry.request.priority
        number = priority if 0 < priority <= len(self._levels) else self._default
        level = self._levels[number - 1]
        if level.rows + entry.rows > level.bound or level.waiting >= level.bound:
            raise self._full(level, level.rows, level.waiting, entry.rows)
        level.rows += entry.rows
        level.waiting += 1
        entry.rank = 2 * (number - 1)

    def _full(self, level: Level, rows: int, waiting: int, more: int) -> QueueFull:
        where = f" at priority level {level.number}" if level.number else ""
        return QueueFull(
            f"model '{self._model}': Exceeds maximum queue size: {waiting} requests of {rows} rows wait{where}, "
            f"{more} more rows would exceed max_queue_rows {level.bound}"
        )

    def _due(self, now: float) -> tuple[Hashable, int, str]:
        """Key, row limit and reason of the first releasable group; a limit of 0 means that none is."""
        best: tuple[Hashable, int, str] = (None, 0, "")
        first: tuple[float, float] = (NEVER, NEVER)
        in_order = self._overtaken >= _IN_A_ROW
        for key, group in self._groups.items():
            standing = group.standing(in_order)
            if standing < first:
                limit, reason = self._limit(group, now)
                if limit:
                    best, first = (key, limit, reason), standing
        return best

    def _limit(self, group: Group, now: float) -> tuple[int, str]:
        if group.rows >= self._largest:
            return self._largest, "full"
        for size in reversed(self._preferred):
            if size <= group.rows:
                return size, "preferred"
        if not self._delay:
            return self._largest, "idle"
        if now >= group.arrived + self._delay:
            return self._largest, "delay"
        return 0, ""

    def _pop(self, key: Hashable, limit: int, now: float, cancelled: list[Entry]) -> list[Entry]:
        group = self._groups[key]
        in_order = self._overtaken >= _IN_A_ROW
        entries: list[Entry] = []
        gone: list[Entry] = []
        room, waits = limit, NEVER
        lane = group.lane(in_order)
        while lane:
            entry = lane[0]
            if entry.taken != waits:
                self._left -= 1
            elif entry.future.done() or ((alive := entry.request.alive) is not None and not alive()):
                # Entry.alive, without the call: this is asked of every request.
                entry.taken = now
                gone.append(entry)
            else:
                rows = entry.rows
                if rows > room and entries:
                    break
                entry.taken = now
                entries.append(entry)
                room -= rows
            lane.popleft()
            if room <= 0:
                break
            if self._ranked and (in_order or not lane):
                self._left -= group.trim()
                lane = group.lane(in_order)
        rows = limit - room
        if gone:
            cancelled += gone
            rows += sum(entry.rows for entry in gone)
        group.rows -= rows
        self.rows -= rows
        self._waiting -= len(entries) + len(gone)
        if self._several:
            self._uncount(entries)
            self._uncount(gone)
        if self._left or self._ranked:
            self._left -= group.trim()
        if not group:
            del self._groups[key]
        return entries

    def _left_older(self, entries: list[Entry]) -> bool:
        """Whether somebody waits who came before one of these."""
        newest = max(entry.arrived for entry in entries)
        return any(group.arrived < newest for group in self._groups.values())

    def _limit_wait(self, entry: Entry, request: Request) -> None:
        """Say how long an entry may wait, and watch it."""
        level = self._levels[entry.rank >> 1]
        patience_s = level.patience_s(request)
        over = entry.arrived + patience_s if patience_s else NEVER
        deadline = NEVER if request.deadline is None else request.deadline
        if level.delays:
            if over < deadline:
                self._becoming_late.add(over, entry, self._waiting)
            over = NEVER
        entry.expires = min(over, deadline)
        if entry.expires != NEVER:
            self._expiries.add(entry.expires, entry, self._waiting)

    def _put_back(self, now: float) -> None:
        """Give those that are late by now a new place, behind those of their level that are not."""
        for entry in self._becoming_late.due(now):
            late = entry.late()
            if late.expires != NEVER:
                self._expiries.add(late.expires, late, self._waiting)
            self._groups[entry.key].append(late)
            self._leave(entry, now)
        self._tidy()

    def _leave(self, entry: Entry, now: float) -> Group:
        """An entry goes from where it stands, which may be between others. Its group, which may be empty then."""
        group = self._groups[entry.key]
        entry.taken = now
        self._left += 1 - group.trim()
        return group

    def _tidy(self) -> None:
        """Drop those that have left once they outnumber those that wait."""
        if self._left > self._waiting + _SLACK:
            self._remove(lambda _: False)

    def _count_out(self, entries: Sequence[Entry]) -> None:
        """Entries have left."""
        self.rows -= sum(entry.rows for entry in entries)
        self._waiting -= len(entries)
        if self._several:
            self._uncount(entries)

    def _uncount(self, entries: Iterable[Entry]) -> None:
        """They are no longer counted at their levels."""
        for entry in entries:
            level = self._levels[entry.rank >> 1]
            level.rows -= entry.rows
            level.waiting -= 1

    def _remove(self, unwanted: Callable[[Entry], bool]) -> list[Entry]:
        removed: list[Entry] = []
        for key, group in list(self._groups.items()):
            removed += group.take_out(unwanted)
            if not group:
                del self._groups[key]
        for entry in removed:
            entry.taken = entry.arrived
        self._left = 0
        self._count_out(removed)
        return removed
