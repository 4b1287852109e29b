"""What a runtime is: the code for one framework, as one module with the same few verbs.

A runtime lives in a runner process and nowhere else; its module imports its framework at the top, and
only `runtimes.table` names it. Verbs: construct with a LoadContext, read `signatures`, `run`, `close`.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec
import numpy as np

from ekiben.errors import LoadFailed
from ekiben.types import Parameter, Signature, Tensor, TensorSpec, datatype_of

__all__ = [
    "DEFAULT_SIGNATURE",
    "DecoupledSession",
    "LoadContext",
    "Session",
    "check_output",
    "decoupled",
    "fits",
    "load_failed",
    "model_path",
    "owned",
    "resolve_signatures",
]

DEFAULT_SIGNATURE: Final = "serving_default"


class LoadContext(msgspec.Struct, frozen=True):
    """What a runtime is told when it loads one instance."""

    model: str
    version: int
    path: Path
    """Folder of the version's files."""
    file: str
    """The model's file or folder inside `path`; '' lets the runtime look for its usual names."""
    device: str
    """`cpu`, `gpu:N`, or `auto`: the first GPU that the framework sees, else the CPU. See Session.device."""
    threads: int
    """Compute threads for this instance, at least 1."""
    signatures: Mapping[str, Signature]
    """As declared in model.yaml; empty: read them from the model."""
    batched: bool | None
    """Whether requests lead with a batch dimension; None: decide from the model."""
    parameters: Mapping[str, Parameter]
    decoupled: bool | None = None
    """Whether requests get a stream of responses, as model.yaml says; None: decide from the model."""


class Session(Protocol):
    """One loaded model on one device. Used by one thread at a time, the one that loaded it or another.

    `__init__(context)` loads and raises ekiben.errors.LoadFailed with the reason (naming model and device).
    """

    signatures: Mapping[str, Signature]
    """Every way to call the model; DEFAULT_SIGNATURE is always there."""
    device: str
    """`cpu` or `gpu:N`: what `auto` became."""

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Mapping[str, Tensor]:
        """Run once; blocks. Inputs have the declared dtypes and may be read-only views that die after the call.

        `outputs` names those wanted, at least one. BYTES tensors are object arrays of `bytes`. The arrays returned
        belong to the caller. Any exception means that this batch failed; the session stays usable.
        """
        ...

    def close(self) -> None:
        """Free what the framework would not free at process end."""
        ...


class DecoupledSession(Session, Protocol):
    """A session that may answer each request with a stream of responses: it does where `decoupled` is true.

    `stream` is called in the place of `run` then.
    """

    decoupled: bool

    def stream(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]
    ) -> Generator[Mapping[str, Tensor], None, None]:
        """The responses to one request, each computed, which blocks, when it is asked for.

        As `run`, but the inputs stay valid until the generator ends, and the arrays of a response are used before the
        next one is asked for. Closing the generator early stops the model.
        """
        ...


def decoupled(session: Session) -> DecoupledSession | None:
    """The session where it answers with streams; None where `run` is to be called."""
    return cast("DecoupledSession", session) if getattr(session, "decoupled", False) else None


def load_failed(context: LoadContext, reason: str) -> LoadFailed:
    """The error for a version that cannot be loaded, naming model, version and device."""
    return LoadFailed(f"model '{context.model}' version {context.version} on device '{context.device}': {reason}")


def model_path(context: LoadContext, *usual: str) -> Path:
    """The model's file or folder: `context.file`, else the first of the usual names that is there.

    Raises LoadFailed when it is missing, or named outside the version's folder.
    """
    names = (context.file,) if context.file else usual
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise load_failed(context, f"its file '{name}' must be named relative to its folder, without '..'")
        if (context.path / name).exists():
            return context.path / name
    raise load_failed(context, f"there is no {' or '.join(repr(name) for name in names)} in '{context.path}'")


def resolve_signatures(context: LoadContext, found: Mapping[str, Signature]) -> dict[str, Signature]:
    """The signatures to serve: what the model itself says, with what model.yaml declares checked and laid over it.

    A shape of () in `found` stands for a scalar or an unknown rank, and matches any declared shape. Without a
    DEFAULT_SIGNATURE in the model its first signature is the default. Raises LoadFailed where a declaration, or
    `context.batched`, contradicts the model.
    """
    signatures = dict(found)
    if DEFAULT_SIGNATURE not in signatures and signatures:
        signatures[DEFAULT_SIGNATURE] = signatures[min(signatures)]
    for name, declared in context.signatures.items():
        if name not in signatures:
            raise load_failed(context, f"the model has no signature '{name}', only {_names(signatures)}")
        actual = signatures[name]
        _check_declared(context, f"signature '{name}', input", declared.inputs, actual.inputs)
        _check_declared(context, f"signature '{name}', output", declared.outputs, actual.outputs)
        given = {spec.name for spec in declared.inputs}
        for spec in actual.inputs:
            if spec.name not in given and not spec.optional:
                raise load_failed(
                    context, f"signature '{name}' must declare input '{spec.name}', which the model needs"
                )
        signatures[name] = declared
    if context.batched and not context.signatures:
        _check_batched(context, signatures[DEFAULT_SIGNATURE])
    return signatures


def check_output(spec: TensorSpec, array: Tensor) -> None:
    """Raise ValueError for an output that is not as declared; for runtimes that cannot check that when they load."""
    datatype = datatype_of(array)
    if datatype != spec.datatype:
        raise ValueError(f"output '{spec.name}' came as {datatype}, but the signature says {spec.datatype}")
    if not fits(array.shape, spec.shape):
        raise ValueError(
            f"output '{spec.name}' came with shape {list(array.shape)}, but the signature says {list(spec.shape)}"
        )


def owned(array: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The array, or a copy where it shares memory with an input, which dies after the call."""
    return array.copy() if any(np.may_share_memory(array, tensor) for tensor in inputs.values()) else array


def fits(shape: Sequence[int], pattern: Sequence[int]) -> bool:
    """Whether every size equals the pattern's, -1 on either side being any."""
    return len(shape) == len(pattern) and all(
        size == wanted or -1 in (size, wanted) for size, wanted in zip(shape, pattern, strict=True)
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"


def _check_declared(
    context: LoadContext, what: str, declared: Sequence[TensorSpec], actual: Sequence[TensorSpec]
) -> None:
    known = {spec.name: spec for spec in actual}
    for spec in declared:
        if spec.name not in known:
            raise load_failed(context, f"{what} '{spec.name}' is declared, but the model has only {_names(known)}")
        real = known[spec.name]
        if spec.datatype != real.datatype:
            raise load_failed(
                context, f"{what} '{spec.name}' is declared as {spec.datatype}, but the model has {real.datatype}"
            )
        if real.shape and not fits(spec.shape, real.shape):
            raise load_failed(
                context,
                f"{what} '{spec.name}' is declared with shape {list(spec.shape)}, but the model has {list(real.shape)}",
            )
        if spec.optional and not real.optional:
            raise load_failed(context, f"{what} '{spec.name}' is declared optional, but the model needs it")


def _check_batched(context: LoadContext, signature: Signature) -> None:
    for spec in (*signature.inputs, *signature.outputs):
        if not spec.optional and spec.shape and spec.shape[0] != -1:
            raise load_failed(
                context,
                f"batching is on, but '{spec.name}' has the fixed size {spec.shape[0]} in its first dimension "
                f"({list(spec.shape)}); set batching.max_batch_size to 0, or export the model with a free batch size",
            )
