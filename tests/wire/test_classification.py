"""Scores → best classes."""

import numpy as np
import pytest

from ekiben.errors import InvalidRequest
from ekiben.types import Tensor, datatype_of
from ekiben.wire.classification import classified


def _classes(scores: Tensor, count: int, labels: tuple[str, ...] = (), batched: bool = True) -> list[object]:
    result: list[object] = classified("m", "o", datatype_of(scores), scores, count, labels, batched).tolist()
    return result


def test_best_first_with_labels_as_far_as_they_go() -> None:
    scores = np.array([[0.1, 0.7, 0.15], [4, 3, 2]], np.float32)
    assert _classes(scores, 2, ("cat", "dog")) == [
        [b"0.700000:1:dog", b"0.150000:2"],
        [b"4.000000:0:cat", b"3.000000:1:dog"],
    ]


def test_equal_scores_by_rising_index() -> None:
    assert _classes(np.array([[0.5, 0.9, 0.5, 0.5]], np.float64), 3) == [[b"0.900000:1", b"0.500000:0", b"0.500000:2"]]
    assert _classes(np.array([[5, 5, 9, 5]], np.uint8), 4) == [[b"9:2", b"5:0", b"5:1", b"5:3"]]


def test_integer_extremes_and_nan() -> None:
    assert _classes(np.array([[-128, 127, 0]], np.int8), 3) == [[b"127:1", b"0:2", b"-128:0"]]
    assert _classes(np.array([[0, (1 << 64) - 1]], np.uint64), 1) == [[b"18446744073709551615:1"]]
    assert _classes(np.array([[np.nan, -np.inf, np.inf]], np.float32), 3) == [[b"inf:2", b"-inf:1", b"nan:0"]]


def test_shapes() -> None:
    assert _classes(np.array([1, 2, 3], np.int32), 9, batched=False) == [b"3:2", b"2:1", b"1:0"]
    assert _classes(np.arange(8, dtype=np.int32).reshape(2, 2, 2), 1) == [[b"3:3"], [b"7:3"]]
    assert _classes(np.zeros((2, 0), np.float32), 3) == [[], []]
    assert _classes(np.zeros((0, 4), np.float32), 3) == []
    assert _classes(np.array(7, np.int64), 1) == [b"7:0"]


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.object_])
def test_types_without_an_order_are_refused(dtype: type) -> None:
    with pytest.raises(InvalidRequest, match="class result not available for output 'o' of model 'm'"):
        _classes(np.zeros((1, 2), dtype), 1)
