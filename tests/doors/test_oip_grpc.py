"""The gRPC door over the real engine, called by Triton's own client through grpcio's server."""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.grpc.aio import InferenceServerClient as AsyncClient
from tritonclient.utils import InferenceServerException

from ekiben import __version__
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.doors.oip_grpc_infer import Pending
from ekiben.doors.oip_grpc_shm import OipGrpcSharedMemory
from ekiben.errors import InvalidRequest
from ekiben.extensions.shared_memory import NO_REGIONS
from ekiben.runner.base import Raised
from tests.doors.grpc_house import OPTIONS, SERVICE, Called, call, serving, stream
from tests.doors.house import SIGNATURES, House, run, until


def with_client(test: Callable[[House, Any], Awaitable[None]]) -> None:
    """Runs the test with tritonclient's asyncio client of a house."""

    async def inside(house: House) -> None:
        async with serving(OipGrpc(house.engine).methods) as address, AsyncClient(address) as client:
            await test(house, client)

    run(inside)


def with_sync_client(test: Callable[[Any], None]) -> None:
    """Runs the test with tritonclient's blocking client, in a thread."""

    def inside(address: str) -> None:
        with triton.InferenceServerClient(address) as client:
            test(client)

    async def outside(house: House) -> None:
        async with serving(OipGrpc(house.engine).methods, OipGrpcSharedMemory(NO_REGIONS).methods) as address:
            await asyncio.to_thread(inside, address)

    run(outside)


def given(values: Any, name: str = "i") -> Any:
    array = np.asarray(values)
    datatype = {"i": f"INT{array.itemsize * 8}", "f": f"FP{array.itemsize * 8}", "O": "BYTES"}[array.dtype.kind]
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def request(model: str, *values: int, identity: str = "") -> Any:
    made = service_pb2.ModelInferRequest(model_name=model, id=identity)
    made.inputs.add(name="i", datatype="INT8", shape=[len(values), 1])
    made.raw_input_contents.append(bytes(values))
    return made


