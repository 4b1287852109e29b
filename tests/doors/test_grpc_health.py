"""gRPC's health service."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from ekiben.doors.grpc_health import GrpcHealth
from ekiben.errors import NotFound
from ekiben.wire.protos.grpc import HEALTH
from tests.doors.grpc_house import Called, call, serving

_CHECK = "/grpc.health.v1.Health/Check"
_WATCH = "/grpc.health.v1.Health/Watch"
_SERVING, _NOT_SERVING, _UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def _asked(service: str) -> bytes:
    return bytes(HEALTH.message("HealthCheckRequest")(service=service).SerializeToString())


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
def test_check(service: str) -> None:
    ready = False
    health = GrpcHealth(lambda: ready, ["inference.GRPCInferenceService"])
    check = health.methods.unary[_CHECK]
    assert check(memoryview(_asked(service)), Called()) == _NOT_SERVING
    ready = True
    assert check(memoryview(_asked(service)), Called()) == _SERVING


def test_check_of_an_unknown_service() -> None:
    with pytest.raises(NotFound, match="unknown service 'x'"):
        GrpcHealth(lambda: True, []).methods.unary[_CHECK](memoryview(_asked("x")), Called())


def test_watch_tells_of_every_change() -> None:
    ready = False

    async def asked() -> AsyncIterator[memoryview]:
        yield memoryview(_asked(""))

    async def watch() -> None:
        nonlocal ready
        health = GrpcHealth(lambda: ready, [], watch_interval_s=0)
        replies = health.methods.streaming[_WATCH](asked(), Called())
        assert await anext(replies) == _NOT_SERVING
        later = asyncio.ensure_future(anext(replies))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not later.done()
        ready = True
        assert await later == _SERVING

    asyncio.run(watch())


def test_over_grpc() -> None:
    async def talk() -> None:
        health = GrpcHealth(lambda: True, [])
        async with serving(health.methods) as address, grpc.aio.insecure_channel(address) as channel:
            assert await call(channel, _CHECK, b"") == _SERVING
            watch = channel.unary_stream(_WATCH)(_asked("x"))
            assert await anext(aiter(watch)) == _UNKNOWN
            watch.cancel()

    asyncio.run(talk())
