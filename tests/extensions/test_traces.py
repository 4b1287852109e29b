"""Which requests are traced, and what becomes of a recording."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ekiben.errors import InvalidRequest, Unavailable
from ekiben.extensions.spans import Spans
from ekiben.extensions.traces import Traces
from ekiben.testing import ManualClock
from ekiben.types import Request

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALWAYS = {"trace_level": "TIMESTAMPS", "trace_rate": "1"}


class Bench:
    """Traces with a file, an exporter and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.path = folder / "trace.json"
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces(self.clock, str(self.path), Spans(provider.get_tracer("test")))

    def models(self) -> list[str]:
        """Of the traces in the file."""
        if not self.path.exists():
            return []
        return [item["model_name"] for item in json.loads(self.path.read_text()) if "model_name" in item]

    def spans(self) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == "ekiben.request"]


def run(tmp_path: Path, test: Callable[[Bench], Awaitable[None]]) -> Bench:
    bench = Bench(tmp_path)

    async def inside() -> None:
        await test(bench)
        await asyncio.sleep(0)
        await bench.traces.close()

    asyncio.run(inside())
    return bench


def test_nothing_is_wanted_without_an_exporter_and_with_tracing_off(tmp_path: Path) -> None:
    traces = Traces(ManualClock(), str(tmp_path / "t"))
    assert not traces.wanted
    assert traces.begin("HTTP", "m", PARENT) is None
    traces.update("", ALWAYS)
    assert traces.wanted
    traces.update("", {"trace_count": "1"})
    assert traces.begin("HTTP", "m", None) is not None
    assert not traces.wanted, "the last one of the count is taken"
    traces.update("", {"trace_count": None})
    assert traces.wanted
    traces.update("", {"trace_level": ["OFF"]})
    assert not traces.wanted


def test_settings_that_are_refused_leave_it_as_it_was(tmp_path: Path) -> None:
    traces = Traces(ManualClock(), str(tmp_path / "none" / "t"))
    with pytest.raises(Unavailable, match="a folder that exists"):
        traces.update("", ALWAYS)
    assert not traces.wanted


def test_a_recording_goes_where_it_was_asked_for(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        traces = bench.traces
        traces.update("both", ALWAYS)
        traces.update("file", ALWAYS)
        for model, parent in (("both", PARENT), ("file", None), ("spans", PARENT)):
            recording = traces.begin("HTTP", model, parent)
            assert recording is not None
            traces.end(recording)
        assert traces.begin("HTTP", "neither", None) is None
        assert traces.begin("HTTP", "neither", PARENT[:-2] + b"00") is None

    bench = run(tmp_path, test)
    assert bench.models() == ["both", "file"]
    assert [span.attributes["ekiben.model"] for span in bench.spans()] == ["both", "spans"]


def test_the_times_of_a_reply(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        traces, clock = bench.traces, bench.clock
        recording = traces.begin("GRPC", "m", PARENT)
        assert recording is not None
        assert recording.received == 1000.0
        clock.advance(1)
        traces.read(recording)
        request = Request("m", {}, id="r1")
        traces.decoded(recording, request)
        assert request.trace is recording.trace
        clock.advance(1)
        traces.replied(recording)
        clock.advance(1)
        assert not recording.ended
        await asyncio.sleep(0)
        assert (recording.read, recording.replied, recording.ended) == (1001.0, 1002.0, 1003.0)
        assert (recording.request_id, recording.status) == ("r1", "OK")

    assert len(run(tmp_path, test).spans()) == 1


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InvalidRequest("input 'x' is wrong"), "INVALID_ARGUMENT", "input 'x' is wrong"),
        (ValueError("secret"), "INTERNAL", "internal error"),
        (asyncio.CancelledError(), "CANCELLED", "the caller went away"),
    ],
)
def test_how_a_failure_is_told(tmp_path: Path, error: BaseException, status: str, message: str) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(2):
            recording = bench.traces.begin("HTTP", "m", PARENT)
            assert recording is not None
            bench.traces.end(recording, error)
            bench.traces.end(recording)
            assert (recording.status, recording.message) == (status, message)

    assert [span.attributes["ekiben.status"] for span in run(tmp_path, test).spans()] == [status, status]


def test_what_a_client_sent_is_cut_and_can_be_written(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.traces.update("", ALWAYS)
        recording = bench.traces.begin("HTTP", "m\ud800" * 10_000, PARENT, b"a=\xff" * 10_000)
        assert recording is not None
        bench.traces.decoded(recording, Request("m", {}, id="\udfff\x00" * 10_000))
        bench.traces.end(recording, InvalidRequest("\ud800" * 10_000))
        assert max(map(len, (recording.model, recording.request_id, recording.message))) == 1024

    bench = run(tmp_path, test)
    assert len(bench.models()) == len(bench.spans()) == 1
