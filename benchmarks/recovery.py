"""`recovery`: how long a request waits whose runner was killed, against how long that runner took to load at first."""

import os
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks import models, servers
from benchmarks.calls import binary_call
from benchmarks.processes import tree
from benchmarks.report import Target, save, table
from benchmarks.runs import progress
from benchmarks.spread import spread

__all__ = ["run"]

FRAMEWORKS: Final = ("onnx", "torchscript", "tensorflow")
ONNX_LIMIT_S: Final = 5.0
MARGIN_S: Final = 1.0
_LOAD_SECONDS: Final = re.compile(r"^ekiben_load_seconds{.*} (\S+)$", re.MULTILINE)


def run(repeats: int, seconds: int) -> list[Target]:
    """EfficientNet-Lite0 in each framework, alone in its server. `seconds` has no use here."""
    del seconds
    image = models.random_rows(1, 3, 224, 224)
    waits: dict[str, list[float]] = {}
    loads: dict[str, float] = {}
    targets: list[Target] = []
    for framework in FRAMEWORKS:
        name = f"efficientnet_{framework}"
        call = binary_call(name, "image", "scores", image)
        with servers.ekiben(models.demo_repository(name)) as server:
            loads[name] = _load_seconds(server)
            expected = server.ask(call)
            waits[name] = []
            for _ in range(repeats):
                os.kill(_runner(server), signal.SIGKILL)
                killed = time.monotonic()
                server.check(call, expected)
                waits[name].append(time.monotonic() - killed)
            progress(f"{name}: loaded in {loads[name]:.2f} s, after kill -9 answered in {spread(waits[name])} s")
        limit = ONNX_LIMIT_S if framework == "onnx" else loads[name] + MARGIN_S
        what = f"recovery, {framework}: seconds from kill -9 to the answer"
        targets.append(Target(what, round(limit, 2), False, spread(waits[name])))
    rows = [[name, f"{loads[name]:.2f}", str(spread(waits[name]))] for name in waits]
    print(table(["", "first load s", "kill -9 to answer s"], rows) + "\n")
    save("recovery", {"repeats": repeats}, {"load_seconds": loads, "wait_seconds": waits}, targets)
    return targets


def _load_seconds(server: servers.Server) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as reply:
        found = _LOAD_SECONDS.search(reply.read().decode())
    if found is None:
        raise servers.ServerFailed("/metrics does not say how long the model took to load")
    return float(found[1])


def _runner(server: servers.Server) -> int:
    for pid in tree(server.root):
        if b"ekiben.runner.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise servers.ServerFailed("the server has no runner")
