"""POSIX shared-memory objects of a client, as tests use them."""

import gc
import itertools
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final

_NUMBERS: Final = itertools.count()
DIRECTORY: Final = Path("/dev/shm")


def free_name() -> str:
    """A name that no object has."""
    return f"ekiben-test-{uuid.uuid4().hex}-{next(_NUMBERS)}"


class ShmObject:
    """An object of that many bytes, gone at the end of `with`. `key` is as a client tells it to a server."""

    def __init__(self, size: int) -> None:
        self.name = free_name()
        self.key = f"/{self.name}"
        self.path = DIRECTORY / self.name
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.cut(size)

    def __enter__(self) -> "ShmObject":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def cut(self, size: int) -> None:
        """Make it so long."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """How long it is."""
        return os.fstat(self._descriptor).st_size

    def put(self, data: bytes, offset: int = 0) -> None:
        """Write."""
        assert os.pwrite(self._descriptor, data, offset) == len(data)

    def get(self, size: int, offset: int = 0) -> bytes:
        """Read."""
        return os.pread(self._descriptor, size, offset)


def descriptors() -> int:
    """How many files this process has open, without those that only a cycle of garbage holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
