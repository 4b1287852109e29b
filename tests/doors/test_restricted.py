"""Restricted endpoints: who is let in, and that there is no way around."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from ekiben.app import _grpc_services
from ekiben.doors.grpc_port import GrpcPort
from ekiben.doors.http_calls import Answer
from ekiben.doors.oip_http import OipHttp
from ekiben.doors.restricted import GRPC_GROUPS, HTTP_GROUPS, OPEN, LockedApp, grpc_guards
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.shared_memory import NO_REGIONS
from ekiben.extensions.traces import Traces
from ekiben.restrictions import GROUPS
from ekiben.settings import Settings
from ekiben.wire.oip_paths import METHODS, UPDATES
from tests.doors.house import House, exchange, ints, run

REFUSED = {"error": "This API is restricted, expecting header 'Api-Key'"}
INFER = "/v2/models/a%2Fb/infer"
BODY = json.dumps(ints(1)).encode()
VERBS = {
    "health": [("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("GET", "/v2/models/add/ready"),
               ("GET", "/v2/models/add/versions/1/ready")],
    "metadata": [("GET", "/v2"), ("GET", "/v2/models/add"), ("GET", "/v2/models/add/versions/1")],
    "inference": [("POST", INFER), ("POST", "/v2/models/a%2Fb/versions/1/infer"),
                  ("POST", "/v2/models/talk/generate"), ("POST", "/v2/models/talk/generate_stream")],
    "trace": [("GET", "/v2/trace/setting"), ("POST", "/v2/trace/setting"), ("POST", "/v2/models/add/trace/setting")],
    "logging": [("GET", "/v2/logging"), ("POST", "/v2/logging")],
    "shared-memory": [("GET", "/v2/systemsharedmemory/status"), ("POST", "/v2/systemsharedmemory/unregister"),
                      ("POST", "/v2/systemsharedmemory/region/a/register"), ("GET", "/v2/cudasharedmemory/status")],
    "model-config": [("GET", "/v2/models/add/config"), ("GET", "/v2/models/add/versions/1/config")],
    "model-repository": [("POST", "/v2/repository/index"), ("POST", "/v2/repository/x/index"),
                         ("POST", "/v2/repository/models/add/load"), ("POST", "/v2/repository/x/models/fp16/unload")],
    "statistics": [("GET", "/v2/models/stats"), ("GET", "/v2/models/add/stats")],
}  # fmt: skip


def test_every_verb_and_every_method_has_a_group() -> None:
    """What is added later must be given one, or it would be open whatever is restricted."""
    assert set(HTTP_GROUPS) == {*METHODS, *UPDATES.values()}
    methods = _grpc_services(House().engine, NO_REGIONS, Traces(), LogSettings())
    assert set(GRPC_GROUPS) == {path for each in methods for path in each.paths()}
    assert {*HTTP_GROUPS.values(), *GRPC_GROUPS.values()} <= {*GROUPS, OPEN}


@pytest.mark.parametrize("group", VERBS)
def test_a_restricted_group_wants_its_header_and_the_others_do_not(group: str) -> None:
    async def test(house: House) -> None:
        for each, requests in VERBS.items():
            for method, path in requests:
                body = BODY if each == "inference" else b""
                status, _, reply = await house.send(method, path, body)
                assert (status == 403, each) == (each == group, each)
                if each == group:
                    assert json.loads(reply) == REFUSED
                    for wrong in ("", "secre", "secret ", "secretx", "SECRET", "sécret"):
                        assert (await house.send(method, path, body, api_key=wrong))[0] == 403
                    assert (await house.send(method, path, body, api_key="secret"))[0] != 403
        assert (await house.send("GET", "/v2/nope"))[0] == 404

    run(test, http_restricted=(f"{group}:Api-Key=secret",))


def test_nothing_is_restricted_unless_it_is_said() -> None:
    async def test(house: House) -> None:
        assert (await house.send("POST", INFER, BODY))[0] == 200

    run(test)


def test_no_way_of_writing_a_path_goes_around() -> None:
    """The door is asked with what a server makes of a request line: `path` is decoded, `raw_path` is not."""

    async def test(house: House) -> None:
        for path in (
            "//v2/models/a%2Fb/infer", "/v2//models/a%2Fb/infer", "/v2/models//a%2Fb/infer", "/v2/models/a%2Fb//infer",
            "/v2/models/a%2Fb/infer/", "/v2/./models/a%2Fb/infer", "/v2/models/x/../a%2Fb/infer",
            "/v2/%2e/models/a%2Fb/infer", "/v2/models/x/%2e%2e/a%2Fb/infer", "/V2/models/a%2Fb/infer",
            "/v2/Models/a%2Fb/infer", "/v2/models/a%2Fb/INFER", "/v2/models/a%2Fb/%69nfer", "/%762/models/a%2Fb/infer",
            "/v2/models/a%2fb/infer", "/v2/models/a%2Fb/versions/1/infer", "/v2/models/a%2Fb/versions//infer",
            "/v2/models/a%2Fb/infer%00", "/v2/models/a%2Fb/infer%2F", "/v2/models/a%2Fb/infer;x",
            "/v2/models/a/b/infer",
            "/v2/models/a%2Fb%2Finfer", "/v2\\models\\a%2Fb\\infer", "http://x/v2/models/a%2Fb/infer", "*", "",
            "/v2/models/a%252Fb/infer", "/v2/models/a%2Fb/infer?x=1",
        ):  # fmt: skip
            status, _, reply = await house.send("POST", path, BODY)
            assert status in (403, 404, 405), (path, reply)
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "POST ", ""):
            assert (await house.send(method, INFER, BODY))[0] == 405, method

    run(test, http_restricted=("inference:Api-Key=secret",))


def test_a_path_before_ours_changes_nothing() -> None:
    async def test(house: House) -> None:
        async def answer(raw: bytes, root: str) -> int:
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "GET", "path": "/v2/models/add", "raw_path": raw, "root_path": root}
            await house.door({**scope, "headers": []}, nothing, send)
            return int(sent[0]["status"])

        assert await answer(b"/v2/models/add", "") == 403
        assert await answer(b"/base/v2/models/add", "/base") == 403
        assert await answer(b"", "") == 403

    run(test, http_restricted=("metadata:Api-Key=secret",))


async def nothing() -> Any:
    raise AssertionError("the body of a refused request is not read")


def test_a_refused_request_is_answered_before_its_body_comes() -> None:
    async def test(house: House) -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-length", b"100000000")]
        scope = {"type": "http", "method": "POST", "path": INFER, "raw_path": INFER.encode(), "headers": headers}
        await house.door(scope, nothing, send)
        assert sent[0]["status"] == 403

    run(test, http_restricted=("inference:Api-Key=secret",))


def test_the_header_may_come_more_than_once_or_be_one_that_is_read_anyway() -> None:
    async def test(house: House) -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        for values, status in (([b"x", b"secret"], 200), ([b"x", b"y"], 403)):
            headers = [(b"x-request-id", value) for value in values]
            scope = {"type": "http", "method": "GET", "path": "/v2", "raw_path": b"/v2", "headers": headers}
            await house.door(scope, nothing, send)
            assert sent[-2]["status"] == status

    run(test, http_restricted=("metadata:X-Request-ID=secret",))


def test_an_extension_is_restricted_by_its_verb_too() -> None:
    async def answer(_target: Any, _receive: Any, _fields: Any) -> Answer:
        return Answer(200, b"{}")

    async def test(house: House) -> None:
        settings = Settings(http_restricted=("statistics:Api-Key=secret",))
        door = OipHttp(house.engine, settings, extensions=[{"statistics": answer}])
        assert (await exchange(door, "GET", "/v2/models/stats", [b""]))[0] == 403
        assert (await exchange(door, "GET", "/v2/models/stats", [b""], api_key="secret"))[0] == 200
        with pytest.raises(KeyError, match="brand_new"):
            OipHttp(house.engine, settings, extensions=[{"brand_new": answer}])

    run(test)


async def everything(scope: Any, _receive: Any, send: Any) -> None:
    """An app that answers 200 to whatever reaches it."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
    else:
        await send({"type": f"{scope['type']}.reached"})


