"""`tail`: how far the slowest hundredth of the answers is from the median, warm, over a minute."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks import in_process, models, servers
from benchmarks.calls import json_call
from benchmarks.report import Target, samples_table, save
from benchmarks.runs import Contestant, Sample, interleave
from benchmarks.spread import spread

__all__ = ["run"]

BOUNDS: Final = {64: 5, 1: 10}
"""Connections → p99 over the median, at most."""


def run(repeats: int, seconds: int) -> list[Target]:
    """This engine alone, with the small JSON request."""
    row = models.random_rows(1, models.FEATURES)
    expected = in_process.first_output(models.session(models.mlp(), threads=1), row)
    repository, call = models.mlp_repository(), json_call("mlp", "x", row)

    @contextmanager
    def start() -> Iterator[list[Contestant]]:
        with servers.ekiben(repository) as engine:
            engine.check(call, expected)
            yield [Contestant("ekiben", engine, call, model="mlp")]

    found = interleave(start, list(BOUNDS), repeats, seconds)
    print(samples_table(found) + "\n")
    targets = [
        Target(
            f"tail, {count} connection{'s' * (count > 1)}: p99 over the median",
            bound,
            False,
            spread(map(_tail, found["ekiben"][count])),
        )
        for count, bound in BOUNDS.items()
    ]
    save("tail", {"repeats": repeats, "seconds": seconds}, found, targets)
    return targets


def _tail(sample: Sample) -> float:
    return sample.p99_ms / sample.p50_ms
