"""The client's side against the server's own decoder and encoder."""

import json

import numpy as np
import pytest

from ekiben.errors import InferenceFailed, InvalidRequest, NotFound, Unavailable
from ekiben.types import DATATYPES, Request, Response, Signature, Tensor, TensorSpec
from ekiben.wire.oip_client import decode_metadata, decode_reply, encode_request, error_of, model_path
from ekiben.wire.oip_json import InferDecoder, encode_reply


def tensors() -> dict[str, Tensor]:
    made: dict[str, Tensor] = {
        name: np.array([[0, 1], [1, 0]]).astype(dtype) for name, dtype in DATATYPES.items() if name != "BYTES"
    }
    made["BYTES"] = np.array([[b"", b"\x00\xff"], [b"a", "é".encode()]], np.object_)
    made["empty"] = np.zeros((0, 3), np.float32)
    made["scalar"] = np.array(5, np.int64)
    return made


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tolist() == right.tolist()


def test_requests_and_replies_survive_the_way_to_the_server_and_back() -> None:
    given = tensors()
    body, headers = encode_request(Request("m", given, id="7", outputs=("BOOL",), parameters={"k": 1}))
    call = InferDecoder().decode("m", "2", body, int(headers["inference-header-content-length"]))
    assert all(same(given[name], call.request.inputs[name]) for name in given)
    assert (call.request.id, call.request.outputs, call.request.parameters) == ("7", ("BOOL",), {"k": 1})
    body, headers = encode_request(Request("m", {"x": given["FP32"]}, priority=2, timeout_us=9))
    call = InferDecoder().decode("m", "2", body, int(headers["inference-header-content-length"]))
    assert (call.request.priority, call.request.timeout_us) == (2, 9)
    body, _ = encode_request(Request("m", {"x": given["FP32"]}))
    call = InferDecoder().decode("m", "2", body, len(body) - 16)
    reply = encode_reply(call, Response("m", "2", given))
    answer = decode_reply(reply.body, reply.header_length)
    assert (answer.model, answer.version) == ("m", "2")
    assert all(same(given[name], answer.outputs[name]) for name in given)


def test_paths_metadata_and_errors() -> None:
    assert model_path("a/b c") == "/v2/models/a%2Fb%20c"
    assert model_path("m", "3") == "/v2/models/m/versions/3"
    spec = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    assert decode_metadata(json.dumps({"name": "m", "inputs": [spec], "outputs": []}).encode()) == Signature(
        (TensorSpec("x", "FP32", (-1, 2)),), ()
    )


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, b'{"error":"a"}', InvalidRequest, "a"),
        (404, b'{"error":"b"}', NotFound, "b"),
        (503, b'{"error":"c"}', Unavailable, "c"),
        (500, b'{"error":"d"}', InferenceFailed, "d"),
        (502, b"<html>", InferenceFailed, "HTTP status 502"),
        (418, b"[]", InferenceFailed, "HTTP status 418"),
    ],
)
def test_an_error_reply_becomes_its_error(status: int, body: bytes, kind: type[Exception], words: str) -> None:
    error = error_of(status, body)
    assert (type(error), str(error)) == (kind, words)