@pytest.mark.parametrize(
    ("method", "path", "open_to_all"),
    [
        ("GET", "/livez", True),
        ("GET", "/readyz", True),
        ("GET", "/healthz", True),
        ("GET", "/metrics", True),
        ("HEAD", "/metrics", True),
        ("GET", "/", True),
        ("GET", "/docs.json", True),
        ("GET", "/schema.json", True),
        ("GET", "/base/livez", True),
        ("GET", "/static_content/swagger-ui.css", True),
        ("POST", "/classify", False),
        ("GET", "/classify", False),
        ("POST", "/metrics", False),
        ("POST", "/", False),
        ("OPTIONS", "/classify", False),
        ("POST", "/livez/../classify", False),
        ("GET", "/task/get", False),
        ("GET", "/mounted/page", False),
        ("GET", "//livez", False),
        ("GET", "/livez/", False),
        ("GET", "/static_content", False),
        ("POST", "/static_content/x", False),
        ("get", "/livez", False),
    ],
)
def test_typed_apis_and_all_that_is_unknown_need_the_key_of_inference(
    method: str, path: str, open_to_all: bool
) -> None:
    async def test() -> None:
        app = LockedApp.around(everything, Settings(http_restricted=("inference:Api-Key=secret",)), "/base")
        status, _, reply = await exchange(app, method, path, [b""])
        assert status == (200 if open_to_all else 403)
        assert open_to_all or json.loads(reply) == REFUSED
        assert (await exchange(app, method, path, [b""], api_key="secret"))[0] == 200

    asyncio.run(test())


