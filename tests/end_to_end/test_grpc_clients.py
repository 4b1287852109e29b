"""Unmodified gRPC clients: asyncio, long streams in order, large messages, packed or not, stubs of one's own."""

import asyncio
import contextlib
import itertools
import queue
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf import descriptor_pool, message_factory

from ekiben.wire.protos.grpc import REFLECTION
from tests.conftest import Serve, Server
from tests.end_to_end.test_grpc import tensor
from tests.wire.h2.peer import HELLO

SERVICE = "/inference.GRPCInferenceService/"
MIB = 1 << 20
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PACKINGS = [None, "gzip", "deflate"]
COMPRESSIONS = [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate]


class Stub:
    """What `protoc` would make of the files that the server itself hands out: message classes, and methods by name."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._pool = descriptor_pool.DescriptorPool()
        request = REFLECTION.message("ServerReflectionRequest")(file_containing_symbol="inference.GRPCInferenceService")
        with grpc.insecure_channel(address) as blocking:
            ask = blocking.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
            (reply,) = ask(iter([request.SerializeToString()]), timeout=60)
        found = REFLECTION.message("ServerReflectionResponse").FromString(reply)
        for serialized in reversed(found.file_descriptor_response.file_descriptor_proto):
            self._pool.AddSerializedFile(serialized)
        self._methods = self._pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name

    def message(self, name: str) -> Any:
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"inference.{name}"))

    def method(self, name: str) -> Any:
        about = self._methods[name]
        make = self._channel.stream_stream if about.client_streaming else self._channel.unary_unary
        return make(
            SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(about.output_type).FromString,
        )


def with_stub(golden: Server, test: Callable[[Stub], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(golden.grpc, options=ANY_SIZE) as channel:
            await test(await asyncio.to_thread(Stub, golden.grpc, channel))

    asyncio.run(main())


def simple(stub: Stub, number: int, *, typed: bool, model: str = "simple") -> Any:
    """A request to add and subtract `number` and 1."""
    request = stub.message("ModelInferRequest")(model_name=model, id=str(number))
    for name, value in (("INPUT0", number), ("INPUT1", 1)):
        made = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        if typed:
            made.contents.int_contents.extend([value] * 16)
        else:
            request.raw_input_contents.append(np.full(16, value, np.int32).tobytes())
    return request


def row(number: int) -> list[Any]:
    return [tensor("INPUT0", np.full((1, 16), number, np.int32)), tensor("INPUT1", np.ones((1, 16), np.int32))]


# --- tritonclient


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_blocking_client_streams_in_order(golden: Server, packing: str | None) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(golden.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=packing)
        for number in range(1000):
            client.async_stream_infer("simple", row(number), request_id=str(number))
        for number in range(1000):
            result, error = answers.get(timeout=120)
            assert error is None
            assert result.get_response().id == str(number)
            assert (result.as_numpy("OUTPUT0") == number + 1).all()
        client.stop_stream()


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_asyncio_client(golden: Server, packing: str | None) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(golden.grpc) as client:
            assert await client.is_server_ready()
            answers = await asyncio.gather(
                *(client.infer("simple", row(number), compression_algorithm=packing) for number in range(300))
            )
            for number, answer in enumerate(answers):
                assert (answer.as_numpy("OUTPUT1") == number - 1).all()

            async def requests() -> AsyncIterator[dict[str, Any]]:
                for number in range(500):
                    model = "nope" if number % 100 == 7 else "simple"
                    yield {"model_name": model, "inputs": row(number), "request_id": str(number)}

            number = 0
            async for result, error in client.stream_infer(requests(), compression_algorithm=packing):
                if number % 100 == 7:
                    assert error.message() == "Request for unknown model: 'nope' is not found"
                else:
                    assert (error, result.get_response().id) == (None, str(number))
                    assert result.get_response().parameters["triton_final_response"].bool_param
                number += 1
            assert number == 500

    asyncio.run(main())


# --- stubs of one's own, on bare grpcio


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("packing", COMPRESSIONS)
def test_stubs_made_from_the_servers_own_description(golden: Server, typed: bool, packing: Any) -> None:
    async def test(stub: Stub) -> None:
        infer = partial(stub.method("ModelInfer"), compression=packing, timeout=120)
        answers = await asyncio.gather(*(infer(simple(stub, number, typed=typed)) for number in range(200)))
        assert [answer.id for answer in answers] == [str(number) for number in range(200)]
        assert all(
            answer.raw_output_contents[0] == np.full(16, number + 1, np.int32).tobytes()
            for number, answer in enumerate(answers)
        )
        requests = (simple(stub, number, typed=typed) for number in range(500))
        number = 0
        async for reply in stub.method("ModelStreamInfer")(requests, compression=packing, timeout=120):
            assert (reply.error_message, reply.infer_response.id) == ("", str(number))
            assert reply.infer_response.raw_output_contents[0] == np.full(16, number + 1, np.int32).tobytes()
            number += 1
        assert number == 500

    with_stub(golden, test)


def test_raw_and_typed_and_wrong_requests_mix_on_one_stream(golden: Server) -> None:
    async def test(stub: Stub) -> None:
        both = simple(stub, 3, typed=True)
        both.raw_input_contents.append(bytes(64))
        short = simple(stub, 4, typed=False)
        short.raw_input_contents[1] = bytes(63)
        requests = [
            simple(stub, 0, typed=True),
            simple(stub, 1, typed=False),
            simple(stub, 2, typed=True, model="nope"),
            both,
            short,
            simple(stub, 5, typed=True),
        ]
        replies = [reply async for reply in stub.method("ModelStreamInfer")(iter(requests), timeout=120)]
        assert [reply.infer_response.id for reply in replies] == [str(number) for number in range(6)]
        assert [bool(reply.error_message) for reply in replies] == [False, False, True, True, True, False]
        assert "contents field must not be specified when using raw_input_contents" in replies[3].error_message
        assert "input byte size mismatch for input 'INPUT1'" in replies[4].error_message

    with_stub(golden, test)


def test_ten_thousand_messages_on_one_stream(golden: Server) -> None:
    async def test(stub: Stub) -> None:
        requests = (simple(stub, number, typed=False) for number in range(10_000))
        ids = [reply.infer_response.id async for reply in stub.method("ModelStreamInfer")(requests, timeout=240)]
        assert ids == [str(number) for number in range(10_000)]

    with_stub(golden, test)


def large(stub: Stub, number: int) -> Any:
    """64 MB that packs well, and whose answer is as large."""
    values = np.resize(np.random.default_rng(number).random(1_001, np.float32), (1, 64 * MIB // 4))
    request = stub.message("ModelInferRequest")(model_name="identity_fp32", id=str(number))
    request.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request


@pytest.mark.parametrize("packing", COMPRESSIONS)
def test_64_mb_each_way(golden: Server, packing: Any) -> None:
    async def test(stub: Stub) -> None:
        request = large(stub, 1)
        answer = await stub.method("ModelInfer")(request, compression=packing, timeout=240)
        assert answer.raw_output_contents[0] == request.raw_input_contents[0]

        # Small ones before and behind it keep their places.
        requests = [simple(stub, 0, typed=False), request, simple(stub, 2, typed=True), large(stub, 3)]
        replies = stub.method("ModelStreamInfer")(iter(requests), compression=packing, timeout=240)
        for number in range(4):
            reply = await replies.read()
            assert (reply.error_message, reply.infer_response.id) == ("", str(number))
            if number % 2:
                assert reply.infer_response.raw_output_contents[0] == requests[number].raw_input_contents[0]
        assert await replies.read() == grpc.aio.EOF

    with_stub(golden, test)


def test_a_stream_that_is_cancelled_leaves_the_others_alone(golden: Server) -> None:
    async def test(stub: Stub) -> None:
        stream = stub.method("ModelStreamInfer")

        async def given_up() -> None:
            call = stream(simple(stub, number, typed=False) for number in itertools.count())
            for _ in range(20):
                await call.read()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call.read()

        async def kept() -> None:
            requests = (simple(stub, number, typed=False) for number in range(2_000))
            ids = [reply.infer_response.id async for reply in stream(requests, timeout=240)]
            assert ids == [str(number) for number in range(2_000)]

        await asyncio.gather(kept(), *(given_up() for _ in range(10)))

    with_stub(golden, test)


def test_the_port_bounds_its_connections_in_number_and_age(serve: Serve, tmp_path: Path) -> None:
    server = serve(
        *("--repository", str(tmp_path), "--model-control", "explicit"),
        EKIBEN_GRPC_MAX_CONNECTIONS="1",
        EKIBEN_GRPC_MAX_CONNECTION_AGE_S="1",
    )
    host, _, port = server.grpc.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as first:
        got = first.recv(1)
        assert got  # it is greeted
        with socket.create_connection((host, int(port)), 60) as second, contextlib.suppress(ConnectionResetError):
            assert second.recv(1) == b""
        first.sendall(HELLO)
        while b"going away" not in got:
            more = first.recv(1 << 16)
            assert more
            got += more
    server.wait(lambda: "(setting grpc_max_connections)" in server.log)
