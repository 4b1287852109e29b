"""Tensors written on one side of an arena are read the same on the other, however both grow."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ekiben.runner.arena import INITIAL_BYTES, KEEP_BYTES, SMALL_BATCHES, Arena, Placed
from ekiben.runner.base import TensorParts
from ekiben.types import DATATYPES, Tensor, datatype_of


@contextmanager
def both_sides() -> Iterator[tuple[Arena, Arena]]:
    """One memory, mapped twice, as by the engine and by its runner."""
    ours = Arena.create()
    theirs = Arena(os.dup(ours.descriptor))
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


def parts(name: str, *arrays: Tensor) -> TensorParts:
    return TensorParts(name, datatype_of(arrays[0]), arrays)


def same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


def objects(*items: object, shape: tuple[int, ...] = (-1,)) -> Tensor:
    array: Tensor = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array.reshape(shape)


def resident_bytes(arena: Arena) -> int:
    return os.fstat(arena.descriptor).st_blocks * 512


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    """Parts of one tensor: the same datatype and trailing shape."""
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    trailing = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    rows = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    if draw(st.booleans()) and not trailing:
        rows = []
    shapes = [(count, *trailing) for count in rows] or [()]
    if datatype == "BYTES":
        items = st.binary(max_size=20)
        return [draw(npst.arrays(np.object_, shape, elements=items, fill=st.nothing())) for shape in shapes]
    dtype = DATATYPES[datatype]
    return [
        np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8).view(dtype).reshape(shape)
        if datatype != "BOOL"
        else draw(npst.arrays(np.bool_, shape))
        for shape in shapes
        for size in [int(np.prod(shape)) * dtype.itemsize]
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(tensors(), min_size=1, max_size=5), st.integers(0, 200_000))
def test_any_tensors_survive_the_passage(given_tensors: list[list[Tensor]], start: int) -> None:
    with both_sides() as (ours, theirs):
        written = [parts(f"t{number}", *arrays) for number, arrays in enumerate(given_tensors)]
        placed, end = ours.write(written, start)
        theirs.follow(ours.size_bytes)
        assert end <= ours.size_bytes == theirs.size_bytes
        for place, arrays in zip(placed, given_tensors, strict=True):
            expected = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            assert place.offset >= start
            assert place.offset % 64 == 0
            seen = theirs.view(place)
            if place.datatype == "BYTES":
                assert (seen.shape, seen.tolist()) == (expected.shape, expected.tolist())
            else:
                assert same(seen, expected)
                assert same(ours.copy(place), expected)
        del seen


def test_tensors_do_not_overlap() -> None:
    with both_sides() as (ours, _):
        placed, end = ours.write([parts("a", np.zeros(3, np.int8)), parts("b", np.ones((2, 3)))], 10)
        assert [(place.offset, place.size_bytes) for place in placed] == [(64, 3), (128, 48)]
        assert end == 176


def test_bytes_keep_nul_and_need_no_text() -> None:
    with both_sides() as (ours, theirs):
        items = objects(b"", b"\0", b"\0tail\0", b"\xff\xfe", "text é".encode(), b"x" * 100_000, shape=(2, 3))
        (place,), _ = ours.write([parts("s", items)], 0)
        theirs.follow(ours.size_bytes)
        assert theirs.view(place).tolist() == items.tolist()


@pytest.mark.parametrize("array", [np.array(["é", ""]), np.array([b"a", b""]), objects("é", b"")])
def test_text_becomes_bytes(array: Tensor) -> None:
    with both_sides() as (ours, _):
        (place,), _ = ours.write([parts("s", array)], 0)
        assert all(type(item) is bytes for item in ours.copy(place).tolist())


def test_what_is_not_bytes_is_refused() -> None:
    with both_sides() as (ours, _), pytest.raises(TypeError, match="of type 'int', not bytes"):
        ours.write([parts("s", objects(b"a", 3))], 0)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    with both_sides() as (ours, _), pytest.raises(ValueError, match="dimension"):
        ours.write([parts("x", np.zeros((1, 2)), np.zeros((1, 3)))], 0)


def test_an_array_in_foreign_byte_order_arrives_in_ours() -> None:
    with both_sides() as (ours, _):
        (place,), _ = ours.write([parts("x", np.arange(3, dtype=">i4"))], 0)
        assert same(ours.copy(place), np.arange(3, dtype=np.int32))


def test_views_are_read_only_and_copies_are_not() -> None:
    with both_sides() as (ours, _):
        (place,), _ = ours.write([parts("x", np.zeros(3))], 0)
        assert not ours.view(place).flags.writeable
        assert ours.copy(place).flags.writeable


def test_either_side_grows_it_under_views_of_the_other() -> None:
    with both_sides() as (ours, theirs):
        (place,), end = ours.write([parts("x", np.arange(10))], 0)
        view = theirs.view(place)
        (answer,), _ = theirs.write([parts("y", np.ones(INITIAL_BYTES))], end)
        assert view.tolist() == list(range(10))
        with pytest.raises(ValueError, match="outside the arena"):
            ours.copy(answer)
        ours.follow(theirs.size_bytes)
        assert ours.copy(answer).sum() == INITIAL_BYTES
        del view


def test_it_cannot_be_taken_away_under_the_other_side() -> None:
    with both_sides() as (ours, _), pytest.raises(PermissionError):
        os.ftruncate(ours.descriptor, 0)


@pytest.mark.parametrize("place", [
    Placed("x", "FP32", (4,), INITIAL_BYTES - 8, 16),
    Placed("x", "FP32", (4,), -64, 16),
    Placed("x", "FP32", (-4,), 0, 16),
    Placed("x", "FP32", (1 << 40, 1 << 40), 0, 16),
    Placed("x", "BYTES", (4,), INITIAL_BYTES - 8, 16),
    Placed("x", "BYTES", (4,), -8, 8),
    Placed("x", "BYTES", (1 << 60,), 0, 8),
])  # fmt: skip
def test_a_place_outside_is_an_error_not_a_crash(place: Placed) -> None:
    with both_sides() as (ours, _):
        ours.write([parts("x", np.full(16, 255, np.uint8))], 0)
        with pytest.raises(ValueError, match=r"negative|outside|ends at byte"):
            ours.copy(place)


def test_a_size_that_is_not_there_is_an_error() -> None:
    with both_sides() as (ours, _), pytest.raises(ValueError, match="mmap"):
        ours.follow(INITIAL_BYTES * 2)


def test_after_an_oversized_batch_memory_is_given_back() -> None:
    with both_sides() as (ours, theirs):
        _, end = ours.write([parts("x", np.ones(KEEP_BYTES // 8 + 1_000_000))], 0)
        theirs.follow(ours.size_bytes)
        assert resident_bytes(ours) > KEEP_BYTES
        ours.trim(end)
        for _ in range(SMALL_BATCHES):
            (place,), end = ours.write([parts("x", np.arange(10))], 0)
            ours.trim(end)
        assert resident_bytes(ours) <= KEEP_BYTES
        assert theirs.copy(place).tolist() == list(range(10))


def test_large_batches_in_a_row_keep_their_memory() -> None:
    with both_sides() as (ours, _):
        ours.reserve(4 * KEEP_BYTES)
        for used in [2 * KEEP_BYTES, 100] * SMALL_BATCHES:
            ours.write([parts("x", np.ones(1))], used)
            ours.trim(used)
        assert resident_bytes(ours) > 0
        page_behind = ours.read_bytes(2 * KEEP_BYTES, 8)
        assert page_behind == np.ones(1).tobytes()
