"""The responses to one request on their way to the caller: as many as there are, in order, each as soon as it is there.

    scheduler ─► put ─► (a bounded number waits) ─► `async for` ─► the caller

When enough of them wait, `full` says so and the scheduler lets the runner wait too, until `moved` is called.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Self, final

from ekiben.types import Response, Tensor

__all__ = ["MOST_BYTES", "MOST_RESPONSES", "Replies"]

MOST_RESPONSES: Final = 64
"""Responses that may wait for the caller before the runner has to."""
MOST_BYTES: Final = 16 << 20
"""What they may hold together, but for the last of them."""


@final
class Replies:
    """An async iterator of responses for one consumer, which must `close` it however it ends.

    It ends with the stream, or by raising, once what came before is taken: QueueTimeout, InferenceFailed,
    ExecutionTimeout, RunnerDied, NotReady, or Cancelled where the caller was gone or took nothing for too long.
    """

    def __init__(self, future: asyncio.Future[Response], moved: Callable[[], None] | None = None) -> None:
        """`future` is how the request ends: its response is the last one, unless it has no outputs.

        `moved` is called when the consumer took a response or closed; never after the end.
        """
        self._future = future
        self._moved = moved
        self._waiting: deque[tuple[Response, int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._over = False
        future.add_done_callback(self._end)
        self.begun = False
        """Whether a response was ever put."""

    @property
    def full(self) -> bool:
        """Whether enough of them wait."""
        return len(self._waiting) >= MOST_RESPONSES or self._bytes >= MOST_BYTES

    def put(self, response: Response) -> None:
        """One more."""
        size = sum(map(_size, response.outputs.values()))
        self.begun = True
        self._waiting.append((response, size))
        self._bytes += size
        self._changed.set()

    def drop(self) -> None:
        """Let go of those that wait."""
        self._waiting.clear()
        self._bytes = 0

    def close(self) -> None:
        """Take no more: stops the model if it still runs for this, and frees the request's place. Any number of times.

        A model is only seen to have stopped when it yields.
        """
        self._over = True
        self.drop()
        if not self._future.done():
            self._future.cancel()
            if self._moved is not None:
                self._moved()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Response:
        while not self._waiting:
            if self._over:
                raise StopAsyncIteration
            if self._future.done():
                self._over = True
                response = self._future.result()
                if response.outputs:
                    return response
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        response, size = self._waiting.popleft()
        self._bytes -= size
        if self._moved is not None:
            self._moved()
        return response

    def _end(self, future: asyncio.Future[Response]) -> None:
        self._moved = None
        self._changed.set()
        if not future.cancelled():
            future.exception()  # the consumer may have closed, and then looks no more


def _size(tensor: Tensor) -> int:
    if tensor.dtype.kind == "O":
        return tensor.nbytes + sum(map(len, tensor.ravel().tolist()))
    return tensor.nbytes
