"""Flat JSON objects ↔ requests and responses."""

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiben.errors import InvalidRequest, NotFound
from ekiben.types import Request, Response, Signature, Tensor, TensorSpec
from ekiben.wire.generate import GenerateDecoder, encode_generated, error_event, event

TALK = Signature(
    (
        TensorSpec("text_input", "BYTES", (-1, 1)),
        TensorSpec("tokens", "INT32", (-1, -1), optional=True),
        TensorSpec("heat", "FP32", (-1, 1), optional=True),
        TensorSpec("stream", "BOOL", (-1, 1), optional=True),
        TensorSpec("id2", "UINT64", (-1, 2, -1, 3), optional=True),
    ),
    (TensorSpec("text_output", "BYTES", (-1, 1)),),
)
DECODER = GenerateDecoder(20)


def decode(body: object, signature: Signature = TALK, batched: bool = True) -> Request:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return DECODER.decode("m", "3", text, {"serving_default": signature}, batched)


def one(body: object, datatype: str, *shape: int, batched: bool = True) -> Tensor:
    signature = Signature((TensorSpec("x", datatype, shape),), ())
    text = b'{"x": %s}' % body if isinstance(body, bytes) else {"x": body}
    return decode(text, signature, batched).inputs["x"]


def test_keys_that_name_inputs_are_tensors_and_the_others_parameters() -> None:
    request = decode(
        {
            "text_input": "hé\0",
            "id": "7",
            "heat": 1,
            "seed": 12,
            "parameters": {"stream": True, "tokens": [1, 2, 3], "priority": 1, "style": "dry", "id": "inner"},
        }
    )
    assert (request.model, request.version, request.id) == ("m", "3", "7")
    assert {name: (array.dtype.str, array.tolist()) for name, array in request.inputs.items()} == {
        "text_input": ("|O", [["hé\0".encode()]]),
        "heat": ("<f4", [[1.0]]),
        "stream": ("|b1", [[True]]),
        "tokens": ("<i4", [[1, 2, 3]]),
    }
    assert request.parameters == {"seed": 12, "priority": 1, "style": "dry", "id": "inner"}


@pytest.mark.parametrize(
    ("shape", "value", "found"),
    [
        ((-1, 1), 5, (1, 1)),
        ((-1, 1), [5], (1, 1)),
        ((-1, 1), [5, 6, 7], (3, 1)),
        ((-1, 1), [[5], [6]], (2, 1)),
        ((-1, 3), [5, 6, 7], (1, 3)),
        ((-1, 3), [1, 2, 3, 4, 5, 6], (2, 3)),
        ((-1, -1), 5, (1, 1)),
        ((-1, -1), [5, 6], (1, 2)),
        ((-1, -1), [], (1, 0)),
        ((-1, -1), [[5, 6]], (1, 2)),
        ((-1, 1), [], (0, 1)),
        ((-1, -1, -1), [5, 6], (1, 1, 2)),
        ((-1, -1, -1), [[5, 6], [7, 8]], (1, 2, 2)),
        ((-1, 2, -1, 3), [1, 2, 3, 4, 5, 6], (1, 2, 1, 3)),
        ((-1, 2, -1, 3), list(range(12)), (1, 2, 2, 3)),
        ((-1,), 5, (1,)),
        ((-1,), [5, 6], (2,)),
    ],
)
def test_a_value_or_a_flat_list_fills_the_shape(shape: tuple[int, ...], value: Any, found: tuple[int, ...]) -> None:
    tensor = one(value, "INT64", *shape)
    assert tensor.shape == found
    assert tensor.ravel().tolist() == np.array(value).ravel().tolist()


def test_without_a_batch_dimension() -> None:
    assert one(5, "INT8", batched=False).shape == ()
    assert one([1, 2], "INT8", 2, batched=False).shape == (2,)
    assert one([[1, 2]], "INT8", -1, 2, batched=False).shape == (1, 2)
    assert one([[1, 2]], "INT8", -1, -1, 2, batched=False).shape == (1, 2)  # refused by the signature's own check


