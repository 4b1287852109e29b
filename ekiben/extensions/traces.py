"""Traces of requests: which are taken, what a door writes down of them, and who gets them.

    door ─► begin ─► Recording ◄── the door and the engine write points in time into it
                        └─► end ─► TraceWriter ─┬─► TraceFile   where the trace settings chose it
                                                └─► Spans       where its `traceparent` asked for them

A door that finds `wanted` False has nothing to do: no request is traced then.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, final

from ekiben.clock import SYSTEM_CLOCK, Clock
from ekiben.errors import Code, EkibenError
from ekiben.extensions.recording import Recording
from ekiben.extensions.spans import Spans, is_sampled
from ekiben.extensions.trace_file import TraceFile
from ekiben.extensions.trace_settings import TraceSettings, TraceValue
from ekiben.extensions.trace_writer import TraceWriter, Write
from ekiben.types import Request, Trace

__all__ = ["Traces"]

_CLOSE_SECONDS: Final = 5.0
_MOST_CHARACTERS: Final = 1024
"""What is kept of a text that a client sent."""


@final
class Traces:
    """Of one server. Lives on the engine's loop; what blocks runs in a thread of its own."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, trace_file: str = "", spans: Spans | None = None) -> None:
        """`clock` is the engine's. `trace_file` is absolute, or '' for none. None for `spans`: nobody exports them."""
        self._clock = clock
        self._spans = spans
        writes: list[Write] = [] if spans is None else [spans.write]
        if trace_file:
            file = TraceFile(trace_file)
            writes.append(file.write)
            self._settings = TraceSettings(trace_file, file.check)
        else:
            self._settings = TraceSettings()
        self._writer = TraceWriter(writes)
        self.wanted = spans is not None
        """Whether `begin` may choose a request."""

    # ---- settings

    def values(self, model: str = "") -> dict[str, TraceValue]:
        """The trace settings of a model, or of the server."""
        return self._settings.values(model)

    def update(self, model: str, changes: Mapping[str, object]) -> None:
        """Change them: see TraceSettings."""
        self._settings.update(model, changes)
        self._look()

    # ---- what a door calls, for each request

    def begin(self, protocol: str, model: str, parent: bytes | None, state: bytes | None = None) -> Recording | None:
        """A recording of a request whose headers are there, if it is to be traced; `end` must follow.

        `protocol` is HTTP or GRPC; `parent` and `state` are `traceparent` and `tracestate`, None: not given.
        """
        series = self._settings.sample(model)
        if series is not None:
            self._look()
        spanned = parent is not None and self._spans is not None and is_sampled(parent)
        if series is None and not spanned:
            return None
        now = self._clock.monotonic()
        epoch_ns = int((self._clock.epoch() - now) * 1e9)
        recording = Recording(protocol, _short(model), Trace(), now, epoch_ns, series=series)
        if spanned and parent is not None:
            recording.parent = parent.decode("ascii")
            recording.state = (state or b"").decode("latin-1")
        return recording

    def read(self, recording: Recording) -> None:
        """The whole request is there."""
        recording.read = self._clock.monotonic()

    def decoded(self, recording: Recording, request: Request) -> None:
        """It is understood, and about to go to the engine."""
        recording.request_id = _short(request.id)
        request.trace = recording.trace

    def replied(self, recording: Recording) -> None:
        """The reply is made, and goes out in this turn of the loop."""
        recording.replied = self._clock.monotonic()
        asyncio.get_running_loop().call_soon(self.end, recording)

    def end(self, recording: Recording, error: BaseException | None = None) -> None:
        """It is over, with an error if one is given. Only the first call counts."""
        if recording.ended:
            return
        recording.ended = self._clock.monotonic()
        if isinstance(error, EkibenError):
            recording.status, recording.message = str(error.code), _short(error.message)
        elif isinstance(error, Exception):
            recording.status, recording.message = str(Code.INTERNAL), "internal error"
        elif error is not None:
            recording.status, recording.message = str(Code.CANCELLED), "the caller went away"
        self._writer.put(recording)

    async def close(self) -> None:
        """Write what has ended."""
        await asyncio.to_thread(self._writer.close, _CLOSE_SECONDS)

    def _look(self) -> None:
        self.wanted = self._spans is not None or self._settings.on


def _short(text: str) -> str:
    return text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode()
