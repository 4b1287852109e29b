"""Scores to labels."""

import numpy as np

from ekiben.preprocess import ImageDeclaration, Label, rank, softmax, top_k


def test_best_first() -> None:
    scores = np.array([0.1, 0.7, 0.2], np.float32)
    assert [label.index for label in top_k(scores, ["a", "b", "c"], 2)] == [1, 2]
    assert top_k(scores, ["a", "b", "c"], 1) == [Label("b", 1, float(scores[1]))]


def test_equal_scores_keep_their_order_and_nan_comes_last() -> None:
    scores = np.array([np.nan, 0.5, 0.5, 0.9], np.float32)
    assert [label.index for label in top_k(scores, list("abcd"), 9)] == [3, 1, 2, 0]


def test_integer_scores_and_a_class_without_a_label() -> None:
    assert top_k(np.array([0, 255], np.uint8), ["a"], 2) == [Label("1", 1, 255.0), Label("a", 0, 0.0)]


def test_softmax_of_large_logits() -> None:
    np.testing.assert_allclose(softmax(np.array([[1000.0, 1000.0], [0.0, np.log(3)]])), [[0.5, 0.5], [0.25, 0.75]])


def test_rank_does_what_is_declared_to_every_row() -> None:
    logits = np.array([[0.0, np.log(3)], [np.log(3), 0.0]], np.float32)
    plain = ImageDeclaration(input="i", output="o", size=(1, 1), top_k=1)
    assert [[label.label for label in row] for row in rank(plain, logits, "ab")] == [["b"], ["a"]]
    softened = ImageDeclaration(input="i", output="o", size=(1, 1), top_k=1, activation="softmax")
    ((best,), _) = rank(softened, logits, "ab")
    np.testing.assert_allclose(best.score, 0.75, rtol=1e-6)
