"""Tensors that come as contents, element by element."""

from typing import Any

import pytest

from ekiben.types import DATATYPES
from tests.wire.messages import decoded, refused, typed

_MISMATCH = "input byte size mismatch for input 'i' for model 'm'. Expected "
_TYPED = "unexpected explicit tensor data for input tensor 'i' for model 'm' of type "


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(1 << 31), (1 << 31) - 1]),
        ("INT64", "int64_contents", [-(1 << 63), (1 << 63) - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", [0, (1 << 64) - 1]),
        ("FP32", "fp32_contents", [0.5, -3.0]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"\x00\xff", b""]),
    ],
)
def test_contents(datatype: str, field: str, values: list[Any]) -> None:
    found = decoded(typed(datatype, [2, 1], **{field: values})).inputs["i"]
    assert (found.dtype, found.tolist()) == (DATATYPES[datatype], [[value] for value in values])
    empty = decoded(typed(datatype, [1, 0])).inputs["i"]
    assert (empty.dtype, empty.shape) == (DATATYPES[datatype], (1, 0))


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_contents_of_any_length(length: int) -> None:
    for datatype, field in (("FP32", "fp32_contents"), ("BOOL", "bool_contents"), ("INT32", "int_contents")):
        values = [value % 2 for value in range(length)]
        assert decoded(typed(datatype, [length], **{field: values})).inputs["i"].tolist() == values


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (typed("INT32", [1, 16], fp32_contents=[1.0] * 16), _TYPED + "'FP32', expected datatype 'INT32'"),
        (typed("FP16", [2], fp32_contents=[1.0, 2.0]), _TYPED + "'FP32', expected datatype 'FP16'"),
        (typed("BF16", [0]), "'BF16', which is only sent in raw_input_contents"),
        (typed("INT32", [2], int_contents=[1, 2], fp32_contents=[1.0]), "of type 'FP32', expected datatype 'INT32'"),
        (typed("INT32", [1, 16], int_contents=[1] * 15), _MISMATCH + "64, got 60"),
        (typed("FP64", [1], fp64_contents=[1, 2]), "Expected 8, got 16"),
        (typed("FP64", [1]), "Expected 8, got 0"),
        (
            typed("BYTES", [1], bytes_contents=[b"a", b"b"]),
            "unexpected number of string elements 2 for inference input 'i' for model 'm', expecting 1",
        ),
        (typed("INT8", [2], int_contents=[1, 300]), "value 300 of input 'i' for model 'm' is out of range for INT8"),
        (
            typed("INT16", [1], int_contents=[-40000]),
            "value -40000 of input 'i' for model 'm' is out of range for INT16",
        ),
        (typed("UINT8", [1], uint_contents=[256]), "value 256 of input 'i' for model 'm' is out of range for UINT8"),
    ],
)
def test_contents_errors(request_: Any, text: str) -> None:
    assert text in refused(request_)


def test_contents_and_raw() -> None:
    request = typed("INT8", [1], int_contents=[1])
    request.raw_input_contents.append(b"x")
    text = "contents field must not be specified when using raw_input_contents for 'i' for model 'm'"
    assert refused(request) == text


def test_contents_and_none() -> None:
    request = typed("INT8", [1], int_contents=[1])
    request.inputs.add(name="j", datatype="INT8", shape=[1])
    assert refused(request) == "unable to find data for input tensor 'j' for model 'm' in request."
