"""The shared-memory extension over gRPC: SystemSharedMemory… and CudaSharedMemory… of the inference service."""

from typing import Final, NoReturn, final

from ekiben.doors.grpc_calls import Call, Methods
from ekiben.extensions.shared_memory import SharedMemory, check_no_cuda, cuda_refusal
from ekiben.wire.protos.oip import OIP

__all__ = ["OipGrpcSharedMemory"]

_NOTHING: Final = b""
"""Every reply that has no fields."""


@final
class OipGrpcSharedMemory:
    """Built once per engine, with the regions that the HTTP door has too; called on the engine's loop."""

    def __init__(self, regions: SharedMemory) -> None:
        self._regions = regions
        path = f"/{OIP.services[0]}/"
        self.methods: Final = Methods(
            {
                path + "SystemSharedMemoryStatus": self._status,
                path + "SystemSharedMemoryRegister": self._register,
                path + "SystemSharedMemoryUnregister": self._unregister,
                path + "CudaSharedMemoryStatus": self._cuda_status,
                path + "CudaSharedMemoryRegister": self._cuda_register,
                path + "CudaSharedMemoryUnregister": self._cuda_unregister,
            },
            {},
        )

    def _status(self, data: memoryview, _call: Call) -> bytes:
        regions = self._regions.status(OIP.parse("SystemSharedMemoryStatusRequest", data).name)
        reply = OIP.message("SystemSharedMemoryStatusResponse")()
        for each in regions:
            told = reply.regions[each.name]
            told.name, told.key, told.offset, told.byte_size = each.name, each.key, each.offset, each.byte_size
        return bytes(reply.SerializeToString())

    def _register(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("SystemSharedMemoryRegisterRequest", data)
        self._regions.register(request.name, request.key, request.offset, request.byte_size)
        return _NOTHING

    def _unregister(self, data: memoryview, _call: Call) -> bytes:
        self._regions.unregister(OIP.parse("SystemSharedMemoryUnregisterRequest", data).name)
        return _NOTHING

    def _cuda_status(self, data: memoryview, _call: Call) -> bytes:
        check_no_cuda(OIP.parse("CudaSharedMemoryStatusRequest", data).name)
        return _NOTHING

    def _cuda_register(self, data: memoryview, _call: Call) -> NoReturn:
        raise cuda_refusal(OIP.parse("CudaSharedMemoryRegisterRequest", data).name)

    def _cuda_unregister(self, data: memoryview, _call: Call) -> bytes:
        OIP.parse("CudaSharedMemoryUnregisterRequest", data)
        return _NOTHING
