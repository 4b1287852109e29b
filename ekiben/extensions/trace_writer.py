"""The thread that hands ended recordings to those who write them down."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

from ekiben.extensions.recording import Recording

__all__ = ["TraceWriter", "Write"]

Write: TypeAlias = Callable[[Recording], None]

_LOG: Final = logging.getLogger("ekiben.traces")
_MOST_WAITING: Final = 4096


@final
class TraceWriter:
    """Never blocks who hands in: recordings over a bound are dropped, and the log says how many."""

    def __init__(self, writes: Sequence[Write], most_waiting: int = _MOST_WAITING) -> None:
        self._writes = writes
        self._most_waiting = most_waiting
        self._waiting: queue.SimpleQueue[Recording | None] = queue.SimpleQueue()
        self._dropped = 0
        self._failing: set[Write] = set()
        self._thread: threading.Thread | None = None

    def put(self, recording: Recording) -> None:
        """Have it written soon. From the loop only."""
        if self._waiting.qsize() >= self._most_waiting:
            self._dropped += 1
            return
        self._tell_dropped()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
            self._thread.start()
        self._waiting.put(recording)

    def close(self, seconds: float) -> None:
        """Write what waits, and end. Blocks, but no longer than that."""
        self._tell_dropped()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(seconds)

    def _tell_dropped(self) -> None:
        if self._dropped:
            _LOG.warning("%d traces were dropped: they came faster than they can be written", self._dropped)
            self._dropped = 0

    def _run(self) -> None:
        while (recording := self._waiting.get()) is not None:
            for write in self._writes:
                self._write(write, recording)

    def _write(self, write: Write, recording: Recording) -> None:
        try:
            write(recording)
        except Exception as error:
            if write not in self._failing:
                self._failing.add(write)
                known = isinstance(error, OSError)
                _LOG.error("traces cannot be written, and are lost: %s", error, exc_info=None if known else error)
        else:
            self._failing.discard(write)
