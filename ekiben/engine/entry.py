"""One request that waits for its batch."""

import asyncio
from collections.abc import Hashable
from typing import Final

from ekiben.types import Request, Response

__all__ = ["NEVER", "Entry"]

NEVER: Final = float("inf")


class Entry:
    """One waiting request."""

    __slots__ = ("arrived", "expires", "future", "key", "rank", "request", "retried", "rows", "taken")

    def __init__(
        self, request: Request, rows: int, key: Hashable, arrived: float, future: asyncio.Future[Response]
    ) -> None:
        self.request = request
        self.rows = rows
        self.key = key
        self.arrived = arrived
        self.future = future
        self.rank = 0
        """Twice its priority level, the best being 0 here, and one more once it is late (timeout_action delay)."""
        self.expires = self.taken = NEVER
        """When it is to be refused (infinity: never), and when it left the queue (infinity while it waits)."""
        self.retried = False
        """Whether a runner has died under it already."""

    def late(self) -> "Entry":
        """The same request to stand in another place, behind those of its level that are not late."""
        late = Entry(self.request, self.rows, self.key, self.arrived, self.future)
        late.rank = self.rank + 1
        late.expires = self.expires
        return late

    def alive(self) -> bool:
        """Whether somebody still waits for the answer."""
        if self.future.done():
            return False
        alive = self.request.alive
        return alive is None or alive()