def test_web_sockets_are_closed_and_the_lifespan_passes() -> None:
    async def test() -> None:
        app = LockedApp.around(everything, Settings(http_restricted=("inference:Api-Key=secret",)), "")
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "websocket", "path": "/livez", "headers": []}, nothing, send)
        await app({"type": "websocket", "path": "/ws", "headers": [(b"api-key", b"secret")]}, nothing, send)
        await app({"type": "lifespan"}, nothing, send)
        kinds = [message["type"] for message in sent]
        assert kinds == ["websocket.close", "websocket.reached", "lifespan.reached"]

    asyncio.run(test())


def test_where_inference_is_open_the_app_is_left_alone() -> None:
    assert LockedApp.around(everything, Settings(http_restricted=("metadata:k=v",)), "") is everything


# ---- gRPC


@contextlib.asynccontextmanager
async def port(house: House, *restricted: str) -> AsyncIterator[grpc.aio.Channel]:
    services = _grpc_services(house.engine, NO_REGIONS, Traces(), LogSettings())
    paths = [path for each in services for path in each.paths()]
    server = GrpcPort(services, 1 << 20, grpc_guards(Settings(grpc_restricted=restricted), paths))
    number = await server.listen("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel:
            yield channel
    finally:
        await server.close()


async def outcome(call: Any) -> tuple[str, str]:
    try:
        if hasattr(call, "read"):
            await call.read()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def called(channel: grpc.aio.Channel, path: str, *metadata: tuple[str, str], sends: bool = True) -> Any:
    """A call; a stream that `sends` nothing is told apart from one that is refused while it sends."""
    if path.endswith(("ModelStreamInfer", "ServerReflectionInfo", "Watch")):
        return channel.stream_stream(path)(iter([b""]) if sends else None, metadata=metadata, timeout=30)
    return channel.unary_unary(path)(b"", metadata=metadata, timeout=30)


@pytest.mark.parametrize("group", GROUPS)
def test_a_restricted_group_of_methods_wants_its_metadata(group: str) -> None:
    async def test(house: House) -> None:
        refused = ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'")
        async with port(house, f"{group}:Admin-Key=secret") as channel:
            for path, each in GRPC_GROUPS.items():
                closed = each == group
                assert (await outcome(called(channel, path, sends=not closed)) == refused) == closed, path
                if each == group:
                    for name, value in (
                        ("triton-grpc-protocol-admin-key", "secre"),
                        ("triton-grpc-protocol-admin-key", ""),
                        ("admin-key", "secret"),
                    ):
                        assert await outcome(called(channel, path, (name, value), sends=False)) == refused
                    right = ("triton-grpc-protocol-admin-key", "secret")
                    assert await outcome(called(channel, path, right)) != refused
                    # After a call with the key on this connection, one without is still refused.
                    assert await outcome(called(channel, path, sends=False)) == refused

    run(test)


def test_a_large_message_is_refused_by_its_headers() -> None:
    async def test(house: House) -> None:
        async with port(house, "inference:k=secret") as channel:
            path = "/inference.GRPCInferenceService/ModelInfer"
            call = channel.unary_unary(path)(bytes(64 << 20), timeout=30)  # over the limit of a message, too
            assert (await outcome(call))[0] == "UNAVAILABLE"
            call = channel.unary_unary(path)(
                bytes(64 << 20), timeout=30, metadata=[("triton-grpc-protocol-k", "secret")]
            )
            assert (await outcome(call))[0] == "RESOURCE_EXHAUSTED"

    run(test)


def test_a_method_without_a_group_is_not_served_open() -> None:
    with pytest.raises(KeyError, match=r"/new\.Service/Call"):
        grpc_guards(Settings(grpc_restricted=("inference:k=v",)), ["/new.Service/Call"])
    assert grpc_guards(Settings(), ["/new.Service/Call"]) == {}
