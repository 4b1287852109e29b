"""The trace and logging extensions on HTTP, over the real engine; and what is traced of requests there."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.oip_http import OipHttp
from ekiben.doors.oip_http_settings import OipHttpSettings
from ekiben.errors import QueueFull
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.spans import Spans
from ekiben.extensions.traces import Traces
from ekiben.logs import Verbosity
from ekiben.runner.base import Raised
from ekiben.settings import Settings
from tests.doors.house import House, exchange, ints, until
from tests.doors.house import run as run_house

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
DEEP = b"[" * 400 + b"]" * 400
ALWAYS = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}


class Bench:
    """A house whose door has the settings, with a trace file and an exporter of spans."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.path = folder / "trace.json"
        self.acted: list[Verbosity] = []
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces(SYSTEM_CLOCK, str(self.path), Spans(provider.get_tracer("test")))
        self.handlers = OipHttpSettings(house.engine, self.traces, LogSettings(self.acted.append)).handlers
        self.door = OipHttp(house.engine, Settings(), SYSTEM_CLOCK, extensions=[self.handlers], traces=self.traces)

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        status, _, reply = await exchange(self.door, method, path, [content], **headers)
        return status, json.loads(reply)

    async def infer(self, model: str, body: object, **headers: str) -> int:
        return (await self.ask("POST", f"/v2/models/{model}/infer", body, **headers))[0]

    def stamps(self) -> list[dict[str, int]]:
        """Of each trace in the file."""
        traces: dict[int, dict[str, int]] = {}
        for item in json.loads(self.path.read_text()):
            known = traces.setdefault(item["id"], {})
            known |= {stamp["name"]: stamp["ns"] for stamp in item.get("timestamps", [])}
        return list(traces.values())

    async def requests(self, count: int) -> list[Any]:
        """So many `ekiben.request` spans, oldest first."""
        await until(lambda: len(self._requests()) >= count)
        await self.traces.close()
        return self._requests()

    def _requests(self) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == "ekiben.request"]

    def steps(self, request: Any) -> list[str]:
        """Names of the spans inside one."""
        return [
            span.name
            for span in self.exporter.get_finished_spans()
            if span.parent is not None and span.parent.span_id == request.context.span_id
        ]


