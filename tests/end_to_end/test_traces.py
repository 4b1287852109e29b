"""Traces, spans and log settings of a running server, by Triton's own clients and a collector of spans."""

import contextlib
import json
import queue
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.conftest import Serve, Server

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Running:
    """A server that may write traces, and its clients."""

    def __init__(self, server: Server, trace_file: Path) -> None:
        self.server = server
        self.trace_file = trace_file
        self.http: Any = tritonclient.http.InferenceServerClient(server.host)
        self.grpc: Any = tritonclient.grpc.InferenceServerClient(server.grpc)

    def inputs(self, client: Any) -> list[Any]:
        module = tritonclient.http if client is self.http else tritonclient.grpc
        inputs = []
        for name in ("INPUT0", "INPUT1"):
            inputs.append(module.InferInput(name, [1, 16], "INT32"))
            inputs[-1].set_data_from_numpy(np.ones((1, 16), np.int32))
        return inputs

    def infer(self, client: Any, **options: Any) -> None:
        client.infer("simple", self.inputs(client), **options)

    def traces(self, path: Path) -> dict[int, dict[str, Any]]:
        """By id: what is said of each, and its timestamps."""
        traces: dict[int, dict[str, Any]] = {}
        for item in json.loads(path.read_text()) if path.exists() else []:
            trace = traces.setdefault(item.pop("id"), {"stamps": {}})
            trace["stamps"] |= {stamp["name"]: stamp["ns"] for stamp in item.pop("timestamps", [])}
            trace |= item
        return traces


def options(testdata: Path) -> list[str]:
    models = testdata / "golden_triton" / "models"
    return ["--repository", str(models), "--model-control", "explicit", "--load-model", "simple"]


@pytest.fixture(scope="module")
def running(serve: Serve, testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Running:
    trace_file = tmp_path_factory.mktemp("traces") / "trace.json"
    server = serve(*options(testdata), "--trace-file", str(trace_file), EKIBEN_ACCESS_LOG="true")
    return Running(server, trace_file)


def test_a_client_switches_tracing_on_and_off(running: Running) -> None:
    settings = running.http.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "2"})
    assert (settings["trace_level"], settings["trace_rate"]) == (["TIMESTAMPS"], "2")
    for number in range(4):
        running.infer(running.http, request_id=f"h{number}")
    for number in range(2):
        running.infer(running.grpc, request_id=f"g{number}")
    running.server.wait(lambda: len(running.traces(running.trace_file)) >= 3)
    settings = running.grpc.update_trace_settings(settings={"trace_level": "OFF", "trace_rate": None}, as_json=True)
    assert settings["settings"]["trace_level"] == {"value": ["OFF"]}
    running.infer(running.http)
    traces = running.traces(running.trace_file)
    assert [trace["request_id"] for trace in traces.values()] == ["h1", "h3", "g1"]
    for trace in traces.values():
        assert (trace["model_name"], trace["model_version"]) == ("simple", 1)
        stamps = list(trace["stamps"].values())
        assert len(stamps) == 12
        assert stamps == sorted(stamps)
    assert "GRPC_SEND_END" in traces[3]["stamps"]


def test_a_model_is_traced_into_numbered_files_until_its_count_is_taken(running: Running) -> None:
    changes = {"trace_level": "TIMESTAMPS", "trace_rate": "1", "trace_count": "3", "log_frequency": "2"}
    running.grpc.update_trace_settings("simple", changes)
    for _ in range(5):
        running.infer(running.grpc)
    first, second = (running.trace_file.with_name(f"trace.json.{number}") for number in range(2))
    running.server.wait(lambda: len(running.traces(second)) >= 1)
    assert (len(running.traces(first)), len(running.traces(second))) == (2, 1)
    assert running.http.get_trace_settings("simple")["trace_count"] == "0"
    assert running.http.get_trace_settings()["trace_level"] == ["OFF"]
    cleared = running.http.update_trace_settings("simple", dict.fromkeys(changes))
    assert cleared == running.http.get_trace_settings()


def test_requests_of_a_stream_are_traced(running: Running) -> None:
    running.grpc.update_trace_settings("simple", {"trace_level": "TIMESTAMPS", "trace_rate": "1"})
    before = len(running.traces(running.trace_file))
    replies: queue.Queue[Any] = queue.Queue()
    running.grpc.start_stream(lambda result, error: replies.put(error or result), headers={"traceparent": PARENT})
    for _ in range(2):
        running.grpc.async_stream_infer("simple", running.inputs(running.grpc), request_id="s")
    for _ in range(2):
        assert not isinstance(replies.get(timeout=60), Exception)
    running.grpc.stop_stream()
    running.server.wait(lambda: len(running.traces(running.trace_file)) >= before + 2)
    assert [trace["request_id"] for trace in running.traces(running.trace_file).values()][-2:] == ["s", "s"]
    running.grpc.update_trace_settings("simple", {"trace_level": None, "trace_rate": None})


