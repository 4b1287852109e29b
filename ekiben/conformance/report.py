"""Results for people, as a table that grows line by line, and for machines, as JSON. Points for the documentation."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ekiben.conformance.points import Point
from ekiben.conformance.suite import GROUPS
from ekiben.conformance.verdicts import Result, Verdict

__all__ = ["Table", "as_json", "as_markdown", "counts", "summary"]

_COLOURS: Final[Mapping[Verdict, str]] = {
    Verdict.PASS: "\x1b[32m",
    Verdict.FAIL: "\x1b[1;31m",
    Verdict.UNSUPPORTED: "\x1b[33m",
    Verdict.SKIP: "\x1b[2m",
}
_PLAIN: Final = "\x1b[0m"


class Table:
    """Columns whose widths are known before the first result is."""

    def __init__(self, points: Sequence[Point], *, coloured: bool) -> None:
        self._id = max(len(point.id) for point in points)
        self._verdict = max(len(verdict.value) for verdict in Verdict)
        self._title = max(len(point.title) for point in points)
        self._coloured = coloured

    def row(self, point: Point, result: Result) -> str:
        """One line, and the detail of the result, if any, on a line of its own below it."""
        verdict = result.verdict.value.ljust(self._verdict)
        if self._coloured:
            verdict = f"{_COLOURS[result.verdict]}{verdict}{_PLAIN}"
        line = f"{point.id.ljust(self._id)}  {verdict}  {point.title.ljust(self._title)}  {point.source}"
        indent = " " * (self._id + self._verdict + 4)
        return f"{line}\n{indent}{result.detail}" if result.detail else line


def counts(results: Sequence[Result]) -> Mapping[Verdict, int]:
    """How many of each, in the order of Verdict."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in Verdict}


def summary(results: Sequence[Result]) -> str:
    """`70 passed, 0 failed, 9 not supported, 4 skipped`."""
    words = {
        Verdict.PASS: "passed",
        Verdict.FAIL: "failed",
        Verdict.UNSUPPORTED: "not supported",
        Verdict.SKIP: "skipped",
    }
    return ", ".join(f"{count} {words[verdict]}" for verdict, count in counts(results).items())


def as_json(url: str, server: str, points: Sequence[Point], results: Sequence[Result]) -> str:
    """The whole run."""
    document: dict[str, Any] = {
        "url": url,
        "server": server,
        "points": [
            {
                "id": point.id,
                "title": point.title,
                "source": point.source,
                "verdict": result.verdict.value.lower(),
                "detail": result.detail,
            }
            for point, result in zip(points, results, strict=True)
        ],
        "summary": {verdict.value.lower(): count for verdict, count in counts(results).items()},
    }
    return json.dumps(document, indent=1) + "\n"


def as_markdown(points: Sequence[Point]) -> str:
    """The points as tables, a group each."""
    parts: list[str] = []
    for letter, name in GROUPS.items():
        members = [point for point in points if point.id.startswith(letter)]
        rows = [f"| {point.id} | {point.title} | {point.source} |" for point in members]
        if rows:
            parts.append("\n".join((f"### {name}\n", "| point | what must hold | source |", "|---|---|---|", *rows)))
    return "\n\n".join(parts) + "\n"