def run(folder: Path, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def inside(house: House) -> None:
        await test(Bench(house, folder))

    run_house(inside)


def test_trace_settings(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        start = {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": str(bench.path),
            "trace_mode": "triton",
        }
        assert await bench.ask("GET", "/v2/trace/setting") == (200, start)
        own = {**start, "trace_rate": "5"}
        assert await bench.ask("POST", "/v2/models/add/trace/setting", {"trace_rate": 5}) == (200, own)
        assert await bench.ask("GET", "/v2/models/add/trace/setting") == (200, own)
        assert await bench.ask("GET", "/v2/models/a%2Fb/trace/setting") == (200, start)
        assert await bench.ask("POST", "/v2/trace/setting", {"trace_count": "3"}) == (
            200,
            {**start, "trace_count": "3"},
        )
        cleared = {**start, "trace_count": "3"}
        assert await bench.ask("POST", "/v2/models/add/trace/setting", {"trace_rate": None}) == (200, cleared)
        assert await bench.ask("POST", "/v2/trace/setting") == (200, cleared)

    run(tmp_path, test)


def test_log_settings(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        status, start = await bench.ask("GET", "/v2/logging")
        assert (status, start["log_info"]) == (200, True)
        changed = {**start, "log_info": False, "log_verbose_level": 1}
        assert await bench.ask("POST", "/v2/logging", {"log_info": False, "log_verbose_level": 1}) == (200, changed)
        assert await bench.ask("GET", "/v2/logging") == (200, changed)
        assert bench.acted == [Verbosity(info=False, verbose=1)]

    run(tmp_path, test)


def test_a_get_changes_nothing_whatever_its_body_says(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.ask("GET", "/v2/trace/setting", {"trace_rate": "7"}))[1]["trace_rate"] == "1000"
        assert (await bench.ask("GET", "/v2/logging", {"log_info": False}))[1]["log_info"] is True
        for path in ("/v2/trace/setting", "/v2/models/add/trace/setting", "/v2/logging"):
            for method in ("PUT", "DELETE", "PATCH", "HEAD"):
                assert await bench.ask(method, path) == (405, {"error": "Method Not Allowed"})

    run(tmp_path, test)


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/add/trace/setting", "/v2/logging"])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"null", 400, "failed to parse the request JSON"),
        (b"[1]", 400, "failed to parse"),
        (b'{"trace_rate":', 400, "failed to parse"),
        (b'{"trace_rate": NaN}', 400, "failed to parse"),
        (b"\xff\xfe", 400, "failed to parse"),
        (b'{"\xff": 1}', 400, "failed to parse"),
        (b'{"a":' + b"[" * 100_000, 400, "failed to parse"),
        (b'{"zzz": %b}' % DEEP, 400, "'zzz'"),
        (b'{"trace_level": %b, "log_format": %b}' % (DEEP, DEEP), 400, "'"),
        (b'{"\\ud800": 1}', 400, "failed to parse"),
        (b'{"zzz": "' + b"x" * (1 << 20) + b'"}', 400, "over 1048576 bytes"),
        (b'{"trace_file": "/etc/passwd"}', 0, ""),
        (b'{"log_file": "/etc/passwd"}', 0, ""),
    ],
)
def test_bodies_that_are_wrong(tmp_path: Path, path: str, body: bytes, status: int, words: str) -> None:
    async def test(bench: Bench) -> None:
        before = await bench.ask("GET", path)
        answered, document = await bench.ask("POST", path, body)
        assert answered == status or (not status and answered in (400, 501))
        assert words in document["error"]
        assert len(document["error"]) < 500
        assert await bench.ask("GET", path) == before

    run(tmp_path, test)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for method, body in (("GET", None), ("POST", {"trace_rate": "2"})):
            status, document = await bench.ask(method, "/v2/models/nope/trace/setting", body)
            assert status == 400
            assert document["error"].startswith("Request for unknown model : nope (")

    run(tmp_path, test)


def test_a_door_without_the_extensions_says_so(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bare = OipHttp(bench.house.engine, Settings())
        for path in ("/v2/trace/setting", "/v2/logging"):
            for method in ("GET", "POST"):
                status, _, body = await exchange(bare, method, path, [b"{}"])
                assert (status, "does not have" in json.loads(body)["error"]) == (501, True)

    run(tmp_path, test)


def test_requests_are_traced_into_the_file(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.ask("POST", "/v2/models/a%2Fb/trace/setting", {**ALWAYS, "trace_rate": "2"})
        for number in range(5):
            assert await bench.infer("a%2Fb", ints(number, id=f"r{number}")) == 200
        assert await bench.infer("add", {}) == 400
        await until(bench.path.exists)
        await bench.traces.close()
        items = json.loads(bench.path.read_text())
        abouts = [item for item in items if "model_name" in item]
        assert abouts == [
            {"id": number, "model_name": "a/b", "model_version": 1, "request_id": identity}
            for number, identity in ((1, "r1"), (2, "r3"))
        ]
        for stamps in bench.stamps():
            assert len(stamps) == 12
            assert list(stamps.values()) == sorted(stamps.values())

    run(tmp_path, test)


def test_a_sampled_traceparent_makes_spans_and_no_other_request_does(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.infer("a%2Fb", ints(1)) == 200
        assert await bench.infer("a%2Fb", ints(1), traceparent=PARENT[:-2] + "00") == 200
        assert await bench.infer("a%2Fb", ints(1), traceparent="nonsense") == 200
        assert await bench.infer("a%2Fb", ints(1, 2, id="r7"), traceparent=PARENT, tracestate="a=b") == 200
        (request,) = await bench.requests(1)
        assert f"{request.context.trace_id:032x}" == TRACE
        assert request.context.trace_state.get("a") == "b"
        assert (request.attributes["ekiben.rows"], request.attributes["ekiben.request_id"]) == (2, "r7")
        assert sorted(bench.steps(request)) == ["assembly", "compute", "queue", "reply"]
        assert not bench.path.exists()

    run(tmp_path, test)


def test_failures_have_spans_with_the_error(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        wanted = []
        for model, body, status, words in (
            ("nope", ints(1), "NOT_FOUND", "'nope' is not found"),
            ("add", ints(1), "INVALID_ARGUMENT", "input"),
            ("add", b"{", "INVALID_ARGUMENT", "JSON"),
            ("fp16", ints(1), "INVALID_ARGUMENT", "data-type"),
        ):
            assert await bench.infer(model, body, traceparent=PARENT) >= 400
            wanted.append((status, words))
        asking = asyncio.create_task(bench.infer("held", ints(1), traceparent=PARENT))
        await until(lambda: bool(bench.house.runners["held"].running))
        bench.house.runners["held"].complete(Raised("boom"))
        assert await asking == 500
        wanted.append(("INTERNAL", "boom"))
        requests = await bench.requests(len(wanted))
        for request, (status, words) in zip(requests, wanted, strict=True):
            assert request.attributes["ekiben.status"] == status
            assert request.status.status_code is StatusCode.ERROR
            assert words in request.status.description
        assert sorted(bench.steps(requests[-1])) == ["assembly", "compute", "queue"]
        assert bench.steps(requests[0]) == []

    run(tmp_path, test)


def test_a_refusal_by_the_queue_has_a_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        def full(_: object) -> None:
            raise QueueFull("model 'add': Exceeds maximum queue size")

        monkeypatch.setattr(bench.house.engine, "infer", full)
        assert await bench.infer("a%2Fb", ints(1), traceparent=PARENT) == 503
        (request,) = await bench.requests(1)
        assert request.attributes["ekiben.status"] == "UNAVAILABLE"

    run(tmp_path, test)


def test_a_caller_that_leaves_has_a_span(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        asking = asyncio.create_task(bench.infer("held", ints(1), traceparent=PARENT))
        await until(lambda: bool(bench.house.runners["held"].running))
        asking.cancel()
        (request,) = await bench.requests(1)
        assert request.attributes["ekiben.status"] == "CANCELLED"
        assert request.status.description == "the caller went away"
        with pytest.raises(ValueError, match="not enough values"):
            await asking
        bench.house.runners["held"].compute()

    run(tmp_path, test)


def test_a_caller_that_leaves_while_it_sends_has_a_span(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        waiting = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return waiting.pop(0)

        async def send(_: object) -> None:
            raise AssertionError("nobody is there")

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v2/models/add/infer",
            "raw_path": b"/v2/models/add/infer",
            "headers": [(b"traceparent", PARENT.encode())],
        }
        await bench.door(scope, receive, send)
        (request,) = await bench.requests(1)
        assert request.attributes["ekiben.status"] == "CANCELLED"

    run(tmp_path, test)
