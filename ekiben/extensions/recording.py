"""What is known of one traced request: who asked for what, when each step was reached, and how it ended."""

import msgspec

from ekiben.extensions.array_file import ArrayFile
from ekiben.types import Trace

__all__ = ["Recording", "Series"]


class Series(msgspec.Struct):
    """Traces that follow each other in the trace file, or in files with `frequency` traces each; 0: in one file."""

    frequency: int
    file: ArrayFile | None = None
    """The one of those files that is being filled. For the thread that writes."""
    traces: int = 0
    """How many are in it."""


class Recording(msgspec.Struct):
    """Written by a door, and by the engine where `trace` is concerned; read by the writers once it has ended.

    Times are seconds on the engine's clock, 0: not reached.
    """

    protocol: str
    """HTTP or GRPC."""
    model: str
    trace: Trace
    received: float
    """The door has the request's headers."""
    epoch_ns: int
    """From the engine's clock to 1970-01-01 UTC."""
    parent: str = ""
    """The caller's `traceparent` where spans are to be made, else ''."""
    state: str = ""
    """The caller's `tracestate`."""
    series: Series | None = None
    """Where its trace belongs in the trace file, None: nowhere."""
    request_id: str = ""
    read: float = 0.0
    """The body is there."""
    replied: float = 0.0
    """The reply is about to be written."""
    ended: float = 0.0
    """The reply is with the transport, or there will be none."""
    status: str = "OK"
    """OK, or an error's code."""
    message: str = ""
    """What the caller was told of an error."""
