"""What requests and replies say of tensors in shared memory, in JSON and in gRPC messages."""

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from ekiben.types import Request, Response, Tensor
from ekiben.wire.oip_json import InferCall, OutputWish, encode_reply
from ekiben.wire.oip_proto import InferCodec
from ekiben.wire.shared_memory import SharedInput, SharedPlace
from tests.wire.bodies import PADDING, binary_input, decode, json_input
from tests.wire.bodies import refused as json_refused
from tests.wire.messages import every_way, message, refused, typed, with_output

# --- JSON


def shared(name: str, size: object = 4, **more: object) -> dict[str, object]:
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": size, **more}
    return {"name": name, "datatype": "FP32", "shape": [1], "parameters": parameters}


def shared_output(**more: object) -> dict[str, object]:
    return {"name": "o", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8, **more}}


def test_json_leaves_tensors_in_shared_memory_to_the_door() -> None:
    document = {
        "inputs": [binary_input("INT8", [1], 1, "b"), shared("s"), json_input("INT8", [7]), shared("t", 9)],
        "outputs": [{"name": "p"}, shared_output(shared_memory_offset=16)],
    }
    for padding in PADDING:
        call = decode({"z": padding, **document}, b"\x05")
        assert {name: tensor.tolist() for name, tensor in call.request.inputs.items()} == {"b": [5], "i": [7]}
        assert call.shared == {
            "s": SharedInput("FP32", (1,), SharedPlace("r", 0, 4)),
            "t": SharedInput("FP32", (1,), SharedPlace("r", 0, 9)),
        }
        assert call.wishes == {"p": OutputWish(False), "o": OutputWish(True, place=SharedPlace("r", 16, 8))}
        assert call.request.outputs == ("p", "o")


def test_an_output_alone_may_be_in_shared_memory() -> None:
    inputs = [json_input("FP32", [1])]
    for padding in PADDING:
        call = decode({"z": padding, "inputs": inputs, "outputs": [shared_output()]})
        assert (call.shared, call.request.inputs["i"].tolist()) == ({}, [1])
        assert decode({"z": padding, "inputs": inputs}).shared is None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"inputs": [shared("i", None)]},
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'i'",
        ),
        (
            {"inputs": [{**shared("i"), "data": [1]}]},
            "But set 'data' 'shared_memory_region' for input 'i'",
        ),
        ({"inputs": [shared("i", binary_data_size=4)]}, "But set 'binary_data_size' 'shared_memory_region'"),
        ({"inputs": [shared("i"), shared("i")]}, "input 'i' already exists in request"),
        ({"inputs": [shared("i"), json_input("FP32", [1])]}, "input 'i' already exists in request"),
        ({"inputs": [json_input("FP32", [1]), shared("i")]}, "input 'i' already exists in request"),
        ({"inputs": [{**shared("i"), "datatype": "FP31"}]}, "invalid datatype for input i: 'FP31'"),
        ({"inputs": [shared("i", -1)]}, "Expected `int` >= 0"),
        ({"inputs": [shared("i", 1 << 63)]}, "shared_memory_byte_size"),
        ({"inputs": [shared("i", "4")]}, "got `str`"),
        ({"inputs": [shared("i", shared_memory_offset=-1)]}, "Expected `int` >= 0"),
        ({"inputs": [shared("i", shared_memory_region=7)]}, "got `int`"),
        ({"inputs": [], "outputs": [shared_output(shared_memory_byte_size=None)]}, "parameter for tensor 'o'"),
        (
            {"inputs": [], "outputs": [shared_output(classification=1)]},
            "output can't set both 'shared_memory_region' and 'classification': output 'o'",
        ),
    ],
)
def test_what_is_wrong_in_json(document: dict[str, Any], text: str) -> None:
    assert text in json_refused(document)


