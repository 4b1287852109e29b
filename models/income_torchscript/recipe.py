"""The income network as TorchScript."""

import warnings
from pathlib import Path

import torch

from models import income

__all__ = ["build"]


def build(into: Path) -> None:
    """Write `model.pt`."""
    (hidden_weight, hidden_bias), (weight, bias) = income.layers()
    hidden, last = torch.nn.Linear(*hidden_weight.shape), torch.nn.Linear(*weight.shape)
    for layer, layer_weight, layer_bias in ((hidden, hidden_weight, hidden_bias), (last, weight, bias)):
        layer.load_state_dict({"weight": torch.from_numpy(layer_weight.T), "bias": torch.from_numpy(layer_bias)})
    model = torch.nn.Sequential(hidden, torch.nn.ReLU(), last, torch.nn.Sigmoid()).eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        traced = torch.jit.trace(model, torch.zeros(2, income.FEATURES))
        torch.jit.save(traced, into / "model.pt")
