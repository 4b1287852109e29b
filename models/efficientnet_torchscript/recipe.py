"""EfficientNet-Lite0 as its authors' PyTorch network, traced."""

import warnings
from pathlib import Path

import torch
from efficientnet_lite_pytorch import EfficientNet

from models.efficientnet import SIDE, weights_file, write_labels

__all__ = ["build"]


def build(into: Path) -> None:
    """Write `model.pt` (TorchScript, any batch size) and `labels.txt`."""
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(weights_file(), map_location="cpu", weights_only=True))
    model = torch.nn.Sequential(network, torch.nn.Softmax(dim=1)).eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        traced = torch.jit.trace(model, torch.zeros(2, 3, SIDE, SIDE))
        torch.jit.save(traced, into / "model.pt")
    write_labels(into / "labels.txt")
