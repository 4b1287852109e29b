"""Tensors in shared memory between Triton's own clients and a running server, and clients that misuse it."""

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as client_memory
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.conftest import Server
from tests.shm_object import ShmObject, free_name

_NAMES = itertools.count()


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> ModuleType:
    """Either of Triton's clients."""
    module: ModuleType = request.param
    return module


@pytest.fixture
def client(kind: ModuleType, golden_shm: Server) -> Iterator[Any]:
    """It, connected. Begins as Triton's examples do: with no region registered."""
    address = golden_shm.host if kind is tritonclient.http else golden_shm.grpc
    more = {"network_timeout": 120.0, "connection_timeout": 120.0} if kind is tritonclient.http else {}
    made = kind.InferenceServerClient(address, **more)
    made.unregister_system_shared_memory()
    made.unregister_cuda_shared_memory()
    yield made
    made.unregister_system_shared_memory()
    made.close()


@contextlib.contextmanager
def region(client: Any, size: int) -> Iterator[tuple[str, Any]]:
    """A region of the client's, registered: its name and its handle."""
    name = f"region-{next(_NAMES)}"
    handle = client_memory.create_shared_memory_region(name, f"/{free_name()}", size)
    try:
        client.register_system_shared_memory(name, handle._shm_key, size)
        yield name, handle
        client.unregister_system_shared_memory(name)
    finally:
        client_memory.destroy_shared_memory_region(handle)


def given(kind: ModuleType, name: str, datatype: str, shape: Sequence[int], *place: Any) -> Any:
    made = kind.InferInput(name, list(shape), datatype)
    made.set_shared_memory(*place)
    return made


def wanted(kind: ModuleType, name: str, *place: Any) -> Any:
    made = kind.InferRequestedOutput(name)
    made.set_shared_memory(*place)
    return made


def outcome(function: Any, *arguments: Any, **more: Any) -> str:
    """OK, or what the error said."""
    try:
        function(*arguments, **more)
    except InferenceServerException as error:
        return str(error)
    return "OK"


def shape_of(kind: ModuleType, answer: Any, name: str) -> list[int]:
    output = answer.get_output(name)
    return list(output["shape"] if kind is tritonclient.http else output.shape)


def test_the_add_and_subtract_example(kind: ModuleType, client: Any) -> None:
    left = np.arange(16, dtype=np.int32).reshape(1, 16)
    right = np.ones((1, 16), np.int32)
    with region(client, 128) as (inputs, given_handle), region(client, 128) as (outputs, wanted_handle):
        client_memory.set_shared_memory_region(given_handle, [left, right])
        answer = client.infer(
            "simple",
            [
                given(kind, "INPUT0", "INT32", [1, 16], inputs, 64),
                given(kind, "INPUT1", "INT32", [1, 16], inputs, 64, 64),
            ],
            outputs=[wanted(kind, "OUTPUT0", outputs, 64), wanted(kind, "OUTPUT1", outputs, 64, 64)],
        )
        for name, offset, value in (("OUTPUT0", 0, left + right), ("OUTPUT1", 64, left - right)):
            assert shape_of(kind, answer, name) == [1, 16]
            got = client_memory.get_contents_as_numpy(wanted_handle, np.int32, [1, 16], offset)
            assert (got == value).all()
        del got


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("FP32", np.array([[1.5, np.nan, np.inf]], np.float32)),
        ("FP16", np.array([[1.5, -2]], np.float16)),
        ("BOOL", np.array([[True, False, True]])),
    ],
)
def test_datatypes(kind: ModuleType, client: Any, datatype: str, value: np.ndarray[Any, Any]) -> None:
    size = value.nbytes
    with region(client, 2 * size) as (name, handle):
        client_memory.set_shared_memory_region(handle, [value])
        client.infer(
            f"identity_{datatype.lower()}",
            [given(kind, "INPUT0", datatype, value.shape, name, size)],
            outputs=[wanted(kind, "OUTPUT0", name, size, size)],
        )
        got = client_memory.get_contents_as_numpy(handle, value.dtype, value.shape, size).copy()
        assert got.tobytes() == value.tobytes()


def test_any_byte_but_zero_is_true(kind: ModuleType, client: Any) -> None:
    with ShmObject(6) as memory:
        memory.put(bytes((0, 7, 255)))
        client.register_system_shared_memory("flags", memory.key, 6)
        client.infer(
            "identity_bool",
            [given(kind, "INPUT0", "BOOL", [1, 3], "flags", 3)],
            outputs=[wanted(kind, "OUTPUT0", "flags", 3, 3)],
        )
        assert memory.get(3, 3) == bytes((0, 1, 1))


