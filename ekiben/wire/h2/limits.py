"""What one connection may ask of us, and how hard."""

import msgspec

from ekiben.wire.h2.codes import LARGEST_FRAME_BYTES, LARGEST_WINDOW, SMALLEST_FRAME_BYTES, START_WINDOW

__all__ = ["Budget", "Limits", "Memory"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection, advertised where HTTP/2 has a word for them. Validated once, by whoever sets them."""

    message_bytes: int = 128 << 20
    """One request message, as sent and as unpacked; over it: RESOURCE_EXHAUSTED."""
    receive_bytes: int = 256 << 20
    """All half-received and unread messages of a connection; the call that goes over it: RESOURCE_EXHAUSTED."""
    concurrent_streams: int = 1000
    """Calls open at once; more are refused (REFUSED_STREAM, which clients may retry)."""
    header_bytes: int = 16 << 10
    """One header block, packed and unpacked (each field counts 32 more, RFC 9113 §6.5.2)."""
    continuation_frames: int = 16
    """CONTINUATION frames in one header block."""
    frame_bytes: int = 1 << 20
    """The largest DATA frame, advertised."""
    stream_window_bytes: int = 4 << 20
    """What a client may send ahead of a stream's reader."""
    connection_window_bytes: int = 16 << 20
    """What a client may send on all streams before a WINDOW_UPDATE, which follows at half of it."""
    backlog_bytes: int = 64 << 20
    """Reply bytes that the peer has not taken; while there are more, new calls are refused."""
    stalled_s: float = 60.0
    """No progress for so long, while a message is half received or a reply half sent, ends the stream or connection."""
    handshake_s: float = 10.0
    """From connecting to the first SETTINGS."""
    keepalive_s: float = 60.0
    """Silence before a PING; 0: none."""
    keepalive_timeout_s: float = 20.0
    """Silence after that PING before the connection is given up."""
    max_age_s: float = 0.0
    """Age at which a connection is asked to go (GOAWAY), so that a balancer can spread clients; 0: never."""
    max_age_grace_s: float = 30.0
    """How long calls in flight may take after that."""

    def __post_init__(self) -> None:
        """Refuse what cannot be advertised or would stop all traffic."""
        for name, low, high in (
            ("message_bytes", 1, (1 << 32) - 1),
            ("receive_bytes", self.message_bytes, 1 << 62),
            ("concurrent_streams", 1, LARGEST_WINDOW),
            ("header_bytes", 1024, LARGEST_FRAME_BYTES),
            ("continuation_frames", 0, 1 << 20),
            ("frame_bytes", SMALLEST_FRAME_BYTES, LARGEST_FRAME_BYTES),
            ("stream_window_bytes", START_WINDOW, LARGEST_WINDOW),
            ("connection_window_bytes", START_WINDOW, LARGEST_WINDOW),
            ("backlog_bytes", 1, 1 << 62),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}: it must lie in {low} to {high}")


class Memory:
    """Bytes of half-received and unread messages over all connections of a port: one is made per port and shared."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int) -> bool:
        """Whether `size` more bytes fit; they are counted if so."""
        if self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    def give(self, size: int) -> None:
        """Bytes taken before are free again."""
        self.used_bytes -= size


class Budget:
    """How often a peer may do what costs us something and itself nothing: a token bucket.

    Starts full; refills with time, and with what the peer earns by useful traffic.
    """

    __slots__ = ("_burst", "_earned", "_left", "_per_earned", "_per_second", "_then")

    def __init__(self, burst: float, per_second: float, per_earned: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._per_earned = per_earned
        self._left = burst
        self._then = 0.0
        self._earned = 0

    def spend(self, now: float, earned: int, count: int = 1) -> bool:
        """Pay for `count` more; False when the peer has overdrawn. `earned` is a count that only grows."""
        refill = (now - self._then) * self._per_second + (earned - self._earned) * self._per_earned
        self._then = now
        self._earned = earned
        self._left = min(self._burst, self._left + max(refill, 0.0)) - count
        return self._left >= 0.0
