"""The arena: one slot's shared memory, seen by the engine and its runner at once.

It is a memfd, sealed against shrinking: neither side can take memory away under the other, so a crashed or
misbehaving runner never turns an access of the engine's into a bus error. One side uses it at a time; the messages
of the channel hand it over. Either side may grow it; the other learns the new size from the next message.
"""

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import Final, final

import msgspec
import numpy as np

from ekiben.runner.base import TensorParts
from ekiben.types import DATATYPES, Tensor

__all__ = ["KEEP_BYTES", "Arena", "Placed", "create_memory"]

INITIAL_BYTES: Final = 64 * 1024
"""Most small batches fit; untouched pages cost nothing."""

KEEP_BYTES: Final = 64 * 1024 * 1024
"""What an arena may hold on to for ever. More is given back once batches are small again."""

SMALL_BATCHES: Final = 16
"""That many batches in a row within KEEP_BYTES, and the rest is given back."""

_ALIGNMENT: Final = 64
"""A cache line, and the widest vector register: runtimes then need no copy of their own to align."""

_LENGTH_BYTES: Final = 4
"""Each item of a BYTES tensor follows its length, little-endian, as in the protocol's binary form."""


class Placed(msgspec.Struct, array_like=True, gc=False):
    """Where one tensor lies in an arena."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def create_memory(name: str, size_bytes: int) -> int:
    """A new memfd of that size; the descriptor is the caller's. `name` shows in /proc only."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


