"""Inference whose tensors stand in shared memory, for both doors.

InferCall ─► windows of regions ─► read ─► Engine.infer ─► write ─► Response (for the door to say where it stands)
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, final

from ekiben.engine.engine import Engine
from ekiben.errors import Cancelled, InvalidRequest, TooLarge
from ekiben.extensions.shared_memory import SharedMemory, Window
from ekiben.types import Response, Tensor
from ekiben.wire.binary_tensor import binary_from_tensor, tensor_from_binary
from ekiben.wire.oip_json import InferCall
from ekiben.wire.shared_memory import SharedInput

__all__ = ["SharedInfer"]

_INLINE_BYTES: Final = 1 << 20
"""Up to here copying on the loop takes less than a millisecond."""
_BYTES_WEIGHT: Final = 16
"""How much longer a byte takes in a BYTES tensor, whose elements are looked at one by one."""

_Value = TypeVar("_Value")


@final
class SharedInfer:
    """Built once per door; called on the engine's loop for requests with `shared`."""

    def __init__(self, engine: Engine, regions: SharedMemory) -> None:
        self._engine = engine
        self._regions = regions

    async def __call__(self, call: InferCall) -> Response:
        """The response, outputs in their places. Cancelling it frees the request's place in the queue.

        Raises what Engine.infer does, and what SharedMemory.window and a Window do, all of them from here. Regions are
        looked up when the request comes: it keeps those that are unregistered while it runs.
        """
        request = call.request
        regions = self._regions
        # An unknown model is said before anything is read for it.
        self._engine.version(request.model, request.version)
        inputs = call.shared or {}
        sources = {
            name: regions.window(given.place.region, given.place.offset, given.place.size)
            for name, given in inputs.items()
        }
        targets = {
            name: regions.window(wish.place.region, wish.place.offset, wish.place.size)
            for name, wish in (call.wishes or {}).items()
            if wish.place is not None
        }
        total = sum(window.size for window in sources.values())
        if total > regions.read_limit_bytes:
            raise TooLarge(
                f"the inputs in shared memory come to {total} bytes, and body_limit_bytes is {regions.read_limit_bytes}"
            )
        if inputs:
            weight = sum(_weight(given.datatype, given.place.size) for given in inputs.values())
            request.inputs |= await _run(weight, _read, request.model, inputs, sources)
        response = await self._engine.infer(request)
        if request.alive is not None and not request.alive():
            # The memory may have another use by now.
            raise Cancelled(f"the caller of model '{request.model}' went away")
        if targets:
            outputs = {name: response.outputs[name] for name in targets}
            weight = sum(_weight(tensor.dtype.kind, tensor.nbytes) for tensor in outputs.values())
            await _run(weight, _write, outputs, targets)
        return response


async def _run(weight: int, function: Callable[..., _Value], *arguments: Any) -> _Value:
    """On the loop what is quickly done, else in a thread."""
    if weight <= _INLINE_BYTES:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _weight(kind: str, size: int) -> int:
    """Bytes to copy, more for tensors that take longer; `kind` is a datatype or numpy's letter."""
    return size * _BYTES_WEIGHT if kind in ("BYTES", "O", "S", "U") else size


def _read(model: str, inputs: Mapping[str, SharedInput], windows: Mapping[str, Window]) -> dict[str, Tensor]:
    return {
        name: tensor_from_binary(model, name, given.datatype, given.shape, windows[name].read(), 0, windows[name].size)
        for name, given in inputs.items()
    }


def _write(outputs: Mapping[str, Tensor], windows: Mapping[str, Window]) -> None:
    blobs = {name: binary_from_tensor(tensor) for name, tensor in outputs.items()}
    for name, blob in blobs.items():
        if len(blob) > windows[name].size:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{name}' ({windows[name].size} bytes) "
                f"should be at least {len(blob)} bytes to hold the results"
            )
    for name, blob in blobs.items():
        windows[name].write(blob)
