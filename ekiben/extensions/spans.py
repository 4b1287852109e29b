"""OpenTelemetry spans of a request that came with a sampled `traceparent`.

    ekiben.request ─┬─ queue      until its batch was formed
                    ├─ assembly   the batch into the runner's shared memory
                    ├─ compute    in the runner
                    └─ reply      writing the answer

Only OpenTelemetry's API is known here; who exports the spans is the tracer's affair. For the thread that writes.
"""

import re
from typing import Final, final

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ekiben.extensions.recording import Recording

__all__ = ["Spans", "is_sampled"]

_SAMPLED: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf](?:-[\x21-\x7e]*)?")
_MOST_BYTES: Final = 512


def is_sampled(traceparent: bytes) -> bool:
    """Whether a W3C `traceparent` asks for spans."""
    return len(traceparent) <= _MOST_BYTES and _SAMPLED.fullmatch(traceparent) is not None


@final
class Spans:
    """Makes the spans of recordings, all at once when they have ended."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def write(self, recording: Recording) -> None:
        """Nothing for a recording without a parent, or with one that the standard calls invalid."""
        if not recording.parent:
            return
        remote = self._propagator.extract({"traceparent": recording.parent, "tracestate": recording.state}, Context())
        if not get_current_span(remote).get_span_context().is_valid:
            return
        trace = recording.trace
        attributes: dict[str, str | int] = {
            "ekiben.protocol": recording.protocol,
            "ekiben.model": recording.model,
            "ekiben.version": trace.version,
            "ekiben.request_id": recording.request_id,
            "ekiben.rows": trace.rows,
            "ekiben.batch_rows": trace.batch_rows,
            "ekiben.attempts": trace.attempts,
            "ekiben.status": recording.status,
        }
        known = {name: value for name, value in attributes.items() if value not in ("", 0)}
        span = self._tracer.start_span(
            "ekiben.request", remote, SpanKind.SERVER, known, start_time=_ns(recording, recording.received)
        )
        inside = set_span_in_context(span, remote)
        over = trace.answered or recording.ended
        for name, start, end in (
            ("queue", trace.queued, trace.taken or over),
            ("assembly", trace.taken if trace.submitted else 0.0, trace.submitted),
            ("compute", trace.compute_start, trace.compute_end),
            ("reply", trace.answered if recording.replied else 0.0, recording.ended),
        ):
            if start:
                child = self._tracer.start_span(name, inside, start_time=_ns(recording, start))
                child.end(_ns(recording, end))
        if recording.message:
            span.set_status(Status(StatusCode.ERROR, recording.message))
        span.end(_ns(recording, recording.ended))


def _ns(recording: Recording, seconds: float) -> int:
    return recording.epoch_ns + int(seconds * 1e9)
