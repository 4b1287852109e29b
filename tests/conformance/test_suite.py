"""The suite itself: ids, selection, and what happens to a check that meets what it did not foresee."""

import re
from pathlib import Path

import pytest

from ekiben.conformance.context import Context
from ekiben.conformance.deadline import Deadline
from ekiben.conformance.http_client import HttpClient
from ekiben.conformance.points import Point
from ekiben.conformance.report import Table, as_markdown, summary
from ekiben.conformance.suite import GROUPS, POINTS, chosen, run
from ekiben.conformance.survey import Survey
from ekiben.conformance.verdicts import Result, Verdict
from ekiben.errors import InvalidSettings
from ekiben.testing import ManualClock

_DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"
_NOTHING = Survey("", frozenset(), (), "", (), (), {}, (), False)


def _context() -> Context:
    deadline = Deadline(ManualClock(), 10)
    return Context(HttpClient("http://127.0.0.1:1", deadline), None, _NOTHING, deadline)


def test_ids_are_unique_and_of_one_form() -> None:
    ids = [point.id for point in POINTS]
    assert len(set(ids)) == len(ids)
    assert {id[0] for id in ids} == set(GROUPS)
    assert all(re.fullmatch(r"[A-Z]\d+[a-z]?", id) for id in ids)


def test_every_point_of_the_specification_is_there() -> None:
    numbers = {re.sub(r"[a-z]", "", point.id) for point in POINTS}
    wanted = {f"{letter}{number}" for letter, last in (("P", 9), ("J", 11), ("B", 11)) for number in range(1, last + 1)}
    assert wanted <= numbers


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        ("P9", ["P9"]),
        ("B1", ["B1a", "B1b"]),
        ("B1a", ["B1a"]),
        (" J2b , P9,", ["P9", "J2b"]),
        ("X6,X6c", ["X6a", "X6b", "X6c", "X6d"]),
    ],
)
def test_points_are_chosen_by_group_number_or_id(only: str, ids: list[str]) -> None:
    assert [point.id for point in chosen(only)] == ids


def test_a_group_is_all_of_its_letter() -> None:
    assert [point.id for point in chosen("B")] == [point.id for point in POINTS if point.id.startswith("B")]
    assert chosen("") == POINTS


@pytest.mark.parametrize("only", ["Q", "P99", "b", "J2z", "P,Q"])
def test_what_names_no_point_is_an_error(only: str) -> None:
    with pytest.raises(InvalidSettings, match="there is no point"):
        chosen(only)


def test_an_unforeseen_error_is_a_failure_of_the_point_alone() -> None:
    def unforeseen(_: Context) -> None:
        raise KeyError("outputs\x1b")

    def fine(_: Context) -> str:
        return "a remark"

    points = [Point("P1", "", "", unforeseen), Point("P2", "", "", fine)]
    first, second = run(_context(), points)
    assert first.verdict is Verdict.FAIL
    assert "KeyError" in first.detail
    assert "\x1b" not in first.detail
    assert second == Result("P2", Verdict.PASS, "a remark")


def test_each_point_has_its_own_time() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, 10)
    context = Context(HttpClient("http://127.0.0.1:1", deadline), None, _NOTHING, deadline)
    left: list[float] = []

    def slow(_: Context) -> None:
        left.append(deadline.remaining())
        clock.advance(9)

    assert [result.verdict for result in run(context, [Point("P1", "", "", slow)] * 3)] == [Verdict.PASS] * 3
    assert left == [10, 10, 10]


def test_without_models_nothing_but_paths_is_judged() -> None:
    results = [result for result in run(_context(), chosen("J,B,X2,G")) if result.verdict is Verdict.FAIL]
    assert results == []


def test_colour_is_for_terminals() -> None:
    (point,) = chosen("P1")
    result = Result("P1", Verdict.FAIL, "expected this; got that")
    plain, coloured = (Table([point], coloured=coloured).row(point, result) for coloured in (False, True))
    assert "\x1b" not in plain
    assert plain.endswith("\n    " + " " * len("not supported") + "  expected this; got that")
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert coloured != plain


def test_the_summary_counts_each_verdict() -> None:
    results = [Result("P1", Verdict.PASS), Result("P9", Verdict.FAIL), Result("J1a", Verdict.PASS)]
    assert summary(results) == "2 passed, 1 failed, 0 not supported, 0 skipped"


def test_the_documentation_lists_every_point_as_it_is() -> None:
    """`ekiben conformance --list` prints the part between the marks."""
    text = _DOCUMENT.read_text(encoding="utf-8")
    assert text.partition("<!-- points -->\n")[2].partition("<!-- end -->")[0] == as_markdown(POINTS)
