"""The generate extension's door, over a decoupled model and plain ones."""

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import uvicorn

from ekiben.engine.replies import MOST_RESPONSES
from ekiben.runner.base import Died
from ekiben.types import Tensor
from tests.doors.house import House, floats, run, until

TALK = "/v2/models/talk/"
EXACTLY_ONE = "generate expects model to produce exactly 1 response, use generate stream for model that generates"


async def generate(house: House, body: object, model: str = "talk", **headers: str) -> tuple[int, Any]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, replied, answer = await house.send("POST", f"/v2/models/{model}/generate", text, **headers)
    assert replied["content-type"] == "application/json"
    return status, json.loads(answer)


class Exchange:
    """A POST to generate_stream whose caller reads, and may leave, when the test says so."""

    def __init__(self, house: House, body: object, model: str = "talk", reads: bool = True, **headers: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self.reading = asyncio.Event()
        if reads:
            self.reading.set()
        path = f"/v2/models/{model}/generate_stream"
        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": fields}
        self._waiting = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self.task = asyncio.create_task(house.door(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._waiting:
            return self._waiting.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reading.wait()
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def events(self) -> list[Any]:
        """Each message but the last is an event of its own."""
        chunks = [message["body"] for message in self.sent[1:]]
        assert chunks.pop() == b""
        assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
        return [json.loads(chunk[6:]) for chunk in chunks]


def said(text: str | list[str], **more: Any) -> dict[str, Any]:
    return {**more, "model_name": "talk", "model_version": "1", "text_output": text}


# generate


def test_one_response_is_a_flat_object() -> None:
    async def test(house: House) -> None:
        assert await generate(house, {"text_input": "hé"}) == (200, said("hé"))
        assert await generate(house, {"id": "7", "text_input": ["a"]}) == (200, said("a", id="7"))
        status, reply = await generate(house, {"text_input": ["a", "b"], "count": [1, 1]})
        assert (status, reply) == (200, said(["a", "b"]))
        versioned = await house.send("POST", "/v2/models/talk/versions/1/generate", b'{"text_input": "x"}')
        assert (versioned[0], json.loads(versioned[2])) == (200, said("x"))
        assert (await house.send("GET", TALK + "generate"))[0] == 405

    run(test)


@pytest.mark.parametrize("count", [0, 2, 100])
def test_another_number_of_responses_is_an_error_and_ends_the_stream(count: int) -> None:
    async def test(house: House) -> None:
        status, reply = await generate(house, {"text_input": "a", "count": count})
        assert status == 400
        assert reply["error"].startswith(EXACTLY_ONE)
        await until(lambda: not house.talker.running)
        assert house.talker.given <= 3
        assert (await generate(house, {"text_input": "b"}))[0] == 200

    run(test)


def test_a_plain_model_is_addressed_by_its_inputs_names() -> None:
    async def test(house: House) -> None:
        status, reply = await generate(house, {"i": [1.5, 2, -3]}, "fp32")
        assert (status, reply["o"]) == (200, [1.5, 2.0, -3.0])
        status, reply = await generate(house, {"a": [1, 2], "b": [[10, 20]], "unknown": True}, "add")
        assert (status, reply["sum"], reply["difference"]) == (200, [11, 22], [-9, -18])
        status, reply = await generate(house, b'{"i": [NaN, -Infinity, 1e3]}', "fp32")
        assert (status, str(reply["o"])) == (200, "[nan, -inf, 1000.0]")
        assert await generate(house, b'{"i": NaN}', "fp32") == (200, pytest.approx(reply | {"o": np.nan}, nan_ok=True))

    run(test)


@pytest.mark.parametrize(
    ("body", "model", "status", "words"),
    [
        (b"", "talk", 400, "failed to parse the request JSON"),
        (b"[]", "talk", 400, "must be an object"),
        (b'{"text_input"', "talk", 400, "failed to parse the request JSON"),
        (b"\xff", "talk", 400, "failed to parse the request JSON"),
        (b"{}", "talk", 400, "missing required input(s) ['text_input']"),
        (b'{"text_input": 3}', "talk", 400, "element 0 is 3, BYTES needs a string"),
        (b'{"text_input": null}', "talk", 400, "element 0 is null, BYTES needs a string"),
        (b'{"text_input": {"a": 1}}', "talk", 400, "element 0 is an object, BYTES needs a string"),
        (b'{"text_input": "a", "text_input": "b"}', "talk", 400, "input 'text_input' already exists in request"),
        (b'{"text_input": "a", "count": 3000000000}', "talk", 400, "element 0 is 3000000000, INT32 needs an integer"),
        (b'{"text_input": "a", "fail": 1}', "talk", 400, "element 0 is 1, BOOL needs true or false"),
        (b'{"text_input": "a", "other": [1]}', "talk", 400, "parameter 'other' has invalid type"),
        (b'{"text_input": "a", "parameters": 1}', "talk", 400, "Expected JSON object for keyword: 'parameters'"),
        (b'{"text_input": ["a", "b"], "count": 1}', "talk", 400, "input 'count' batch size does not match"),
        (b'{"i": 1}', "fp16", 400, "FP16 data via JSON is not supported"),
        (b'{"text_input": "a"}', "zzz", 404, "'zzz' is not found"),
        (b'{"i": 1}', "broken", 500, "internal error"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(body: bytes, model: str, status: int, words: str) -> None:
    async def test(house: House) -> None:
        if model == "broken":
            house.engine.stream = None  # type: ignore[method-assign,assignment]  # a fault of ours
        for verb in ("generate", "generate_stream"):
            got, headers, answer = await house.send("POST", f"/v2/models/{model}/{verb}", body)
            assert (got, headers["content-type"]) == (status, "application/json")
            assert words in json.loads(answer)["error"]
        assert not house.talker.batches

    run(test)


def test_limits_of_bodies() -> None:
    async def test(house: House) -> None:
        status, reply = await generate(house, {"text_input": "x" * 3000})
        assert (status, "over 2000 bytes (setting body_limit_bytes)" in reply["error"]) == (400, True)
        status, reply = await generate(house, {"text_input": "x" * 1500})
        assert (status, "json_limit_bytes is 1000" in reply["error"]) == (400, True)
        packed = gzip.compress(json.dumps({"text_input": "x" * 4000}).encode())
        status, reply = await generate(house, packed, content_encoding="gzip")
        assert (status, "decompressed_limit_bytes" in reply["error"]) == (400, True)
        packed = gzip.compress(json.dumps({"text_input": "x" * 500}).encode())
        assert await generate(house, packed, content_encoding="gzip") == (200, said("x" * 500))
        status, reply = await generate(house, b'{"text_input": ' + b"[" * 60 + b"]" * 60 + b"}")
        assert (status, "json_depth_limit" in reply["error"]) == (400, True)

    limits = {"body_limit_bytes": 2000, "decompressed_limit_bytes": 3000, "json_limit_bytes": 1000}
    run(test, json_depth_limit=50, **limits)


def test_a_large_body_is_read_in_a_thread_and_says_the_same() -> None:
    async def test(house: House) -> None:
        text = "é" * 200_000
        assert await generate(house, {"text_input": text}) == (200, said(text))
        values = np.arange(300_000, dtype=np.float32).tolist()
        status, reply = await generate(house, {"i": values}, "fp32")
        assert (status, reply["o"]) == (200, values)

    run(test)


# generate_stream


def test_each_response_is_an_event() -> None:
    async def test(house: House) -> None:
        for count in (0, 1, 3):
            exchange = Exchange(house, {"id": "q", "text_input": "a\n\rb", "parameters": {"count": count}})
            await exchange.task
            assert exchange.status == 200
            assert exchange.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert "content-length" not in exchange.headers
            assert exchange.events == [said("a\n\rb", id="q")] * count

    run(test)


def test_a_plain_model_streams_its_one_response() -> None:
    async def test(house: House) -> None:
        exchange = Exchange(house, {"i": [1, 2]}, "fp32")
        await exchange.task
        assert exchange.events == [{"model_name": "fp32", "model_version": "1", "o": [1.0, 2.0]}]

    run(test)


def test_an_error_is_a_status_before_the_first_event_and_an_event_after_it() -> None:
    async def test(house: House) -> None:
        told = "model 'talk' version 1 failed: no more of this"
        status, _, body = await house.send(
            "POST", TALK + "generate_stream", b'{"text_input": "a", "count": 0, "fail": true}'
        )
        assert (status, json.loads(body)) == (500, {"error": told})
        exchange = Exchange(house, {"text_input": "a", "count": 2, "fail": True})
        await exchange.task
        assert (exchange.status, exchange.events) == (200, [said("a"), said("a"), {"error": told}])

    run(test)


def test_a_runner_that_dies_in_mid_stream_is_told_in_an_event() -> None:
    async def test(house: House) -> None:
        exchange = Exchange(house, {"text_input": "a", "count": 1000}, reads=False)
        await until(lambda: house.talker.given >= MOST_RESPONSES)
        house.talker.complete(Died("it was killed"))
        exchange.reading.set()
        await exchange.task
        *events, last = exchange.events
        assert events == [said("a")] * len(events)
        assert "died in mid-stream: it was killed" in last["error"]

    run(test)


def test_what_json_cannot_carry_is_told_in_an_event() -> None:
    async def test(house: House) -> None:
        talker = house.talker
        answers: list[bytes] = [b"fine", b"\xff", b"never"]

        def compute() -> None:
            text: Tensor = np.array([[answers.pop(0)]], np.object_)
            talker.respond({"text_output": text})

        talker.compute = compute  # type: ignore[method-assign]
        exchange = Exchange(house, {"text_input": "a"})
        await exchange.task
        assert exchange.events[0] == said("fine")
        assert "bytes that are not UTF-8 text" in exchange.events[1]["error"]
        assert len(exchange.events) == 2
        await until(lambda: not talker.running)
        assert talker.stopped == 1

    run(test)


def test_a_caller_that_does_not_read_lets_the_model_wait() -> None:
    async def test(house: House) -> None:
        exchange = Exchange(house, {"text_input": "a", "count": 1000}, reads=False)
        await until(lambda: house.talker.given > MOST_RESPONSES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert house.talker.given == MOST_RESPONSES + 1  # the first one is on its way already
        exchange.reading.set()
        await exchange.task
        assert exchange.events == [said("a")] * 1000

    run(test)


@pytest.mark.parametrize("reads", [True, False])
def test_a_caller_that_leaves_stops_the_model(reads: bool) -> None:
    async def test(house: House) -> None:
        exchange = Exchange(house, {"text_input": "a", "count": 10**9}, reads=reads)
        await until(lambda: house.talker.given >= MOST_RESPONSES)
        exchange.left.set()
        exchange.reading.set()
        await exchange.task
        await until(lambda: house.talker.stopped == 1 and not house.talker.running)
        assert (await generate(house, {"text_input": "b"}))[0] == 200

    run(test)


def test_a_caller_that_leaves_before_the_first_event_is_not_answered() -> None:
    async def test(house: House) -> None:
        talker, compute = house.talker, house.talker.compute
        talker.compute = lambda: None  # type: ignore[method-assign]
        exchange = Exchange(house, {"text_input": "a", "count": 10})
        await until(lambda: bool(talker.running))
        exchange.left.set()
        for _ in range(5):
            await asyncio.sleep(0)
        compute()
        await exchange.task
        assert exchange.sent == []
        await until(lambda: not talker.running)
        assert talker.stopped == 1

    run(test)


def test_a_server_that_ends_stops_the_model() -> None:
    async def test(house: House) -> None:
        exchange = Exchange(house, {"text_input": "a", "count": 10**9}, reads=False)
        await until(lambda: house.talker.given >= MOST_RESPONSES)
        exchange.task.cancel()
        await exchange.task
        await until(lambda: house.talker.stopped == 1)

    run(test)


def test_a_request_id_comes_back() -> None:
    async def test(house: House) -> None:
        exchange = Exchange(house, {"text_input": "a"}, x_request_id="mine")
        await exchange.task
        assert exchange.headers["x-request-id"] == "mine"

    run(test)


# Other doors of a decoupled model


def test_infer_does_not_take_a_decoupled_model() -> None:
    async def test(house: House) -> None:
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
        assert await house.infer("talk", {"inputs": [tensor]}) == (
            501,
            {"error": "HTTP end point doesn't support models with decoupled transaction policy"},
        )
        assert (await house.infer("fp32", floats([1.0])))[0] == 200

    run(test)


def test_the_configuration_says_that_it_is_decoupled() -> None:
    async def test(house: House) -> None:
        for model, policy in (("talk", {"decoupled": True}), ("fp32", None)):
            _, _, body = await house.send("GET", f"/v2/models/{model}/config")
            assert json.loads(body).get("model_transaction_policy") == policy
        assert "generate" in json.loads((await house.send("GET", "/v2"))[2])["extensions"]

    run(test)


# Over sockets


@contextlib.asynccontextmanager
async def served(house: House) -> AsyncIterator[int]:
    config = uvicorn.Config(house.door, log_level="warning", lifespan="off", http="httptools", loop="asyncio")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


def test_over_a_socket_a_reader_that_stops_stops_the_model_and_one_that_leaves_ends_it() -> None:
    async def test(house: House) -> None:
        talker = house.talker
        text = json.dumps({"text_input": "x" * 50_000, "count": 10**9}).encode()
        async with served(house) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"POST /v2/models/talk/generate_stream HTTP/1.1\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(text) + text)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            scheduler = next(each for each in house.engine.versions() if each.view.model == "talk").scheduler
            # Nobody reads any further: what the sockets hold fills up, then the stream's room, then the runner waits.
            await until(lambda: len(talker.advanced) < talker.given)
            given = talker.given
            for _ in range(100):
                await asyncio.sleep(0)
            assert talker.given == given
            writer.transport.abort()
            await until(lambda: talker.stopped == 1 and not talker.running)
            assert scheduler.in_flight == 0

    run(test)
