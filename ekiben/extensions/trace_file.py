"""Traces in Triton's form: a JSON array of events, some for each request.

With a log frequency of N the traces go to FILE.0, FILE.1, … with N in each; else all go to FILE.
"""

import os
from typing import Any, Final, final

import orjson

from ekiben.errors import Unavailable
from ekiben.extensions.array_file import ArrayFile
from ekiben.extensions.recording import Recording

__all__ = ["TraceFile", "events"]

_UNKNOWN_VERSION: Final = -1


def events(recording: Recording, number: int) -> list[dict[str, Any]]:
    """A request's events, its points in time in order and in nanoseconds on the engine's clock.

    Triton's compute begins when the runner takes the batch up: what comes before is queue.
    """
    trace = recording.trace
    about: dict[str, Any] = {
        "id": number,
        "model_name": recording.model,
        "model_version": int(trace.version) if trace.version else _UNKNOWN_VERSION,
    }
    if recording.request_id:
        about["request_id"] = recording.request_id
    receive = "GRPC_WAITREAD" if recording.protocol == "GRPC" else "HTTP_RECV"
    points = (
        (f"{receive}_START", recording.received),
        (f"{receive}_END", recording.read),
        ("REQUEST_START", trace.queued),
        ("QUEUE_START", trace.queued),
        ("COMPUTE_START", trace.compute_start),
        ("COMPUTE_INPUT_END", trace.input_end),
        ("COMPUTE_OUTPUT_START", trace.output_start),
        ("COMPUTE_END", trace.compute_end),
        ("INFER_RESPONSE_COMPLETE", trace.answered),
        ("REQUEST_END", trace.answered),
        (f"{recording.protocol}_SEND_START", recording.replied),
        (f"{recording.protocol}_SEND_END", recording.ended if recording.replied else 0.0),
    )
    stamps = ({"name": name, "ns": int(seconds * 1e9)} for name, seconds in points if seconds)
    return [about, *({"id": number, "timestamps": [stamp]} for stamp in stamps)]


@final
class TraceFile:
    """Writes recordings; for one thread, and blocking, but for `check`."""

    def __init__(self, path: str) -> None:
        """`path` is absolute. Files that are there already are replaced as they are come to."""
        self._path = path
        self._whole = ArrayFile(path)
        self._next = 0
        self._traces = 0

    def check(self) -> None:
        """Raises Unavailable where the file cannot be written, as far as a look can tell."""
        folder = os.path.dirname(self._path)
        if os.path.isdir(self._path) or not os.path.isdir(folder):
            raise Unavailable(f"trace_file '{self._path}' must be a file in a folder that exists")
        if not os.access(self._path if os.path.exists(self._path) else folder, os.W_OK):
            raise Unavailable(f"trace_file '{self._path}' cannot be written: permission denied")

    def write(self, recording: Recording) -> None:
        """Append one; nothing for a recording without a series. Raises OSError."""
        series = recording.series
        if series is None:
            return
        self._traces += 1
        items = orjson.dumps(events(recording, self._traces))[1:-1]
        if not series.frequency:
            self._whole.append(items)
            return
        if series.file is None:
            series.file = ArrayFile(f"{self._path}.{self._next}")
            series.traces = 0
            self._next += 1
        series.file.append(items)
        series.traces += 1
        if series.traces >= series.frequency:
            series.file = None
