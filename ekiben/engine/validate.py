"""Checks of a request against a signature, prepared once per version.

The texts that clients match are Triton's (protocols.md §2.3).
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from ekiben.errors import InvalidRequest, NotFound
from ekiben.types import DATATYPES, Request, Signature, Tensor, TensorSpec, datatype_of

__all__ = ["SignatureCheck", "check_signature"]

_BATCH_NOTE: Final = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each"
    " input shape. If you want to specify the full shape including the batch dim in your input dims config, try"
    " setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class SignatureCheck:
    """One signature of one version: says how many rows a request has and with whom it may ride."""

    def __init__(self, model: str, name: str, signature: Signature, max_batch_size: int) -> None:
        """`max_batch_size` 0: no batch dimension; every request is one row and runs alone."""
        self.name = name
        self.outputs = tuple(spec.name for spec in signature.outputs)
        self._model = model
        self._batch = max_batch_size
        self._specs = signature.inputs
        self._names = frozenset(spec.name for spec in signature.inputs)
        self._required = tuple(spec.name for spec in signature.inputs if not spec.optional)
        first = 1 if max_batch_size else 0
        self._checks = [
            (spec, spec.name, DATATYPES[spec.datatype], len(spec.shape), first, spec.shape[first:])
            for spec in signature.inputs
        ]
        self._fixed = not any(spec.optional or -1 in spec.shape[first:] for spec in signature.inputs)

    def admit(self, request: Request) -> tuple[int, Hashable]:
        """Rows and batching key of a valid request. Raises InvalidRequest naming what is wrong."""
        inputs = request.inputs
        if len(inputs) != len(self._checks) or not inputs.keys() <= self._names:
            self._check_names(inputs)
        if request.outputs:
            self._check_outputs(request.outputs)
        rows = -1
        for spec, name, dtype, rank, first, trailing in self._checks:
            array = inputs.get(name)
            if array is None:
                continue
            if array.dtype != dtype:
                raise InvalidRequest(
                    f"inference input '{name}' data-type is '{datatype_of(array)}', "
                    f"but model '{self._model}' expects '{spec.datatype}'"
                )
            shape = array.shape
            if shape[first:] != trailing and not _fits(shape, rank, first, trailing):
                raise self._shape_error(spec, shape)
            if first:
                if len(shape) != rank:
                    raise self._shape_error(spec, shape)
                if rows < 0:
                    rows = shape[0]
                elif shape[0] != rows:
                    raise InvalidRequest(f"input '{name}' batch size does not match other inputs for '{self._model}'")
        if not self._batch:
            return 1, self._key(inputs)
        if rows > self._batch:
            raise InvalidRequest(f"inference request batch-size must be <= {self._batch} for '{self._model}'")
        return max(rows, 0), self._key(inputs)

    def _key(self, inputs: Mapping[str, Tensor]) -> Hashable:
        if self._fixed:
            return self.name
        first = 1 if self._batch else 0
        return (self.name, *((name, inputs[name].shape[first:]) for name in sorted(inputs)))

    def _check_names(self, inputs: Mapping[str, Tensor]) -> None:
        missing = [name for name in self._required if name not in inputs]
        unexpected = [name for name in inputs if name not in self._names]
        if unexpected and len(inputs) <= len(self._checks):
            raise InvalidRequest(f"unexpected inference input '{unexpected[0]}' for model '{self._model}'")
        if missing or unexpected:
            also = f" Unexpected input(s) {_listed(unexpected)}." if unexpected else ""
            raise InvalidRequest(
                f"expected {len(self._specs)} inputs but got {len(inputs)} inputs for model '{self._model}'. "
                f"Got input(s) {_listed(inputs)}, but missing required input(s) {_listed(missing)}. "
                f"Please provide all required input(s).{also}"
            )

    def _check_outputs(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self.outputs:
                raise InvalidRequest(f"unexpected inference output '{name}' for model '{self._model}'")

    def _shape_error(self, spec: TensorSpec, shape: tuple[int, ...]) -> InvalidRequest:
        return InvalidRequest(
            f"unexpected shape for input '{spec.name}' for model '{self._model}'. Expected {_dims(spec.shape)}, "
            f"got {_dims(shape)}.{_BATCH_NOTE if self._batch else ''}"
        )


def check_signature(name: str, checks: Mapping[str, SignatureCheck], model: str) -> SignatureCheck:
    """The check for a signature by name. Raises NotFound naming those that exist."""
    try:
        return checks[name]
    except KeyError:
        raise NotFound(f"model '{model}' has no signature '{name}'; it has {_listed(checks)}") from None


def _fits(shape: tuple[int, ...], rank: int, first: int, trailing: tuple[int, ...]) -> bool:
    return len(shape) == rank and all(want in (-1, size) for size, want in zip(shape[first:], trailing, strict=True))


def _dims(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _listed(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
