"""ModelInfer's messages: decoded, encoded, and never more than a clear error whatever comes in."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from ekiben.errors import EkibenError, InvalidRequest
from ekiben.types import DATATYPES, Request, Response, Tensor
from ekiben.wire.binary_tensor import binary_from_tensor, bytes_array
from ekiben.wire.oip_json import Classes, InferCall, OutputWish
from ekiben.wire.oip_proto import InferCodec, InvalidInput, encode_stream_error, request_id
from tests.wire.messages import UNKNOWN_FIELD, decoded, every_way, message, refused, same, with_output

_MISMATCH = "input byte size mismatch for input 'i' for model 'm'. Expected "
# --- raw


def test_raw_tensors_are_views() -> None:
    blob = np.arange(2000, dtype=np.float32)
    data = memoryview(
        message(("a", "FP32", [2, 1000], blob.tobytes()), ("b", "INT8", [3], b"\x01\x02\xff")).SerializeToString()
    )
    whole = np.frombuffer(data, np.uint8)
    codec = InferCodec()
    for _ in range(2):
        inputs = codec.decode_infer(data).request.inputs
        assert np.array_equal(inputs["a"], blob.reshape(2, 1000))
        assert inputs["b"].tolist() == [1, 2, -1]
        assert all(np.shares_memory(tensor, whole) and not tensor.flags.writeable for tensor in inputs.values())


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_every_datatype_raw(datatype: str) -> None:
    if datatype == "BYTES":
        tensor: Tensor = bytes_array([b"\x00\xff", b""]).reshape(1, 2)
    else:
        tensor = np.array([[0, 1]], DATATYPES[datatype])
    found = decoded(message(("i", datatype, [1, 2], bytes(binary_from_tensor(tensor))))).inputs["i"]
    assert found.dtype == tensor.dtype
    assert found.tolist() == tensor.tolist()


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
@pytest.mark.parametrize("shape", [[0], [1, 0], [0, 3]])
def test_no_elements(datatype: str, shape: list[int]) -> None:
    found = decoded(message(("i", datatype, shape, b""))).inputs["i"]
    assert (found.dtype, list(found.shape)) == (DATATYPES[datatype], shape)


def test_scalar() -> None:
    assert decoded(message(("i", "INT16", [], b"\x07\x00"))).inputs["i"].tolist() == 7


def test_bool_bytes_over_one_are_true() -> None:
    found = decoded(message(("i", "BOOL", [3], b"\x00\x01\x07"))).inputs["i"]
    assert found.view(np.uint8).tolist() == [0, 1, 1]


def test_same_head_with_other_ids_and_tensors() -> None:
    codec = InferCodec()
    for number in range(5):
        identity = "x" * (number * 60)
        request = message(("i", "INT8", [1], bytes([number])), id=identity).SerializeToString()
        call = codec.decode_infer(request)
        assert (call.request.id, call.request.inputs["i"].tolist()) == (identity, [number])
    # The same head asks for another size than what follows it here.
    with pytest.raises(InvalidInput, match="Expected 1, got 2"):
        codec.decode_infer(message(("i", "INT8", [1], b"xx")).SerializeToString())


def test_parameters_of_one_request_are_its_own() -> None:
    request = message(("i", "INT8", [1], b"x"))
    request.parameters["a"].string_param = "b"
    codec = InferCodec()
    codec.decode_infer(request.SerializeToString()).request.parameters["a"] = "changed"
    assert codec.decode_infer(request.SerializeToString()).request.parameters == {"a": "b"}


def test_many_different_requests_are_not_kept_for_ever() -> None:
    codec = InferCodec()
    for number in range(1200):
        request = message(("i", "INT8", [1], b"x"), model_version=str(number)).SerializeToString()
        assert codec.decode_infer(request).request.version == str(number)
    assert len(codec._plans) <= 512


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (message(("i", "INT32", [1, 16], b"x" * 60)), _MISMATCH + "64, got 60"),
        (message(("i", "INT32", [1, 0], b"x")), _MISMATCH + "0, got 1"),
        (message(("i", "BOOL", [2], b"x")), _MISMATCH + "2, got 1"),
        (message(("i", "INT8", [1 << 62, 1 << 62], b"x")), "Expected 21267647932558653966460912964485513216, got 1"),
        (
            message(("i", "INT8", [0, 1 << 62, 1 << 62], b"")),
            "shape [0, 4611686018427387904, 4611686018427387904] of input 'i' is too large",
        ),
        (message(("i", "INT8", [-1], b"x")), "invalid shape for input 'i' for model 'm': [-1]"),
        (message(("i", "INT8", [1] * 40, b"x")), "it has at most 32 dimensions"),
        (message(("i", "FLOAT", [1], b"x")), "input 'i' has no such datatype: 'FLOAT'"),
        (message(("i", "", [1], b"x")), "input 'i' has no such datatype: ''"),
        (message(("i", "INT8", [1], b"x"), ("i", "INT8", [1], b"x")), "input 'i' already exists in request"),
        (
            message(("i", "INT8", [1], b"x"), ("j", "INT8", [1], None)),
            "unable to find data for input tensor 'j' for model 'm' in request.",
        ),
        (message(("i", "INT8", [1], None)), "unable to find data for input tensor 'i' for model 'm' in request."),
        (
            message(("i", "INT8", [1], b"x"), raw_input_contents=[b"y"]),
            "expected as many raw_input_contents as inputs for model 'm', got 2 for 1 inputs",
        ),
        (message(raw_input_contents=[b"y"]), "got 1 for 0 inputs"),
        (
            message(("i", "BYTES", [2], b"\x01\x00\x00\x00x")),
            "unexpected number of string elements 1 for inference input 'i' for model 'm', expecting 2",
        ),
        (
            message(("i", "BYTES", [1], b"\x01\x00\x00")),
            "incomplete string length indicator for inference input 'i' for model 'm', "
            "expecting 4 bytes but only 3 bytes available",
        ),
        (message(("i", "BYTES", [1], b"\x05\x00\x00\x00x")), "incomplete string data for inference input 'i'"),
        (b"\x0a", "not a well-formed inference.ModelInferRequest message"),
        (b"\x3a\xff\xff\xff\xff\xff\x01", "not a well-formed inference.ModelInferRequest message"),
        (b"\x0a\x01\xff", "not a well-formed inference.ModelInferRequest message"),
        (b"\x1a\x01\xff", "not a well-formed inference.ModelInferRequest message"),
    ],
)
def test_raw_errors(request_: Any, text: str) -> None:
    assert text in refused(request_)


def test_fields_in_another_order() -> None:
    """Legal, if no writer does it: the last id counts, repeated fields are joined."""
    head, tensor = message(("i", "INT8", [2], None)).SerializeToString(), b"\x3a\x02\x01\x02"
    for data in (
        tensor + head + b"\x1a\x01b",
        head + b"\x1a\x01a" + tensor + b"\x1a\x01b",
        head + b"\x1a\x01a\x1a\x01b" + tensor,
    ):
        request = InferCodec().decode_infer(data).request
        assert (request.id, request.inputs["i"].tolist()) == ("b", [1, 2])


# --- parameters and outputs


def with_parameter(key: str, **value: Any) -> Any:
    request = message(("i", "INT8", [1], b"x"))
    request.parameters[key].SetInParent()
    for kind, given_ in value.items():
        setattr(request.parameters[key], kind, given_)
    return request


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("my", "string_param", "x"),
        ("my", "bool_param", False),
        ("my", "int64_param", -5),
        ("my", "double_param", 0.25),
        ("my", "uint64_param", (1 << 64) - 1),
        ("priority", "int64_param", 1),
        ("priority", "uint64_param", 1),
        ("timeout", "int64_param", 1000),
        ("sequence_id", "string_param", "s"),
        ("sequence_start", "bool_param", True),
    ],
)
def test_parameters(key: str, kind: str, value: object) -> None:
    assert decoded(with_parameter(key, **{kind: value})).parameters == {key: value}


def test_how_a_request_waits_is_read_again_from_a_message_seen_before() -> None:
    request = with_parameter("priority", uint64_param=(1 << 64) - 1)
    request.parameters["timeout"].int64_param = 7
    codec = InferCodec()
    for _ in range(2):
        found = codec.decode_infer(request.SerializeToString()).request
        assert (found.priority, found.timeout_us, found.deadline) == ((1 << 64) - 1, 7, None)
    found = codec.decode_infer(with_parameter("my", bool_param=True).SerializeToString()).request
    assert (found.priority, found.timeout_us) == (0, 0)


def test_parameters_that_are_not_the_models() -> None:
    assert decoded(with_parameter("triton_enable_empty_final_response", bool_param=True)).parameters == {}
    request = decoded(with_parameter("signature_name", string_param="s"))
    assert (request.signature, request.parameters) == ("s", {})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            with_parameter("triton_x", string_param="x"),
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            "with 'triton_' are allowed: triton_enable_empty_final_response, got 'triton_x'",
        ),
        (
            with_parameter("triton_enable_empty_final_response", int64_param=1),
            "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param",
        ),
        (
            with_parameter("sequence_id", bool_param=True),
            "invalid value type for 'sequence_id' parameter, "
            "expected int64_param or string_param or uint64_param, got bool_param",
        ),
        (
            with_parameter("sequence_start", int64_param=1),
            "invalid value type for 'sequence_start' parameter, expected bool_param",
        ),
        (
            with_parameter("sequence_end", string_param="x"),
            "invalid value type for 'sequence_end' parameter, expected bool_param",
        ),
        (
            with_parameter("priority", string_param="1"),
            "invalid value type for 'priority' parameter, expected int64_param or uint64_param",
        ),
        (with_parameter("priority", int64_param=-1), "invalid value for 'priority', expected value >= 0, got -1"),
        (with_parameter("timeout"), "invalid value type for 'timeout' parameter"),
        (
            with_parameter("my"),
            "invalid value type for 'my' parameter, expected int64_param, bool_param, or string_param.",
        ),
        (with_parameter("signature_name", int64_param=1), "invalid value type for 'signature_name' parameter"),
    ],
)
def test_parameter_errors(request_: Any, text: str) -> None:
    assert text in refused(request_)


def test_outputs() -> None:
    request = with_output(classification=("int64_param", 2))
    request.outputs.add(name="p").parameters["binary_data"].bool_param = False
    for call in every_way(request):
        assert call.request.outputs == ("o", "p")
        assert call.classifies
        assert call.wishes == {"o": OutputWish(True, 2), "p": OutputWish(True)}
    assert not every_way(with_output(classification=("int64_param", 0)))[0].classifies


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            with_output(classification=("int64_param", -1)),
            "invalid value for 'classification' parameter, expected >= 0",
        ),
        (
            with_output(classification=("string_param", "2")),
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
    ],
)
def test_output_errors(request_: Any, text: str) -> None:
    assert text in refused(request_)


# --- whatever comes in


def test_every_cut_is_refused_or_a_request() -> None:
    data = message(
        ("i", "INT32", [2, 40], b"x" * 320), ("j", "BYTES", [1], b"\x01\x00\x00\x00x"), id="abc"
    ).SerializeToString()
    codec = InferCodec()
    codec.decode_infer(data)
    for end in range(len(data)):
        if end in (0, 3, 8):
            # Nothing at all, the model's name alone, and its name and the id are whole messages.
            assert codec.decode_infer(data[:end]).request.inputs == {}
        else:
            with pytest.raises(InvalidRequest, match=r".{10}"):
                codec.decode_infer(data[:end])


@given(st.binary(max_size=80))
@example(b"\x3a\x00")
@example(b"\x2a\x00\x3a\x00")
def test_any_bytes(data: bytes) -> None:
    codec = InferCodec()
    outcomes = []
    for each in (data, memoryview(data)):
        try:
            outcomes.append(codec.decode_infer(each).request.model)
        except EkibenError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


_TENSORS = st.lists(
    st.tuples(
        st.text("ab", min_size=1, max_size=3),
        st.sampled_from(["INT8", "FP32", "BYTES", "BOOL", "X"]),
        st.lists(st.integers(0, 3), max_size=3),
        st.binary(max_size=40),
    ),
    max_size=3,
)


@given(_TENSORS, st.text(max_size=3), st.booleans())
def test_every_way_says_the_same(tensors: Any, identity: str, asks: bool) -> None:
    request = message(*tensors, id=identity)
    if asks:
        request.outputs.add(name="o")
    data = request.SerializeToString()
    codec = InferCodec()
    outcomes: list[InferCall | str] = []
    for each in (data, data, data + UNKNOWN_FIELD):
        try:
            outcomes.append(codec.decode_infer(each))
        except EkibenError as error:
            outcomes.append(str(error))
    first = outcomes[0]
    for other in outcomes[1:]:
        assert isinstance(other, InferCall) == isinstance(first, InferCall)
        if isinstance(first, InferCall) and isinstance(other, InferCall):
            assert same(first, other)
        else:
            assert first == other


def outcome(codec: InferCodec, data: bytes) -> InferCall | str:
    try:
        return codec.decode_infer(data)
    except EkibenError as error:
        return str(error)


_FIRST = message(("a", "FP32", [1, 2], bytes(8)), ("b", "INT8", [3], b"abc"), id="7")
_NAMELESS = message(("a", "FP32", [1, 2], bytes(8)))


@pytest.mark.parametrize("first", [_FIRST, _NAMELESS])
@given(st.data())
def test_a_message_is_judged_the_same_after_one_that_is_almost_like_it(first: Any, data: st.DataObject) -> None:
    """Cut, or with some bytes replaced, put in or left out."""
    before = first.SerializeToString()
    start = data.draw(st.integers(0, len(before)))
    stop = data.draw(st.integers(start, min(len(before), start + 4)))
    after = before[:start] + data.draw(st.binary(max_size=4)) + before[stop:]
    warm = InferCodec()
    warm.decode_infer(before)
    told, alone = outcome(warm, after), outcome(InferCodec(), after)
    if isinstance(told, InferCall) and isinstance(alone, InferCall):
        assert same(told, alone)
    else:
        assert told == alone


@pytest.mark.parametrize("first", [_FIRST, _NAMELESS])
@pytest.mark.parametrize("identity", ["", "é", "x" * 127, "x" * 128, "x" * 5000])
def test_only_the_id_changes(first: Any, identity: str) -> None:
    codec = InferCodec()
    codec.decode_infer(first.SerializeToString())
    second = service_pb2.ModelInferRequest.FromString(first.SerializeToString())
    second.id = identity
    second.raw_input_contents[0] = b"\1" * 8
    found = codec.decode_infer(second.SerializeToString()).request
    assert (found.id, found.inputs["a"].tobytes()) == (identity, b"\1" * 8)


# --- replies


def reply(outputs: dict[str, Tensor], identity: str = "", **more: Any) -> Any:
    call = InferCall(Request("m", {}, id=identity), True, **more)
    codec = InferCodec()
    first = codec.encode_infer(call, Response("m", "3", outputs), Classes({"o": ["cat", "dog"]}, True))
    assert first == codec.encode_infer(call, Response("m", "3", outputs), Classes({"o": ["cat", "dog"]}, True))
    return service_pb2.ModelInferResponse.FromString(first)


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
@pytest.mark.parametrize("shape", [(1, 2), (0,), (), (3, 700)])
def test_reply(datatype: str, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    tensor: Tensor = np.zeros(shape, DATATYPES[datatype])
    if datatype == "BYTES":
        tensor = bytes_array([b"\xff" * (index % 3) for index in range(count)]).reshape(shape)
    found = reply({"a": tensor, "b": np.ones((2, 3), np.int64).T}, "é" * 100)
    assert (found.model_name, found.model_version, found.id) == ("m", "3", "é" * 100)
    assert [(each.name, each.datatype, tuple(each.shape)) for each in found.outputs] == [
        ("a", datatype, shape),
        ("b", "INT64", (3, 2)),
    ]
    assert found.raw_output_contents[0] == bytes(binary_from_tensor(tensor))
    assert len(found.raw_output_contents[1]) == 48
    assert not found.parameters


def test_reply_of_classes() -> None:
    wishes = {"o": OutputWish(True, 1), "p": OutputWish(True)}
    outputs: dict[str, Tensor] = {"o": np.array([[0.25, 0.5]], np.float32), "p": np.array([1.0], ml_dtypes.bfloat16)}
    found = reply(outputs, wishes=wishes, classifies=True)
    assert [(each.datatype, tuple(each.shape)) for each in found.outputs] == [("BYTES", (1, 1)), ("BF16", (1,))]
    assert found.raw_output_contents[0] == b"\x0e\x00\x00\x000.500000:1:dog"


def test_head_follows_the_shape() -> None:
    codec = InferCodec()
    call = InferCall(Request("m", {}))
    for rows in (1, 2, 1):
        for dtype, datatype in ((np.int8, "INT8"), (np.uint8, "UINT8")):
            data = codec.encode_infer(call, Response("m", "1", {"o": np.zeros((rows, 2), dtype)}))
            output = service_pb2.ModelInferResponse.FromString(data).outputs[0]
            assert (output.datatype, list(output.shape)) == (datatype, [rows, 2])


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("final", [True, False])
def test_stream_reply(size: int, final: bool) -> None:
    call = InferCall(Request("m", {}, id="7"))
    data = InferCodec().encode_stream(call, Response("m", "1", {"o": np.zeros(size, np.int8)}), final=final)
    found = service_pb2.ModelStreamInferResponse.FromString(data)
    assert found.error_message == ""
    assert found.infer_response.id == "7"
    said = found.infer_response.parameters["triton_final_response"]
    assert (said.WhichOneof("parameter_choice"), said.bool_param) == ("bool_param", final)
    assert found.infer_response.raw_output_contents == [bytes(size)]


def test_stream_error() -> None:
    found = service_pb2.ModelStreamInferResponse.FromString(encode_stream_error("no \ud800", "id"))
    assert (found.error_message, found.infer_response.id) == ("no ?", "id")
    assert service_pb2.ModelStreamInferResponse.FromString(encode_stream_error("x", "")).HasField("infer_response")


def test_id_of_what_cannot_be_decoded() -> None:
    assert request_id(message(("i", "X", [-1], b""), id="abc").SerializeToString()) == "abc"
    assert request_id(b"\x0a") == ""
