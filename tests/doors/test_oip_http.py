"""The HTTP door, called as an ASGI app."""

import asyncio
import gzip
import json
import logging
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doors.house import SIGNATURES, House, exchange, floats, ints, run, until


def test_what_is_not_inference() -> None:
    async def test(house: House) -> None:
        async def get(path: str) -> tuple[int, Any]:
            status, _, body = await house.send("GET", path)
            return status, json.loads(body) if body else b""

        assert await get("/v2/health/live") == (200, b"")
        assert await get("/v2/health/ready") == (200, b"")
        assert await get("/v2/models/add/ready") == (200, b"")
        assert await get("/v2/models/add/versions/1/ready") == (200, b"")
        assert await get("/v2/models/add/versions/2/ready") == (400, {"error": "Model version not ready"})
        status, server = await get("/v2")
        assert (status, server["name"]) == (200, "ekiben")
        assert "binary_tensor_data" in server["extensions"]
        assert (await get("/v2/models/add"))[1]["inputs"][0] == {"name": "a", "datatype": "INT32", "shape": [-1, 2]}
        assert (await get("/v2/models/a%2Fb"))[1]["name"] == "a/b"
        assert (await get("/v2/models/add/config"))[1]["max_batch_size"] == 8
        assert [line["name"] for line in (await get("/v2/models/stats"))[1]["model_stats"]] == sorted(SIGNATURES)
        assert (await get("/v2/models/add/stats"))[1]["model_stats"][0]["inference_count"] == 0
        status, answer = await get("/v2/models/add/versions/2/stats")
        assert status == 400
        assert "requested model version is not available for model 'add'" in answer["error"]
        status, answer = await get("/v2/models/nope/stats")
        assert (status, "'nope'" in answer["error"]) == (400, True)
        assert await get("/v2/models/nope") == (404, {"error": "Request for unknown model: 'nope' is not found"})
        assert (await get("/v2/models/add/versions/2"))[0] == 404
        assert (await get("/v2/models/../../etc/passwd"))[0] == 404
        assert (await get("/v2/models/%2e%2e%2fadd"))[0] == 404
        assert await get("/v2/nope") == (404, {"error": "Not Found"})
        assert (await get("/v2/trace/setting"))[0] == 200

    run(test)


def test_a_server_with_nothing_loaded_is_not_ready() -> None:
    async def test() -> None:
        house = House()
        status, _, body = await house.send("GET", "/v2/health/ready")
        assert (status, json.loads(body)) == (400, {"error": "Server not ready"})
        assert (await house.send("GET", "/v2/health/live"))[0] == 200

    asyncio.run(test())


def test_wrong_methods() -> None:
    async def test(house: House) -> None:
        for method, path, allowed in (
            ("POST", "/v2", "GET"),
            ("POST", "/v2/health/live", "GET"),
            ("DELETE", "/v2/models/add", "GET"),
            ("GET", "/v2/models/add/infer", "POST"),
            ("HEAD", "/v2/repository/index", "POST"),
        ):
            status, headers, body = await house.send(method, path)
            assert (status, json.loads(body), headers["allow"]) == (405, {"error": "Method Not Allowed"}, allowed)

    run(test)


def test_inference() -> None:
    async def test(house: House) -> None:
        document = {
            "id": "7",
            "inputs": [
                {"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [5, 6]},
                {"name": "b", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]},
            ],
            "outputs": [{"name": "difference"}],
        }
        assert await house.infer("add", document) == (
            200,
            {
                "id": "7",
                "model_name": "add",
                "model_version": "1",
                "outputs": [{"name": "difference", "datatype": "INT32", "shape": [1, 2], "data": [4, 4]}],
            },
        )
        assert (await house.infer("a%2Fb/versions/1", ints(3)))[1]["outputs"][0]["data"] == [3]

    run(test)


