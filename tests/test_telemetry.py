"""Who exports spans: BentoML's configuration, then the standard's variables, then nobody."""

import logging
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import pytest
from bentoml._internal.configuration.containers import BentoMLContainer
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ekiben.telemetry import flush, tracer_provider

HTTP_EXPORTER = bool(entry_points(group="opentelemetry_traces_exporter", name="otlp_proto_http"))
"""Whether the package of the extra `otel` is installed."""


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "console"},
    ],
)
def test_nobody_does_unless_it_is_asked_for(environ: Mapping[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert tracer_provider(environ) is None
    assert not caplog.records


def test_an_exporter_by_its_name() -> None:
    provider = tracer_provider({"OTEL_TRACES_EXPORTER": "console, none"})
    assert provider is not None
    assert provider.resource.attributes["service.name"] == "ekiben"
    provider.shutdown()


def test_the_service_name_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    provider = tracer_provider({"OTEL_TRACES_EXPORTER": "console"})
    assert provider is not None
    assert provider.resource.attributes["service.name"] == "mine"
    provider.shutdown()


@pytest.mark.skipif(not HTTP_EXPORTER, reason="needs the extra `otel`")
@pytest.mark.parametrize("protocol", ["", "http/protobuf"])
def test_a_collector_by_its_endpoint(protocol: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    provider = tracer_provider(environ)
    assert provider is not None
    provider.shutdown()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "nope"}, "no exporter 'nope' here"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "smoke"},
            "no exporter 'otlp' over 'smoke' here",
        ),
    ],
)
def test_what_is_asked_for_and_missing_is_said(
    environ: Mapping[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "ekiben.telemetry"):
        assert tracer_provider(environ) is None
    (record,) = caplog.records
    assert words in record.getMessage()
    assert "pip install 'ekiben[otel]'" in record.getMessage()


def test_an_exporter_that_does_not_start_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def load(self) -> Any:
            raise ImportError("no zipkin")

    monkeypatch.setattr("ekiben.telemetry.entry_points", lambda **_: [Broken()])
    with caplog.at_level(logging.ERROR, "ekiben.telemetry"):
        assert tracer_provider({"OTEL_TRACES_EXPORTER": "zipkin"}) is None
    (record,) = caplog.records
    assert "the exporter 'zipkin' does not start" in record.getMessage()


def test_bentomls_own_tracing_is_used_where_it_is_configured() -> None:
    mine = TracerProvider(shutdown_on_exit=False)
    exporter_type = BentoMLContainer.tracing.exporter_type
    exporter_type.set("otlp")
    try:
        with BentoMLContainer.tracer_provider.patch(mine):
            assert tracer_provider({"OTEL_TRACES_EXPORTER": "console"}) is mine
    finally:
        exporter_type.set(None)
    assert tracer_provider({}) is None


def test_an_exporter_that_hangs_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            go_on.wait(60)
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Hanging()))
    provider.get_tracer("test").start_span("one").end()
    with caplog.at_level(logging.WARNING, "ekiben.telemetry"):
        flush(provider, 0.1)
    assert [record.getMessage() for record in caplog.records] == [
        "the last spans are lost: they could not be exported within 0.1 s"
    ]
    go_on.set()
    provider.shutdown()
    flush(provider, 60)
    assert len(caplog.records) == 1
