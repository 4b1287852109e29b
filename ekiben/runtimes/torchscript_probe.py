"""What a TorchScript archive takes and gives, found by running it: `python -m ekiben.runtimes.torchscript_probe`.

A process of its own, so that the one that imports a model imports no framework. It is given the names of two JSON
files: a Question to read, an Answer to write.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from ekiben.runtimes.torchscript import argument_order, load_module, parts, to_numpy, to_torch
from ekiben.types import DATATYPES, Signature, Tensor, TensorSpec, datatype_of

__all__ = ["Answer", "Question", "infer_signature", "main"]

Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

_ROWS: Final = 2
"""A batch of 1 could not be told from a dimension that is always 1."""
_SIZES: Final = (1, 32, 224)
"""What is tried for the other free dimensions: a size that networks of images take comes last."""


class Question(msgspec.Struct, frozen=True):
    """The archive, and an .npz or .npy file with inputs to run, or what the inputs look like, or both."""

    model: str
    example: str
    inputs: tuple[TensorSpec, ...]


class Answer(msgspec.Struct, frozen=True):
    """The signature, or why there is none."""

    signature: Signature | None = None
    error: str = ""


def main(arguments: Sequence[str]) -> None:
    """Read the question, write the answer."""
    question = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Question)
    try:
        answer = Answer(_find(question))
    except Exception as error:
        answer = Answer(error=str(error).strip().rpartition("\n")[2] or type(error).__name__)
    Path(arguments[1]).write_bytes(msgspec.json.encode(answer))


def infer_signature(run: Run, tensors: Mapping[str, Tensor], declared: Mapping[str, TensorSpec]) -> Signature:
    """Run as given, with twice the rows, and with the other free dimensions grown, and see which sizes follow.

    An input that is not declared has the example's shape, with a free first dimension if the model proves to be
    batched: twice the rows in, twice the rows out. Raises what `run` raises for the inputs as given.
    """
    first = run(tensors)
    doubled = _try(run, {name: _grown(tensor, [0]) for name, tensor in tensors.items()})
    batched = doubled is not None and _follows(tensors, first, doubled)
    answers = [first]
    if doubled is not None and (batched or any(spec.shape[:1] == (-1,) for spec in declared.values())):
        answers.append(doubled)
    inner = {name: _inner_free(declared.get(name)) for name in tensors}
    if any(inner.values()) and (grown := _try(run, {name: _grown(tensors[name], inner[name]) for name in tensors})):
        answers.append(grown)
    inputs = [declared.get(name) or _observed(name, tensor, batched) for name, tensor in tensors.items()]
    outputs = [TensorSpec(name, datatype_of(array), _free(name, answers)) for name, array in first.items()]
    return Signature(tuple(inputs), tuple(outputs))


def _inner_free(spec: TensorSpec | None) -> list[int]:
    """The axes beyond the first that are declared to be of any size."""
    return [axis for axis, size in enumerate(spec.shape) if axis and size == -1] if spec is not None else []


def _observed(name: str, tensor: Tensor, batched: bool) -> TensorSpec:
    return TensorSpec(name, datatype_of(tensor), (-1, *tensor.shape[1:]) if batched else tensor.shape)


def _try(run: Run, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
    try:
        return run(tensors)
    except Exception:
        return None


def _grown(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Twice as large along the axes that it has."""
    for axis in axes:
        if axis < tensor.ndim:
            tensor = np.concatenate([tensor, tensor], axis)
    return tensor


def _follows(tensors: Mapping[str, Tensor], first: Mapping[str, Tensor], doubled: Mapping[str, Tensor]) -> bool:
    """Whether all tensors have the same rows, and the outputs twice as many where the inputs have."""
    rows = {tensor.shape[:1] for tensor in (*tensors.values(), *first.values())}
    return (
        len(rows) == 1
        and rows != {()}
        and all(doubled[name].shape == (2 * array.shape[0], *array.shape[1:]) for name, array in first.items())
    )


def _free(name: str, answers: Sequence[Mapping[str, Tensor]]) -> tuple[int, ...]:
    """The output's shape, with -1 where it differed between the runs."""
    shapes = [answer[name].shape for answer in answers if answer[name].ndim == answers[0][name].ndim]
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))


def _find(question: Question) -> Signature:
    module = load_module(Path(question.model), torch.device("cpu"))
    declared = {spec.name: spec for spec in question.inputs}
    if question.example:
        tensors = _read_example(Path(question.example), module)
        if declared and declared.keys() != tensors.keys():
            raise ValueError(f"the example has {', '.join(tensors)}, but the inputs are {', '.join(declared)}")
        order = declared or tensors
        return infer_signature(_runner(module, list(order)), {name: tensors[name] for name in order}, declared)
    reason: Exception = ValueError("no inputs are given")
    run = _runner(module, list(declared))
    for size in _SIZES:
        tensors = {spec.name: _zeros(spec, size) for spec in question.inputs}
        try:
            return infer_signature(run, tensors, declared)
        except Exception as error:
            reason = error
    raise reason


def _read_example(path: Path, module: Any) -> dict[str, Tensor]:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {module.forward.schema.arguments[1].name: loaded}
    return {name: loaded[name] for name in loaded.files}


def _zeros(spec: TensorSpec, size: int) -> Tensor:
    shape = [(size if axis else _ROWS) if given == -1 else given for axis, given in enumerate(spec.shape)]
    return np.zeros(shape, DATATYPES[spec.datatype])


def _runner(module: Any, names: Sequence[str]) -> Run:
    order = argument_order(module.forward, names)

    def run(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        given = {name: to_torch(tensor.copy()) for name, tensor in tensors.items()}
        with torch.inference_mode():
            result = module(**given) if order is None else module(*(given[name] for name in order))
        return {name: to_numpy(tensor) for name, tensor in _named(result).items()}

    return run


def _named(result: Any) -> Mapping[str, Any]:
    """Outputs by the names that the module gives them, else `output`, or `output_0`, `output_1`, …"""
    if isinstance(result, dict):
        named = result
    else:
        tensors = list(parts(result))
        fields = getattr(result, "_fields", ())
        if len(fields) != len(tensors):
            fields = [f"output_{index}" for index in range(len(tensors))] if len(tensors) > 1 else ["output"]
        named = dict(zip(fields, tensors, strict=True))
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"the model returns {type(tensor).__name__} as '{name}', which is no tensor")
    return named


if __name__ == "__main__":
    main(sys.argv[1:])
