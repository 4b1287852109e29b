"""Inference bodies: decoded, encoded, and never more than a clear error whatever comes in."""

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ekiben.errors import EkibenError, InvalidRequest
from ekiben.types import DATATYPES, Request, Response, Signature, Tensor, TensorSpec, datatype_of
from ekiben.wire.binary_tensor import bytes_array
from ekiben.wire.oip_json import Classes, InferCall, InferDecoder, OutputWish, encode_reply, header_length
from tests.wire.bodies import PADDING, binary_input, decode, json_input, refused

# --- binary


def test_blobs_stand_in_the_order_of_the_inputs() -> None:
    document = {
        "inputs": [binary_input("BYTES", [1], 5, "t"), json_input("INT8", [9]), binary_input("FP16", [2], 4, "h")]
    }
    for padding in PADDING:
        request = decode({"z": padding, **document}, b"\x01\x00\x00\x00q" + b"\x00\x3c\x00\x40").request
        assert request.inputs["t"].tolist() == [b"q"]
        assert request.inputs["i"].tolist() == [9]
        assert request.inputs["h"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("document", "blobs", "message"),
    [
        (
            {"inputs": [binary_input("FP32", [1, 4], 20)]},
            b"x" * 20,
            "input byte size mismatch for input 'i' for model 'm'. Expected 16, got 20",
        ),
        (
            {"inputs": [binary_input("FP32", [1, 4], 16)]},
            b"x" * 12,
            "unexpected size for input 'i', expecting 4 additional bytes for model 'm'",
        ),
        ({"inputs": [binary_input("FP32", [1, 4], 16)]}, b"x" * 18, "unexpected additional input data for model 'm'"),
        ({"inputs": []}, b"x", "unexpected additional input data for model 'm'"),
        ({"inputs": [binary_input("FP32", [1 << 62, 1 << 62], 4)]}, b"x" * 4, "input byte size mismatch"),
        ({"inputs": [binary_input("FP32", [1], 1 << 62)]}, b"x" * 4, "unexpected size for input 'i'"),
        ({"inputs": [binary_input("FP32", [1], -4)]}, b"x" * 4, "Expected `int` >= 0"),
        ({"inputs": [binary_input("FP32", [1], "4")]}, b"x" * 4, "got `str`"),
        ({"inputs": [binary_input("FP32", [1], 4)]}, b"", "must specify valid 'Infer-Header-Content-Length'"),
        (
            {"inputs": [{**binary_input("FP32", [1], 4), "data": [1]}]},
            b"x" * 4,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'",
        ),
        ({"inputs": [{"name": "i", "datatype": "FP32", "shape": [1]}]}, b"", "But no field is set"),
    ],
)
def test_binary_mismatches(document: dict[str, Any], blobs: bytes, message: str) -> None:
    assert message in refused(document, blobs)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (b"", "Unable to parse"),
        (b"1.5", "Unable to parse"),
        (b"\xb2", "Unable to parse"),
        (b"2147483648", "value is out of range [ -2147483648, 2147483647 ], got: 2147483648"),
        (b"9" * 5000, "value is out of range"),
        (b"-1", "inference header size should be in range (0, 10), got: -1"),
        (b"11", "inference header size should be in range (0, 10), got: 11"),
    ],
)
def test_header_length_refused(value: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        header_length(value, 10)
    assert message in str(caught.value)


def test_header_length() -> None:
    assert [header_length(value, 10) for value in (b"0", b" 7 ", b"10")] == [0, 7, 10]


def _raw(datatype: str, shape: tuple[int, ...], body: bytes, batched: bool = True) -> Tensor:
    signature = Signature((TensorSpec("i", datatype, shape),), ())
    call = InferDecoder().decode_raw("m", "1", body, signature, batched)
    assert call.binary
    return call.request.inputs["i"]


def test_raw_requests() -> None:
    assert _raw("FP32", (-1, 4), bytes(16)).shape == (1, 4)
    assert _raw("FP32", (-1, -1, 2), bytes(24)).shape == (1, 3, 2)
    assert _raw("FP32", (2, 2), bytes(16), batched=False).shape == (2, 2)
    assert _raw("FP32", (-1, 2), bytes(16), batched=False).shape == (2, 2)
    assert _raw("FP32", (-1, -1), b"").shape == (1, 0)
    assert _raw("BYTES", (-1, -1), b"any\x00").tolist() == [[b"any\x00"]]
    assert _raw("BYTES", (-1, 1), b"").tolist() == [[b""]]


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "message"),
    [
        ("FP32", (-1, 4), 8, "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 8"),
        ("FP32", (-1, -1, 2), 12, "Expected a multiple of 8, got 12"),
        ("FP32", (-1, -1, -1), 8, "more than one variable-sized dimension"),
        ("FP32", (-1, -1, 0), 8, "Expected"),
        ("BYTES", (-1, 2), 8, "raw_input"),
    ],
)
def test_raw_requests_refused(datatype: str, shape: tuple[int, ...], size: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        _raw(datatype, shape, bytes(size))


def test_a_raw_request_is_for_one_input() -> None:
    spec = TensorSpec("i", "FP32", (-1, 1))
    with pytest.raises(
        InvalidRequest, match=r"Raw request must only have 1 input .found 1. to be deduced but got 2 inputs in 'm'"
    ):
        InferDecoder().decode_raw("m", "", b"", Signature((spec, spec), ()), True)


# --- replies


def _reply(outputs: dict[str, Tensor], call: InferCall | None = None) -> tuple[Any, bytes]:
    reply = encode_reply(call or InferCall(Request("m", {})), Response("m", "3", outputs))
    if reply.header_length < 0:
        return json.loads(reply.body), b""
    return json.loads(reply.body[: reply.header_length]), reply.body[reply.header_length :]


def test_a_plain_reply() -> None:
    document, _ = _reply(
        {"a": np.array([[0.1, 2]], np.float32), "null": np.array(7), "t": bytes_array([b"x", b"\xc3\xa9"])}
    )
    assert document == {
        "model_name": "m",
        "model_version": "3",
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [0.1, 2.0]},
            {"name": "null", "datatype": "INT64", "shape": [], "data": [7]},
            {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["x", "é"]},
        ],
    }
    assert _reply({}, InferCall(Request("m", {}, id="q")))[0]["id"] == "q"