@final
class Arena:
    """Shared memory for the tensors of one batch at a time."""

    def __init__(self, descriptor: int) -> None:
        """Take over a memfd: it is closed by `close`."""
        self.descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self.size_bytes)
        self._read_only = memoryview(self._memory).toreadonly()
        self._touched_bytes = 0
        self._small_batches = 0

    @classmethod
    def create(cls) -> "Arena":
        """A new, small arena."""
        return cls(create_memory("ekiben-arena", INITIAL_BYTES))

    def write(self, tensors: Sequence[TensorParts], start: int) -> tuple[list[Placed], int]:
        """Join each tensor's parts behind `start`; returns where they lie and the first free byte after them.

        Grows as needed. Raises ValueError or TypeError for parts that do not fit together or are not bytes; nothing
        is placed then.
        """
        placed: list[Placed] = []
        encoded: list[bytes | None] = []
        end = start
        for tensor in tensors:
            parts = tensor.parts
            shape = parts[0].shape if len(parts) == 1 else (sum(map(len, parts)), *parts[0].shape[1:])
            if tensor.datatype == "BYTES":
                items = _encode_items(parts)
                size_bytes = len(items)
                encoded.append(items)
            else:
                size_bytes = DATATYPES[tensor.datatype].itemsize * math.prod(shape)
                encoded.append(None)
            offset = (end + _ALIGNMENT - 1) & -_ALIGNMENT
            end = offset + size_bytes
            placed.append(Placed(tensor.name, tensor.datatype, shape, offset, size_bytes))
        self.reserve(end)
        for tensor, place, payload in zip(tensors, placed, encoded, strict=True):
            if payload is not None:
                self._memory[place.offset : place.offset + place.size_bytes] = payload
                continue
            target: Tensor = np.ndarray(place.shape, DATATYPES[place.datatype], self._memory, place.offset)
            if len(tensor.parts) == 1:
                np.copyto(target, tensor.parts[0])
            else:
                np.concatenate(tensor.parts, out=target)
        return placed, end

    def write_bytes(self, body: bytes, start: int) -> int:
        """Put plain bytes behind `start`, growing as needed; returns their offset."""
        offset = (start + _ALIGNMENT - 1) & -_ALIGNMENT
        self.reserve(offset + len(body))
        self._memory[offset : offset + len(body)] = body
        return offset

    def read_bytes(self, offset: int, length: int) -> bytes:
        """A copy of plain bytes."""
        self._check(offset, length)
        return self._memory[offset : offset + length]

    def view(self, place: Placed) -> Tensor:
        """The tensor as a read-only view, valid until the arena is written again; BYTES are decoded into a new array.

        Raises ValueError when the place is not inside the arena.
        """
        if place.datatype == "BYTES":
            items = _decode_items(self.read_bytes(place.offset, place.size_bytes), math.prod(place.shape))
            array: Tensor = np.empty(len(items), dtype=np.object_)
            array[:] = items
            return array.reshape(place.shape)
        dtype = DATATYPES[place.datatype]
        self._check(place.offset, dtype.itemsize * math.prod(place.shape))  # numpy misses a negative offset
        return np.ndarray(place.shape, dtype, self._read_only, place.offset)

    def copy(self, place: Placed) -> Tensor:
        """The tensor as the caller's own array."""
        return self.view(place) if place.datatype == "BYTES" else self.view(place).copy()

    def reserve(self, size_bytes: int) -> None:
        """Make it at least that large. Views made before stay valid and see the same memory."""
        self._touched_bytes = max(self._touched_bytes, size_bytes)
        if size_bytes > self.size_bytes:
            # Doubling keeps remapping rare; pages that nobody touches take no memory.
            size_bytes = 1 << (size_bytes - 1).bit_length()
            os.ftruncate(self.descriptor, size_bytes)
            self._map(size_bytes)

    def follow(self, size_bytes: int) -> None:
        """Map what the other side has grown to. Raises ValueError when it is not that large."""
        if size_bytes > self.size_bytes:
            self._map(size_bytes)

    def trim(self, used_bytes: int) -> None:
        """Called after each batch with what it used: gives pages back when batches have become small again.

        The size stays: a hole reads as zeros, so a view that someone kept is stale but never faults.
        """
        self._touched_bytes = max(self._touched_bytes, used_bytes)
        if self._touched_bytes <= KEEP_BYTES:
            return
        self._small_batches = self._small_batches + 1 if used_bytes <= KEEP_BYTES else 0
        if self._small_batches >= SMALL_BATCHES:
            self._memory.madvise(mmap.MADV_REMOVE, KEEP_BYTES, self.size_bytes - KEEP_BYTES)
            self._touched_bytes = KEEP_BYTES
            self._small_batches = 0

    def close(self) -> None:
        """Let go of the memory; it goes back when the other side, and every view, has let go too."""
        del self._memory, self._read_only
        os.close(self.descriptor)

    def _check(self, offset: int, length: int) -> None:
        if not 0 <= offset <= offset + length <= self.size_bytes:
            raise ValueError(f"bytes {offset}+{length} lie outside the arena of {self.size_bytes} bytes")

    def _map(self, size_bytes: int) -> None:
        # The old mapping is left to its views and never closed: numpy keeps it alive, but would not keep it open.
        self._memory = mmap.mmap(self.descriptor, size_bytes)
        self._read_only = memoryview(self._memory).toreadonly()
        self.size_bytes = size_bytes


def _encode_items(parts: Sequence[Tensor]) -> bytes:
    pieces: list[bytes] = []
    for part in parts:
        for item in part.ravel().tolist():
            value = _as_bytes(item)
            pieces.append(len(value).to_bytes(_LENGTH_BYTES, "little"))
            pieces.append(value)
    return b"".join(pieces)


def _as_bytes(item: object) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    raise TypeError(f"an item of a BYTES tensor is of type '{type(item).__name__}', not bytes")


def _decode_items(encoded: bytes, count: int) -> list[bytes]:
    items: list[bytes] = []
    position = 0
    for _ in range(count):
        start = position + _LENGTH_BYTES
        position = start + int.from_bytes(encoded[position:start], "little")
        if position > len(encoded):
            raise ValueError(f"item {len(items)} of {count} ends at byte {position} of {len(encoded)}")
        items.append(encoded[start:position])
    return items
