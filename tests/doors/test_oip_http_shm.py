"""The shared-memory extension over HTTP, and inference whose tensors stand in regions."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from tests.doors.house import House, ints, run, until
from tests.shm_object import ShmObject, descriptors, free_name

SYSTEM = "/v2/systemsharedmemory"


def with_memory(test: Callable[[House, ShmObject], Coroutine[Any, Any, None]], size: int = 4096, **limits: Any) -> None:
    """Runs the test with an object that is registered whole as region 'r'."""
    with ShmObject(size) as memory:

        async def inside(house: House) -> None:
            house.regions.register("r", memory.key, 0, size)
            await test(house, memory)

        run(inside, allow_client_shm=True, **limits)


def shared(datatype: str, shape: list[int], size: int, offset: int = 0, **more: object) -> dict[str, object]:
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {"name": "i", "datatype": datatype, "shape": shape, "parameters": {**parameters, **more}}


def output(size: int, offset: int = 0, name: str = "o") -> dict[str, object]:
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {"name": name, "parameters": parameters}


async def call(house: House, method: str, path: str, document: object = None) -> tuple[int, Any]:
    body = b"" if document is None else json.dumps(document).encode()
    status, _, reply = await house.send(method, path, body)
    return status, json.loads(reply) if reply else None


def test_register_status_unregister() -> None:
    async def test(house: House) -> None:
        with ShmObject(64) as memory:
            first = {"key": memory.key, "offset": 8, "byte_size": 16}
            register = f"{SYSTEM}/region/a%2Fb/register"
            assert await call(house, "POST", register, first) == (200, None)
            assert await call(house, "POST", f"{SYSTEM}/region/c/register", {"key": memory.name, "byte_size": 64}) == (
                200,
                None,
            )
            known = [{"name": "a/b", **first}, {"name": "c", "key": memory.name, "offset": 0, "byte_size": 64}]
            assert await call(house, "GET", f"{SYSTEM}/status") == (200, known)
            assert await call(house, "GET", f"{SYSTEM}/region/c/status") == (200, known[1:])
            status, reply = await call(house, "POST", register, first)
            assert (status, reply["error"]) == (400, "shared memory region 'a/b' already in manager")
            assert await call(house, "POST", f"{SYSTEM}/region/c/unregister") == (200, None)
            status, reply = await call(house, "GET", f"{SYSTEM}/region/c/status")
            assert (status, reply["error"]) == (404, "Unable to find system shared memory region: 'c'")
            assert await call(house, "POST", f"{SYSTEM}/unregister", {}) == (200, None)
            assert await call(house, "GET", f"{SYSTEM}/status") == (200, [])

    run(test, allow_client_shm=True)


@pytest.mark.parametrize(
    ("document", "status", "text"),
    [
        ({"key": f"/{free_name()}", "byte_size": 1}, 500, "Unable to open shared memory region: '/"),
        ({"key": "/a/b", "byte_size": 1}, 400, "is one name of at most 255 bytes"),
        ({"key": "../x", "byte_size": 1}, 400, "got '../x'"),
        ({"byte_size": 1}, 400, "missing required field `key`"),
        ({"key": "k"}, 400, "missing required field `byte_size`"),
        ({"key": "k", "byte_size": -1}, 400, "Expected `int` >= 0"),
        ({"key": "k", "byte_size": 1 << 63}, 400, "byte_size"),
        ({"key": "k", "byte_size": 0}, 400, "byte_size must be 1 or more"),
        ({"key": "k", "byte_size": 1, "offset": "0"}, 400, "got `str`"),
        ({"key": 1, "byte_size": 1}, 400, "got `int`"),
        ([], 400, "Expected `object`"),
    ],
)
def test_what_register_refuses(document: object, status: int, text: str) -> None:
    async def test(house: House) -> None:
        got, reply = await call(house, "POST", f"{SYSTEM}/region/r/register", document)
        assert (got, text in reply["error"]) == (status, True), reply

    run(test, allow_client_shm=True)


def test_a_key_that_is_no_text_is_refused() -> None:
    async def test(house: House) -> None:
        for key in (b"\\ud800", b"\xff"):
            status, _, reply = await house.send(
                "POST", f"{SYSTEM}/region/r/register", b'{"key":"%s","byte_size":1}' % key
            )
            assert (status, b"error" in reply) == (400, True)

    run(test, allow_client_shm=True)


def test_methods() -> None:
    async def test(house: House) -> None:
        for method, path in (
            ("POST", "/status"),
            ("GET", "/unregister"),
            ("GET", "/region/r/register"),
            ("POST", "/region/r/status"),
        ):
            assert (await call(house, method, SYSTEM + path))[0] == 405
        assert (await call(house, "POST", f"{SYSTEM}/register"))[0] == 404

    run(test, allow_client_shm=True)


def test_metadata_tell_of_it_where_it_is_on() -> None:
    async def on(house: House) -> None:
        assert "system_shared_memory" in (await call(house, "GET", "/v2"))[1]["extensions"]

    async def off(house: House) -> None:
        assert "system_shared_memory" not in (await call(house, "GET", "/v2"))[1]["extensions"]

    run(on, allow_client_shm=True)
    run(off)


def test_where_it_is_off_everything_is_refused() -> None:
    async def test(house: House) -> None:
        answers = [
            await call(house, "GET", f"{SYSTEM}/status"),
            await call(house, "POST", f"{SYSTEM}/region/r/register", {"key": "/k", "byte_size": 1}),
            await call(house, "POST", f"{SYSTEM}/unregister"),
            await house.infer("fp32", {"inputs": [shared("FP32", [1, 1], 4)]}),
            await house.infer("a%2Fb", {**ints(1), "outputs": [output(1)]}),
        ]
        for status, reply in answers:
            assert (status, "--allow-client-shm (setting allow_client_shm)" in reply["error"]) == (501, True)

    run(test)


def test_cuda_is_refused_but_for_asking_and_letting_go() -> None:
    async def test(house: House) -> None:
        cuda = "/v2/cudasharedmemory"
        status, reply = await call(house, "POST", f"{cuda}/region/r/register", {"raw_handle": {"b64": "eA=="}})
        assert (status, "CUDA shared memory is not supported here" in reply["error"]) == (501, True)
        assert await call(house, "GET", f"{cuda}/status") == (200, [])
        status, reply = await call(house, "GET", f"{cuda}/region/r/status")
        assert (status, reply["error"]) == (404, "Unable to find cuda shared memory region: 'r'")
        assert await call(house, "POST", f"{cuda}/region/r/unregister") == (200, None)
        assert await call(house, "POST", f"{cuda}/unregister") == (200, None)

    run(test)
    run(test, allow_client_shm=True)


@pytest.mark.parametrize(
    ("model", "datatype", "value"),
    [
        ("fp32", "FP32", np.array([[1.5, -2, np.inf, np.nan]], np.float32)),
        ("fp16", "FP16", np.array([[1.5, -2]], np.float16)),
        ("fp32", "FP32", np.empty((1, 0), np.float32)),
        ("fp32", "FP32", np.empty((0, 3), np.float32)),
    ],
)
def test_tensors_go_in_and_out_by_memory(model: str, datatype: str, value: np.ndarray[Any, Any]) -> None:
    data = value.tobytes()

    async def test(house: House, memory: ShmObject) -> None:
        memory.put(data, 100)
        document = {
            "id": "7",
            "inputs": [shared(datatype, list(value.shape), len(data), 100)],
            "outputs": [output(64, 200)],
        }
        assert await house.infer(model, document) == (
            200,
            {
                "id": "7",
                "model_name": model,
                "model_version": "1",
                "outputs": [
                    {
                        "name": "o",
                        "datatype": datatype,
                        "shape": list(value.shape),
                        "parameters": {
                            "shared_memory_region": "r",
                            "shared_memory_offset": 200,
                            "shared_memory_byte_size": 64,
                        },
                    }
                ],
            },
        )
        assert memory.get(64, 200) == data + bytes(64 - len(data))

    with_memory(test)


def test_text_goes_in_and_out_by_memory() -> None:
    texts = b"\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00\x00\xff"

    async def test(house: House, memory: ShmObject) -> None:
        memory.put(texts)
        request = {"inputs": [shared("BYTES", [1, 3], len(texts))], "outputs": [output(len(texts), 32)]}
        status, reply = await house.infer("text", request)
        assert (status, reply["outputs"][0]["shape"]) == (200, [1, 3])
        assert memory.get(len(texts) + 1, 32) == texts + b"\0"
        for size, text in (
            (len(texts) - 1, "incomplete string data for inference input 'i' for model 'text'"),
            (len(texts) + 2, "incomplete string length indicator"),
            (9, "unexpected number of string elements 2 for inference input 'i'"),
        ):
            status, reply = await house.infer("text", {"inputs": [shared("BYTES", [1, 3], size)]})
            assert (status, text in reply["error"]) == (400, True)

    with_memory(test)


def test_some_tensors_in_memory_and_others_not() -> None:
    async def test(house: House, memory: ShmObject) -> None:
        memory.put(np.array([[3, 4]], np.int32).tobytes())
        document = {
            "inputs": [
                {**shared("INT32", [1, 2], 8), "name": "a"},
                {"name": "b", "datatype": "INT32", "shape": [1, 2], "data": [1, 1]},
            ],
            "outputs": [{"name": "sum"}, output(8, 8, "difference")],
        }
        status, reply = await house.infer("add", document)
        assert (status, [each.get("data") for each in reply["outputs"]]) == (200, [[4, 5], None])
        assert np.frombuffer(memory.get(8, 8), np.int32).tolist() == [2, 3]

    with_memory(test)


def test_large_tensors_go_by_threads_and_arrive_whole() -> None:
    value = np.random.default_rng(1).random((1, 1 << 20), np.float32)

    async def test(house: House, memory: ShmObject) -> None:
        memory.put(value.tobytes())
        document = {
            "inputs": [shared("FP32", [1, 1 << 20], 4 << 20)],
            "outputs": [output(4 << 20, 4 << 20)],
        }
        status, _ = await house.infer("fp32", document)
        assert status == 200
        assert memory.get(4 << 20, 4 << 20) == value.tobytes()

    with_memory(test, 8 << 20)


@pytest.mark.parametrize(
    ("model", "document", "status", "text"),
    [
        ("nope", {"inputs": [shared("FP32", [1, 1], 4)]}, 404, "unknown model: 'nope'"),
        (
            "fp32",
            {"inputs": [shared("FP32", [1, 1], 4, shared_memory_region="zzz")]},
            404,
            "Unable to find shared memory region: 'zzz'",
        ),
        ("fp32", {"inputs": [shared("FP32", [1, 1], 4, 4096)]}, 400, "Invalid offset for shared memory region: 'r'"),
        ("fp32", {"inputs": [shared("FP32", [1, 1], 4, 4093)]}, 400, "Invalid offset + byte size for shared memory"),
        ("fp32", {"inputs": [shared("FP32", [1, 1], 4, (1 << 63) - 1)]}, 400, "Invalid offset for shared memory"),
        ("fp32", {"inputs": [shared("FP32", [1, 1], (1 << 63) - 1, 1)]}, 400, "Invalid offset + byte size"),
        (
            "fp32",
            {"inputs": [shared("FP32", [1, 2], 4)]},
            400,
            "input byte size mismatch for input 'i' for model 'fp32'. Expected 8, got 4",
        ),
        ("fp32", {"inputs": [shared("INT8", [1, 2], 2)]}, 400, "data-type is 'INT8', but model 'fp32' expects 'FP32'"),
        ("fp32", {"inputs": [shared("FP32", [1 << 62, 1 << 62], 4)]}, 400, "input byte size mismatch"),
        ("fp32", {"inputs": [shared("FP32", [0, 1 << 62, 1 << 62], 0)]}, 400, "is too large"),
        ("add", {"inputs": [shared("INT32", [1, 2], 8)]}, 400, "unexpected inference input 'i' for model 'add'"),
        (
            "fp32",
            {"inputs": [shared("FP32", [1, 4], 16)], "outputs": [output(15)]},
            400,
            "shared memory size specified with the request for output 'o' (15 bytes) should be at least 16 bytes to "
            "hold the results",
        ),
        ("fp32", {"inputs": [shared("FP32", [1, 4], 16)], "outputs": [output(16, 4090)]}, 400, "Invalid offset + byte"),
        ("fp32", {"inputs": [shared("FP32", [1, 4], 16)], "outputs": [output(16, name="p")]}, 400, "output 'p'"),
    ],
)
def test_what_is_refused(model: str, document: dict[str, object], status: int, text: str) -> None:
    async def test(house: House, memory: ShmObject) -> None:
        memory.put(b"\x01" * 4096)
        got, reply = await house.infer(model, document)
        assert (got, text in reply["error"]) == (status, True), reply
        assert memory.get(4096) == b"\x01" * 4096

    with_memory(test)


def test_inputs_in_memory_count_as_a_body_does() -> None:
    async def test(house: House, memory: ShmObject) -> None:
        memory.cut(1 << 40)  # of which no page exists
        house.regions.register("huge", memory.key, 0, 1 << 40)
        huge = shared("FP32", [1, 1 << 38], 1 << 40, shared_memory_region="huge")
        status, reply = await house.infer("fp32", {"inputs": [huge]})
        assert (status, reply["error"]) == (
            400,
            "the inputs in shared memory come to 1099511627776 bytes, and body_limit_bytes is 1000000",
        )
        many = [{**shared("FP32", [1, 1000], 4000), "name": f"i{number}"} for number in range(300)]
        status, reply = await house.infer("fp32", {"inputs": many})
        assert (status, "come to 1200000 bytes" in reply["error"]) == (400, True)

    with_memory(test, body_limit_bytes=1_000_000)


@pytest.mark.parametrize("large", [False, True])
def test_memory_that_is_cut_under_a_request_is_an_error(large: bool) -> None:
    size = 4 << 20 if large else 4096

    async def test(house: House, memory: ShmObject) -> None:
        document = {"inputs": [shared("FP32", [1, size // 4], size)]}
        memory.cut(size - 1)
        status, reply = await house.infer("fp32", document)
        assert (status, "has become shorter than" in reply["error"]) == (400, True)
        memory.cut(size)
        assert (await house.infer("fp32", {**document, "outputs": [output(size)]}))[0] == 200

        memory.put(b"\x07")
        asked = {"inputs": [shared("INT8", [1, 1], 1)], "outputs": [output(1, size - 1)]}
        waiting = asyncio.create_task(house.infer("held", asked))
        held = house.runners["held"]
        await until(lambda: bool(held.running))
        memory.cut(8)
        held.compute()
        status, reply = await waiting
        assert (status, "has become shorter than" in reply["error"]) == (400, True)
        assert memory.size() == 8

    with_memory(test, size)


def test_a_region_that_is_unregistered_under_a_request_serves_it_to_the_end() -> None:
    async def test(house: House, memory: ShmObject) -> None:
        memory.put(b"\x07")
        before = descriptors()
        document = {"inputs": [shared("INT8", [1, 1], 1)], "outputs": [output(1, 1)]}
        waiting = asyncio.create_task(house.infer("held", document))
        held = house.runners["held"]
        await until(lambda: bool(held.running))
        assert await call(house, "POST", f"{SYSTEM}/unregister") == (200, None)
        assert (await house.infer("held", document))[0] == 404
        with ShmObject(4096) as other:
            house.regions.register("r", other.key, 0, 4096)
            held.compute()
            assert (await waiting)[0] == 200
            assert (memory.get(2), other.get(2)) == (b"\x07\x07", b"\0\0")
        house.regions.unregister()
        del waiting
        assert descriptors() == before - 1

    with_memory(test)


def test_callers_that_write_to_one_place_each_get_an_answer() -> None:
    async def test(house: House, memory: ShmObject) -> None:
        def document(number: int) -> dict[str, object]:
            return {"inputs": [shared("FP32", [1, 2], 8, 8 * number)], "outputs": [output(8, 2048)]}

        for number in range(200):
            memory.put(np.full(2, number, np.float32).tobytes(), 8 * number)
        answers = await asyncio.gather(*(house.infer("fp32", document(number)) for number in range(200)))
        assert [status for status, _ in answers] == [200] * 200
        left, right = np.frombuffer(memory.get(8, 2048), np.float32)
        assert left == right

    with_memory(test)
