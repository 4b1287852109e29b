import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.load import LoadFailed, wrk_version
from benchmarks.report import Target, samples_table, save, summary, table
from benchmarks.runs import Sample
from benchmarks.spread import spread

FASTER = Target("ours over theirs", bound=12, at_least=True, measured=spread([11, 13, 14]))
SLOWER = Target("latency", bound=0.5, at_least=False, measured=spread([0.4, 0.6, 0.7]))


def sample(per_second: float, rows_per_batch: float = 0.0) -> Sample:
    return Sample(
        per_second,
        p50_ms=1,
        p99_ms=2,
        max_ms=3,
        front_us=40,
        all_us=50,
        rows_per_batch=rows_per_batch,
        other_cores=0.25,
    )


def test_columns_are_as_wide_as_they_need() -> None:
    assert table(["", "rate"], [["one", "1"], ["three", "12,345"]]).splitlines() == [
        "         rate",
        "-----  ------",
        "one         1",
        "three  12,345",
    ]


def test_a_table_may_be_empty() -> None:
    assert table(["a", "b"], []) == "a  b\n-  -"


def test_the_median_decides_whether_a_target_is_met() -> None:
    assert FASTER.met
    assert not SLOWER.met
    assert Target("exactly", bound=4, at_least=True, measured=spread([4])).met
    assert Target("exactly", bound=4, at_least=False, measured=spread([4])).met


def test_the_closing_table_says_target_measured_and_met() -> None:
    assert [line.split() for line in summary([FASTER, SLOWER]).splitlines()[2:]] == [
        ["ours", "over", "theirs", "≥", "12", "13", "[11", "…", "14]", "yes"],
        ["latency", "≤", "0.5", "0.6", "[0.4", "…", "0.7]", "NO"],
    ]


def test_a_server_that_does_not_count_batches_has_an_empty_cell() -> None:
    lines = samples_table({"ours": {64: [sample(1000, 8)]}, "theirs": {64: [sample(10)]}}).splitlines()

    assert lines[2].split()[:5] == ["ours", "64", "1,000", "[1,000", "…"]
    assert lines[2].split()[-5:] == ["8", "[8", "…", "8]", "0.25"]
    assert lines[3].split()[-5:] == ["50", "[50", "…", "50]", "0.25"]


def test_results_carry_machine_versions_load_and_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        wrk_version()
    except LoadFailed as error:
        pytest.skip(str(error))
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")

    save("small", {"repeats": 3}, {"servers": {"ours": {64: [sample(1000)]}}}, [FASTER])

    saved = json.loads((tmp_path / "results" / "small.json").read_text())
    assert saved["load"]["repeats"] == 3
    assert saved["machine"]["cores"] >= 1
    assert saved["versions"]["bentoml"]
    assert saved["results"]["servers"]["ours"]["64"][0]["per_second"] == 1000
    assert saved["targets"][0] == {
        "name": "ours over theirs",
        "bound": 12,
        "at_least": True,
        "measured": {"median": 13, "minimum": 11, "maximum": 14},
        "met": True,
    }