def test_text(kind: ModuleType, client: Any) -> None:
    texts = np.array([[b"a", b"", b"\x00\xff"]], np.object_)
    packed = serialize_byte_tensor(texts)
    size = len(packed.item())
    with region(client, 200) as (name, handle):
        client_memory.set_shared_memory_region(handle, [packed])
        answer = client.infer(
            "identity_bytes",
            [given(kind, "INPUT0", "BYTES", [1, 3], name, size)],
            outputs=[wanted(kind, "OUTPUT0", name, 100, 100)],
        )
        shape = shape_of(kind, answer, "OUTPUT0")
        assert (client_memory.get_contents_as_numpy(handle, np.object_, shape, 100) == texts).all()


def test_an_output_that_does_not_fit_is_an_error_and_writes_nothing(kind: ModuleType, client: Any) -> None:
    with ShmObject(32) as memory:
        memory.put(b"\x01" * 32)
        client.register_system_shared_memory("tight", memory.key, 32)
        with pytest.raises(InferenceServerException, match="should be at least 16 bytes to hold the results"):
            client.infer(
                "identity_fp32",
                [given(kind, "INPUT0", "FP32", [1, 4], "tight", 16)],
                outputs=[wanted(kind, "OUTPUT0", "tight", 15, 16)],
            )
        assert memory.get(32) == b"\x01" * 32


def test_a_client_that_cuts_its_memory_again_and_again_harms_nobody(
    kind: ModuleType, client: Any, golden_shm: Server
) -> None:
    size = 8 << 20
    processes = sorted(golden_shm.processes())
    with ShmObject(size) as memory:
        client.register_system_shared_memory("cut", memory.key, size)
        request = given(kind, "INPUT0", "FP32", [1, size // 8], "cut", size // 2)
        output = wanted(kind, "OUTPUT0", "cut", size // 2, size // 2)
        over = threading.Event()

        def cut() -> None:
            lengths = itertools.cycle((0, size, size // 4, size, size - 1, size, 4096, size))
            while not over.is_set():
                memory.cut(next(lengths))

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            answers = {outcome(client.infer, "identity_fp32", [request], outputs=[output]) for _ in range(200)}
        finally:
            over.set()
            cutting.join()
        assert all(answer == "OK" or "has become shorter than" in answer for answer in answers)
        memory.cut(0)
        with pytest.raises(InferenceServerException, match="has become shorter than"):
            client.infer("identity_fp32", [request], outputs=[output])
        memory.cut(size)
        client.infer("identity_fp32", [request], outputs=[output])
    assert sorted(golden_shm.processes()) == processes
    assert "Traceback" not in golden_shm.log


def test_regions_are_the_servers_and_not_a_clients(golden_shm: Server) -> None:
    """As in Triton: who knows or guesses a name may use the region, by either door."""
    with (
        ShmObject(8) as memory,
        contextlib.closing(tritonclient.http.InferenceServerClient(golden_shm.host)) as one,
        contextlib.closing(tritonclient.grpc.InferenceServerClient(golden_shm.grpc)) as other,
    ):
        memory.put(np.array([2.5], np.float32).tobytes())
        one.register_system_shared_memory("mine", memory.key, 8)
        assert list(other.get_system_shared_memory_status().regions) == ["mine"]
        answer = other.infer("identity_fp32", [given(tritonclient.grpc, "INPUT0", "FP32", [1, 1], "mine", 4)])
        assert answer.as_numpy("OUTPUT0").tolist() == [[2.5]]
        other.unregister_system_shared_memory("mine")
        assert one.get_system_shared_memory_status() == []


def test_ten_thousand_registrations_leave_the_server_usable(golden_shm: Server) -> None:
    with (
        ShmObject(8) as memory,
        contextlib.closing(tritonclient.grpc.InferenceServerClient(golden_shm.grpc)) as client,
    ):
        register = client.register_system_shared_memory
        outcomes = [outcome(register, str(number), memory.key, 8) for number in range(10_000)]
        registered = outcomes.count("OK")
        assert 0 < registered <= 1024
        assert all("the most there may be; unregister one first" in each for each in outcomes[registered:])
        assert len(client.get_system_shared_memory_status().regions) == registered
        assert client.is_server_ready()
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("again", memory.key, 8)
        client.unregister_system_shared_memory("again")


def test_the_metadata_tell_of_it(client: Any, kind: ModuleType) -> None:
    metadata = client.get_server_metadata()
    extensions = metadata["extensions"] if kind is tritonclient.http else metadata.extensions
    assert "system_shared_memory" in extensions
