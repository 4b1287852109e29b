"""Tensors in shared memory: what a request says of where they stand. Doors read and write what stands there.

parameters {shared_memory_region, shared_memory_byte_size, shared_memory_offset (0)} ─► SharedPlace
"""

from collections.abc import Container, Iterable
from typing import Any, Final

import msgspec

from ekiben.errors import InvalidRequest

__all__ = ["SharedInput", "SharedPlace", "check_alone", "check_new", "shared_place", "shared_place_of"]

_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"


class SharedPlace(msgspec.Struct, frozen=True, gc=False):
    """`size` bytes, `offset` bytes into the region of that name. Neither is negative; nothing else is checked."""

    region: str
    offset: int
    size: int

    def parameters(self) -> dict[str, str | int]:
        """What a reply says of an output that was written there."""
        return {_REGION: self.region, _OFFSET: self.offset, _SIZE: self.size}

    def tell(self, output: Any) -> None:
        """Likewise in an output of a gRPC message."""
        output.parameters[_REGION].string_param = self.region
        output.parameters[_OFFSET].int64_param = self.offset
        output.parameters[_SIZE].int64_param = self.size


class SharedInput(msgspec.Struct, frozen=True, gc=False):
    """An input that is still to be read: at `place`, in the form of the binary tensor data extension."""

    datatype: str
    """One of DATATYPES."""
    shape: tuple[int, ...]
    place: SharedPlace


def shared_place(tensor: str, region: str, offset: int | None, size: int | None) -> SharedPlace:
    """What the parameters of a tensor come to. Raises InvalidRequest where one is missing."""
    if size is None:
        raise InvalidRequest(f"'{_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{tensor}'")
    return SharedPlace(region, offset or 0, size)


def shared_place_of(tensor: str, parameters: Any) -> SharedPlace | None:
    """Likewise of a gRPC message's parameters; None where they name no region."""
    region = _value(tensor, parameters, _REGION, ("string_param",))
    offset = _value(tensor, parameters, _OFFSET, ("int64_param", "uint64_param"))
    size = _value(tensor, parameters, _SIZE, ("int64_param", "uint64_param"))
    if region is not None:
        return shared_place(tensor, region, offset, size)
    if offset is not None or size is not None:
        key = _OFFSET if size is None else _SIZE
        raise InvalidRequest(f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{tensor}'")
    return None


def check_alone(output: str, classes: int) -> None:
    """Raise InvalidRequest for an output in shared memory that is wanted as classes too."""
    if classes:
        raise InvalidRequest(f"output can't set both '{_REGION}' and 'classification': output '{output}'")


def check_new(names: Iterable[str], inputs: Container[str]) -> None:
    """Raise InvalidRequest for a name that is among the inputs already."""
    for name in names:
        if name in inputs:
            raise InvalidRequest(f"input '{name}' already exists in request")


def _value(tensor: str, parameters: Any, key: str, kinds: tuple[str, ...]) -> Any:
    if key not in parameters:
        return None
    kind = parameters[key].WhichOneof("parameter_choice")
    if kind not in kinds:
        raise InvalidRequest(
            f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {kinds[0]}, "
            f"got {kind or 'nothing'}"
        )
    value = getattr(parameters[key], kind)
    if kind == "int64_param" and value < 0:
        raise InvalidRequest(f"invalid value for '{key}' parameter for tensor '{tensor}', expected >= 0, got {value}")
    return value
