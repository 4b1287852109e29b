"""Space-shuttle sensor readings that are out of the ordinary: a small network trained here, in seconds, as ONNX."""

import warnings
from pathlib import Path
from typing import Final

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from models.dense import Dense, write_onnx
from models.sources import packaged_file

__all__ = ["build"]

_SEED: Final = 7
_EPOCHS: Final = 40
_LEAST_AREA: Final = 0.99


def build(into: Path) -> None:
    """Train on three quarters of the rows, print the area under the ROC curve over the rest, write `model.onnx`.

    Raises RuntimeError when the area shows that the training went wrong.
    """
    rows = np.loadtxt(packaged_file("river", "datasets/shuttle.csv.gz"), np.float64, delimiter=",", skiprows=1)
    train, test = train_test_split(rows, test_size=0.25, random_state=_SEED, stratify=rows[:, -1])
    mean, deviation = train[:, :-1].mean(axis=0), train[:, :-1].std(axis=0)
    network = MLPClassifier((16, 8), max_iter=_EPOCHS, n_iter_no_change=_EPOCHS, random_state=_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is chosen, not reached
        network.fit((train[:, :-1] - mean) / deviation, train[:, -1])
    scores = network.predict_proba((test[:, :-1] - mean) / deviation)[:, 1]
    area = float(roc_auc_score(test[:, -1], scores))
    print(f"area under the ROC curve {area:.4f} over {len(test):,} rows held out")
    if area < _LEAST_AREA:
        raise RuntimeError(f"the area under the ROC curve must be at least {_LEAST_AREA}")
    weights, biases = list(network.coefs_), list(network.intercepts_)
    # The scaling of the inputs goes into the first layer, so that the model takes the readings as they are.
    biases[0] = biases[0] - (mean / deviation) @ weights[0]
    weights[0] = weights[0] / deviation[:, None]
    layers = [
        Dense(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in zip(weights, biases, strict=True)
    ]
    write_onnx(into / "model.onnx", "readings", "score", layers)