def test_no_client_chooses_a_file(running: Running, tmp_path: Path) -> None:
    for client in (running.http, running.grpc):
        with pytest.raises(InferenceServerException, match="trace file location can not be updated"):
            client.update_trace_settings(settings={"trace_file": str(tmp_path / "x")})
        with pytest.raises(InferenceServerException, match="log file location can not be updated"):
            client.update_log_settings({"log_file": str(tmp_path / "x")})
    assert list(tmp_path.iterdir()) == []


def test_a_client_changes_the_log(running: Running) -> None:
    def lines() -> list[str]:
        return [line for line in running.server.log.splitlines() if "ekiben.access" in line]

    running.infer(running.http)
    running.server.wait(lambda: bool(lines()))
    before = running.http.get_log_settings()
    assert running.http.update_log_settings({"log_info": False})["log_info"] is False
    seen = len(lines())
    running.infer(running.http)
    running.grpc.update_log_settings({"log_info": True, "log_format": "ISO8601", "log_verbose_level": 1})
    running.http.is_model_ready("marker")
    running.server.wait(lambda: any("marker" in line for line in lines()))
    (marked,) = (line for line in lines()[seen:] if "infer" in line or "marker" in line)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ekiben.access: GET", marked)
    with pytest.raises(InferenceServerException):
        running.http.get_model_metadata("nowhere")
    running.server.wait(lambda: bool(re.search(r"DEBUG .*nowhere.* failed", running.server.log)))
    del before["log_file"]
    assert running.http.update_log_settings(before) == {**before, "log_file": ""}


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP receiver over HTTP: its address, and the spans that came."""
    service = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs the extra `otel`"
    )
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in service.ExportTraceServiceRequest.FromString(body).resource_spans:
                name = next(
                    each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                )
                spans.extend((name, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", spans
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def check_spans(running: Running, spans: list[Any], service: str) -> None:
    """One request over each door with a traceparent and one without: five spans for each of the first two."""
    running.infer(running.http)
    for client in (running.http, running.grpc):
        running.infer(client, request_id="r7", headers={"traceparent": PARENT})
    running.server.wait(lambda: len(spans) >= 10)
    assert len(spans) == 10
    assert {(name, span.trace_id.hex()) for name, span in spans} == {(service, TRACE)}
    roots = [span for _, span in spans if span.name == "ekiben.request"]
    assert [root.parent_span_id.hex() for root in roots] == ["b7ad6b7169203331"] * 2
    for root in roots:
        attributes = {each.key: each.value for each in root.attributes}
        assert attributes["ekiben.model"].string_value == "simple"
        assert attributes["ekiben.request_id"].string_value == "r7"
        inside = [span for _, span in spans if span.parent_span_id == root.span_id]
        inside.sort(key=lambda span: span.start_time_unix_nano)
        assert [span.name for span in inside] == ["queue", "assembly", "compute", "reply"]
        assert root.start_time_unix_nano <= inside[0].start_time_unix_nano
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano for span in inside)


def test_spans_go_to_the_collector_that_the_environment_names(serve: Serve, testdata: Path, tmp_path: Path) -> None:
    with collector() as (address, spans):
        server = serve(*options(testdata), OTEL_EXPORTER_OTLP_ENDPOINT=address, OTEL_BSP_SCHEDULE_DELAY="100")
        running = Running(server, tmp_path)
        check_spans(running, spans, "ekiben")
        running.infer(running.http, headers={"traceparent": PARENT})
        server.end()
        assert len(spans) == 15, "what was not exported yet is exported at the end"


SERVICE = """
import os

import bentoml
import ekiben


@bentoml.service(
    name="traced",
    service_class=ekiben.EngineService,
    tracing={
        "exporter_type": "otlp",
        "sample_rate": 0.0,
        "otlp": {"protocol": "http", "endpoint": os.environ["COLLECTOR"]},
    },
)
class Engine:
    others = ekiben.repository("store")
"""


def test_spans_go_where_the_tracing_of_the_service_sends_them(serve: Serve, testdata: Path, tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    with collector() as (address, spans):
        variables = {"COLLECTOR": f"{address}/v1/traces", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        server = serve(*options(testdata), folder=tmp_path, **variables)
        check_spans(Running(server, tmp_path), spans, "traced")