@pytest.mark.parametrize(
    ("body", "datatype", "shape", "words"),
    [
        ([1, 2], "INT8", (-1, 3), "shape [-1, 3], which 2 values"),
        ([], "INT8", (2,), "shape [2], which 0 values"),
        ([[1, 2], [3]], "INT8", (-1, 2), "holds 4 elements, got 3"),
        (128, "INT8", (-1, 1), "element 0 is 128, INT8 needs an integer from -128 to 127"),
        (-1, "UINT64", (-1, 1), "element 0 is -1"),
        (1.5, "INT32", (-1, 1), "element 0 is 1.5"),
        ("1", "INT32", (-1, 1), 'element 0 is "1"'),
        (True, "INT32", (-1, 1), "element 0 is true"),
        (1, "BOOL", (-1, 1), "element 0 is 1, BOOL needs true or false"),
        (1e39, "FP32", (-1, 1), "FP32 needs a number in its range"),
        (["a", 1], "BYTES", (-1, 1), "element 1 is 1, BYTES needs a string"),
        (None, "BYTES", (-1, 1), "element 0 is null"),
        ({"a": 1}, "BYTES", (-1, 1), "element 0 is an object"),
        ([{"a": 1}], "FP32", (-1, 1), "element 0 is an object"),
        (1, "FP16", (-1, 1), "FP16 data via JSON is not supported"),
        (1, "BF16", (-1, 1), "BF16 data via JSON is not supported"),
    ],
)
def test_values_that_do_not_fit_are_refused(body: Any, datatype: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        one(body, datatype, *shape)
    assert words in caught.value.message
    assert "'x'" in caught.value.message or "input x" in caught.value.message


def test_numbers_are_exact_and_what_strict_parsers_refuse_is_read() -> None:
    assert one((1 << 64) - 1, "UINT64", -1, 1).tolist() == [[(1 << 64) - 1]]
    assert one(-(1 << 63), "INT64", -1, 1).tolist() == [[-(1 << 63)]]
    assert math.isnan(one(b"NaN", "FP32", -1, 1).item())
    assert one(b"[Infinity, -Infinity, 1]", "FP64", -1, 3).tolist() == [[math.inf, -math.inf, 1]]
    assert one(b"100000000000000000000", "FP64", -1, 1).item() == 1e20
    body = b'{"text_input": "NaN Infinity 100000000000000000000", "NaN": "NaN", "heat": NaN, "big": 1e300}'
    request = decode(body)
    assert request.inputs["text_input"].item() == b"NaN Infinity 100000000000000000000"
    assert request.parameters == {"NaN": "NaN", "big": 1e300}
    assert math.isnan(request.inputs["heat"].item())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "failed to parse the request JSON"),
        (b"nul", "failed to parse the request JSON"),
        (b"3", "must be an object"),
        (b'["text_input"]', "must be an object"),
        (b'{"text_input": "a"} x', "failed to parse the request JSON"),
        (b'{"text_input": "\xff"}', "failed to parse the request JSON"),
        (b'{"text_input": "\\ud800"}', "failed to parse the request JSON"),
        (b'{"text_input": "a", "text_input": "b"}', "input 'text_input' already exists in request"),
        (b'{"heat": 1, "parameters": {"heat": 2}}', "input 'heat' already exists in request"),
        (b'{"a": 1, "parameters": {"a": 2}}', "parameter 'a' already exists in request"),
        (b'{"parameters": {"heat": 1, "heat": 2}}', "'heat' already exists in request"),
        (b'{"parameters": {}, "parameters": {}}', "'parameters' already exists in request"),
        (b'{"parameters": [1]}', "Expected JSON object for keyword: 'parameters', got [1]"),
        (
            b'{"parameters": {"nested": {"twice": 1}}}',
            "Converting keyword: 'parameters': parameter 'nested' has invalid",
        ),
        (b'{"PARAMS": {"a": 0}}', "parameter 'PARAMS' has invalid type"),
        (b'{"p": null}', "parameter 'p' has invalid type"),
        (b'{"id": 7}', "'id' must be a string, got 7"),
        (b'{"id": {"a": "' + b"x" * 99 + b'"}}', "'id' must be a string, got {\"a\""),
        (b'{"priority": -1}', "'priority' must be an unsigned integer"),
        (b'{"triton_x": 1}', "'triton_' are reserved"),
        (b'{"a": ' + b"[" * 20 + b"]" * 20 + b"}", "json_depth_limit"),
        (json.dumps({str(number): number for number in range(1025)}).encode(), "over the limit of 1024"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(body)
    assert words in caught.value.message
    assert len(caught.value.message) < 300


def test_a_key_that_begins_like_another_is_another() -> None:
    request = decode(b'{"text_input\\u0000": "b", "text_input": "a", "\xf0\x9f\x98\x80": 1}')
    assert request.inputs["text_input"].item() == b"a"
    assert request.parameters == {"text_input\0": "b", "😀": 1}


def test_an_input_named_as_a_keyword_is_an_input() -> None:
    signature = Signature((TensorSpec("id", "INT8", (-1, 1)), TensorSpec("parameters", "BYTES", (-1, 1))), ())
    request = decode({"id": 3, "parameters": "p"}, signature)
    assert {name: array.item() for name, array in request.inputs.items()} == {"id": 3, "parameters": b"p"}


def test_a_signature_is_chosen_by_its_name() -> None:
    other = Signature((TensorSpec("x", "INT8", (-1, 1)),), ())
    signatures = {"serving_default": TALK, "other": other}
    for body in (b'{"x": 1, "signature_name": "other"}', b'{"x": 1, "parameters": {"signature_name": "other"}}'):
        request = DECODER.decode("m", "", body, signatures, True)
        assert (request.signature, request.inputs["x"].item(), request.parameters) == ("other", 1, {})
    with pytest.raises(NotFound, match="no signature 'zzz'; it has 'serving_default', 'other'"):
        DECODER.decode("m", "", b'{"signature_name": "zzz"}', signatures, True)


def test_the_decoder_is_itself_again_after_an_error() -> None:
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            decode(b'{"tokens": [1, [2, "x"]], "text_input": "a"}')
        assert decode({"text_input": "a", "tokens": [1, 2]}).inputs["tokens"].tolist() == [[1, 2]]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_any_value_is_taken_or_refused(value: Any) -> None:
    for datatype in ("INT32", "UINT64", "FP32", "FP64", "BOOL", "BYTES"):
        try:
            tensor = one(value, datatype, -1, -1)
        except InvalidRequest:
            continue
        assert tensor.size == np.array(value, np.object_).size


# Replies


def reply(identity: str = "", **outputs: Tensor) -> bytes:
    return encode_generated(identity, Response("m", "3", outputs))


def text(*items: bytes) -> Tensor:
    array: Tensor = np.empty((len(items), 1), np.object_)
    array[:, 0] = items
    return array


def test_one_element_is_a_value_and_others_a_flat_list() -> None:
    body = reply(
        "7",
        a=text(b"h\xc3\xa9\n"),
        b=text(b"x", b""),
        c=np.array([[1, 2], [3, 4]], np.int8),
        d=np.array([[0.1]], np.float32),
        e=np.array(True),
        f=np.empty((1, 0), np.float64),
        g=np.array([(1 << 64) - 1], np.uint64),
        h=text(),
    )
    assert (
        body
        == (
            '{"id":"7","model_name":"m","model_version":"3","a":"hé\\n","b":["x",""],"c":[1,2,3,4],"d":0.1,"e":true,'
            '"f":[],"g":18446744073709551615,"h":[]}'
        ).encode()
    )
    assert reply() == b'{"model_name":"m","model_version":"3"}'


def test_non_finite_numbers_are_spelt() -> None:
    body = reply(
        a=np.array([np.nan], np.float32),
        b=np.array([-np.inf]),
        c=np.array([1, np.inf, np.nan], np.float32),
        d=np.array([2.5]),
        null=text(b"null"),
        n=np.array([7]),
        t=text(b"a", b"null"),
    )
    assert body.endswith(b'"a":NaN,"b":-Infinity,"c":[1.0,Infinity,NaN],"d":2.5,"null":"null","n":7,"t":["a","null"]}')


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (text(b"\xff"), "not UTF-8 text"),
        (np.ones(1, np.float16), "FP16 data via JSON is not supported"),
        (np.ones(1, ml_dtypes.bfloat16), "BF16 data via JSON is not supported"),
    ],
)
def test_what_json_cannot_carry_is_refused(tensor: Tensor, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        reply(a=tensor)


def test_a_large_output_is_one_list() -> None:
    values = np.arange(600_000, dtype=np.int32)
    assert json.loads(reply(a=values))["a"] == values.tolist()


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    assert event(reply(a=text(b"\r\n\n"))) == b'data: {"model_name":"m","model_version":"3","a":"\\r\\n\\n"}\n\n'
    assert error_event("a\nb\ud800") == b'data: {"error":"a\\nb?"}\n\n'
