"""A JSON array in a file that grows, and that can be read at any time, also after a crash.

The array is closed after each append; the next one is written over the closing bracket, in one call.
"""

import errno
import os
from typing import Final, final

__all__ = ["ArrayFile"]

_MODE: Final = 0o644


@final
class ArrayFile:
    """For one thread; blocking. No file is held open between calls."""

    def __init__(self, path: str) -> None:
        """A file that is there already is replaced by the first append."""
        self.path: Final = path
        self._end = 0
        """Bytes in the file, as far as they are ours."""

    def append(self, items: bytes) -> None:
        """Add items, written as JSON with commas between. Raises OSError, and what was there before stays.

        A file that somebody has taken away or emptied begins anew.
        """
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            if os.fstat(file).st_size < self._end:
                self._end = 0
            if not self._end:
                os.ftruncate(file, 0)
            start = max(self._end - 1, 0)
            line = b"%b%b]" % (b",\n" if self._end else b"[", items)
            written = os.pwrite(file, line, start)
            if written < len(line):
                os.ftruncate(file, start)
                os.pwrite(file, b"]" if self._end else b"", start)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._end = start + len(line)
            os.ftruncate(file, self._end)
        finally:
            os.close(file)
