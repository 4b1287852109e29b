"""Silero VAD: is there speech in this 32 ms of sound, given the state after the sound before it."""

from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from models.sources import packaged_file

__all__ = ["build"]

_RATE_HZ: Final = 16_000


def build(into: Path) -> None:
    """Write the published `model.onnx` with 16 kHz as its sampling rate where a request gives none."""
    model = onnx.load(packaged_file("silero_vad", "data/silero_vad.onnx"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(_RATE_HZ, np.int64), "sr"))
    onnx.save(model, into / "model.onnx")
