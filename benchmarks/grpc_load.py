"""A closed loop of gRPC over one HTTP/2 connection: unary calls, or messages on one stream.

h2load cannot take turns on a stream, and grpcio's clients cost more than the server under test. So the frames are made
here: what is sent is put together once, and of what comes back only frame heads, sizes and the status are looked at.
For servers whose answers to one message are all of one size, and whose reply headers are the same bytes every time.
"""

import socket
import struct
import time
from collections.abc import Callable
from typing import Final, final

from hpack import Decoder, Encoder

from benchmarks.load import LoadFailed

__all__ = ["streamed_per_second", "unary_per_second"]

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS: Final = 4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_START_WINDOW: Final = 65_535
_LARGEST_WINDOW: Final = (1 << 31) - 1
_FRAME_BYTES: Final = 1 << 20
_REFILL_BYTES: Final = 1 << 24
_READ_BYTES: Final = 1 << 18
_ANSWER_TIMEOUT_S: Final = 20.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = struct.Struct(">IBI")
_HEAD_BYTES: Final = 9
_PREFIX_BYTES: Final = 5


def unary_per_second(
    address: str, path: str, message: bytes, in_flight: int, seconds: float, check: Callable[[bytes], None]
) -> float:
    """Calls a second with `in_flight` of them open at any time; `check` sees the first reply, and may raise.

    The message is under 64 KiB. Raises LoadFailed unless every call is answered likewise.
    """
    return _per_second(address, path, message, in_flight, seconds, check, stream=False)


def streamed_per_second(
    address: str, path: str, message: bytes, in_flight: int, seconds: float, check: Callable[[bytes], None]
) -> float:
    """The same of messages on one stream, of which `in_flight` wait for their reply at any time."""
    return _per_second(address, path, message, in_flight, seconds, check, stream=True)


def _per_second(
    address: str,
    path: str,
    message: bytes,
    in_flight: int,
    seconds: float,
    check: Callable[[bytes], None],
    *,
    stream: bool,
) -> float:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _ANSWER_TIMEOUT_S) as connected:
            connection = _Connection(connected, address, path, message, stream=stream)
            check(connection.first())
            connection.ask(in_flight)
            start = now = time.monotonic()
            answered = 0
            while now - start < seconds:
                count = connection.answers()
                connection.ask(count)
                answered += count
                now = time.monotonic()
            return answered / (now - start)
    except OSError as error:
        raise LoadFailed(f"{address} does not answer: {error}") from None


