"""The income network as ONNX."""

from pathlib import Path

from models import income
from models.dense import Dense, write_onnx

__all__ = ["build"]


def build(into: Path) -> None:
    """Write `model.onnx`."""
    layers = [Dense(weight, bias) for weight, bias in income.layers()]
    write_onnx(into / "model.onnx", income.INPUT, income.OUTPUT, layers)
