"""The shared-memory extension over gRPC, by Triton's own client through grpcio's server."""

import asyncio
import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from ekiben.doors.oip_grpc import OipGrpc
from ekiben.doors.oip_grpc_shm import OipGrpcSharedMemory
from tests.doors.grpc_house import serving
from tests.doors.house import House, run
from tests.shm_object import ShmObject, free_name


def with_client(test: Callable[[Any, ShmObject], None], size: int = 4096, **limits: Any) -> None:
    """Runs the test, in a thread, with tritonclient and an object; where the extension is on."""

    def inside(address: str, memory: ShmObject) -> None:
        with triton.InferenceServerClient(address) as client:
            test(client, memory)

    async def outside(house: House) -> None:
        doors = OipGrpc(house.engine, house.regions).methods, OipGrpcSharedMemory(house.regions).methods
        with ShmObject(size) as memory:
            async with serving(*doors) as address:
                await asyncio.to_thread(inside, address, memory)

    run(outside, **{"allow_client_shm": True, **limits})


def given(datatype: str, shape: list[int], size: int, offset: int = 0, region: str = "r", name: str = "i") -> Any:
    made = triton.InferInput(name, shape, datatype)
    made.set_shared_memory(region, size, offset)
    return made


def wanted(size: int, offset: int = 0, region: str = "r", name: str = "o") -> Any:
    made = triton.InferRequestedOutput(name)
    made.set_shared_memory(region, size, offset)
    return made


