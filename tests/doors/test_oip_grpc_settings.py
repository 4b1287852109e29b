"""The trace and logging extensions on gRPC, by Triton's own client; and what is traced of requests there."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tritonclient.grpc import service_pb2
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.grpc_calls import field
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.doors.oip_grpc_settings import OipGrpcSettings
from ekiben.errors import InvalidRequest
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.spans import Spans
from ekiben.extensions.traces import Traces
from ekiben.logs import Verbosity
from ekiben.wire.oip_proto import model_name
from tests.doors.grpc_house import Called, received, serving
from tests.doors.house import House, until
from tests.doors.house import run as run_house
from tests.doors.test_oip_grpc import given, request

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": PARENT, "tracestate": "a=b"}
ALWAYS = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}


class Bench:
    """A house, its gRPC door with the settings, and a client."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.path = folder / "trace.json"
        self.acted: list[Verbosity] = []
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces(SYSTEM_CLOCK, str(self.path), Spans(provider.get_tracer("test")))
        settings = OipGrpcSettings(house.engine, self.traces, LogSettings(self.acted.append))
        self.methods = OipGrpc(house.engine, traces=self.traces).methods, settings.methods
        self.client: Any = None

    async def requests(self, count: int) -> list[Any]:
        """So many `ekiben.request` spans, oldest first."""
        await until(lambda: len(self._requests()) >= count)
        await self.traces.close()
        return self._requests()

    def _requests(self) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == "ekiben.request"]

    def steps(self, request: Any) -> list[str]:
        """Names of the spans inside one."""
        return sorted(
            span.name
            for span in self.exporter.get_finished_spans()
            if span.parent is not None and span.parent.span_id == request.context.span_id
        )