def test_a_json_reply_says_where_an_output_stands() -> None:
    wishes = {"o": OutputWish(True, place=SharedPlace("r", 16, 8)), "b": OutputWish(True), "j": OutputWish(False)}
    value = np.array([1], np.int8)
    call = InferCall(Request("m", {}), wishes=wishes, shared={})
    reply = encode_reply(call, Response("m", "1", dict.fromkeys(wishes, value)))
    assert reply.body[reply.header_length :] == b"\x01"
    assert json.loads(reply.body[: reply.header_length])["outputs"] == [
        {
            "name": "o",
            "datatype": "INT8",
            "shape": [1],
            "parameters": {"shared_memory_region": "r", "shared_memory_offset": 16, "shared_memory_byte_size": 8},
        },
        {"name": "b", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": 1}},
        {"name": "j", "datatype": "INT8", "shape": [1], "data": [1]},
    ]
    assert encode_reply(call, Response("m", "1", {"o": value})).header_length == -1


# --- gRPC

REGION = ("string_param", "r")
SIZE = ("int64_param", 4)


def share(request: Any, name: str, shape: tuple[int, ...] = (1,), **parameters: tuple[str, Any]) -> Any:
    """The request with one more input that is in shared memory."""
    made = request.inputs.add(name=name, datatype="FP32", shape=shape)
    for key, (kind, value) in {"region": REGION, "byte_size": SIZE, **parameters}.items():
        if kind:
            setattr(made.parameters[f"shared_memory_{key}"], kind, value)
    return request


def test_messages_leave_tensors_in_shared_memory_to_the_door() -> None:
    request = message(("a", "INT8", [1], b"x"))
    share(request, "s", offset=("uint64_param", 12))
    request.inputs.add(name="b", datatype="INT8", shape=[1])
    request.raw_input_contents.append(b"y")
    share(request, "t", (3, 1), byte_size=("int64_param", 12))
    output = request.outputs.add(name="o")
    output.parameters["shared_memory_region"].string_param = "q"
    output.parameters["shared_memory_byte_size"].int64_param = 8
    for call in every_way(request):
        assert {name: tensor.tolist() for name, tensor in call.request.inputs.items()} == {"a": [120], "b": [121]}
        assert call.shared == {
            "s": SharedInput("FP32", (1,), SharedPlace("r", 12, 4)),
            "t": SharedInput("FP32", (3, 1), SharedPlace("r", 0, 12)),
        }
        assert call.wishes == {"o": OutputWish(True, place=SharedPlace("q", 0, 8))}


def test_shared_memory_beside_contents_and_alone() -> None:
    for call in every_way(share(typed("INT8", [1], int_contents=[7]), "s")):
        assert call.request.inputs["i"].tolist() == [7]
        assert list(call.shared or ()) == ["s"]
    for call in every_way(share(message(), "s")):
        assert (call.request.inputs, list(call.shared or ())) == ({}, ["s"])
    for call in every_way(with_output(shared_memory_region=REGION, shared_memory_byte_size=SIZE)):
        assert (list(call.request.inputs), call.shared) == (["i"], {})
    assert every_way(message(("i", "INT8", [1], b"x")))[0].shared is None


def with_contents(request: Any) -> Any:
    request.inputs[0].contents.fp32_contents.append(1)
    return request


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            share(message(), "s", byte_size=("", 0)),
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 's'",
        ),
        (
            share(message(), "s", region=("", 0)),
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 's'",
        ),
        (
            share(message(), "s", region=("", 0), byte_size=("", 0), offset=SIZE),
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 's'",
        ),
        (
            share(message(), "s", region=SIZE),
            "invalid value type for 'shared_memory_region' parameter for tensor 's', expected string_param",
        ),
        (
            share(message(), "s", byte_size=REGION),
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 's', expected int64_param",
        ),
        (
            share(message(), "s", offset=("int64_param", -1)),
            "invalid value for 'shared_memory_offset' parameter for tensor 's', expected >= 0, got -1",
        ),
        (
            with_contents(share(message(), "s")),
            "unexpected 'content' provided when using shared memory for input tensor 's' for model 'm'",
        ),
        (share(share(message(), "s"), "s"), "input 's' already exists in request"),
        (share(message(("i", "INT8", [1], b"x")), "i"), "input 'i' already exists in request"),
        (share(message(), "s", (-1,)), "invalid shape for input 's'"),
        (
            share(message(raw_input_contents=[b"x"]), "s"),
            "expected as many raw_input_contents as inputs for model 'm', got 1 for 0 inputs",
        ),
        (
            with_output(shared_memory_region=REGION, shared_memory_byte_size=SIZE, classification=("int64_param", 1)),
            "output can't set both 'shared_memory_region' and 'classification': output 'o'",
        ),
        (with_output(shared_memory_region=REGION), "must be specified along with"),
        (with_output(shared_memory_byte_size=SIZE), "can not be specified without"),
    ],
)
def test_what_is_wrong_in_a_message(request_: Any, text: str) -> None:
    assert text in refused(request_)


def test_a_message_says_where_an_output_stands() -> None:
    wishes = {"a": OutputWish(True), "o": OutputWish(True, place=SharedPlace("r", 16, 8)), "b": OutputWish(True)}
    call = InferCall(Request("m", {}, id="7"), True, wishes, shared={})
    outputs: dict[str, Tensor] = {
        "a": np.array([1], np.int8),
        "o": np.array([2.5], np.float32),
        "b": np.array([3], np.int8),
    }
    for _ in range(2):
        reply = service_pb2.ModelInferResponse.FromString(InferCodec().encode_infer(call, Response("m", "1", outputs)))
        assert reply.id == "7"
        assert list(reply.raw_output_contents) == [b"\x01", b"", b"\x03"]
        assert [(each.name, each.datatype, list(each.shape), len(each.parameters)) for each in reply.outputs] == [
            ("a", "INT8", [1], 0),
            ("o", "FP32", [1], 3),
            ("b", "INT8", [1], 0),
        ]
        told = reply.outputs[1].parameters
        assert told["shared_memory_region"].string_param == "r"
        assert told["shared_memory_offset"].int64_param == 16
        assert told["shared_memory_byte_size"].int64_param == 8