def refused(function: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        function(*arguments, **more)
    return str(caught.value.status()), str(caught.value.message())


def test_register_status_unregister() -> None:
    def test(client: Any, memory: ShmObject) -> None:
        client.register_system_shared_memory("a", memory.key, 16, offset=8)
        client.register_system_shared_memory("b", memory.name, 4096)
        regions = client.get_system_shared_memory_status().regions
        assert {name: (each.name, each.key, each.offset, each.byte_size) for name, each in regions.items()} == {
            "a": ("a", memory.key, 8, 16),
            "b": ("b", memory.name, 0, 4096),
        }
        assert list(client.get_system_shared_memory_status("b").regions) == ["b"]
        assert refused(client.register_system_shared_memory, "a", memory.key, 16) == (
            "StatusCode.ALREADY_EXISTS",
            "shared memory region 'a' already in manager",
        )
        client.unregister_system_shared_memory("a")
        client.unregister_system_shared_memory("nope")
        assert refused(client.get_system_shared_memory_status, "a") == (
            "StatusCode.NOT_FOUND",
            "Unable to find system shared memory region: 'a'",
        )
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions

    with_client(test)


def test_what_register_refuses() -> None:
    def test(client: Any, memory: ShmObject) -> None:
        register = client.register_system_shared_memory
        missing = f"/{free_name()}"
        assert refused(register, "r", missing, 1) == (
            "StatusCode.INTERNAL",
            f"Unable to open shared memory region: '{missing}'",
        )
        for name, key, size, offset, text in (
            ("", memory.key, 1, 0, "has a name of 1 to 1024 characters"),
            ("r", "../etc/passwd", 1, 0, "is one name of at most 255 bytes"),
            ("r", memory.key, 0, 0, "byte_size must be 1 or more"),
            ("r", memory.key, (1 << 64) - 1, 1, "reach beyond the 4096 bytes"),
            ("r", memory.key, 1, (1 << 64) - 1, "reach beyond the 4096 bytes"),
        ):
            code, message = refused(register, name, key, size, offset)
            assert (code, text in message) == ("StatusCode.INVALID_ARGUMENT", True)
        assert not client.get_system_shared_memory_status().regions

    with_client(test)


def test_metadata_tell_of_it_where_it_is_on() -> None:
    def on(client: Any, _memory: ShmObject) -> None:
        assert "system_shared_memory" in client.get_server_metadata().extensions

    def off(client: Any, _memory: ShmObject) -> None:
        assert "system_shared_memory" not in client.get_server_metadata().extensions

    with_client(on)
    with_client(off, allow_client_shm=False)


def test_where_it_is_off_requests_are_refused() -> None:
    def test(client: Any, _memory: ShmObject) -> None:
        value = triton.InferInput("i", [1, 1], "INT8")
        value.set_data_from_numpy(np.ones((1, 1), np.int8))
        for inputs, outputs in (([given("INT8", [1, 1], 1)], None), ([value], [wanted(1)])):
            code, message = refused(client.infer, "a/b", inputs, outputs=outputs)
            assert (code, "(setting allow_client_shm)" in message) == ("StatusCode.UNIMPLEMENTED", True)

    with_client(test, allow_client_shm=False)


def test_cuda_is_refused_but_for_asking_and_letting_go() -> None:
    def test(client: Any, _memory: ShmObject) -> None:
        code, message = refused(client.register_cuda_shared_memory, "r", b"eA==", 0, 1)
        assert (code, "not supported here" in message) == ("StatusCode.UNIMPLEMENTED", True)
        assert not client.get_cuda_shared_memory_status().regions
        assert refused(client.get_cuda_shared_memory_status, "r")[0] == "StatusCode.NOT_FOUND"
        client.unregister_cuda_shared_memory("r")
        client.unregister_cuda_shared_memory()

    with_client(test)


def test_tensors_go_in_and_out_by_memory_beside_others() -> None:
    def test(client: Any, memory: ShmObject) -> None:
        client.register_system_shared_memory("r", memory.key, 4096)
        memory.put(np.array([[3, 4]], np.int32).tobytes(), 64)
        b = triton.InferInput("b", [1, 2], "INT32")
        b.set_data_from_numpy(np.array([[1, 1]], np.int32))
        for identity in ("", "7"):  # the second time by a plan that is kept
            memory.put(bytes(8), 128)
            outputs = [triton.InferRequestedOutput("sum"), wanted(16, 128, name="difference")]
            answer = client.infer(
                "add", [given("INT32", [1, 2], 8, 64, name="a"), b], outputs=outputs, request_id=identity
            )
            assert answer.as_numpy("sum").tolist() == [[4, 5]]
            told = answer.get_output("difference")
            assert (told.datatype, list(told.shape)) == ("INT32", [1, 2])
            assert {
                name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in told.parameters.items()
            } == {
                "shared_memory_region": "r",
                "shared_memory_offset": 128,
                "shared_memory_byte_size": 16,
            }
            assert np.frombuffer(memory.get(8, 128), np.int32).tolist() == [2, 3]

    with_client(test)


def test_text_goes_in_and_out_by_memory() -> None:
    texts = b"\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00\x00\xff"

    def test(client: Any, memory: ShmObject) -> None:
        client.register_system_shared_memory("r", memory.key, 4096)
        memory.put(texts)
        answer = client.infer("text", [given("BYTES", [1, 3], len(texts))], outputs=[wanted(100, 32)])
        assert list(answer.get_output("o").shape) == [1, 3]
        assert memory.get(len(texts) + 1, 32) == texts + b"\0"

    with_client(test)


def test_errors_of_requests() -> None:
    def test(client: Any, memory: ShmObject) -> None:
        client.register_system_shared_memory("r", memory.key, 4096)
        four = given("FP32", [1, 4], 16)
        for inputs, outputs, code, text in (
            ([given("FP32", [1, 1], 4, region="zzz")], None, "NOT_FOUND", "Unable to find shared memory region: 'zzz'"),
            ([given("FP32", [1, 2], 4)], None, "INVALID_ARGUMENT", "Expected 8, got 4"),
            ([given("FP32", [1, 1], 4, 4096)], None, "INVALID_ARGUMENT", "Invalid offset for shared memory region"),
            ([given("FP32", [1, 1], 4, 4093)], None, "INVALID_ARGUMENT", "Invalid offset + byte size"),
            ([given("FP32", [1, 1], 4, (1 << 63) - 1)], None, "INVALID_ARGUMENT", "Invalid offset for"),
            ([given("FP32", [1, 1], (1 << 63) - 1, 1)], None, "INVALID_ARGUMENT", "Invalid offset + byte size"),
            ([four], [wanted(15)], "INVALID_ARGUMENT", "for output 'o' (15 bytes) should be at least 16 bytes"),
            ([four], [wanted(16, region="zzz")], "NOT_FOUND", "Unable to find shared memory region: 'zzz'"),
        ):
            got, message = refused(client.infer, "fp32", inputs, outputs=outputs)
            assert (got, text in message) == (f"StatusCode.{code}", True), message
        memory.cut(15)
        got, message = refused(client.infer, "fp32", [four])
        assert (got, "has become shorter than" in message) == ("StatusCode.INVALID_ARGUMENT", True)

    with_client(test)


def test_streams_take_regions_in_order_and_stay_up_over_an_error() -> None:
    def test(client: Any, memory: ShmObject) -> None:
        client.register_system_shared_memory("r", memory.key, 4096)
        memory.put(bytes(range(100)))
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        plain = triton.InferInput("i", [1, 1], "INT8")
        plain.set_data_from_numpy(np.full((1, 1), 9, np.int8))
        for number in range(100):
            region = "zzz" if number == 50 else "r"
            inputs = [plain] if number % 3 == 0 else [given("INT8", [1, 1], 1, number, region)]
            outputs = [wanted(1, 1000 + number)] if number % 2 else None
            client.async_stream_infer("a/b", inputs, request_id=str(number), outputs=outputs)
        for number in range(100):
            result, error = answers.get(timeout=60)
            if number == 50:
                assert "Unable to find shared memory region: 'zzz'" in str(error)
                continue
            assert error is None
            assert result.get_response().id == str(number)
            value = 9 if number % 3 == 0 else number
            if number % 2:
                assert memory.get(1, 1000 + number) == bytes([value])
            else:
                assert result.as_numpy("o").tolist() == [[value]]
        client.stop_stream()

    with_client(test)


def test_large_tensors_arrive_whole() -> None:
    value = np.random.default_rng(1).random((1, 1 << 20), np.float32)

    def test(client: Any, memory: ShmObject) -> None:
        client.register_system_shared_memory("r", memory.key, 8 << 20)
        memory.put(value.tobytes())
        client.infer("fp32", [given("FP32", [1, 1 << 20], 4 << 20)], outputs=[wanted(4 << 20, 4 << 20)])
        assert memory.get(4 << 20, 4 << 20) == value.tobytes()

    with_client(test, 8 << 20)
