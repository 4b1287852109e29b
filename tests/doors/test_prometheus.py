"""The metrics of a running engine, as text."""

import asyncio

import numpy as np
import pytest

from ekiben.doors.prometheus import METRICS, render
from ekiben.errors import InvalidRequest, NotFound
from ekiben.types import Batching, Request
from tests.engine.test_engine import House


def test_every_metric_says_what_happened() -> None:
    async def test() -> str:
        house = House()
        house.put("m", 1, batching=Batching(max_batch_size=8))
        await house.engine.start()
        await asyncio.gather(*(house.ask("m") for _ in range(3)))
        with pytest.raises(InvalidRequest):
            await house.engine.infer(Request("m", {"a": np.zeros((1, 5), np.float32)}))
        with pytest.raises(NotFound):
            await house.engine.infer(Request("nope", {}))
        return render(house.engine).decode()

    lines = set(asyncio.run(test()).splitlines())
    for line in (
        'ekiben_requests_total{model="m",version="1"} 3.0',
        'ekiben_rows_total{model="m",version="1"} 3.0',
        'ekiben_batch_size_bucket{le="2.0",model="m",version="1"} 0.0',
        'ekiben_batch_size_bucket{le="4.0",model="m",version="1"} 1.0',
        'ekiben_batch_size_sum{model="m",version="1"} 3.0',
        'ekiben_batches_released_total{model="m",reason="idle",version="1"} 1.0',
        'ekiben_failures_total{model="m",reason="invalid",version="1"} 1.0',
        'ekiben_failures_total{model="",reason="not_found",version=""} 1.0',
        'ekiben_version_ready{model="m",version="1"} 1.0',
        'ekiben_queue_rows{model="m",version="1"} 0.0',
    ):
        assert line in lines
    named = {line.split()[2].removesuffix("_total") for line in lines if line.startswith("# HELP")}
    assert named | {name for name in METRICS if "gpu" in name} == set(METRICS)
