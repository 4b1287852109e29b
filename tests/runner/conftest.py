"""Runners over the fake runtime, and over one that misbehaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ekiben.clock import SYSTEM_CLOCK
from ekiben.runner.supervisor import Runner
from ekiben.types import Batching, Instances, ModelSettings, Parameter, Signature, VersionSource


@pytest.fixture
def model() -> Callable[..., Runner]:
    """Makes runners of model 'fake' version 7; further keywords are the fake runtime's parameters."""
    return make_runner


def make_runner(
    *,
    path: Path | str = "/nonexistent",
    signature: Signature | None = None,
    instances: tuple[Instances, ...] = (Instances(),),
    execution_timeout_ms: float = 60_000,
    load_timeout_ms: float = 60_000,
    runtime: str = "ekiben.testing:FakeRuntime",
    on_change: Callable[[Runner], None] = lambda _: None,
    decoupled: bool | None = None,
    **parameters: Parameter,
) -> Runner:
    settings = ModelSettings(
        runtime=runtime,
        batching=Batching(max_batch_size=8),
        instances=instances,
        signatures={} if signature is None else {"serving_default": signature},
        execution_timeout_ms=execution_timeout_ms,
        load_timeout_ms=load_timeout_ms,
        decoupled=decoupled,
        parameters=parameters,
    )
    return Runner(VersionSource("fake", 7, str(path), settings), settings, SYSTEM_CLOCK, on_change, cores=2)


RUNTIME = """
import os, socket, stat, subprocess, sys, time, numpy as np
from ekiben.types import Signature, TensorSpec
SIGNATURE = Signature((TensorSpec("x", "INT32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))

class Odd:
    def __init__(self, context):
        self.device = context.parameters.get("device", "cpu")
        self.signatures = {"serving_default": SIGNATURE}
        self.calls = 0
        self.child = None
    def run(self, signature, inputs, outputs):
        self.calls += 1
        if self.calls == 1:  # the warm-up
            raise RuntimeError("not on zeros")
        code = int(inputs["x"][0])
        if code == 0:
            return {}
        if code == 1:
            return {"y": [1.0]}
        if code == 2:
            return {"y": np.zeros(2, np.complex64)}
        if code == 3:
            sys.exit("no more")
        if code == 4:
            raise ValueError("\\udcff" + "e" * 5000)
        if code == 5:
            return {"y": np.float32(2.5), "z": None}
        if code == 6:
            return {"y": np.array([1, object()], object)}
        if code == 7:
            return {"y": np.arange(6, dtype=">f8").reshape(2, 3).T[::-1]}
        if code == 8:
            inputs["x"][0] = 1
        if code == 9:
            raise KeyError
        if code == 10:
            self.child = subprocess.Popen(["sleep", "1000"])
            return {"y": np.array([self.child.pid])}
        if code == 11:  # as native code that writes where it should not
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                place = f"/proc/self/fd/{descriptor}"  # the one that lists them is gone by now
                if descriptor > 2 and os.path.exists(place) and stat.S_ISSOCK(os.stat(place).st_mode):
                    os.write(descriptor, b"garbage")
            time.sleep(1000)
        return {"y": np.array([self.calls])}
    def close(self):
        print("closed in good order")
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A runtime of the user's own, importable in runners."""
    (tmp_path / "odd_runtime.py").write_text(RUNTIME)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "odd_runtime:Odd"
