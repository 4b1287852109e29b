"""What a check can find. A check returns for a pass, perhaps with a remark, and raises one of these for the rest."""

from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["Failed", "NoReply", "NotChecked", "NotSupported", "Result", "Verdict", "expect", "shortened"]

_SHORT: Final = 160


class Verdict(StrEnum):
    """The outcome of one point."""

    PASS = "pass"
    FAIL = "FAIL"
    UNSUPPORTED = "not supported"
    SKIP = "skip"


class Failed(Exception):
    """The server does not do what the point asks; the text says what was expected and what came."""

    verdict = Verdict.FAIL


class NoReply(Failed):
    """Nothing came that can be read at all: the time was up, or the connection broke."""


class NotSupported(Exception):
    """The point is an extension or a choice of the server's, and it says that it has it not."""

    verdict = Verdict.UNSUPPORTED


class NotChecked(Exception):
    """Nothing can be said of the server: there is no model, or no leave, to check the point with."""

    verdict = Verdict.SKIP


class Result(msgspec.Struct, frozen=True):
    """What was found for a point. `detail` '' is nothing to add."""

    id: str
    verdict: Verdict
    detail: str = ""


def expect(holds: bool, expected: str, came: object) -> None:
    """Raise Failed unless it holds. `came` is text that is shown as it is, or a value that is shown as Python does."""
    if not holds:
        raise Failed(f"expected {expected}; got {came if isinstance(came, str) else shortened(repr(came))}")


def shortened(text: str) -> str:
    """One line of at most 160 characters, with nothing in it that a terminal would obey."""
    line = " ".join(text.split())
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line[: _SHORT + 1])
    return line if len(line) <= _SHORT else f"{line[: _SHORT - 1]}…"