def test_binary_and_raw_requests() -> None:
    async def test(house: House) -> None:
        tensor = np.array([[1.5, 2]], np.float32).tobytes()
        head = json.dumps(
            {
                "inputs": [
                    {"name": "i", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        path = "/v2/models/fp32/infer"
        for body, length in ((head + tensor, len(head)), (tensor, 0)):
            status, headers, reply = await house.send("POST", path, body, inference_header_content_length=str(length))
            assert (status, headers["content-type"]) == (200, "application/octet-stream")
            part = int(headers["inference-header-content-length"])
            assert json.loads(reply[:part])["outputs"][0]["parameters"] == {"binary_data_size": 8}
            assert reply[part:] == tensor
        for length_field in ("x", "-1", "2147483648", str(len(head) + 9)):
            status, _, reply = await house.send(
                "POST", path, head + tensor, inference_header_content_length=length_field
            )
            assert (status, length_field in json.loads(reply)["error"]) == (400, True)

    run(test)


def test_classification() -> None:
    async def test(house: House) -> None:
        wanted = [{"name": "o", "parameters": {"classification": 2}}]
        status, reply = await house.infer("fp32", floats([1, 3, 2], outputs=wanted))
        assert (status, reply["outputs"][0]["data"]) == (200, ["3.000000:1", "2.000000:2"])
        status, reply = await house.infer(
            "text",
            {"inputs": [{"name": "i", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}], "outputs": wanted},
        )
        assert (status, "unsupported type BYTES" in reply["error"]) == (400, True)

    run(test)


def test_errors_of_the_engine_and_of_the_reply() -> None:
    async def test(house: House) -> None:
        assert (await house.infer("nope", ints(1)))[0] == 404
        status, reply = await house.infer("held", ints(1, name="x"))
        assert (status, reply) == (400, {"error": "unexpected inference input 'x' for model 'held'"})
        status, reply = await house.infer("held", ints(1, parameters={"signature_name": "other"}))
        assert (status, "'other'" in reply["error"]) == (404, True)
        half = np.ones((1, 1), np.float16).tobytes()
        status, _, body = await house.send("POST", "/v2/models/fp16/infer", half, inference_header_content_length="0")
        assert status == 200
        head = b'{"inputs":[{"name":"i","datatype":"FP16","shape":[1,1],"parameters":{"binary_data_size":2}}]}'
        status, _, body = await house.send(
            "POST", "/v2/models/fp16/infer", head + half, inference_header_content_length=str(len(head))
        )
        assert (status, "sending FP16 data via JSON is not supported" in json.loads(body)["error"]) == (400, True)

    run(test)


def test_an_unexpected_error_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        def bug() -> None:
            raise RuntimeError("secret")

        house.engine.infer = lambda request: bug()  # type: ignore[assignment,method-assign,return-value]
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        status, headers, body = await house.send(
            "POST", "/v2/models/held/infer", json.dumps(ints(1)).encode(), x_request_id="mine", traceparent=trace
        )
        assert (status, headers["x-request-id"]) == (500, "mine")
        assert json.loads(body) == {"error": "internal error [request id: mine]"}

    with caplog.at_level(logging.DEBUG, "ekiben"):
        run(test)
    (record,) = [record for record in caplog.records if record.name == "ekiben.doors.oip_http"]
    assert "secret" in caplog.text
    fields = record.__dict__
    assert (fields["request_id"], fields["model"]) == ("mine", "held")
    assert (fields["trace_id"], fields["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def test_request_ids() -> None:
    async def test(house: House) -> None:
        assert "x-request-id" not in (await house.send("GET", "/v2"))[1]
        assert (await house.send("GET", "/v2", x_request_id="a-1"))[1]["x-request-id"] == "a-1"
        made = [(await house.send("GET", "/v2/nope"))[1]["x-request-id"] for _ in range(3)]
        assert len(set(made)) == 3
        for odd in ("x" * 129, "a b", "a\r\nb: c", "é", ""):
            assert (await house.send("GET", "/v2", x_request_id=odd))[1]["x-request-id"] not in (odd, "")

    run(test)


def test_compressed_requests_and_replies() -> None:
    async def test(house: House) -> None:
        text = json.dumps(floats([0.5] * 100)).encode()
        path = "/v2/models/fp32/infer"
        _, _, plain = await house.send("POST", path, text)
        for encoding, pack, unpack in (
            ("gzip", gzip.compress, gzip.decompress),
            ("deflate", zlib.compress, zlib.decompress),
        ):
            status, headers, reply = await house.send(
                "POST", path, pack(text), content_encoding=encoding, accept_encoding=encoding
            )
            assert (status, headers["content-encoding"], unpack(reply)) == (200, encoding, plain)
        status, headers, _ = await house.send("POST", path, text, content_encoding="br")
        assert (status, headers["accept-encoding"]) == (501, "gzip, deflate")
        assert (await house.send("POST", path, b"x" + text, content_encoding="gzip"))[0] == 400
        large = json.dumps(floats([0.5, 0.25] * 20_000)).encode()
        status, headers, reply = await house.send(
            "POST", path, gzip.compress(large), content_encoding="gzip", accept_encoding="gzip;q=0.5"
        )
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert len(json.loads(gzip.decompress(reply))["outputs"][0]["data"]) == 40_000
        assert "content-encoding" not in (await house.send("POST", path, text, accept_encoding="identity"))[1]

    run(test)


def test_limits() -> None:
    async def test(house: House) -> None:
        path = "/v2/models/a%2Fb/infer"
        text = json.dumps(ints(1)).encode()
        fits = text + b" " * (1000 - len(text))
        assert (await house.send("POST", path, fits, content_length="1000"))[0] == 200
        for pieces, headers in (
            ([fits + b" "], {}),
            ([b""], {"content_length": "1001"}),
            ([b""], {"content_length": "9" * 30}),
            ([fits, b" ", b"never read"], {}),
            ([b" "] * 1001, {}),
        ):
            status, _, body = await exchange(house.door, "POST", path, pieces, **headers)
            assert (status, json.loads(body)["error"]) == (
                400,
                "request body is over 1000 bytes (setting body_limit_bytes)",
            )
        bomb = gzip.compress(bytes(600_000))
        assert len(bomb) < 1000
        status, _, body = await house.send("POST", path, bomb, content_encoding="gzip")
        assert (status, "more than 2000 bytes (setting decompressed_limit_bytes)" in json.loads(body)["error"]) == (
            400,
            True,
        )
        deep = b'{"inputs":' + b"[" * 20 + b"]" * 20 + b"}"
        status, _, body = await house.send("POST", path, deep)
        assert (status, "deeper than 10 levels" in json.loads(body)["error"]) == (400, True)

    run(test, body_limit_bytes=1000, decompressed_limit_bytes=2000, json_depth_limit=10)


def test_json_is_limited_apart_from_tensors_in_binary() -> None:
    async def test(house: House) -> None:
        path = "/v2/models/a%2Fb/infer"
        text = json.dumps(ints(1)).encode()
        status, _, body = await house.send("POST", path, text + b" " * 500)
        assert (status, "json_limit_bytes is 500; send large tensors in binary" in json.loads(body)["error"]) == (
            400,
            True,
        )
        assert (await house.send("POST", path, text))[0] == 200

    run(test, json_limit_bytes=500)


def test_bodies_in_pieces() -> None:
    async def test(house: House) -> None:
        text = json.dumps(ints(1, 2)).encode()
        pieces = [text[:5], b"", text[5:50], text[50:], b""]
        status, _, body = await exchange(house.door, "POST", "/v2/models/a%2Fb/infer", pieces)
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1, 2])

    run(test)


def test_a_large_body_is_decoded_beside_the_loop() -> None:
    async def test(house: House) -> None:
        values = np.zeros(3_000_000, np.float32)
        status, headers, body = await house.send(
            "POST", "/v2/models/fp32/infer", values.tobytes(), inference_header_content_length="0"
        )
        assert status == 200
        assert len(body) - int(headers["inference-header-content-length"]) == values.nbytes
        text = b'{"inputs":[{"name":"i","datatype":"FP32","shape":[1,4500000],"data":[%s1]}]}' % (b"0," * 4_499_999)
        assert (await house.send("POST", "/v2/models/fp32/infer", text))[0] == 200

    run(test)


def test_the_repository() -> None:
    async def test(house: House) -> None:
        async def post(path: str, body: bytes = b"") -> tuple[int, Any]:
            status, _, reply = await house.send("POST", f"/v2/repository/{path}", body)
            return status, json.loads(reply) if reply else b""

        status, lines = await post("index", b"{}")
        assert (status, lines[0]) == (200, {"name": "a/b", "version": "1", "state": "READY"})
        assert await post("models/add/unload", b'{"parameters":{"unload_dependents":true}}') == (200, b"")
        assert "add" not in [line["name"] for line in (await post("index", b'{"ready":true}'))[1]]
        assert (await house.infer("add", ints(1)))[0] == 404
        assert (await house.send("GET", "/v2/models/add/ready"))[0] == 400
        assert await post("models/add/load") == (200, b"")
        assert (await house.send("GET", "/v2/models/add/ready"))[0] == 200
        assert await post("models/nope/unload") == (200, b"")
        status, reply = await post("models/nope/load")
        assert (status, "failed to load 'nope', failed to poll from model repository" in reply["error"]) == (500, True)
        status, reply = await post("models/add/load", b'{"parameters":{"config":"{}"}}')
        assert (status, "the setting allow_load_override" in reply["error"]) == (501, True)
        status, reply = await post("models/add/load", b'{"parameters":{"file:1/model.py":"YWJj"}}')
        assert (status, "'file:1/model.py' needs 'config'" in reply["error"]) == (400, True)
        status, reply = await post("models/add/unload", b'{"parameters":{"unload_dependents":"yes"}}')
        assert (status, "parameter 'unload_dependents' must be true or false" in reply["error"]) == (400, True)
        assert (await post("models/add/unload", b" " * (2 << 20)))[0] == 400
        assert (await house.send("GET", "/v2/models/add/ready"))[0] == 200
        for body in (b"{", b"[]", b'{"ready":5}', b"[" * 5000, b"\xff"):
            assert (await post("index", body))[0] == 400
        assert (await post("index", b" " * (2 << 20)))[0] == 400

    run(test)


def test_priority_and_timeout_reach_the_queue() -> None:
    async def test(house: House) -> None:
        runner = house.runners["ranked"]

        def ask(value: int, **parameters: object) -> Any:
            return asyncio.ensure_future(house.infer("ranked", ints(value, parameters=parameters)))

        running = [ask(1), ask(2)]
        await until(lambda: len(runner.running) == 2)
        waiting = [ask(3), ask(4, priority=1, binary_data_output=False), ask(5, priority=2), ask(6, timeout=1)]
        status, reply = await waiting.pop()
        assert status == 503
        assert "Request timeout expired: it waited over 1 µs" in reply["error"]
        while runner.running:
            runner.compute()
            await asyncio.sleep(0.01)
        assert [int(batch.inputs[0].parts[0][0, 0]) for batch in runner.batches] == [1, 2, 4, 3, 5]
        assert [status for status, _ in await asyncio.gather(*running, *waiting)] == [200] * 5

    run(test)


def test_a_full_queue_says_when_to_come_again() -> None:
    async def test(house: House) -> None:
        runner = house.runners["ranked"]
        path, body = "/v2/models/ranked/infer", json.dumps(ints(1)).encode()
        running = [asyncio.ensure_future(house.send("POST", path, body)) for _ in range(2)]
        await until(lambda: len(runner.running) == 2)
        running += [asyncio.ensure_future(house.send("POST", path, body)) for _ in range(3)]
        await until(lambda: sum(version.scheduler.queue_rows for version in house.engine.versions()) == 3)
        status, headers, reply = await house.send("POST", path, body)
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"Exceeds maximum queue size: 3 requests of 3 rows wait at priority level 2" in reply
        urgent = json.dumps(ints(1, parameters={"priority": 1})).encode()
        running.append(asyncio.ensure_future(house.send("POST", path, urgent)))
        await until(lambda: sum(version.scheduler.queue_rows for version in house.engine.versions()) == 4)
        while runner.running:
            runner.compute()
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*running)
        assert [(status, "retry-after" in headers) for status, headers, _ in answers] == [(200, False)] * 6

    run(test)


def test_kept_paths_are_bounded() -> None:
    async def test(house: House) -> None:
        for number in range(3000):
            await house.send("GET", f"/v2/models/m{number}")
        assert len(house.door._routes) <= 1024
        await house.send("GET", "/v2/models/" + "m" * 300)
        assert max(map(len, house.door._routes)) < 100

    run(test)


def test_a_caller_that_leaves_is_noticed_without_uvicorn() -> None:
    async def test(house: House) -> None:
        leave = asyncio.Event()
        waiting = [{"type": "http.request", "body": json.dumps(ints(1)).encode()}]
        sent: list[Any] = []

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v2/models/held/infer", "headers": []}
        call = asyncio.create_task(house.door(scope, receive, send))
        await until(lambda: bool(house.runners["held"].running))
        leave.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        house.runners["held"].compute()
        await call
        assert not sent

    run(test)


def test_a_caller_that_leaves_before_the_body_ends() -> None:
    async def test(house: House) -> None:
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            raise AssertionError(message)

        await house.door(
            {"type": "http", "method": "POST", "path": "/v2/models/held/infer", "headers": []}, receive, send
        )

    run(test)


# --- whatever comes in

_METHODS = st.sampled_from(["GET", "POST", "PUT", ""])
_WORDS = "models add fp32 infer versions 1 ready stats config repository index load .. %2f %00 %ff health live trace"
_PATHS = st.sampled_from(["models/fp32/infer", "models/add/versions/1/infer", "repository/index"]) | st.lists(
    st.sampled_from(["", *_WORDS.split()]), max_size=6
).map("/".join)
_NAMES = "content_encoding accept_encoding content_length inference_header_content_length x_request_id traceparent"
_HEADERS = st.dictionaries(
    st.sampled_from(_NAMES.split()),
    st.sampled_from(["gzip", "deflate", "br", "0", "-1", "10", "99999999999", "*", "q=", "00-0-0-0"])
    | st.text(st.characters(max_codepoint=255), max_size=12),
    max_size=4,
)
_BODIES = st.binary(max_size=60) | st.sampled_from(
    [json.dumps(floats([1, 2])).encode(), gzip.compress(json.dumps(floats([1, 2])).encode()), b"{}", b'{"inputs":[]}']
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(_METHODS, _PATHS, _HEADERS, st.lists(_BODIES, min_size=1, max_size=3)),
        max_size=30,
    )
)
def test_anything_is_answered_and_never_with_a_fault_of_ours(calls: list[Any]) -> None:
    async def test(house: House) -> None:
        for method, path, headers, body in calls:
            status, _, reply = await exchange(house.door, method, f"/v2/{path}", body, **headers)
            assert status < 500 or status == 501 or "failed to load" in reply.decode(), (status, reply)
            if status >= 400:
                assert set(json.loads(reply)) == {"error"}
        assert (await house.infer("fp32", floats([1])))[0] == 200

    run(test)
