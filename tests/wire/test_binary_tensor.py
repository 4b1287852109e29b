"""Tensors as raw bytes, both ways."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Tensor, datatype_of
from ekiben.wire.binary_tensor import binary_from_tensor, bytes_array, tensor_from_binary

_DTYPES = [dtype for name, dtype in DATATYPES.items() if name not in ("BYTES", "BF16")]


@given(
    st.sampled_from(_DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))),
    st.integers(0, 7),
)
def test_numbers_go_and_come_back_at_any_alignment(tensor: Tensor, offset: int) -> None:
    blob = bytes(binary_from_tensor(tensor))
    assert blob == tensor.tobytes()
    body = b"x" * offset + blob
    back = tensor_from_binary("m", "i", datatype_of(tensor), tensor.shape, body, offset, len(blob))
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert back.tobytes() == blob


def test_numbers_are_views_of_the_body() -> None:
    body = np.arange(6, dtype=np.float32).tobytes()
    assert not tensor_from_binary("m", "i", "FP32", (2, 3), body, 0, 24).flags.owndata
    assert tensor_from_binary("m", "i", "BF16", (12,), body, 0, 24).dtype == ml_dtypes.bfloat16


def test_strided_and_bfloat16_outputs() -> None:
    table = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert bytes(binary_from_tensor(table.T)) == table.T.tobytes()
    assert bytes(binary_from_tensor(np.ones((2, 1), ml_dtypes.bfloat16))) == b"\x80\x3f\x80\x3f"


def test_booleans_other_than_0_and_1_become_true() -> None:
    assert tensor_from_binary("m", "i", "BOOL", (4,), b"\x00\x01\x02\xff", 0, 4).tobytes() == b"\x00\x01\x01\x01"


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_bytes_go_and_come_back(elements: list[bytes]) -> None:
    blob = bytes(binary_from_tensor(bytes_array(elements)))
    assert len(blob) == sum(4 + len(element) for element in elements)
    back = tensor_from_binary("m", "i", "BYTES", (1, len(elements)), blob, 0, len(blob))
    assert back.tolist() == [elements]


def test_text_outputs_are_utf8() -> None:
    assert bytes(binary_from_tensor(np.array(["é", b"a"], np.object_))) == b"\x02\x00\x00\x00\xc3\xa9\x01\x00\x00\x00a"
    assert bytes(binary_from_tensor(np.array(["é"]))) == b"\x02\x00\x00\x00\xc3\xa9"


@pytest.mark.parametrize(
    ("datatype", "shape", "body", "message"),
    [
        ("FP32", (1, 4), b"x" * 20, "input byte size mismatch for input 'i' for model 'm'. Expected 16, got 20"),
        ("FP32", (1 << 62, 1 << 62), b"x" * 4, "Expected 85"),
        ("FP32", (1 << 62, 0), b"", "too large"),
        ("BYTES", (1,), b"\x01\x00\x00\x00a" * 2, "unexpected number of string elements 2 for inference input 'i'"),
        ("BYTES", (3,), b"\x00" * 4, "unexpected number of string elements 1 .* expecting 3"),
        ("BYTES", (1 << 60,), b"\x00" * 4, "1152921504606846976 BYTES elements, and a request may have 262144"),
        ("BYTES", (1,), b"\x00" * 100_000, "unexpected number of string elements"),
        ("BYTES", (1,), b"\x02\x00\x00\x00a", "expecting string of length 2 but only 1 bytes available"),
        ("BYTES", (1,), b"\xff\xff\xff\xffa", "expecting string of length 4294967295 but only 1"),
        ("BYTES", (1,), b"\x02\x00", "expecting 4 bytes but only 2 bytes available"),
    ],
)
def test_mismatches_are_refused(datatype: str, shape: tuple[int, ...], body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tensor_from_binary("m", "i", datatype, shape, body, 0, len(body))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_a_tensor_or_an_error(body: bytes, count: int) -> None:
    try:
        tensor = tensor_from_binary("m", "i", "BYTES", (count,), body, 0, len(body))
    except InvalidRequest:
        return
    assert bytes(binary_from_tensor(tensor)) == body
