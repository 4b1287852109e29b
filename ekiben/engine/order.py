"""Answers in the order of the questions (Triton's preserve_ordering).

offer ─► Scheduler.offer ─► inner future ─► done in any order ─► outer futures, oldest first
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import Any, Final, final

from ekiben.engine.scheduler import Scheduler
from ekiben.errors import QueueFull
from ekiben.types import Request, Response

__all__ = ["OrderedScheduler"]

_SLACK: Final = 16


@final
class OrderedScheduler(Scheduler):
    """A Scheduler whose futures are done in the order of their requests, whether with an answer or an error."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._promised: deque[tuple[asyncio.Future[Response], asyncio.Future[Response]]] = deque()
        """Inner and outer futures, oldest first; among them some whose callers have left."""
        self._open = 0
        """Outer futures that are not done: their requests wait, run or are held back for an earlier one."""

    def offer(self, request: Request, rows: int, key: Hashable) -> asyncio.Future[Response]:
        bound = self._settings.batching.max_queue_rows
        if self._open >= bound:
            raise self._full(
                QueueFull(
                    f"model '{self._model}': Exceeds maximum queue size: {self._open} requests wait, run or are held "
                    f"back for an earlier one (preserve_ordering), and max_queue_rows is {bound}"
                )
            )
        inner = super().offer(request, rows, key)
        outer: asyncio.Future[Response] = self._loop.create_future()
        if len(self._promised) > 2 * self._open + _SLACK:
            self._promised = deque(pair for pair in self._promised if not pair[1].done())
        self._promised.append((inner, outer))
        self._open += 1
        inner.add_done_callback(self._flush)
        outer.add_done_callback(partial(self._closed, inner))
        return outer

    def _closed(self, inner: asyncio.Future[Response], outer: asyncio.Future[Response]) -> None:
        self._open -= 1
        if outer.cancelled():
            inner.cancel()

    def _flush(self, inner: asyncio.Future[Response]) -> None:
        if not inner.cancelled():
            inner.exception()  # it is told through the outer one, where somebody is left to be told
        while self._promised and self._promised[0][0].done():
            first, outer = self._promised.popleft()
            if outer.done():
                continue
            if first.cancelled():
                outer.cancel()
            elif error := first.exception():
                outer.set_exception(error)
            else:
                outer.set_result(first.result())