@final
class _Connection:
    """One connection; on it one stream, or a stream for each call."""

    def __init__(self, connected: socket.socket, address: str, path: str, message: bytes, *, stream: bool) -> None:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", address)]
        fields += [("te", "trailers"), ("content-type", "application/grpc")]
        encoder = Encoder()
        self._first_block: Final = encoder.encode(fields)
        self._block: Final = encoder.encode(fields)
        """Shorter: the server remembers the fields of the first, as it does those of any client."""
        self._body: Final = struct.pack(">BI", 0, len(message)) + message
        self._streams: Final = stream
        self._stream_id = 1
        self._window = self._stream_window = _START_WINDOW
        self._unsent = 0
        self._unreturned_bytes = 0
        self._rest = b""
        self._decoder: Final = Decoder()
        self._answer_bytes = -1
        self._trailers = b""
        self._socket: Final = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HIHI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW, _MAX_FRAME_SIZE, _FRAME_BYTES)
        self._socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _returned(0, _LARGEST_WINDOW - _START_WINDOW)
        )

    def first(self) -> bytes:
        """Make the first call, or open the stream with its first message; the reply."""
        end = 0 if self._streams else _END_STREAM
        opening = _frame(_HEADERS, _END_HEADERS, 1, self._first_block)
        self._window -= len(self._body)
        self._stream_window -= len(self._body)
        self._socket.sendall(opening + _frame(_DATA, end, 1, self._body))
        reply = b""
        while True:
            kind, flags, payload = self._next_frame()
            if kind == _DATA:
                reply += payload
                if self._streams and len(reply) >= _PREFIX_BYTES + int.from_bytes(reply[1:_PREFIX_BYTES], "big"):
                    break
            elif kind == _HEADERS:
                fields = dict(self._decoder.decode(payload, raw=True))
                if flags & _END_STREAM:
                    if self._streams or fields.get(b"grpc-status") != b"0":
                        raise LoadFailed(f"the first call was answered {fields}")
                    self._trailers = payload
                    break
        self._answer_bytes = len(reply)
        return reply[_PREFIX_BYTES:]

    def ask(self, count: int) -> None:
        """Send that many messages more, as soon as the server's windows let them."""
        self._unsent += count
        size = len(self._body)
        room = min(self._window, self._stream_window) if self._streams else self._window
        count = min(self._unsent, room // size)
        if not count:
            return
        self._unsent -= count
        self._window -= count * size
        if self._streams:
            self._stream_window -= count * size
            self._socket.sendall(_frame(_DATA, 0, 1, self._body) * count)
            return
        opening, body = (len(self._block) << 8) | _HEADERS, (size << 8) | _DATA
        pieces: list[bytes] = []
        for stream_id in range(self._stream_id + 2, self._stream_id + 2 * count + 1, 2):
            pieces += (
                _HEAD.pack(opening, _END_HEADERS, stream_id),
                self._block,
                _HEAD.pack(body, _END_STREAM, stream_id),
                self._body,
            )
        self._stream_id += 2 * count
        self._socket.sendall(b"".join(pieces))

    def answers(self) -> int:
        """Wait for answers; how many there are."""
        count = 0
        while not count:
            data = self._rest + self._read()
            size, position = len(data), 0
            while size - position >= _HEAD_BYTES:
                word, flags, stream_id = _HEAD.unpack_from(data, position)
                start, stop = position + _HEAD_BYTES, position + _HEAD_BYTES + (word >> 8)
                if stop > size:
                    break
                kind = word & 0xFF
                if kind == _DATA:
                    several, rest = divmod(word >> 8, self._answer_bytes)
                    if rest:
                        raise LoadFailed(f"answers of {word >> 8} bytes, the first had {self._answer_bytes}")
                    self._unreturned_bytes += word >> 8
                    count += several * self._streams
                elif kind == _HEADERS:
                    if flags & _END_STREAM:
                        if self._streams or data[start:stop] != self._trailers:
                            raise LoadFailed(f"a call was ended with {data[start:stop]!r}")
                        count += 1
                else:
                    self._control(kind, flags, stream_id, data[start:stop])
                position = stop
            self._rest = data[position:]
        if self._unreturned_bytes >= _REFILL_BYTES:
            update = _returned(0, self._unreturned_bytes)
            self._socket.sendall(update + (_returned(1, self._unreturned_bytes) if self._streams else b""))
            self._unreturned_bytes = 0
        return count

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big")
            if stream_id:
                self._stream_window += increment
            else:
                self._window += increment
            self.ask(0)
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SIZE:
                    self._stream_window += value - _START_WINDOW
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RST_STREAM, _GOAWAY):
            raise LoadFailed(f"the server ended {'a call' if stream_id else 'the connection'}: {payload!r}")

    def _next_frame(self) -> tuple[int, int, bytes]:
        """The next frame of a call; those of the connection are dealt with."""
        while True:
            while len(self._rest) >= _HEAD_BYTES:
                word, flags, stream_id = _HEAD.unpack_from(self._rest)
                stop = _HEAD_BYTES + (word >> 8)
                if len(self._rest) < stop:
                    break
                payload, self._rest = self._rest[_HEAD_BYTES:stop], self._rest[stop:]
                kind = word & 0xFF
                if kind in (_DATA, _HEADERS):
                    return kind, flags, payload
                self._control(kind, flags, stream_id, payload)
            self._rest += self._read()

    def _read(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise LoadFailed("the server closed the connection")
        return data


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return _HEAD.pack((len(payload) << 8) | kind, flags, stream_id) + payload


def _returned(stream_id: int, size: int) -> bytes:
    """A WINDOW_UPDATE."""
    return _frame(_WINDOW_UPDATE, 0, stream_id, struct.pack(">I", size))