def run(folder: Path, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def inside(house: House) -> None:
        bench = Bench(house, folder)
        async with serving(*bench.methods) as address, InferenceServerClient(address) as bench.client:
            await test(bench)

    run_house(inside)


def read(reply: Any) -> dict[str, list[str]]:
    return {name: list(setting.value) for name, setting in reply.settings.items()}


async def refusal(answer: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        await answer
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def test_trace_settings(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        client = bench.client
        start = {
            "trace_level": ["OFF"],
            "trace_rate": ["1000"],
            "trace_count": ["-1"],
            "log_frequency": ["0"],
            "trace_file": [str(bench.path)],
            "trace_mode": ["triton"],
        }
        assert read(await client.get_trace_settings()) == start
        own = {**start, "trace_rate": ["5"], "trace_level": ["TIMESTAMPS"]}
        changes = {"trace_rate": "5", "trace_level": ["TIMESTAMPS"]}
        assert read(await client.update_trace_settings("add", changes)) == own
        assert read(await client.get_trace_settings("add")) == own
        assert read(await client.get_trace_settings("a/b")) == start
        cleared = {**start, "trace_level": ["TIMESTAMPS"]}
        assert read(await client.update_trace_settings("add", {"trace_rate": None})) == cleared

    run(tmp_path, test)


def test_log_settings(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        client = bench.client
        start = (await client.get_log_settings(as_json=True))["settings"]
        assert start == {
            "log_file": {"string_param": ""},
            "log_info": {"bool_param": True},
            "log_warning": {"bool_param": True},
            "log_error": {"bool_param": True},
            "log_verbose_level": {"uint32_param": 0},
            "log_format": {"string_param": "default"},
        }
        changes = {"log_warning": False, "log_verbose_level": (1 << 32) - 1, "log_format": "ISO8601"}
        changed = (await client.update_log_settings(changes, as_json=True))["settings"]
        assert changed == {
            **start,
            "log_warning": {"bool_param": False},
            "log_verbose_level": {"uint32_param": 4294967295},
            "log_format": {"string_param": "ISO8601"},
        }
        assert bench.acted == [Verbosity(warning=False, verbose=4294967295, iso_time=True)]

    run(tmp_path, test)


def test_what_is_refused(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        client = bench.client
        for answer, code, words in (
            (client.get_trace_settings("nope"), "INVALID_ARGUMENT", "Request for unknown model : nope"),
            (client.update_trace_settings("nope", ALWAYS), "INVALID_ARGUMENT", "Request for unknown model : nope"),
            (client.update_trace_settings(settings={"trace_file": "x"}), "UNIMPLEMENTED", "can not be updated"),
            (client.update_trace_settings(settings={"trace_rate": "x"}), "INVALID_ARGUMENT", "'trace_rate'"),
            (client.update_trace_settings(settings={"trace_rate": ["1", "2"]}), "INVALID_ARGUMENT", "only 1 value"),
            (client.update_trace_settings(settings={"zzz": None}), "INVALID_ARGUMENT", "'zzz'"),
            (client.update_log_settings({"log_file": "x"}), "UNIMPLEMENTED", "log file location can not be updated"),
            (client.update_log_settings({"log_info": None}), "INVALID_ARGUMENT", "'log_info' must be true or false"),
            (client.update_log_settings({"log_format": "x"}), "INVALID_ARGUMENT", "'log_format'"),
            (client.update_log_settings({"log_zzz": True}), "INVALID_ARGUMENT", "'log_zzz'"),
        ):
            got, message = await refusal(answer)
            assert (got, words in message) == (code, True), message

    run(tmp_path, test)


def test_requests_are_traced_into_the_file(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.client.update_trace_settings("a/b", ALWAYS)
        for number in range(3):
            await bench.client.infer("a/b", [given(np.array([[number]], np.int8))], request_id=f"r{number}")
        await until(bench.path.exists)
        await bench.traces.close()
        items = json.loads(bench.path.read_text())
        assert [item["request_id"] for item in items if "model_name" in item] == ["r0", "r1", "r2"]
        names = [item["timestamps"][0]["name"] for item in items if item["id"] == 1 and "timestamps" in item]
        assert names == [
            "GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START",
            "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END",
            "GRPC_SEND_START", "GRPC_SEND_END",
        ]  # fmt: skip

    run(tmp_path, test)


def test_spans_of_calls(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        client = bench.client
        small, large = np.array([[1]], np.int8), np.zeros((1, 1 << 19), np.float32)
        await client.infer("a/b", [given(small)])
        await client.infer("a/b", [given(small)], headers={**HEADERS, "traceparent": PARENT[:-1] + "0"})
        await client.infer("a/b", [given(small)], request_id="r7", headers=HEADERS)
        await client.infer("fp32", [given(large)], headers=HEADERS)
        refusals = [
            await refusal(client.infer("nope", [given(small)], headers=HEADERS)),
            await refusal(client.infer("nope", [given(large)], headers=HEADERS)),
            await refusal(client.infer("fp16", [given(small)], headers=HEADERS)),
        ]
        one, other, *failed = await bench.requests(5)
        assert (one.attributes["ekiben.request_id"], one.attributes["ekiben.model"]) == ("r7", "a/b")
        assert one.context.trace_state.get("a") == "b"
        assert bench.steps(one) == bench.steps(other) == ["assembly", "compute", "queue", "reply"]
        assert [(span.attributes["ekiben.status"], span.status.description) for span in failed] == refusals

    run(tmp_path, test)


def test_spans_of_a_stream(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        asked = (request("a/b", 1, identity="good"), request("nope", 1, identity="bad"))
        messages = [message.SerializeToString() for message in asked]
        called = Called(metadata=((b"traceparent", PARENT.encode()),))
        stream = bench.methods[0].receiving["/inference.GRPCInferenceService/ModelStreamInfer"]
        sent = await received(stream, messages, called)
        replies = [service_pb2.ModelStreamInferResponse.FromString(reply) for reply in sent]
        assert [bool(reply.error_message) for reply in replies] == [False, True]
        spans = {span.attributes["ekiben.status"]: span for span in await bench.requests(2)}
        assert bench.steps(spans["OK"]) == ["assembly", "compute", "queue", "reply"]
        assert "nope" in spans["NOT_FOUND"].status.description

    run(tmp_path, test)


def test_a_call_that_is_cancelled_has_a_span(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        infer = bench.methods[0].unary["/inference.GRPCInferenceService/ModelInfer"]
        message = memoryview(request("held", 1).SerializeToString())
        pending: Any = infer(message, Called(metadata=((b"traceparent", PARENT.encode()),)))
        await until(lambda: bool(bench.house.runners["held"].running))
        pending.cancel()
        (span,) = await bench.requests(1)
        assert span.attributes["ekiben.status"] == "CANCELLED"
        bench.house.runners["held"].compute()

    run(tmp_path, test)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_that_cannot_be_made_as_asked_has_a_span(tmp_path: Path, streamed: bool) -> None:
    async def test(bench: Bench) -> None:
        wrong = service_pb2.ModelInferRequest(model_name="text")
        wrong.inputs.add(name="i", datatype="BYTES", shape=[1, 1])
        wrong.raw_input_contents.append(b"\x01\x00\x00\x00x")
        wrong.outputs.add(name="o").parameters["classification"].int64_param = 3
        message = memoryview(wrong.SerializeToString())
        called = Called(metadata=((b"traceparent", PARENT.encode()),))
        service = "/inference.GRPCInferenceService/"

        if streamed:
            (reply,) = await received(
                bench.methods[0].receiving[service + "ModelStreamInfer"], [bytes(message)], called
            )
            told = service_pb2.ModelStreamInferResponse.FromString(reply).error_message
        else:
            pending: Any = bench.methods[0].unary[service + "ModelInfer"](message, called)
            with pytest.raises(InvalidRequest) as caught:
                await pending
            told = caught.value.message
        (span,) = await bench.requests(1)
        assert (span.attributes["ekiben.status"], span.status.description) == ("INVALID_ARGUMENT", told)

    run(tmp_path, test)


def test_the_model_of_a_message() -> None:
    message = request("a/b", 1, identity="r")
    assert model_name(message.SerializeToString()) == "a/b"
    assert model_name(memoryview(request("m" * 300, 1).SerializeToString())) == "m" * 300
    assert model_name(b"\x1a\x01r" + request("late", 1).SerializeToString()) == "late"
    for broken in (b"", b"\x0a", b"\x0a\x02\xff\xfe", b"\xff", b"\x0a\x80"):
        assert model_name(broken) == ""


def test_the_first_field_of_a_name_counts() -> None:
    called = Called(metadata=((b"a", b"1"), (b"traceparent", b"2"), (b"traceparent", b"3")))
    assert (field(called, b"traceparent"), field(called, b"b")) == (b"2", None)
