"""`small`: one row of 30 floats as JSON, the tiny MLP, so that what is measured is the server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks import in_process, models, servers
from benchmarks.calls import bentoml_call, json_call
from benchmarks.report import Target, samples_table, save, table
from benchmarks.runs import Contestant, Samples, interleave, progress
from benchmarks.spread import Spread, ratios, spread

__all__ = ["run"]

CONNECTIONS: Final = (1, 16, 64)
BATCHES: Final = (1, 16, 64)
ON, OFF, BENTOML, UVICORN = "ekiben", "ekiben, batching off", "BentoML batchable", "bare uvicorn"


def run(repeats: int, seconds: int) -> list[Target]:
    """Side by side: this engine with batching and without, BentoML's batching API, bare uvicorn, and no server."""
    found = _servers(repeats, seconds)
    ceiling = _loop(repeats, seconds / len(BATCHES))
    print(samples_table(found) + "\n")
    print(table(["", "runs/s"], [[f"in process, batch {batch}", str(runs)] for batch, runs in ceiling.items()]) + "\n")
    targets = _targets(found)
    results = {"servers": found, "in_process_runs_per_second": ceiling}
    save("small", {"repeats": repeats, "seconds": seconds}, results, targets)
    return targets


def _servers(repeats: int, seconds: int) -> Samples:
    model, row = models.mlp(), models.random_rows(1, models.FEATURES)
    expected = in_process.first_output(models.session(model, threads=1), row)
    repository, off = models.mlp_repository(), models.unbatched("mlp")

    @contextmanager
    def start() -> Iterator[list[Contestant]]:
        with (
            servers.ekiben(repository) as engine,
            servers.bentoml_batchable(model) as bentoml,
            servers.bare_uvicorn() as uvicorn,
        ):
            answering = [
                Contestant(ON, engine, json_call("mlp", "x", row), model="mlp"),
                Contestant(OFF, engine, json_call(off, "x", row), model=off),
                Contestant(BENTOML, bentoml, bentoml_call(row)),
            ]
            for contestant in answering:
                contestant.server.check(contestant.call, expected)
            yield [*answering, Contestant(UVICORN, uvicorn, json_call("mlp", "x", row))]

    return interleave(start, CONNECTIONS, repeats, seconds)


def _loop(repeats: int, seconds: float) -> dict[int, Spread]:
    progress("in process")
    session = models.session(models.mlp(), threads=1)
    return {
        batch: spread(
            in_process.runs_per_second(session, models.random_rows(batch, models.FEATURES), seconds)
            for _ in range(repeats)
        )
        for batch in BATCHES
    }


def _targets(found: Samples) -> list[Target]:
    def rates(name: str) -> list[float]:
        return [sample.per_second for sample in found[name][64]]

    def medians_ms(name: str) -> list[float]:
        return [sample.p50_ms for sample in found[name][1]]

    at_1, at_64 = found[ON][1], found[ON][64]
    latency = ratios(medians_ms(ON), medians_ms(BENTOML))
    rows_per_batch = spread(sample.rows_per_batch for sample in at_64)
    return [
        Target("small, 64 connections: requests/s over BentoML batchable", 12, True, ratios(rates(ON), rates(BENTOML))),
        Target("small, 64 connections: requests/s over bare uvicorn", 0.45, True, ratios(rates(ON), rates(UVICORN))),
        Target("small, 1 connection: median latency over BentoML batchable", 1 / 3, False, latency),
        Target("small, 64 connections: mean rows per batch", 4, True, rows_per_batch),
        Target("small, 64 connections: engine CPU µs", 50, False, spread(sample.front_us for sample in at_64)),
        Target("small, 1 connection: engine CPU µs", 220, False, spread(sample.front_us for sample in at_1)),
    ]
