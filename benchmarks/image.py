"""`image`: EfficientNet-Lite0 over the binary tensor extension, against the best loop without a server."""

import os
from typing import Final

from benchmarks import in_process, models, servers
from benchmarks.calls import binary_call
from benchmarks.report import Target, samples_table, save, table
from benchmarks.runs import WARM_S, Contestant, Sample, measure, progress
from benchmarks.spread import ratios, spread

__all__ = ["run"]

CONNECTIONS: Final = 16
BATCHES: Final = (1, 2, 4, 8, 16)
SHAPE: Final = (3, 224, 224)


def run(repeats: int, seconds: int) -> list[Target]:
    """Both sides compute with all usable cores. The target is set by the loop over one session with as many threads, at
    its best batch size. A session a thread, each in a loop of its own, is faster still, and is shown beside it.
    """
    threads = len(os.sched_getaffinity(0))
    repository, model = models.image_repository(threads)
    session = models.session(model, threads)
    singles = [models.session(model, 1) for _ in range(threads)]
    image = models.random_rows(1, *SHAPE)
    call = binary_call("efficientnet", session.get_inputs()[0].name, session.get_outputs()[0].name, image)
    forms = (f"one session of {threads} threads", f"{threads} sessions of one thread")
    loop: dict[str, list[float]] = {f"{form}, batch {batch}": [] for form in forms for batch in BATCHES}
    samples: list[Sample] = []
    with servers.ekiben(repository) as engine:
        engine.check(call, in_process.first_output(session, image))
        contestant = Contestant("ekiben", engine, call, model="efficientnet")
        measure(contestant, CONNECTIONS, WARM_S)
        for turn in range(repeats):
            samples.append(measure(contestant, CONNECTIONS, seconds))
            for batch in BATCHES:
                images = models.random_rows(batch, *SHAPE)
                for form, rate in zip(
                    forms,
                    (
                        in_process.runs_per_second(session, images, seconds / 4),
                        in_process.runs_per_second_side_by_side(singles, images, seconds / 4),
                    ),
                    strict=True,
                ):
                    loop[f"{form}, batch {batch}"].append(batch * rate)
            progress(f"{turn + 1}/{repeats} ekiben, {CONNECTIONS} connections: {samples[-1].per_second:,.0f} images/s")
    print(samples_table({"ekiben": {CONNECTIONS: samples}}) + "\n")
    rows = [[f"in process, {form}", str(spread(rates))] for form, rates in loop.items()]
    print(table(["", "images/s"], rows) + "\n")
    engine_rates = [sample.per_second for sample in samples]
    over_loop, over_loops = (ratios(engine_rates, _best(loop, form)) for form in forms)
    print(f"Over the best of {forms[1]}, two loops at once: {over_loops}\n")
    targets = [Target("image, 16 connections: images/s over the best loop in process", 0.9, True, over_loop)]
    load = {"repeats": repeats, "seconds": seconds, "connections": CONNECTIONS, "compute_threads": threads}
    save("image", load, {"ekiben": samples, "in_process_images_per_second": loop}, targets)
    return targets


def _best(loop: dict[str, list[float]], form: str) -> list[float]:
    """The rates of the batch size with the best median."""
    found = [rates for name, rates in loop.items() if name.startswith(form)]
    return max(found, key=lambda rates: spread(rates).median)
