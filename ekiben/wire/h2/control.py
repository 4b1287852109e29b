"""What concerns a connection as a whole: SETTINGS, PING, GOAWAY, windows, keepalive, age, stalls and going away."""

import struct
from typing import Final, Generic, final

from ekiben.wire.h2 import replies
from ekiben.wire.h2.codes import (
    ACK,
    GOAWAY,
    LARGEST_FRAME_BYTES,
    LARGEST_STREAM_ID,
    LARGEST_WINDOW,
    PING,
    PRIORITY,
    SETTINGS,
    SMALLEST_FRAME_BYTES,
    START_WINDOW,
    ErrorCode,
    Setting,
)
from ekiben.wire.h2.faults import ConnectionFault
from ekiben.wire.h2.heads import MethodT
from ekiben.wire.h2.limits import Budget, Limits
from ekiben.wire.h2.outbox import Outbox
from ekiben.wire.h2.streams import Streams

__all__ = ["Control"]

_LEAVING_PING: Final = b"leaving?"
_ALIVE_PING: Final = b"alive  ?"
_LEAVING_PING_S: Final = 5.0
"""How long a peer may take to answer the PING behind a first GOAWAY before the second goes out regardless."""


@final
class Control(Generic[MethodT]):
    """One connection's own affairs. Raises ConnectionFault when it must end."""

    def __init__(self, limits: Limits, streams: Streams[MethodT], outbox: Outbox[MethodT], now: float) -> None:
        self.heard = now
        """When the peer last sent anything."""
        self.leaving = False
        """Whether a first GOAWAY has gone out."""
        self.left = False
        """Whether the second has, which names the last call."""
        self._limits = limits
        self._streams = streams
        self._outbox = outbox
        self._answered = Budget(burst=1_000, per_second=100, per_earned=1)  # PING, SETTINGS: each costs an answer
        self._idle = Budget(burst=10_000, per_second=1_000, per_earned=4)  # frames that bring nothing
        self._introduced = False  # SETTINGS have come
        self._born = now
        self._pinged = 0.0
        self._left_at = 0.0
        self._stuck_since: float | None = None
        self._stuck_at = (0, 0)
        values = (
            (Setting.MAX_CONCURRENT_STREAMS, limits.concurrent_streams),
            (Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (Setting.MAX_FRAME_SIZE, limits.frame_bytes),
            (Setting.MAX_HEADER_LIST_SIZE, limits.header_bytes),
        )
        outbox.control(replies.settings(values))
        if limits.connection_window_bytes > START_WINDOW:
            outbox.control(replies.window_update(0, limits.connection_window_bytes - START_WINDOW))

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        """A whole frame that is not about one stream; PRIORITY and unknown ones are ignored."""
        if kind in (SETTINGS, PING, GOAWAY):
            if stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame type {kind} on stream {stream_id}")
            if kind == SETTINGS:
                self._settings(flags, payload, now)
            elif kind == PING:
                self._ping(flags, payload, now)
            elif len(payload) < 8:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
            else:
                self.idle_frame(now)
        else:
            if kind == PRIORITY and not stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
            self.idle_frame(now)

    def idle_frame(self, now: float, count: int = 1) -> None:
        """Frames that bring nothing: a few are normal."""
        if not self._idle.spend(now, self._outbox.data_frames, count):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def window(self, increment: int, now: float) -> None:
        """A WINDOW_UPDATE of the connection."""
        if not increment:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        self._outbox.open_window(increment)
        if self._outbox.waiting:
            self._streams.pump(now)

    def tick(self, now: float) -> None:
        """Let time pass, for the connection and its calls."""
        limits = self._limits
        if not self._introduced and now - self._born > limits.handshake_s:
            raise ConnectionFault(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS")
        self._streams.expire(now)
        self._keepalive(now)
        self._stalled(now)
        age = now - self._born
        if limits.max_age_s and age > limits.max_age_s:
            if age > limits.max_age_s + limits.max_age_grace_s:
                raise ConnectionFault(ErrorCode.NO_ERROR, "max_age")
            self.leave(now)
        if self.leaving and now - self._left_at > _LEAVING_PING_S:
            self._leave_for_good()

    def leave(self, now: float) -> None:
        """The first GOAWAY, which loses no call: streams opened before it arrives are answered (RFC 9113 §6.8)."""
        if not self.leaving:
            self.leaving = True
            self._left_at = now
            self._outbox.control(replies.goaway(LARGEST_STREAM_ID, ErrorCode.NO_ERROR, "going away"))
            self._outbox.control(replies.ping(_LEAVING_PING, ack=False))

    def _leave_for_good(self) -> None:
        if not self.left:
            self.left = True
            self._streams.accepted_to = self._streams.last_id
            self._outbox.control(replies.goaway(max(self._streams.last_id, 0), ErrorCode.NO_ERROR, "going away"))

    def _ping(self, flags: int, payload: bytes, now: float) -> None:
        if flags & ACK:
            self.idle_frame(now)
            if self.leaving and payload == _LEAVING_PING:
                self._leave_for_good()
            return
        if not self._answered.spend(now, self._outbox.data_frames):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many PINGs")
        self._outbox.control(replies.ping(payload, ack=True))

    def _settings(self, flags: int, payload: bytes, now: float) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            if not self._introduced:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS acknowledged before any were sent")
            self.idle_frame(now)
            return
        if len(payload) % 6:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._introduced = True
        if not self._answered.spend(now, self._outbox.data_frames):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS")
        values: dict[int, int] = {}
        for name, value in struct.iter_unpack(">HI", payload):
            _check_setting(name, value)
            values[name] = value  # only the last of each is applied
        self._outbox.frame_bytes = values.get(Setting.MAX_FRAME_SIZE, self._outbox.frame_bytes)
        window = values.get(Setting.INITIAL_WINDOW_SIZE)
        self._outbox.control(replies.SETTINGS_ACK)
        if window is not None and window != self._outbox.stream_window:
            self._streams.resize_windows(window, now)

    def _keepalive(self, now: float) -> None:
        limits = self._limits
        if not limits.keepalive_s or not self._introduced:
            return
        silent = now - self.heard
        if silent < limits.keepalive_s:
            self._pinged = 0.0
        elif not self._pinged:
            self._pinged = now
            self._outbox.control(replies.ping(_ALIVE_PING, ack=False))
        elif now - self._pinged > limits.keepalive_timeout_s:
            raise ConnectionFault(ErrorCode.NO_ERROR, "keepalive PING not answered")

    def _stalled(self, now: float) -> None:
        """Whether the peer has stopped taking what we send."""
        outbox = self._outbox
        if outbox.unwritten_bytes:
            at = (outbox.unwritten_bytes, 0)
        elif outbox.waiting and outbox.window <= 0:
            at = (0, outbox.data_frames)
        else:
            self._stuck_since = None
            return
        if self._stuck_since is None or at != self._stuck_at:
            self._stuck_since = now
            self._stuck_at = at
        elif now - self._stuck_since > self._limits.stalled_s:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "replies are not taken")


def _check_setting(name: int, value: int) -> None:
    """RFC 9113 §6.5.2."""
    if name == Setting.ENABLE_PUSH and value > 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH {value}")
    if name == Setting.INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE {value}")
    if name == Setting.MAX_FRAME_SIZE and not SMALLEST_FRAME_BYTES <= value <= LARGEST_FRAME_BYTES:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE {value}")
