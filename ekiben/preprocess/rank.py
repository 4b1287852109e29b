"""From a model's scores to labels, best first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekiben.preprocess.declaration import ImageDeclaration
from ekiben.types import Tensor

__all__ = ["Label", "rank", "softmax", "top_k"]


@dataclass(frozen=True, slots=True)
class Label:
    """One class that a model found, and its score."""

    # A plain dataclass, so that a typed BentoML API can return it.

    label: str
    index: int
    score: float


def softmax(logits: Tensor) -> Tensor:
    """Probabilities along the last axis, f64."""
    values = np.asarray(logits, np.float64)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    probabilities: Tensor = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def top_k(scores: Tensor, labels: Sequence[str], k: int) -> list[Label]:
    """The `k` best of `scores` [classes], or all where there are fewer; of equals the first comes first, NaN last.

    A class without a label is called by its index.
    """
    best = np.argsort(-np.asarray(scores, np.float64), kind="stable")[:k]
    return [
        Label(labels[index] if index < len(labels) else str(index), index, float(scores[index]))
        for index in best.tolist()
    ]


def rank(declaration: ImageDeclaration, scores: Tensor, labels: Sequence[str]) -> list[list[Label]]:
    """The declared number of best labels for each row of `scores` [N, classes], a model's output."""
    rows = softmax(scores) if declaration.activation == "softmax" else scores
    return [top_k(row, labels, declaration.top_k) for row in rows]
