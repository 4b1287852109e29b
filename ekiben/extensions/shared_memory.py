"""Shared-memory regions: names that clients give to parts of POSIX shared-memory objects, for tensors to stand in.

    register: key ─► object under /dev/shm, opened once ─► Region
    window:   region, offset, size ─► Window ─► read, write

An object is never mapped: whoever owns it may cut it at any time, and touching a page that is gone ends a process with
SIGBUS. Reading and writing by its descriptor costs a copy, and a cut object is an error for the request that met it.
"""

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final, Protocol, final

import msgspec
import numpy as np

from ekiben.errors import AlreadyExists, CannotOpen, InvalidRequest, NotFound, Unavailable, Unsupported

__all__ = [
    "NO_REGIONS",
    "NoRegions",
    "Region",
    "Regions",
    "SharedMemory",
    "Window",
    "check_no_cuda",
    "cuda_refusal",
    "most_regions",
]

_DIRECTORY: Final = "/dev/shm"
"""Where shm_open of the C library looks."""
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""Not through a symbolic link, and not waiting for what is no shared-memory object: a FIFO, a lease on the file."""
_MOST: Final = 1024
_LONGEST_KEY_BYTES: Final = 255
_LONGEST_NAME: Final = 1024
_SHOWN: Final = 200
"""Characters of a client's name or key that an error repeats."""
_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@final
class _Object:
    """An open shared-memory object. It closes when nobody has it any more.

    A thread may still be reading for a request that was given up, and closing the descriptor under it would hand it
    whatever file gets that number next: so the last reference closes, wherever it is.
    """

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor: Final = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Region(msgspec.Struct, frozen=True):
    """`byte_size` bytes of the object `key`, from `offset` on, by the name that a client gave them."""

    name: str
    key: str
    offset: int
    byte_size: int
    opened: _Object


@final
class Window:
    """`size` bytes of a region, inside it. Stays usable when the region is unregistered; for any thread."""

    __slots__ = ("_region", "_start", "size")

    def __init__(self, region: Region, offset: int, size: int) -> None:
        self._region = region
        self._start = region.offset + offset
        self.size: Final = size

    def read(self) -> memoryview:
        """A copy of the bytes as they are now. Raises InvalidRequest where the object was cut."""
        descriptor, start = self._region.opened.descriptor, self._start
        # numpy asks for huge pages, which halves the time of a large copy into new memory.
        data = missing = np.empty(self.size, np.uint8).data
        while missing:
            count = os.preadv(descriptor, [missing], start)
            if not count:
                raise self._cut()
            missing, start = missing[count:], start + count
        return data

    def write(self, data: bytes | memoryview) -> None:
        """Put bytes at its beginning, at most `size` of them.

        Raises InvalidRequest where the object was cut, Unavailable where there is no memory left for it.
        """
        descriptor, start = self._region.opened.descriptor, self._start
        if os.fstat(descriptor).st_size < start + len(data):
            # Writing would make it as long again.
            raise self._cut()
        try:
            while data:
                written = os.pwrite(descriptor, data, start)
                data, start = data[written:], start + written
        except OSError as error:
            raise Unavailable(
                f"cannot write to shared memory region '{self._region.name:.{_SHOWN}}': {error.strerror}"
            ) from None

    def _cut(self) -> InvalidRequest:
        region = self._region
        return InvalidRequest(
            f"shared memory region '{region.name:.{_SHOWN}}': the object '{region.key:.{_SHOWN}}' has become shorter "
            f"than the {region.byte_size} bytes at {region.offset} that were registered"
        )


class SharedMemory(Protocol):
    """The regions that clients registered; all clients of both doors share them. Used on the loop; nothing blocks."""

    extensions: Sequence[str]
    """What server metadata say of it."""
    read_limit_bytes: int
    """What one request's inputs may come to."""

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open an object and name a part of it.

        Raises InvalidRequest, AlreadyExists, CannotOpen, Unavailable at a limit, Unsupported where all this is off.
        """
        ...

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them. Requests that use it already keep it. A name unknown is fine."""
        ...

    def status(self, name: str = "") -> list[Region]:
        """One region, or all by their names. Raises NotFound."""
        ...

    def window(self, name: str, offset: int, size: int) -> Window:
        """A part of a region to read or write. Raises NotFound, and InvalidRequest for what is not inside it."""
        ...


