"""The classification extension: an output's scores become its best classes as `value:index[:label]`."""

from collections.abc import Sequence

import numpy as np

from ekiben.errors import InvalidRequest
from ekiben.types import Tensor
from ekiben.wire.binary_tensor import bytes_array

__all__ = ["classified"]


def classified(
    model: str, name: str, datatype: str, scores: Tensor, count: int, labels: Sequence[str], batched: bool
) -> Tensor:
    """A BYTES tensor [rows, k], or [k] without a batch dimension; k is `count` or the number of classes if lower.

    Sorted by falling score, equal scores by rising index, NaN last. Labels may be fewer than the classes. Raises
    InvalidRequest for datatypes that have no order here.
    """
    if datatype in ("BYTES", "BOOL", "FP16", "BF16"):
        raise InvalidRequest(
            f"class result not available for output '{name}' of model '{model}' due to unsupported type {datatype}"
        )
    rows = scores.shape[0] if batched and scores.ndim else 1
    classes = scores.size // rows if rows else 0
    table = scores.reshape(rows, classes)
    kept = min(count, classes)
    template = "%f" if scores.dtype.kind == "f" else "%d"
    elements: list[bytes] = []
    for row in table:
        for index in _best(row, kept):
            text = f"{template % row[index]}:{index}"
            elements.append((f"{text}:{labels[index]}" if index < len(labels) else text).encode())
    return bytes_array(elements).reshape((rows, kept) if batched and scores.ndim else (kept,))


def _best(row: Tensor, count: int) -> list[int]:
    if row.dtype.kind == "f":
        order = np.argsort(-row, kind="stable")
    else:
        # Negating would wrap for unsigned and for the lowest integers: sort the mirror image upwards instead.
        order = len(row) - 1 - np.argsort(row[::-1], kind="stable")[::-1]
    best: list[int] = order[:count].tolist()
    return best
