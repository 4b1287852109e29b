"""OpenTelemetry spans of recordings."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ekiben.extensions.recording import Recording
from ekiben.extensions.spans import Spans, is_sampled
from ekiben.types import Trace

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
EPOCH_NS = 1_700_000_000_000_000_000


def spans_of(recording: Recording) -> dict[str, ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Spans(provider.get_tracer("test")).write(recording)
    provider.shutdown()
    return {span.name: span for span in exporter.get_finished_spans()}


def recording(**fields: Any) -> Recording:
    trace = Trace("3", 2, 4, 1, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
    values: dict[str, Any] = {
        "trace": trace, "received": 1.0, "read": 1.25, "replied": 5.5, "ended": 6.0, "parent": PARENT, **fields
    }  # fmt: skip
    return Recording("HTTP", "m", values.pop("trace"), values.pop("received"), EPOCH_NS, **values)


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - EPOCH_NS) / 1e9, (span.end_time - EPOCH_NS) / 1e9


def test_a_request_and_its_steps() -> None:
    spans = spans_of(recording(request_id="r7", state="vendor=a:b,other=1"))
    root = spans["ekiben.request"]
    assert {name: seconds(span) for name, span in spans.items()} == {
        "ekiben.request": (1.0, 6.0),
        "queue": (1.5, 2.0),
        "assembly": (2.0, 2.5),
        "compute": (3.0, 4.5),
        "reply": (5.0, 6.0),
    }
    assert root.kind is SpanKind.SERVER
    assert root.parent is not None
    assert (root.parent.trace_id, root.parent.span_id) == (int(TRACE, 16), int("b7ad6b7169203331", 16))
    assert root.parent.is_remote
    assert root.context is not None
    assert root.context.trace_state.to_header() == "vendor=a:b,other=1"
    assert root.attributes == {
        "ekiben.protocol": "HTTP",
        "ekiben.model": "m",
        "ekiben.version": "3",
        "ekiben.request_id": "r7",
        "ekiben.rows": 2,
        "ekiben.batch_rows": 4,
        "ekiben.attempts": 1,
        "ekiben.status": "OK",
    }
    assert root.status.status_code is StatusCode.UNSET
    for name in ("queue", "assembly", "compute", "reply"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == root.context.span_id


def test_a_failure_says_what_was_told() -> None:
    root = spans_of(recording(status="INTERNAL", message="model 'm' failed: boom", replied=0.0))["ekiben.request"]
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "model 'm' failed: boom")
    assert root.attributes is not None
    assert root.attributes["ekiben.status"] == "INTERNAL"


def test_there_is_no_span_for_a_step_that_was_not_reached() -> None:
    refused = spans_of(recording(trace=Trace(), replied=0.0, status="NOT_FOUND", message="no such model"))
    assert list(refused) == ["ekiben.request"]
    assert refused["ekiben.request"].attributes == {
        "ekiben.protocol": "HTTP",
        "ekiben.model": "m",
        "ekiben.status": "NOT_FOUND",
    }
    waited = spans_of(recording(trace=Trace("3", 1, queued=1.5, answered=3.0), replied=0.0, message="timeout"))
    assert {name: seconds(span) for name, span in waited.items()} == {
        "queue": (1.5, 3.0),
        "ekiben.request": (1.0, 6.0),
    }


@pytest.mark.parametrize(
    ("parent", "sampled"),
    [
        (PARENT, True),
        (PARENT[:-2] + "03", True),
        (PARENT[:-2] + "00", False),
        (PARENT[:-2] + "02", False),
        ("01" + PARENT[2:] + "-later", True),
        (PARENT.upper(), False),
        ("", False),
        ("00", False),
        (PARENT + " ", False),
        (PARENT[:-3], False),
        ("01" + PARENT[2:] + "-" + "x" * 1000, False),
        ("01" + PARENT[2:] + "-\xff", False),
    ],
)
def test_whether_a_traceparent_asks_for_spans(parent: str, sampled: bool) -> None:
    assert is_sampled(parent.encode("latin-1")) is sampled


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        PARENT + "-more",
    ],
)
def test_an_invalid_parent_gets_no_spans(parent: str) -> None:
    assert spans_of(recording(parent=parent)) == {}


@pytest.mark.parametrize("state", ["", "=", "a", "é=1", ",".join(f"k{number}=1" for number in range(100)), "\x00"])
def test_a_tracestate_that_is_none_does_no_harm(state: str) -> None:
    assert "ekiben.request" in spans_of(recording(state=state))
