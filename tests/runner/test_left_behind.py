"""Whatever happens to the engine, nothing of its runners stays: no process, no shared memory."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ENGINE = """
import asyncio, sys
import numpy as np
from ekiben.clock import SYSTEM_CLOCK
from ekiben.runner.base import Batch, TensorParts
from ekiben.runner.supervisor import Runner
from ekiben.types import Instances, ModelSettings, VersionSource

async def main(runtime):
    settings = ModelSettings(runtime=runtime, instances=(Instances(count=2),), parameters={"hang_on": 13})
    runner = Runner(VersionSource("fake", 1, "/nonexistent", settings), settings, SYSTEM_CLOCK, lambda _: None, 2)
    if runtime.endswith(":Endless"):
        start = asyncio.ensure_future(runner.start())
        while not runner.pid:
            await asyncio.sleep(0.001)
    else:
        await runner.start()
        inputs = [TensorParts("x", "FP32", [np.full((1, 1 << 20), 13, np.float32)])]
        while (slot := runner.idle()) is not None:
            runner.submit(slot, Batch("serving_default", inputs, ["y"]), print)
    print(f"runner {runner.pid}", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""

RUNTIMES = """
import ctypes
from ekiben.testing import FakeRuntime

class HoldsTheInterpreter(FakeRuntime):
    '''Hangs inside native code that never lets another Python thread run.'''
    def run(self, signature, inputs, outputs):
        if inputs["x"].size > 1:
            print("holding", flush=True)
            ctypes.PyDLL(None).sleep(3600)
        return super().run(signature, inputs, outputs)

class Endless(FakeRuntime):
    '''Never finishes loading.'''
    def __init__(self, context):
        print("holding", flush=True)
        ctypes.PyDLL(None).sleep(3600)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("runtime", [
    "ekiben.testing:FakeRuntime",
    "left_behind:HoldsTheInterpreter",
    "left_behind:Endless",
])  # fmt: skip
def test_an_engine_killed_in_flight_leaves_nothing(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "left_behind.py").write_text(RUNTIMES)
    (tmp_path / "engine.py").write_text(ENGINE)
    root = str(Path(__file__).resolve().parents[2])
    shared_before = set(os.listdir("/dev/shm"))
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        engine = subprocess.Popen(
            [sys.executable, str(tmp_path / "engine.py"), runtime],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path)])},
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert engine.stdout is not None
    with engine.stdout, engine:
        try:
            line = engine.stdout.readline().decode()
            found = re.fullmatch(r"runner (\d+)\n", line)
            assert found, line + errors.read_text()
            pid = int(found[1])
            assert alive(pid)
            if runtime.startswith("left_behind"):
                until(lambda: "holding" in errors.read_text())
        finally:
            engine.send_signal(signal.SIGKILL)
    until(lambda: not alive(pid))
    assert set(os.listdir("/dev/shm")) <= shared_before


def test_a_runner_whose_engine_ended_before_it_began_ends_too(tmp_path: Path) -> None:
    """As when the engine is killed between spawn and the runner's first line: its parent is another one by then."""
    root = str(Path(__file__).resolve().parents[2])
    not_its_parent = 1
    runner = subprocess.run(
        [sys.executable, "-m", "ekiben.runner.worker", "0", str(not_its_parent), "fake:1"],
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert runner.returncode == 1