def test_non_finite_numbers_are_tokens() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.5], np.float64)
    reply = encode_reply(InferCall(Request("m", {})), Response("m", "3", {"null": values, "b": values[::2]}))
    assert b'"data":[NaN,Infinity,-Infinity,1.5]' in reply.body
    first, second = json.loads(reply.body)["outputs"]
    assert math.isnan(first["data"][0])
    assert second["data"][1] == -math.inf


def test_binary_replies() -> None:
    one, text = np.array([1.5], np.float32), bytes_array([b"\xff"])
    document, blobs = _reply({"a": one, "t": text}, InferCall(Request("m", {}), binary=True))
    assert [output["parameters"] for output in document["outputs"]] == [
        {"binary_data_size": 4},
        {"binary_data_size": 5},
    ]
    assert blobs == one.tobytes() + b"\x01\x00\x00\x00\xff"
    wishes = {"a": OutputWish(False), "t": OutputWish(True)}
    document, blobs = _reply({"a": one, "t": text}, InferCall(Request("m", {}), wishes=wishes))
    assert document["outputs"][0]["data"] == [1.5]
    assert blobs == b"\x01\x00\x00\x00\xff"
    document, blobs = _reply({"b": np.ones(2, ml_dtypes.bfloat16)}, InferCall(Request("m", {}), binary=True))
    assert (document["outputs"][0]["datatype"], blobs) == ("BF16", b"\x80\x3f\x80\x3f")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            bytes_array([b"\xff"]),
            "output 'o' of model 'm' holds bytes that are not UTF-8 text. Please use the binary data format",
        ),
        (
            np.ones(1, np.float16),
            "sending FP16 data via JSON is not supported. Please use the binary data format for output o",
        ),
        (np.ones(1, ml_dtypes.bfloat16), "sending BF16 data via JSON is not supported"),
    ],
)
def test_replies_that_json_cannot_carry(tensor: Tensor, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _reply({"o": tensor})
    assert message in str(caught.value)


def test_classified_replies() -> None:
    call = InferCall(Request("m", {}), wishes={"o": OutputWish(False, 1), "p": OutputWish(True, 1)}, classifies=True)
    scores = np.array([[1, 2]], np.float32)
    response = Response("m", "1", {"o": scores, "p": scores})
    reply = encode_reply(call, response, Classes({"o": ("cat", "dog")}, True))
    document = json.loads(reply.body[: reply.header_length])
    assert document["outputs"][0] == {"name": "o", "datatype": "BYTES", "shape": [1, 1], "data": ["2.000000:1:dog"]}
    assert reply.body[reply.header_length :] == b"\x0a\x00\x00\x002.000000:1"


# --- whatever comes in

_VALID = json.dumps(
    {
        "id": "x",
        "parameters": {"binary_data_output": True, "p": 1},
        "inputs": [
            json_input("FP32", [[1, 2.5], [3, -4]], [2, 2]),
            {**json_input("BYTES", ["a\\b[", "é"]), "name": "t"},
            binary_input("INT16", [2], 4, "b"),
        ],
        "outputs": [{"name": "o", "parameters": {"classification": 2}}],
    }
).encode()
_BLOB = b"\x01\x00\x02\x00"


def _survives(body: bytes, json_length: int) -> None:
    try:
        call = InferDecoder().decode("m", "", body, json_length)
    except EkibenError:
        return
    for tensor in call.request.inputs.values():
        assert datatype_of(tensor) in DATATYPES


@given(st.binary(max_size=200), st.integers(-1, 200))
def test_any_bytes(body: bytes, json_length: int) -> None:
    _survives(body, min(json_length, len(body)))


@given(st.integers(0, len(_VALID)), st.integers(0, 12), st.binary(max_size=12), st.sampled_from(PADDING))
@example(0, 0, b"", "")
def test_a_valid_request_with_a_piece_replaced(start: int, removed: int, put: bytes, padding: str) -> None:
    text = _VALID[:start] + put + _VALID[start + removed :]
    text = text[:1] + b'"z":"%s",' % padding.encode() + text[1:]
    _survives(text + _BLOB, len(text))


_SCRAPS = [
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"NaN",
    b"-Infinity",
    b"null",
    b"true",
    b"-",
    b"1e999",
    b"9" * 25,
    b"0.0e-0",
]
_SCRAPS += [
    b'"shape"',
    b'"data"',
    b'"inputs"',
    b'"parameters"',
    b'"binary_data_size"',
    b"\\u0000",
    b"\xff",
    b"[-8.1057162839403e307]",
]


@given(st.integers(0, len(_VALID)), st.lists(st.sampled_from(_SCRAPS), max_size=6), st.sampled_from(PADDING))
def test_a_valid_request_with_scraps(start: int, scraps: list[bytes], padding: str) -> None:
    text = _VALID[:start] + b"".join(scraps) + _VALID[start:]
    text = text[:1] + b'"z":"%s",' % padding.encode() + text[1:]
    _survives(text + _BLOB, len(text))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("i") | _JSON,
        "datatype": st.sampled_from([*DATATYPES, "FLOAT"]) | _JSON,
        "shape": st.lists(st.integers(0, 3), max_size=3) | _JSON,
        "data": st.lists(st.integers() | st.floats() | st.text(max_size=3) | st.booleans(), max_size=6) | _JSON,
        "parameters": st.fixed_dictionaries(
            {},
            optional={
                "binary_data_size": st.integers() | _JSON,
                "shared_memory_region": st.just("r") | _JSON,
                "shared_memory_byte_size": st.integers(),
            },
        )
        | _JSON,
    },
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "inputs": st.lists(_FIELDS, max_size=3) | _JSON,
            "outputs": _JSON,
            "id": _JSON,
            "parameters": _JSON | st.dictionaries(st.text(max_size=5), _JSON, max_size=3),
        },
    ),
    st.binary(max_size=8),
)
def test_any_document_is_judged_alike_both_ways(document: dict[str, Any], blobs: bytes) -> None:
    outcomes = []
    for padding in PADDING:
        text = json.dumps({"z": padding, **document}).encode()
        try:
            call = InferDecoder().decode("m", "", text + blobs, len(text) if blobs else -1)
            inputs = {name: (tensor.dtype, tensor.tolist()) for name, tensor in call.request.inputs.items()}
            outcomes.append(f"{inputs} {call.shared}")
        except EkibenError as error:
            outcomes.append(type(error).code)
    assert outcomes[0] == outcomes[1]