@final
class Regions:
    """SharedMemory where clients may use it. `most` regions at once, since each holds a file descriptor."""

    extensions: Sequence[str] = ("system_shared_memory",)

    def __init__(self, read_limit_bytes: int, most: int = _MOST) -> None:
        self.read_limit_bytes = read_limit_bytes
        self._most = most
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """As SharedMemory says."""
        if not 0 < len(name) <= _LONGEST_NAME:
            raise InvalidRequest(
                f"a shared memory region has a name of 1 to {_LONGEST_NAME} characters, got {len(name)}"
            )
        failed = f"failed to register shared memory region '{name:.{_SHOWN}}'"
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name:.{_SHOWN}}' already in manager")
        if byte_size < 1 or offset < 0:
            raise InvalidRequest(
                f"{failed}: invalid args: byte_size must be 1 or more and offset 0 or more, "
                f"got {byte_size} and {offset}"
            )
        if len(self._regions) >= self._most:
            raise Unavailable(f"{failed}: there are {self._most} regions, the most there may be; unregister one first")
        descriptor = _open(key)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise InvalidRequest(f"{failed}: '{key}' is not a shared-memory object")
        if offset + byte_size > status.st_size:
            os.close(descriptor)
            raise InvalidRequest(
                f"{failed}: invalid args: offset {offset} and byte_size {byte_size} reach beyond the "
                f"{status.st_size} bytes of '{key}'"
            )
        self._regions[name] = Region(name, key, offset, byte_size, _Object(descriptor))

    def unregister(self, name: str = "") -> None:
        """As SharedMemory says."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[Region]:
        """As SharedMemory says."""
        if not name:
            return [self._regions[each] for each in sorted(self._regions)]
        if name not in self._regions:
            raise NotFound(f"Unable to find system shared memory region: '{name:.{_SHOWN}}'")
        return [self._regions[name]]

    def window(self, name: str, offset: int, size: int) -> Window:
        """As SharedMemory says."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name:.{_SHOWN}}'")
        if offset >= region.byte_size:
            raise InvalidRequest(
                f"Invalid offset for shared memory region: '{name:.{_SHOWN}}' has {region.byte_size} bytes, "
                f"got {offset}"
            )
        if offset + size > region.byte_size:
            raise InvalidRequest(
                f"Invalid offset + byte size for shared memory region: '{name:.{_SHOWN}}' has {region.byte_size} "
                f"bytes, got {offset} + {size}"
            )
        return Window(region, offset, size)


@final
class NoRegions:
    """SharedMemory where clients may not use it: everything is refused."""

    extensions: Sequence[str] = ()
    read_limit_bytes = 0

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises Unsupported."""
        raise _off(name)

    def unregister(self, name: str = "") -> None:
        """Raises Unsupported."""
        raise _off(name)

    def status(self, name: str = "") -> list[Region]:
        """Raises Unsupported."""
        raise _off(name)

    def window(self, name: str, offset: int, size: int) -> Window:
        """Raises Unsupported."""
        raise _off(name)


NO_REGIONS: Final = NoRegions()


def most_regions(descriptors: int) -> int:
    """How many regions may be registered in a process that may have so many file descriptors (-1: any number)."""
    return _MOST if descriptors < 0 else max(1, min(_MOST, descriptors // 4))


def cuda_refusal(name: str) -> Unsupported:
    """What registering a region of CUDA shared memory is answered."""
    return Unsupported(
        f"failed to register CUDA shared memory region '{name:.{_SHOWN}}': CUDA shared memory is not supported here; "
        "system shared memory is, with --allow-client-shm"
    )


def check_no_cuda(name: str = "") -> None:
    """There are no regions of CUDA shared memory: raise NotFound for any name.

    Asking for all of them, and unregistering, are answered as by a Triton without a GPU: clients that want system
    shared memory do both before they begin.
    """
    if name:
        raise NotFound(f"Unable to find cuda shared memory region: '{name:.{_SHOWN}}'")


def _off(name: str) -> Unsupported:
    which = f" (region '{name:.{_SHOWN}}')" if name else ""
    return Unsupported(
        f"this server does not take shared memory from clients{which}: start it with --allow-client-shm "
        "(setting allow_client_shm)"
    )


def _open(key: str) -> int:
    """A descriptor of the object; which kind of file it is has still to be looked at."""
    name = key.removeprefix("/")
    shown = key[:_SHOWN]
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode()) > _LONGEST_KEY_BYTES:
        raise InvalidRequest(
            f"the key of a shared-memory object is one name of at most {_LONGEST_KEY_BYTES} bytes, after a '/' or "
            f"without, got '{shown}'"
        )
    try:
        return os.open(f"{_DIRECTORY}/{name}", _FLAGS)
    except OSError as error:
        if error.errno in _LIMITS:
            raise Unavailable(f"Unable to open shared memory region: '{shown}': {error.strerror}") from None
        why = "" if error.errno == errno.ENOENT else f": {error.strerror}"
        raise CannotOpen(f"Unable to open shared memory region: '{shown}'{why}") from None
