"""Each runtime on the first GPU, in a real runner, against its own answers on the CPU. Skipped where there is none."""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ekiben.clock import SYSTEM_CLOCK
from ekiben.repository.config import read_settings
from ekiben.runner.supervisor import Runner
from ekiben.testing import execute, outputs_of
from ekiben.types import Instances, ModelSettings, Tensor, VersionSource

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="this machine has no NVIDIA GPU")


@pytest.mark.parametrize("framework", ["onnx", "tensorflow", "torchscript"])
def test_the_gpu_answers_as_the_cpu_does(framework: str) -> None:
    name = f"efficientnet_{framework}"
    subprocess.run([sys.executable, "scripts/build_models.py", "--models", name], cwd=ROOT, check=True)
    folder = ROOT / "build" / "models" / name
    image = np.random.default_rng(1).standard_normal((4, 3, 224, 224), np.float32)

    async def scores(device: str) -> Tensor:
        settings = ModelSettings(
            runtime=framework,
            file=read_settings(folder / "model.yaml").file,
            signatures=read_settings(folder / "model.yaml").signatures,
            instances=(Instances(device=device),),
        )
        runner = Runner(VersionSource(name, 1, str(folder), settings), settings, SYSTEM_CLOCK, lambda _: None, 2)
        loaded = await runner.start()
        assert list(loaded.devices) == [device]
        answer = outputs_of(await execute(runner, {"image": image}, ["scores"]))["scores"]
        await runner.stop()
        return answer

    np.testing.assert_allclose(asyncio.run(scores("gpu:0")), asyncio.run(scores("cpu")), atol=1e-3)
