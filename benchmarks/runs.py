"""Measured runs: one contestant under load, and several side by side."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

import msgspec

from benchmarks.calls import Call
from benchmarks.load import drive
from benchmarks.processes import busy_seconds, cpu_seconds, tree
from benchmarks.servers import Server, ServerFailed

__all__ = ["WARM_S", "Contestant", "Sample", "Samples", "Start", "interleave", "measure", "progress"]

WARM_S: Final = 3


class Contestant(msgspec.Struct, frozen=True):
    """One line of a comparison: a server and the call made to it."""

    name: str
    server: Server
    call: Call
    model: str = ""
    """Where the server counts batches (Open Inference Protocol statistics), the model's name."""


class Sample(msgspec.Struct, frozen=True):
    """One run."""

    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    front_us: float
    """CPU µs a request of the process that answers HTTP."""
    all_us: float
    """CPU µs a request of all of the server's processes."""
    rows_per_batch: float
    """0: the server does not count."""
    other_cores: float
    """Cores that were busy with neither the server nor the load: over a few hundredths the machine was not quiet."""


Samples: TypeAlias = dict[str, dict[int, list[Sample]]]
"""Contestant → connections → one sample a repeat."""
Start: TypeAlias = Callable[[], AbstractContextManager[Sequence[Contestant]]]
"""Starts fresh servers, and ends them on the way out."""


def interleave(start: Start, connections: Sequence[int], repeats: int, seconds: int) -> Samples:
    """Contestants in turn, round after round, so that all meet the same machine.

    Each number of connections gets servers of its own, warmed at that number: BentoML's dispatcher learns from the
    load, and one that has seen 64 connections keeps a single one waiting tens of ms where a fresh one takes about 1.
    """
    found: Samples = {}
    for count in connections:
        with start() as contestants:
            for contestant in contestants:
                measure(contestant, count, WARM_S)
            for turn in range(repeats):
                for contestant in contestants:
                    sample = measure(contestant, count, seconds)
                    found.setdefault(contestant.name, {}).setdefault(count, []).append(sample)
                    progress(f"{turn + 1}/{repeats} {contestant.name}, {count} connections: {sample.per_second:,.0f}/s")
    return found


def measure(contestant: Contestant, connections: int, seconds: int) -> Sample:
    """Load one contestant and see what its processes spent. Raises LoadFailed, ServerFailed."""
    server = contestant.server
    pids = tree(server.root)
    before = {pid: cpu_seconds(pid) for pid in pids}
    counts = _counts(contestant)
    start, busy, ours = time.monotonic(), busy_seconds(), _own_seconds()
    outcome = drive(server.url, contestant.call, connections, seconds)
    passed, busy, ours = time.monotonic() - start, busy_seconds() - busy, _own_seconds() - ours
    spent = {pid: cpu_seconds(pid) - before[pid] for pid in pids}
    if ended := pids - tree(server.root):
        raise ServerFailed(f"{contestant.name}: processes {sorted(ended)} ended under load")
    rows, batches = (now - then for now, then in zip(_counts(contestant), counts, strict=True))
    return Sample(
        per_second=outcome.per_second,
        p50_ms=outcome.p50_us / 1e3,
        p99_ms=outcome.p99_us / 1e3,
        max_ms=outcome.max_us / 1e3,
        front_us=spent[server.front] / outcome.requests * 1e6,
        all_us=sum(spent.values()) / outcome.requests * 1e6,
        rows_per_batch=rows / batches if batches else 0.0,
        other_cores=max(0.0, (busy - ours - sum(spent.values())) / passed),
    )


def progress(line: str) -> None:
    """Where a person sees it, away from the result."""
    print(line, file=sys.stderr, flush=True)


def _own_seconds() -> float:
    """This process and what it has waited for: wrk."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _counts(contestant: Contestant) -> tuple[int, int]:
    """Rows and batches so far."""
    if not contestant.model:
        return 0, 0
    model = contestant.server.get(f"/v2/models/{contestant.model}/stats")["model_stats"][0]
    return int(model["inference_count"]), int(model["execution_count"])
