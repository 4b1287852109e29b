"""Who exports OpenTelemetry spans: BentoML's own tracing where it is configured, else the standard's variables.

OTEL_EXPORTER_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) names a collector, OTEL_TRACES_EXPORTER another
kind of exporter; what else the standard has variables for, the packages of OpenTelemetry read themselves.
"""

import logging
import threading
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from bentoml._internal.configuration.containers import BentoMLContainer
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

__all__ = ["flush", "tracer_provider"]

_LOG: Final = logging.getLogger("ekiben.telemetry")
_GROUP: Final = "opentelemetry_traces_exporter"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("otlp_proto_http", "otlp_proto_grpc"),
    "http/protobuf": ("otlp_proto_http",),
    "grpc": ("otlp_proto_grpc",),
}
"""Protocol → the entry points that will do."""


def tracer_provider(environ: Mapping[str, str]) -> TracerProvider | None:
    """None where spans would go nowhere. What is asked for and cannot be had is said in the log."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if BentoMLContainer.tracing.exporter_type.get():
        provider: TracerProvider = BentoMLContainer.tracer_provider.get()
        return provider
    exporters = [exporter for name in _asked(environ) if (exporter := _exporter(name, environ)) is not None]
    if not exporters:
        return None
    named = Resource.create({SERVICE_NAME: "ekiben"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def flush(provider: TracerProvider, seconds: float) -> None:
    """Export the spans that have ended. Blocks, but no longer than that, whatever the exporter is waiting for."""
    thread = threading.Thread(target=provider.force_flush, name="flush", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _LOG.warning("the last spans are lost: they could not be exported within %g s", seconds)


def _asked(environ: Mapping[str, str]) -> list[str]:
    """Names of exporters, as OTEL_TRACES_EXPORTER has them."""
    named = environ.get("OTEL_TRACES_EXPORTER", "")
    if not named and any(environ.get(variable) for variable in _ENDPOINTS):
        named = "otlp"
    return [name for each in named.split(",") if (name := each.strip()) not in ("", "none")]


def _exporter(name: str, environ: Mapping[str, str]) -> Any:
    protocol = next((environ[variable] for variable in _PROTOCOLS if environ.get(variable)), "")
    choices = _OTLP.get(protocol, ()) if name == "otlp" else (name,)
    for choice in choices:
        for found in entry_points(group=_GROUP, name=choice):
            try:
                return found.load()()
            except Exception:
                # The packages raise whatever they like for what their variables say.
                _LOG.exception("spans are not exported: the exporter '%s' does not start", choice)
                return None
    _LOG.error(
        "spans are not exported: there is no exporter '%s'%s here; `pip install 'ekiben[otel]'` brings 'otlp' over "
        "'http/protobuf'",
        name,
        f" over '{protocol}'" if name == "otlp" and protocol else "",
    )
    return None