async def failure(answer: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        await answer
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


# --- inference


def test_infer() -> None:
    async def test(_: House, client: Any) -> None:
        one = np.arange(6, dtype=np.int32).reshape(3, 2)
        result = await client.infer("add", [given(one, "a"), given(one + 1, "b")], request_id="é")
        assert np.array_equal(result.as_numpy("sum"), 2 * one + 1)
        assert np.array_equal(result.as_numpy("difference"), np.full((3, 2), -1))
        reply = result.get_response()
        assert (reply.id, reply.model_name, reply.model_version) == ("é", "add", "1")
        only = await client.infer(
            "add", [given(one, "a"), given(one, "b")], outputs=[triton.InferRequestedOutput("difference")]
        )
        assert [output.name for output in only.get_response().outputs] == ["difference"]

    with_client(test)


def test_bytes_and_half_floats() -> None:
    async def test(_: House, client: Any) -> None:
        texts = np.array([[b"\x00\xff", b""]], np.object_)
        assert (await client.infer("text", [given(texts)])).as_numpy("o").tolist() == texts.tolist()
        halves = np.array([[1.5, -2]], np.float16)
        assert np.array_equal((await client.infer("fp16", [given(halves)])).as_numpy("o"), halves)

    with_client(test)


def test_contents() -> None:
    async def test(_: House, client: Any) -> None:
        made = service_pb2.ModelInferRequest(model_name="fp32")
        made.inputs.add(name="i", datatype="FP32", shape=[1, 3]).contents.fp32_contents.extend([0.5, 1, 2])
        reply = await client._client_stub.ModelInfer(made)
        assert reply.raw_output_contents == [np.array([0.5, 1, 2], np.float32).tobytes()]

    with_client(test)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_large_tensors(compression: str | None) -> None:
    """Past the size from which on messages are decoded in a thread."""

    async def test(_: House, client: Any) -> None:
        values = np.arange(1_200_000, dtype=np.float32).reshape(1, -1)
        result = await client.infer("fp32", [given(values)], compression_algorithm=compression)
        assert np.array_equal(result.as_numpy("o"), values)
        code, message = await failure(client.infer("fp16", [given(values)]))
        assert (code, "expects 'FP16'" in message) == ("INVALID_ARGUMENT", True)

    with_client(test)


def test_classes() -> None:
    async def test(_: House, client: Any) -> None:
        wanted = [triton.InferRequestedOutput("o", class_count=2)]
        result = await client.infer("fp32", [given(np.array([[0.25, 3, 1]], np.float32))], outputs=wanted)
        assert result.as_numpy("o").tolist() == [[b"3.000000:1", b"1.000000:2"]]
        code, message = await failure(client.infer("text", [given(np.array([[b"x"]], np.object_))], outputs=wanted))
        assert (code, "unsupported type BYTES" in message) == ("INVALID_ARGUMENT", True)

    with_client(test)


@pytest.mark.parametrize(
    ("model", "fields", "code", "text"),
    [
        ("nope", {}, "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        ("", {}, "NOT_FOUND", "Request for unknown model: '' is not found"),
        ("held", {"version": "9"}, "NOT_FOUND", "Request for unknown model: 'held' version 9 is not found"),
        ("nope", {"blob": b"xx"}, "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        ("held", {"blob": b"xx"}, "INVALID_ARGUMENT", "for input 'i' for model 'held'. Expected 1, got 2"),
        (
            "held",
            {"datatype": "FLOAT"},
            "INVALID_ARGUMENT",
            "inference input 'i' data-type is '<invalid>', but model 'held' expects 'INT8' (input 'i' has no such "
            "datatype: 'FLOAT')",
        ),
        (
            "held",
            {"datatype": "INT64"},
            "INVALID_ARGUMENT",
            "inference input 'i' data-type is 'INT64', but model 'held' expects 'INT8' (input byte size mismatch",
        ),
        ("held", {"name": "j", "datatype": "X"}, "INVALID_ARGUMENT", "input 'j' has no such datatype: 'X'"),
        ("held", {"name": "j"}, "INVALID_ARGUMENT", "unexpected inference input 'j' for model 'held'"),
    ],
)
def test_errors(model: str, fields: dict[str, Any], code: str, text: str) -> None:
    async def test(_: House, client: Any) -> None:
        made = service_pb2.ModelInferRequest(model_name=model, model_version=fields.get("version", ""))
        made.inputs.add(name=fields.get("name", "i"), datatype=fields.get("datatype", "INT8"), shape=[1, 1])
        made.raw_input_contents.append(fields.get("blob", b"x"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client._client_stub.ModelInfer(made)
        assert (caught.value.code().name, text in caught.value.details()) == (code, True), caught.value.details()

    with_client(test)


def test_model_that_raises() -> None:
    async def test(house: House, client: Any) -> None:
        runner = house.runners["held"]
        answer = asyncio.ensure_future(failure(client.infer("held", [given(np.array([[1]], np.int8))])))
        while not answer.done():
            if runner.running:
                runner.complete(Raised("boom"))
            await asyncio.sleep(0.005)
        code, message = await answer
        assert (code, "'held'" in message, "boom" in message) == ("INTERNAL", True, True)

    with_client(test)


def test_cancelled_call_frees_its_place() -> None:
    async def test(house: House, client: Any) -> None:
        runner = house.runners["held"]
        calls = [client._client_stub.ModelInfer(request("held", number)) for number in (1, 2, 3)]
        await until(lambda: bool(runner.running))
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        done = asyncio.gather(calls[0], calls[2])
        while not done.done():
            if runner.running:
                runner.compute()
            await asyncio.sleep(0.005)
        assert [reply.raw_output_contents for reply in await done] == [[b"\x01"], [b"\x03"]]

    with_client(test)


def test_answer_by_callback() -> None:
    """A transport may wait for the engine's future itself, without a task per call."""

    async def test(house: House) -> None:
        infer = OipGrpc(house.engine).methods.unary[SERVICE + "ModelInfer"]
        pending = infer(memoryview(request("a/b", 5).SerializeToString()), Called())
        assert isinstance(pending, Pending)
        reply = pending.reply(await pending.future)
        assert service_pb2.ModelInferResponse.FromString(reply).raw_output_contents == [b"\x05"]
        with pytest.raises(InvalidRequest):
            infer(memoryview(b"\x0a"), Called())

    run(test)


# --- streams


def test_stream_of_tritons_client() -> None:
    def test(client: Any) -> None:
        replies: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: replies.put((result, error)))
        for number in range(100):
            client.async_stream_infer("a/b", [given(np.array([[number]], np.int8))], request_id=str(number))
        for number in range(100):
            result, error = replies.get(timeout=60)
            assert error is None
            assert (result.get_response().id, result.as_numpy("o").tolist()) == (str(number), [[number]])
            assert result.get_response().parameters["triton_final_response"].bool_param
        client.async_stream_infer("nope", [given(np.array([[1]], np.int8))], request_id="bad")
        client.async_stream_infer("a/b", [given(np.array([[7]], np.int8))], request_id="good")
        result, error = replies.get(timeout=60)
        assert (result, error.message()) == (None, "Request for unknown model: 'nope' is not found")
        result, error = replies.get(timeout=60)
        assert result.as_numpy("o").tolist() == [[7]]
        client.stop_stream()

    with_sync_client(test)


def test_stream_keeps_order_and_says_every_error() -> None:
    """Messages of which some fail at once, some later, and one is too large for the loop."""

    async def test(house: House) -> None:
        large = service_pb2.ModelInferRequest(model_name="fp32", id="large")
        large.inputs.add(name="i", datatype="FP32", shape=[1, 400_000])
        large.raw_input_contents.append(bytes(1_600_000))
        wrong = service_pb2.ModelInferRequest.FromString(large.SerializeToString())
        wrong.inputs[0].shape[1] = 3
        messages = [
            request("a/b", 1, identity="0").SerializeToString(),
            b"\x0a",
            request("nope", 1, identity="2").SerializeToString(),
            large.SerializeToString(),
            wrong.SerializeToString(),
            request("a/b", 5, identity="5").SerializeToString(),
        ]
        async with serving(OipGrpc(house.engine).methods) as address, grpc.aio.insecure_channel(address, OPTIONS) as at:
            replies = await stream(at, SERVICE + "ModelStreamInfer", messages)
        read = [service_pb2.ModelStreamInferResponse.FromString(reply) for reply in replies]
        assert [reply.infer_response.id for reply in read] == ["0", "", "2", "large", "large", "5"]
        assert [reply.error_message.split(" for ")[0] for reply in read] == [
            "",
            "the request is not a well-formed inference.ModelInferRequest message",
            "Request",
            "",
            "input byte size mismatch",
            "",
        ]

    run(test)


# --- the rest


def test_server() -> None:
    def test(client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add")
        assert not client.is_model_ready("add", "2")
        assert not client.is_model_ready("nope")
        metadata = client.get_server_metadata()
        assert (metadata.name, metadata.version) == ("ekiben", __version__)
        assert "statistics" in metadata.extensions

    with_sync_client(test)


def test_model() -> None:
    def test(client: Any) -> None:
        metadata = client.get_model_metadata("add")
        assert (metadata.name, list(metadata.versions), metadata.platform) == ("add", ["1"], "python")
        assert [(spec.name, spec.datatype, list(spec.shape)) for spec in metadata.inputs] == [
            ("a", "INT32", [-1, 2]),
            ("b", "INT32", [-1, 2]),
        ]
        config = client.get_model_config("add", as_json=True)["config"]
        assert (config["max_batch_size"], config["backend"]) == (8, "python")
        assert config["input"][0] == {"name": "a", "data_type": "TYPE_INT32", "dims": ["2"]}
        assert config["instance_group"] == [{"name": "add_0", "count": 1, "kind": "KIND_CPU"}]
        client.infer("add", [given(np.zeros((2, 2), np.int32), name) for name in "ab"])
        (statistics,) = client.get_inference_statistics("add", "1").model_stats
        assert (statistics.inference_count, statistics.execution_count) == (2, 1)
        assert statistics.inference_stats.success.count == 1
        assert statistics.batch_stats[0].batch_size == 2
        assert len(client.get_inference_statistics().model_stats) == len(SIGNATURES)

    with_sync_client(test)


@pytest.mark.parametrize(
    ("method", "arguments", "code", "text"),
    [
        ("get_model_metadata", ("nope",), "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        ("get_model_config", ("add", "9"), "NOT_FOUND", "'add' version 9 is not found"),
        ("get_inference_statistics", ("nope",), "INVALID_ARGUMENT", "requested model 'nope' is not available"),
        (
            "get_inference_statistics",
            ("add", "9"),
            "INVALID_ARGUMENT",
            "requested model version is not available for model 'add'",
        ),
        ("get_system_shared_memory_status", (), "UNIMPLEMENTED", "--allow-client-shm"),
        ("register_system_shared_memory", ("r", "/k", 1), "UNIMPLEMENTED", "'r'): start it with --allow-client-shm"),
        ("unregister_system_shared_memory", (), "UNIMPLEMENTED", "--allow-client-shm"),
        ("load_model", ("nope",), "INTERNAL", "failed to load 'nope'"),
    ],
)
def test_refusals(method: str, arguments: tuple[Any, ...], code: str, text: str) -> None:
    def test(client: Any) -> None:
        with pytest.raises(InferenceServerException) as caught:
            getattr(client, method)(*arguments)
        assert caught.value.status() == f"StatusCode.{code}"
        assert text in caught.value.message()

    with_sync_client(test)


def test_repository() -> None:
    def test(client: Any) -> None:
        client.unload_model("add")
        assert not client.is_model_ready("add")
        index = {entry.name: entry for entry in client.get_model_repository_index().models}
        assert (index["add"].version, index["add"].state, index["add"].reason) == ("1", "UNAVAILABLE", "unloaded")
        assert index["held"].state == "READY"
        client.load_model("add")
        assert client.is_model_ready("add")
        client.unload_model("nope")
        with pytest.raises(InferenceServerException, match="the setting allow_load_override") as caught:
            client.load_model("add", config="{}")
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        with pytest.raises(InferenceServerException, match=r"'file:1/model\.py' needs 'config'"):
            client.load_model("add", files={"file:1/model.py": b"x"})

    with_sync_client(test)


def test_kserves_form_of_load_and_unload() -> None:
    async def test(house: House) -> None:
        name = b"\x0a\x03add"  # model_name is field 1 there
        async with serving(OipGrpc(house.engine).methods) as address, grpc.aio.insecure_channel(address) as channel:
            assert await call(channel, SERVICE + "RepositoryModelUnload", name) == name + b"\x10\x01"
            assert not house.engine.model_ready("add")
            assert await call(channel, SERVICE + "RepositoryModelLoad", name) == name + b"\x10\x01"
            assert house.engine.model_ready("add")

    run(test)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("RepositoryIndex", service_pb2.RepositoryIndexRequest(repository_name="r")),
        ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(repository_name="r", model_name="add")),
    ],
)
def test_repository_by_name_is_refused(method: str, message: Any) -> None:
    async def test(house: House) -> None:
        async with serving(OipGrpc(house.engine).methods) as address, grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, SERVICE + method, message.SerializeToString())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert caught.value.details() == "'repository_name' specification is not supported, got 'r'"

    run(test)


def test_blocking_client_in_many_threads() -> None:
    def test(client: Any) -> None:
        wrong: list[int] = []

        def work(number: int) -> None:
            for _ in range(20):
                result = client.infer("a/b", [given(np.array([[number]], np.int8))])
                if result.as_numpy("o").tolist() != [[number]]:
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    with_sync_client(test)
