"""The income network 29 → 20 → 1: the chance that a person of the Adult census earns over 50,000 dollars a year."""

from pathlib import Path
from typing import Final

import h5py
import numpy as np
from numpy.typing import NDArray

from models.sources import packaged_file

__all__ = ["FEATURES", "INPUT", "OUTPUT", "layers"]

INPUT: Final = "features"
"""f32 [N,29]: age and hours a week scaled to 0…1, then the one-hot groups of dice_ml's Adult data."""
OUTPUT: Final = "probability"
"""f32 [N,1]."""
FEATURES: Final = 29

Weights = NDArray[np.float32]


def _file() -> Path:
    return packaged_file("dice_ml", "utils/sample_trained_models/adult.h5")


def layers() -> tuple[tuple[Weights, Weights], ...]:
    """(weight [inputs, outputs], bias) of the layer with ReLU, then of the one with a sigmoid."""
    with h5py.File(_file()) as file:
        weights = file["model_weights"]
        return tuple(
            (np.asarray(weights[f"{name}/{name}/kernel:0"]), np.asarray(weights[f"{name}/{name}/bias:0"]))
            for name in ("dense", "dense_1")
        )
