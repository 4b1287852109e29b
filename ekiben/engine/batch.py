"""From waiting requests to one execution, and from its outputs back to each caller."""

from collections.abc import Mapping, Sequence

from ekiben.engine.entry import Entry
from ekiben.errors import InferenceFailed
from ekiben.runner.base import Batch, TensorParts
from ekiben.types import DATATYPES, Signature, Tensor

__all__ = ["collate", "split"]


def collate(entries: Sequence[Entry], name: str, signature: Signature, *, lone: bool) -> Batch:
    """Put the entries' inputs side by side; they are joined where they are copied, in the runner's arena.

    `lone` is as Batch.lone.

    The outputs asked of the model are the union of those that the callers want, in the signature's order.
    """
    first = entries[0].request
    if len(entries) == 1:
        wanted = first.outputs
    else:
        wanted = ()
        if all(entry.request.outputs for entry in entries):
            wanted = tuple({output for entry in entries for output in entry.request.outputs})
    return Batch(
        signature=name,
        inputs=[
            TensorParts(spec.name, spec.datatype, [entry.request.inputs[spec.name] for entry in entries])
            for spec in signature.inputs
            if spec.name in first.inputs
        ],
        outputs=[spec.name for spec in signature.outputs if not wanted or spec.name in wanted],
        lone=lone,
    )


def split(
    entries: Sequence[Entry], batch: Batch, signature: Signature, outputs: Mapping[str, Tensor], batched: bool
) -> list[dict[str, Tensor]]:
    """Each caller's own outputs, as views of the batch's.

    Raises InferenceFailed when the model left an output out, answered another dtype than it declares, or did not
    answer exactly one row for each row it got.
    """
    datatypes = {spec.name: spec.datatype for spec in signature.outputs}
    rows = sum(entry.rows for entry in entries)
    for name in batch.outputs:
        array = outputs.get(name)
        if array is None:
            raise InferenceFailed(f"the model did not return output '{name}'")
        if array.dtype != DATATYPES[datatypes[name]]:
            raise InferenceFailed(f"output '{name}' has dtype '{array.dtype}', declared is '{datatypes[name]}'")
        if batched and (array.ndim == 0 or array.shape[0] != rows):
            raise InferenceFailed(
                f"output '{name}' has shape {list(array.shape)}: {rows} rows went in, as many must come out"
            )
    if len(entries) == 1:
        return [_chosen(entries[0], batch.outputs, outputs)]
    answers: list[dict[str, Tensor]] = []
    start = 0
    for entry in entries:
        end = start + entry.rows
        wanted = entry.request.outputs or batch.outputs
        answers.append({name: outputs[name][start:end] for name in wanted})
        start = end
    return answers


def _chosen(entry: Entry, names: Sequence[str], outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: outputs[name] for name in entry.request.outputs or names}
