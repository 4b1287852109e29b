"""Values whose way through a server shows what it does to them, by datatype."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ekiben.conformance.context import Context
from ekiben.conformance.infer_reply import expect_equal
from ekiben.conformance.survey import Sample
from ekiben.conformance.verdicts import NotChecked
from ekiben.types import DATATYPES, Tensor

__all__ = ["BEYOND_FLOATS", "HALVES", "OCTETS", "PLAIN", "TEXTS", "filled", "round_trips"]

_FLOATS: Final = (0.0, 1.5, -2.25, 0.1, 65504.0)
_MOST_FOR_FLOATS: Final = 1 << 52

PLAIN: Final[Mapping[str, Sequence[object]]] = {
    "BOOL": (True, False, False, True),
    **{
        name: (int(np.iinfo(dtype).min), 0, 1, int(np.iinfo(dtype).max))
        for name, dtype in DATATYPES.items()
        if dtype.kind in "iu" and dtype.itemsize < 8
    },
    "UINT64": (0, 1, _MOST_FOR_FLOATS),
    "INT64": (-_MOST_FOR_FLOATS, 0, 1, _MOST_FOR_FLOATS),
    "FP32": _FLOATS,
    "FP64": (*_FLOATS, 1e300, 5e-324),
}
"""What every way of sending a tensor must keep: limits, signs, fractions."""

BEYOND_FLOATS: Final[Mapping[str, Sequence[object]]] = {
    "INT64": ((1 << 53) + 1, -(1 << 53) - 1, (1 << 63) - 1, -(1 << 63)),
    "UINT64": ((1 << 53) + 1, (1 << 63) + 1, (1 << 64) - 1),
}
"""Integers that no 64-bit float holds."""

HALVES: Final[Mapping[str, Sequence[object]]] = {"FP16": _FLOATS, "BF16": _FLOATS}

TEXTS: Final = tuple(text.encode() for text in ("", "plain", "züg", "駅弁", 'a "quoted" \\ line\n', "🍱"))
OCTETS: Final = (b"", b"\x00", b"\xff\xfe\x80", b"a\x00b", b"\xc3")
"""BYTES that are no text: empty, with NUL, and not UTF-8."""


def filled(sample: Sample, values: Sequence[object]) -> list[Tensor]:
    """The values as inputs of an echo, as many to a tensor as its sample has, each filled up from its own start."""
    spec = sample.model.inputs[0]
    shape = sample.inputs[spec.name].shape
    size = max(int(np.prod(shape)), 1)
    flat = np.empty(len(values), DATATYPES[spec.datatype])
    flat[:] = values
    return [np.resize(flat[start : start + size], shape) for start in range(0, len(values), size)]


def round_trips(
    context: Context, values: Mapping[str, Sequence[object]], send: Callable[[Sample, Tensor], Tensor]
) -> str:
    """Send the values of each datatype to a model that returns them, and raise Failed for the first that come back
    changed. `send` gives the tensor that came. Returns a remark on the datatypes that no model is there for.
    """
    missing = [datatype for datatype in values if datatype not in context.survey.echoes]
    if len(missing) == len(values):
        raise NotChecked(f"no model that returns its {' or '.join(values)} input")
    for datatype in values:
        if datatype not in missing:
            sample = context.echo(datatype)
            for tensor in filled(sample, values[datatype]):
                expect_equal({"output": send(sample, tensor)}, {"output": tensor}, datatype, exact=True)
    return f"no model for {' '.join(missing)}" if missing else ""
