"""The shared-memory extension over HTTP: /v2/systemsharedmemory and /v2/cudasharedmemory."""

from typing import Annotated, Final, final

import msgspec
import orjson

from ekiben.doors.http_calls import Answer, Fields, Handler, Receive, small_body
from ekiben.extensions.shared_memory import SharedMemory, check_no_cuda, cuda_refusal
from ekiben.wire.oip_paths import Target

__all__ = ["OipHttpSharedMemory"]

_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Register(msgspec.Struct):
    key: str
    byte_size: _Size
    offset: _Size = 0


class _Unregister(msgspec.Struct):
    """Nothing is read of it."""


@final
class OipHttpSharedMemory:
    """`handlers` by verb; built once per engine, with the regions that the gRPC door has too."""

    def __init__(self, regions: SharedMemory) -> None:
        self._regions = regions
        self.handlers: Final[dict[str, Handler]] = {
            "shared_memory_status": self._status,
            "shared_memory_register": self._register,
            "shared_memory_unregister": self._unregister,
            "cuda_shared_memory_status": self._cuda_status,
            "cuda_shared_memory_register": self._cuda_register,
            "cuda_shared_memory_unregister": self._cuda_unregister,
        }

    async def _status(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        regions = self._regions.status(target.region)
        return Answer(
            200,
            orjson.dumps(
                [
                    {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.byte_size}
                    for each in regions
                ]
            ),
        )

    async def _register(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        body = await small_body(receive, fields, _Register)
        self._regions.register(target.region, body.key, body.offset, body.byte_size)
        return Answer(200, b"")

    async def _unregister(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        await small_body(receive, fields, _Unregister)
        self._regions.unregister(target.region)
        return Answer(200, b"")

    async def _cuda_status(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        check_no_cuda(target.region)
        return Answer(200, b"[]")

    async def _cuda_register(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        raise cuda_refusal(target.region)

    async def _cuda_unregister(self, _target: Target, receive: Receive, fields: Fields) -> Answer:
        await small_body(receive, fields, _Unregister)
        return Answer(200, b"")
