"""Every point, in order, and the run of some of them."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ekiben.conformance import (
    binary,
    errors,
    extensions_infer,
    extensions_server,
    grpc_core,
    grpc_extensions,
    infer_json,
    loading,
    paths,
)
from ekiben.conformance.context import Context
from ekiben.conformance.points import Point
from ekiben.conformance.verdicts import Failed, NotChecked, NotSupported, Result, Verdict, shortened
from ekiben.errors import InvalidSettings

__all__ = ["GROUPS", "POINTS", "chosen", "run"]

_MODULES: Final = (
    paths,
    infer_json,
    errors,
    binary,
    extensions_infer,
    extensions_server,
    grpc_core,
    grpc_extensions,
    loading,
)
_ID: Final = re.compile(r"([A-Z]+)(\d*)([a-z]?)")

POINTS: Final[Sequence[Point]] = tuple(
    each for module in _MODULES for each in vars(module).values() if isinstance(each, Point)
)
GROUPS: Final = {
    "P": "Paths",
    "J": "Inference in JSON",
    "E": "Errors",
    "B": "Inference in binary",
    "X": "Extensions",
    "G": "gRPC",
}
"""First letter of an id → what those points are about."""


def chosen(only: str) -> Sequence[Point]:
    """The points that a list like `P,B3,J2b` names; '' is all. Raises InvalidSettings for what names none."""
    if not only.strip():
        return POINTS
    wanted = [each.strip() for each in only.split(",") if each.strip()]
    for each in wanted:
        if not any(_names(each, point.id) for point in POINTS):
            raise InvalidSettings(f"there is no point '{each}'; `ekiben conformance --list` lists them")
    return tuple(point for point in POINTS if any(_names(each, point.id) for each in wanted))


def _names(wanted: str, id: str) -> bool:
    """A group, a number or a whole id: B names B3a, and so does B3, but B names nothing of BX and B1 nothing of B11."""
    form = _ID.fullmatch(id)
    return form is not None and wanted in (form[1], form[1] + form[2], id)


def run(context: Context, points: Sequence[Point]) -> Iterator[Result]:
    """Check the points one by one, each within the context's time. Raises nothing for what a server does."""
    for point in points:
        context.deadline.restart()
        yield _checked(context, point)


def _checked(context: Context, point: Point) -> Result:
    try:
        return Result(point.id, Verdict.PASS, point.check(context) or "")
    except (Failed, NotSupported, NotChecked) as found:
        return Result(point.id, found.verdict, str(found))
    except Exception as error:
        # Whatever a server sends, it must not end the run: what no check has foreseen is a failure of the server's.
        return Result(point.id, Verdict.FAIL, f"the answer cannot be understood: {shortened(repr(error))}")
