"""What a run says: tables for people, targets met or not, and a JSON file."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.load import wrk_version
from benchmarks.paths import RESULTS
from benchmarks.runs import WARM_S, Samples
from benchmarks.spread import Spread, short, spread

__all__ = ["Target", "samples_table", "save", "summary", "table"]

PACKAGES: Final = ("bentoml", "uvicorn", "uvloop", "httptools", "onnxruntime", "numpy", "orjson", "msgspec")


class Target(msgspec.Struct, frozen=True):
    """One line of what the engine must show, with what was measured: at least the bound, or at most."""

    name: str
    bound: float
    at_least: bool
    measured: Spread

    @property
    def met(self) -> bool:
        """By the median."""
        median = self.measured.median
        return median >= self.bound if self.at_least else median <= self.bound


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need, the first to the left and the others to the right."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]

    def render(line: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([render(lines[0]), "  ".join("-" * width for width in widths), *(map(render, lines[1:]))])


def samples_table(found: Samples) -> str:
    """Every contestant at every number of connections: median [minimum … maximum] of its repeats.

    Last, the most that other programs took of the machine's cores meanwhile.
    """
    headers = [
        "",
        "connections",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "front CPU µs",
        "all CPU µs",
        "rows/batch",
        "other cores",
    ]
    rows = [
        [
            name,
            str(connections),
            str(spread(sample.per_second for sample in samples)),
            str(spread(sample.p50_ms for sample in samples)),
            str(spread(sample.p99_ms for sample in samples)),
            str(spread(sample.max_ms for sample in samples)),
            str(spread(sample.front_us for sample in samples)),
            str(spread(sample.all_us for sample in samples)),
            str(spread(sample.rows_per_batch for sample in samples)) if samples[0].rows_per_batch else "",
            short(max(sample.other_cores for sample in samples)),
        ]
        for name, by_connections in found.items()
        for connections, samples in by_connections.items()
    ]
    return table(headers, rows)


def summary(targets: Sequence[Target]) -> str:
    """The closing table."""
    rows = [
        [
            target.name,
            f"{'≥' if target.at_least else '≤'} {short(target.bound)}",
            str(target.measured),
            "yes" if target.met else "NO",
        ]
        for target in targets
    ]
    return table(["what", "target", "measured", "met"], rows)


def save(name: str, load: Mapping[str, object], results: object, targets: Sequence[Target]) -> None:
    """Everything needed to understand the figures later, as build/bench/results/NAME.json."""
    content = {
        "name": name,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": _machine(),
        "versions": _versions(),
        "load": {"generator": "wrk, closed loop, one thread, same machine", "warm_seconds": WARM_S, **load},
        "results": results,
        "targets": [{**msgspec.to_builtins(target), "met": target.met} for target in targets],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def _machine() -> dict[str, object]:
    """What the figures depend on most; the load average tells whether others were at work too."""
    names = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": ", ".join(sorted(names)),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
    }


def _versions() -> dict[str, str]:
    """Of everything that takes part."""
    found = {"python": platform.python_version(), "wrk": wrk_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
