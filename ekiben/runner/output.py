"""What a runner prints: passed on to the engine's stderr, its last lines kept for error reports."""

import asyncio
import contextlib
import os
import select
from typing import Final, final

__all__ = ["OutputPipe"]

_READ_BYTES: Final = 64 * 1024
_KEEP_BYTES: Final = 4000
_KEEP_LINES: Final = 12
_STDERR: Final = 2


@final
class OutputPipe:
    """A pipe drained by the event loop, so that a model that prints much is never stuck, and neither is the engine.

    Where the engine's own stderr is full, lines are dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._last = b""
        loop.add_reader(self._reader, self._pass_on)

    def close_writer(self) -> None:
        """Once the child has its own."""
        os.close(self.writer)
        self.writer = -1

    def last_lines(self) -> str:
        """The last lines printed, at most 12."""
        while self._pass_on():
            pass
        return "\n".join(self._last.decode(errors="replace").splitlines()[-_KEEP_LINES:])

    def close(self) -> None:
        """Drain and close."""
        self.last_lines()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
        if self.writer >= 0:
            self.close_writer()

    def _pass_on(self) -> bool:
        """Take what is there; False when there is nothing now."""
        try:
            printed = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return False
        if not printed:  # everyone who could write is gone
            self._loop.remove_reader(self._reader)
            return False
        self._last = (self._last + printed)[-_KEEP_BYTES:]
        with contextlib.suppress(OSError, ValueError):
            for start in range(0, len(printed), select.PIPE_BUF):
                # A pipe that can be written takes PIPE_BUF bytes without blocking.
                if not select.select([], [_STDERR], [], 0)[1]:
                    break
                os.write(_STDERR, printed[start : start + select.PIPE_BUF])
        return True
