"""The gRPC port as it listens: how many clients it takes, and for how long."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from ekiben.doors.grpc_calls import Methods
from ekiben.doors.grpc_port import GrpcPort
from tests.wire.h2.peer import HELLO

ECHO = Methods({"/t/echo": lambda message, _call: bytes(message)})


@contextlib.asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[int]:
    port = GrpcPort([ECHO], 1 << 20, **settings)
    try:
        yield await port.listen("127.0.0.1", 0)
    finally:
        await port.close()


def channel(number: int) -> grpc.aio.Channel:
    """A client with a connection of its own: grpcio shares them among channels else."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{number}", options=[("grpc.use_local_subchannel_pool", 1)])


async def connected(number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the server has greeted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    assert await reader.readexactly(9 + 4 * 6)  # its SETTINGS
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes a connection without a word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_a_connection_too_many_is_closed_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with listening(max_connections=3) as number, channel(number) as first, channel(number) as late:
            assert await first.unary_unary("/t/echo")(b"1") == b"1"
            others = [(await connected(number))[1] for _ in range(2)]
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                assert await ended(reader)
                writer.close()
            refused = late.unary_unary("/t/echo")(b"2")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await refused
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await first.unary_unary("/t/echo")(b"3") == b"3"
            others[0].close()
            assert await late.unary_unary("/t/echo")(b"4", wait_for_ready=True, timeout=60) == b"4"
            others[1].close()

    asyncio.run(main())
    assert "gRPC: 1 refused, for 3 connections are open (setting grpc_max_connections)" in caplog.text


def test_a_client_is_asked_to_come_again_when_its_connection_is_old() -> None:
    async def main() -> None:
        async with listening(max_connection_age_s=1) as number:
            reader, writer = await connected(number)
            writer.write(HELLO)
            got = b""
            async with asyncio.timeout(60):
                while b"going away" not in got:
                    got += await reader.readexactly(1)
            writer.close()

    asyncio.run(main())


def test_half_of_the_files_are_left_to_others(caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    caplog.set_level("INFO")
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, before[1]))
    try:
        port = GrpcPort([ECHO], 1 << 20, max_connections=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert port._server._max_connections == 20
    assert "20 connections at most, not 1000" in caplog.text


@pytest.mark.parametrize("size", [1, 300 << 20, 1 << 33])
def test_any_message_limit_will_do(size: int) -> None:
    async def main() -> None:
        port = GrpcPort([ECHO], size)
        number = await port.listen("127.0.0.1", 0)
        async with channel(number) as client:
            assert await client.unary_unary("/t/echo")(b"1") == b"1"
        await port.close()

    asyncio.run(main())
