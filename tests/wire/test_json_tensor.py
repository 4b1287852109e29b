"""Tensors as JSON."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ekiben.errors import InvalidRequest
from ekiben.types import Request, Response, Tensor
from ekiben.wire.json_tensor import json_data, with_non_finite
from ekiben.wire.oip_json import InferCall, encode_reply
from tests.wire.bodies import PADDING, both_ways, decode, json_input, one, refused


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("UINT16", [0, 65535]),
        ("UINT32", [0, 4294967295]),
        ("UINT64", [0, 18446744073709551615, 9007199254740993]),
        ("INT8", [-128, 127]),
        ("INT16", [-32768, 32767]),
        ("INT32", [-2147483648, 2147483647]),
        ("INT64", [-9223372036854775808, 9223372036854775807, 9007199254740993]),
        ("FP32", [0.5, -1, 3.4028234663852886e38, 1e-45]),
        ("FP32", [3.4028235e38, -3.4028235e38]),
        ("FP64", [0.1, -1e300, 5e-324, 2]),
        ("BYTES", [b"a", b"", "hé 你好".encode(), b"x\x00y"]),
    ],
)
def test_every_datatype_keeps_its_values(datatype: str, data: list[Any]) -> None:
    sent = [element.decode() if isinstance(element, bytes) else element for element in data]
    expected = data if datatype != "FP32" else np.array(data, np.float32).tolist()
    assert both_ways(datatype, sent).tolist() == expected


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, min_side=0, max_dims=4), elements=st.floats(width=32)))
def test_floats_come_back_to_the_bit(tensor: Tensor) -> None:
    for padding in PADDING:
        for data in (tensor.tolist(), tensor.reshape(-1).tolist()):
            document = {
                "z": padding,
                "inputs": [{"name": "i", "datatype": "FP32", "shape": tensor.shape, "data": data}],
            }
            back = decode(document).request.inputs["i"]
            np.testing.assert_array_equal(back, tensor)
            reply = encode_reply(InferCall(Request("m", {})), Response("m", "1", {"o": back}))
            again = json.loads(reply.body)["outputs"][0]
            np.testing.assert_array_equal(np.array(again["data"], np.float32).reshape(tensor.shape), tensor)
            assert again["shape"] == list(tensor.shape)


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL", "INT16"])
def test_nested_data_are_flattened(datatype: str) -> None:
    element: Any = {"BYTES": "é", "BOOL": True, "INT16": 3}[datatype]
    assert both_ways(datatype, [[[element], [element]], [element, element]], [2, 2]).shape == (2, 2)


def test_scalars_and_nothing() -> None:
    assert one("FP32", [2.5], [1]).shape == (1,)
    for padding in PADDING:
        for data in (7, [7]):
            document = {"z": padding, "inputs": [{"name": "i", "datatype": "INT64", "shape": [], "data": data}]}
            assert decode(document).request.inputs["i"].shape == ()
    assert both_ways("FP32", [], [0, 4]).shape == (0, 4)
    assert both_ways("BYTES", [], [1, 0]).shape == (1, 0)


@pytest.mark.parametrize("padding", PADDING)
def test_what_strict_json_lacks(padding: str) -> None:
    text = (
        '{"z": "PADDING", "id": "NaN", "inputs": ['
        '{"name": "Infinity", "datatype": "FP32", "shape": [4], "data": [NaN, -Infinity, [Infinity], 1]},'
        '{"name": "big", "datatype": "FP64", "shape": [2], "data": [100000000000000000000, -1]},'
        '{"name": "exact", "datatype": "INT64", "shape": [1], "data": [9223372036854775807]},'
        '{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["-Infinity"]}]}'
    )
    request = decode(text.replace("PADDING", padding).encode()).request
    np.testing.assert_array_equal(request.inputs["Infinity"], np.array([np.nan, -np.inf, np.inf, 1], np.float32))
    assert request.inputs["big"].tolist() == [1e20, -1]
    assert request.inputs["exact"].tolist() == [9223372036854775807]
    assert request.inputs["text"].tolist() == [b"-Infinity"]
    assert request.id == "NaN"


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("INT8", [0, 128], "element 1 is 128, INT8 needs an integer from -128 to 127"),
        ("UINT8", [-1], "element 0 is -1, UINT8 needs"),
        ("UINT64", [-1], "element 0 is -1, UINT64 needs an integer from 0 to 18446744073709551615"),
        ("INT64", [1, 9223372036854775808], "element 1 is 9223372036854775808"),
        ("INT32", [1.0], "element 0 is 1.0, INT32 needs an integer"),
        ("INT32", [[1], [True]], "element 1 is true"),
        ("INT32", [None], "element 0 is null"),
        ("FP32", ["1"], 'element 0 is "1", FP32 needs a number'),
        ("FP32", [1, 1e300], "element 1 is 1e+300, FP32 needs a number in its range"),
        ("FP32", [-3.4028235677973366e38], "FP32 needs a number in its range"),
        ("FP32", [False], "element 0 is false"),
        ("FP32", [{"a": 1}], "element 0 is an object"),
        ("FP64", ["x" * 100], 'element 0 is "xxx'),
        ("BOOL", [1], "element 0 is 1, BOOL needs true or false"),
        ("BYTES", ["a", 5], "element 1 is 5, BYTES needs a string"),
        ("BYTES", [{}], "an object"),
        ("FP16", [1], "receiving FP16 data via JSON is not supported. Please use the binary data format for input i"),
        ("BF16", [1], "receiving BF16 data via JSON is not supported"),
    ],
)
def test_data_that_the_datatype_cannot_hold(datatype: str, data: list[object], message: str) -> None:
    assert message in refused({"inputs": [json_input(datatype, data)]})


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" * 400, "00", "0x1", "1NaN", "nan", "'a'", "[", "1,"])
@pytest.mark.parametrize("padding", PADDING)
def test_numbers_that_are_none(text: str, padding: str) -> None:
    document = json.dumps({"z": padding, "inputs": [json_input("FP64", [12345])]}).replace("12345", text)
    with pytest.raises(InvalidRequest, match="failed to parse the request JSON buffer"):
        decode(document.encode())


def test_an_overflow_beside_nan_is_the_one_named() -> None:
    text = b'{"inputs":[{"name":"i","datatype":"FP32","shape":[2],"data":[NaN, 1e39]}]}'
    with pytest.raises(InvalidRequest, match=r"element 1 is 1e\+39"):
        decode(text)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("largest", [False, True])
def test_large_outputs_with_numbers_that_are_not_finite_are_exact(dtype: type[np.floating[Any]], largest: bool) -> None:
    data = np.random.default_rng(1).standard_normal(600_000).astype(dtype)
    data[::3], data[1::5], data[2::7] = np.nan, np.inf, -np.inf
    if largest:
        data[4], data[11] = np.finfo(dtype).max, -np.finfo(dtype).max
    text = orjson.dumps(with_non_finite(json_data("m", "o", {np.float32: "FP32", np.float64: "FP64"}[dtype], data)))
    np.testing.assert_array_equal(np.array(json.loads(text), dtype), data)
