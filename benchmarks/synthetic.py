"""`synthetic`: a model of 5 ms + 0.1 ms a row, for what batching is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks import models, servers
from benchmarks.calls import json_call
from benchmarks.report import Target, samples_table, save
from benchmarks.runs import Contestant, interleave
from benchmarks.spread import ratios

__all__ = ["run"]

CONNECTIONS: Final = 64
ON, OFF = "batching on", "batching off"


def run(repeats: int, seconds: int) -> list[Target]:
    """The same model twice in one server."""
    row = models.random_rows(1, models.SYNTHETIC_FEATURES)
    repository = models.synthetic_repository()
    names = {ON: "synthetic", OFF: models.unbatched("synthetic")}

    @contextmanager
    def start() -> Iterator[list[Contestant]]:
        with servers.ekiben(repository) as engine:
            contestants = [Contestant(label, engine, json_call(name, "x", row), name) for label, name in names.items()]
            for contestant in contestants:
                engine.check(contestant.call, row.ravel() * 2)
            yield contestants

    found = interleave(start, [CONNECTIONS], repeats, seconds)
    print(samples_table(found) + "\n")
    on, off = ([sample.per_second for sample in found[label][CONNECTIONS]] for label in (ON, OFF))
    targets = [Target("synthetic, 64 connections: requests/s, batching on over off", 3, True, ratios(on, off))]
    save("synthetic", {"repeats": repeats, "seconds": seconds}, found, targets)
    return targets
