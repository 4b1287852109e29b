"""The JSON part of a request."""

import json

import pytest

from ekiben.errors import InvalidRequest
from ekiben.wire.oip_json import OutputWish
from tests.wire.bodies import PADDING, decode, json_input, refused


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "missing required field `inputs`"),
        ([], "Expected `object`, got `array`"),
        (5, "Expected `object`"),
        ({"inputs": None}, "Expected `array`, got `null` - at `$.inputs`"),
        ({"inputs": [5]}, "Expected `object`, got `int` - at `$.inputs[0]`"),
        ({"inputs": [{}]}, "missing required field `name`"),
        ({"inputs": [json_input("FP32", [1], name=5)]}, "Expected `str`, got `int` - at `$.inputs[0].name`"),
        ({"inputs": [json_input("FP32", [1], [1], datatype="FLOAT")]}, "invalid datatype for input i: 'FLOAT'"),
        ({"inputs": [json_input("FP32", [1], [1], datatype=None)]}, "`$.inputs[0].datatype`"),
        ({"inputs": [json_input("FP32", [1], [-1])]}, "Expected `int` >= 0 - at `$.inputs[0].shape[0]`"),
        ({"inputs": [json_input("FP32", [1], shape=[1.0])]}, "Expected `int`, got `float`"),
        ({"inputs": [json_input("FP32", [1], shape=[True])]}, "Expected `int`, got `bool`"),
        ({"inputs": [json_input("FP32", [1], shape="x")]}, "Expected `array`, got `str` - at `$.inputs[0].shape`"),
        ({"inputs": [json_input("FP32", [1], shape=[[1]])]}, "Expected `int`, got `array`"),
        ({"inputs": [json_input("FP32", [1], shape=[1] * 33)]}, "length <= 32"),
        ({"inputs": [json_input("FP32", [1], shape=[1 << 63])]}, "Expected `int` <= 9223372036854775807"),
        ({"inputs": [json_input("FP32", [1], shape=[1 << 62, 16])]}, "got 1"),
        ({"inputs": [json_input("FP32", [1, 2], [1])]}, "shape [1] holds 1 elements, got 2"),
        ({"inputs": [json_input("FP32", [1], [1, 2])]}, "shape [1, 2] holds 2 elements, got 1"),
        ({"inputs": [json_input("FP32", None, [1])]}, "element 0 is null"),
        ({"inputs": [json_input("FP32", {"a": 1}, [1])]}, "element 0 is an object"),
        ({"inputs": [json_input("FP32", [1]), json_input("FP32", [1])]}, "input 'i' already exists in request"),
        ({"inputs": [], "id": 5}, "Expected `str`, got `int` - at `$.id`"),
        ({"inputs": [], "id": [1]}, "Expected `str`, got `array` - at `$.id`"),
        (
            {"inputs": [], "parameters": {"o": {"a": 1}}},
            "parameter 'o' has invalid type. It should be either 'int', 'bool'",
        ),
        ({"inputs": [], "parameters": {"a": 1, "o": [1]}}, "parameter 'o' has invalid type"),
        ({"inputs": [], "parameters": {"o": None}}, "parameter 'o' has invalid type"),
        ({"inputs": [], "parameters": [1]}, "`$.parameters`"),
        ({"inputs": [], "parameters": {"triton_x": 1}}, "keys starting with 'triton_' are reserved"),
        ({"inputs": [], "parameters": {"priority": -1}}, "'priority' must be an unsigned integer, got -1"),
        ({"inputs": [], "parameters": {"timeout": 1.5}}, "'timeout' must be an unsigned integer"),
        ({"inputs": [], "parameters": {"sequence_id": True}}, "'sequence_id' must be an unsigned integer or a string"),
        ({"inputs": [], "parameters": {"sequence_start": 1}}, "'sequence_start' must be a boolean"),
        ({"inputs": [], "parameters": {"binary_data_output": "yes"}}, "'binary_data_output' must be a boolean"),
        ({"inputs": [], "parameters": {"signature_name": 1}}, "'signature_name' must be a string"),
        ({"inputs": [], "outputs": [{"name": "o", "parameters": {"classification": -1}}]}, "Expected `int` >= 0"),
        ({"inputs": [], "outputs": [{"name": "o", "parameters": {"classification": "2"}}]}, "got `str`"),
        ({"inputs": [], "outputs": [{"name": "o", "parameters": {"binary_data": 1}}]}, "got `int`"),
        ({"inputs": [], "outputs": {"name": "o"}}, "Expected `array"),
    ],
)
def test_documents_of_the_wrong_form(document: object, message: str) -> None:
    assert message in refused(document)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"inputs":[', b'{"inputs":[]}xx', b"\xff\xfe", b'{"inputs":[],}', b"nul"]
)
def test_what_is_not_json(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="failed to parse the request JSON buffer"):
        decode(text)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("where", ["inputs", "data", "unknown"])
def test_nesting_over_the_limit(padding: str, where: str) -> None:
    nest = "[" * 99 + "1" + "]" * 99
    documents: dict[str, dict[str, object]] = {
        "inputs": {"inputs": [12345]},
        "data": {"inputs": [json_input("INT8", 12345, [1])]},
        "unknown": {"inputs": [], "q": [12345]},
    }
    document = documents[where]
    text = json.dumps({"z": padding, **document}).replace("12345", nest).encode()
    with pytest.raises(InvalidRequest, match="deeper than 100 levels"):
        decode(text)


def test_parameters_and_outputs() -> None:
    for padding in PADDING:
        call = decode(
            {
                "z": padding,
                "id": "7",
                "inputs": [],
                "parameters": {
                    "s": "x", "b": True, "i": 1, "f": 1.5, "priority": 1, "timeout": 5, "sequence_id": "q",
                    "headers": "x", "binary_data_output": True, "signature_name": "other",
                },
                "outputs": [
                    {"name": "a"},
                    {"name": "b", "parameters": {"binary_data": False, "unknown": {"x": []}}},
                    {"name": "c", "parameters": {"classification": 3}},
                    {"name": "a", "parameters": {"binary_data": False}},
                ],
            }
        )  # fmt: skip
        request = call.request
        assert (request.model, request.version, request.id, request.signature) == ("m", "", "7", "other")
        assert request.parameters == {
            "s": "x", "b": True, "i": 1, "f": 1.5, "priority": 1, "timeout": 5, "sequence_id": "q", "headers": "x",
        }  # fmt: skip
        assert (request.priority, request.timeout_us, request.deadline) == (1, 5, None)
        assert request.outputs == ("a", "b", "c")
        assert call.wishes == {"a": OutputWish(True), "b": OutputWish(False), "c": OutputWish(True, 3)}
        assert call.classifies


def test_unknown_fields_are_ignored() -> None:
    call = decode(
        {"q": {"x": [[]]}, "inputs": [json_input("INT8", [1], q=[1], parameters={"mine": {"x": 1}})], "outputs": None}
    )
    assert call.request.inputs["i"].tolist() == [1]
    assert call.wishes is None


def test_endless_lists_in_the_header_are_refused_by_count() -> None:
    for document in ({"inputs": [5] * 5000}, {"inputs": [], "parameters": {str(n): 1 for n in range(2000)}}):
        with pytest.raises(InvalidRequest, match="over the limit of"):
            decode({"z": PADDING[1], **document})
