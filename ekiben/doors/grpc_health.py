"""gRPC's health service (grpc.health.v1): whether the server, or one of its services, may get calls."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, final

from ekiben.doors.grpc_calls import Call, Methods
from ekiben.errors import NotFound
from ekiben.wire.protos.grpc import HEALTH

__all__ = ["GrpcHealth"]

_SERVING: Final = 1
_NOT_SERVING: Final = 2
_SERVICE_UNKNOWN: Final = 3


@final
class GrpcHealth:
    """Answers Check and Watch, for '' (the whole server) and each service by name."""

    def __init__(self, ready: Callable[[], bool], services: Sequence[str], watch_interval_s: float = 1.0) -> None:
        """`ready` tells of no change by itself, so a Watch looks at it every `watch_interval_s`."""
        self._ready = ready
        self._services = frozenset(("", *services))
        self._watch_interval_s = watch_interval_s
        self._reply: type[Any] = HEALTH.message("HealthCheckResponse")
        self.methods: Final = Methods(
            {"/grpc.health.v1.Health/Check": self._check}, {"/grpc.health.v1.Health/Watch": self._watch}
        )

    def _check(self, data: memoryview, _call: Call) -> bytes:
        service = HEALTH.parse("HealthCheckRequest", data).service
        status = self._status(service)
        if status == _SERVICE_UNKNOWN:
            raise NotFound(f"unknown service '{service}'")
        return bytes(self._reply(status=status).SerializeToString())

    async def _watch(self, messages: AsyncIterator[memoryview], _call: Call) -> AsyncIterator[bytes]:
        async for data in messages:
            service = HEALTH.parse("HealthCheckRequest", data).service
            told = 0
            while True:
                status = self._status(service)
                if status != told:
                    told = status
                    yield self._reply(status=status).SerializeToString()
                await asyncio.sleep(self._watch_interval_s)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return _SERVICE_UNKNOWN
        return _SERVING if self._ready() else _NOT_SERVING
