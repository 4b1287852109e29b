"""The ceiling: a loop around ONNX Runtime in this process, with no server at all."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime

from benchmarks.calls import Floats

__all__ = ["first_output", "runs_per_second", "runs_per_second_side_by_side"]


def first_output(session: onnxruntime.InferenceSession, rows: Floats) -> Floats:
    """What the model answers, flat."""
    return np.asarray(session.run(None, {session.get_inputs()[0].name: rows})[0], np.float32).ravel()


def runs_per_second(session: onnxruntime.InferenceSession, rows: Floats, seconds: float) -> float:
    """The same batch again and again."""
    feed = {session.get_inputs()[0].name: rows}
    for _ in range(3):
        session.run(None, feed)
    runs, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        session.run(None, feed)
        runs += 1
    return runs / passed


def runs_per_second_side_by_side(
    sessions: Sequence[onnxruntime.InferenceSession], rows: Floats, seconds: float
) -> float:
    """The same batch again and again, in each session at once, each in a thread of its own."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        return sum(pool.map(lambda session: runs_per_second(session, rows, seconds), sessions))
