"""gRPC's framing of messages inside DATA: a flag byte, four bytes of length, the message."""

from collections.abc import Iterator
from typing import Final, final

from ekiben.errors import InvalidRequest, TooLarge, Unsupported
from ekiben.wire.compression import decompressed
from ekiben.wire.h2.codes import Status
from ekiben.wire.h2.faults import GrpcError

__all__ = ["Assembler", "too_large", "too_much", "unpacked"]

_PREFIX_BYTES: Final = 5


def too_large(size: int, limit: int) -> GrpcError:
    """The refusal of a message over the port's limit, in grpcio's own words, which people search for."""
    return GrpcError(Status.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {limit})")


def too_much() -> GrpcError:
    """The refusal of a message for which the port's memory, or its connection's share, has no room."""
    return GrpcError(Status.RESOURCE_EXHAUSTED, "too many request bytes are waiting on this port")


def unpacked(message: bytes | memoryview, encoding: bytes, limit_bytes: int) -> memoryview:
    """A message with the compressed flag, without its packing. Blocks, without the GIL.

    Raises GrpcError: RESOURCE_EXHAUSTED over the limit, before more than that is in memory, INTERNAL for broken data.
    """
    try:
        return memoryview(decompressed(bytes(message), encoding, limit_bytes))
    except TooLarge:
        text = f"Received message larger than max (unpacks to more than {limit_bytes})"
        raise GrpcError(Status.RESOURCE_EXHAUSTED, text) from None
    except (InvalidRequest, Unsupported):
        raise GrpcError(Status.INTERNAL, f"message is not {encoding.decode()} data") from None


@final
class Assembler:
    """Puts one stream's messages together from any cuts; each byte is copied once, and only if it waits for others."""

    __slots__ = ("_buffer", "_limit", "_packed", "_size")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._size = -1
        """Of the message being put together; -1 while its prefix is."""
        self._packed = False

    @property
    def held_bytes(self) -> int:
        """What waits for the rest of its message."""
        return len(self._buffer)

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._size >= 0 or len(self._buffer) > 0

    def feed(self, chunk: memoryview) -> Iterator[tuple[memoryview, bool]]:
        """Each message that `chunk` completes, with its compressed flag. Whole messages within it are views of it.

        Raises GrpcError for a prefix that is wrong or over the limit, after the messages before it.
        """
        position = 0
        end = len(chunk)
        while True:
            if self._size < 0:
                take = min(_PREFIX_BYTES - len(self._buffer), end - position)
                self._buffer += chunk[position : position + take]
                position += take
                if len(self._buffer) < _PREFIX_BYTES:
                    return
                self._read_prefix()
            missing = self._size - len(self._buffer)
            available = end - position
            if available < missing:
                self._buffer += chunk[position:]
                return
            if self._buffer:
                self._buffer += chunk[position : position + missing]
                message = memoryview(self._buffer)
                self._buffer = bytearray()
            else:
                message = chunk[position : position + missing]
            position += missing
            self._size = -1
            yield message, self._packed

    def _read_prefix(self) -> None:
        flag = self._buffer[0]
        size = int.from_bytes(self._buffer[1:], "big")
        if flag > 1:
            raise GrpcError(Status.INTERNAL, f"message flag {flag}: expected 0 or 1")
        if size > self._limit:
            raise too_large(size, self._limit)
        self._packed = flag == 1
        self._size = size
        self._buffer = bytearray()
