"""Requests and replies: what the suite writes, and how it reads what comes."""

import json
import math
import zlib
from typing import Any

import numpy as np
import pytest

from ekiben.conformance.deadline import Deadline
from ekiben.conformance.http_client import Reply, unpacked
from ekiben.conformance.infer_reply import equal, outputs
from ekiben.conformance.infer_request import as_binary, as_json, binary_body, encoded, sample_tensor
from ekiben.conformance.survey import extension_name
from ekiben.conformance.verdicts import Failed, NoReply, shortened
from ekiben.testing import ManualClock
from ekiben.types import TensorSpec


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0.1"),
        (np.float16(0.1), "0.1"),
        (np.float64(1e300), "1e+300"),
        (np.float32("nan"), "NaN"),
        (np.float32("inf"), "Infinity"),
        (-math.inf, "-Infinity"),
        (np.int64(-(1 << 63)), "-9223372036854775808"),
        (np.uint64((1 << 64) - 1), "18446744073709551615"),
        (np.bool_(True), "true"),
        ("駅 \"\\\n", '"駅 \\"\\\\\\n"'),
        ({"a": [1, None, (True,)]}, '{"a":[1,null,[true]]}'),
    ],
)  # fmt: skip
def test_json_is_exact(value: object, text: str) -> None:
    assert encoded(value).decode() == text


def test_inputs_in_each_form() -> None:
    tensor = np.arange(4, dtype=np.int16).reshape(2, 2)
    assert as_json("x", tensor) == {"name": "x", "shape": [2, 2], "datatype": "INT16", "data": [0, 1, 2, 3]}
    assert as_json("x", tensor, nested=True)["data"] == [[0, 1], [2, 3]]
    given, blob = as_binary("x", tensor)
    assert given == {"name": "x", "shape": [2, 2], "datatype": "INT16", "parameters": {"binary_data_size": 8}}
    body = binary_body({"inputs": [given]}, [blob])
    assert body.body[body.header_length :] == tensor.tobytes()
    assert body.headers()["inference_header_content_length"] == str(body.header_length)


@pytest.mark.parametrize(
    ("spec", "kind", "variable", "rows", "wanted"),
    [
        (TensorSpec("x", "FP32", (-1, 2)), "counting", 9, 2, [[1.0, 2.0], [3.0, 4.0]]),
        (TensorSpec("x", "INT8", (-1, -1)), "ones", 3, 1, [[1, 1, 1]]),
        (TensorSpec("x", "INT8", (2, -1)), "zeros", 1, 1, [[0], [0]]),
        (TensorSpec("x", "BYTES", (2,)), "counting", 1, 1, [b"1", b"2"]),
        (TensorSpec("x", "BOOL", (3,)), "counting", 1, 1, [True, False, True]),
        (TensorSpec("x", "FP32", ()), "counting", 1, 1, 1.0),
        (TensorSpec("x", "UINT64", (-1, -1)), "zeros", 0, 1, [[]]),
    ],
)
def test_tensors_are_made_from_metadata(spec: TensorSpec, kind: str, variable: int, rows: int, wanted: object) -> None:
    assert sample_tensor(spec, kind, variable, rows).tolist() == wanted


def _reply(*given: dict[str, Any], blobs: bytes = b"", **headers: str) -> Reply:
    head = json.dumps({"outputs": given}).encode()
    fields = {"inference-header-content-length": str(len(head))} if blobs else {}
    return Reply(
        "POST /", 200, {**fields, **{name.replace("_", "-"): value for name, value in headers.items()}}, head + blobs
    )


def _output(datatype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": "y", "datatype": datatype, "shape": shape, **more}


@pytest.mark.parametrize(
    ("given", "blobs", "wanted"),
    [
        (_output("INT64", [2], data=[(1 << 53) + 1, -1]), b"", np.array([(1 << 53) + 1, -1])),
        (_output("FP32", [2, 1], data=[[1], [0.1]]), b"", np.array([[1], [0.1]], np.float32)),
        (_output("FP64", [], data=[math.nan]), b"", np.array(math.nan)),
        (_output("BYTES", [1], data=["駅"]), b"", np.array(["駅".encode()], object)),
        (_output("INT16", [2], parameters={"binary_data_size": 4}), b"\x01\x00\x02\x00", np.array([1, 2], np.int16)),
        (
            _output("BYTES", [1], parameters={"binary_data_size": 5}),
            b"\x01\x00\x00\x00\x00",
            np.array([b"\x00"], object),
        ),
    ],
)
def test_outputs_are_read(given: dict[str, Any], blobs: bytes, wanted: Any) -> None:
    assert equal(outputs(_reply(given, blobs=blobs))["y"], wanted)


@pytest.mark.parametrize(
    ("given", "blobs", "words"),
    [
        (_output("INT32", [2], data=[1]), b"", "2 elements"),
        (_output("INT32", [1], data=[1.5]), b"", "INT32 elements"),
        (_output("INT32", [1], data=[True]), b"", "INT32 elements"),
        (_output("INT8", [1], data=[300]), b"", "INT8 elements"),
        (_output("BOOL", [1], data=[1]), b"", "BOOL elements"),
        (_output("BYTES", [1], data=[1]), b"", "text"),
        (_output("FLOAT", [1], data=[1]), b"", "datatype"),
        (_output("FP32", [-1], data=[1]), b"", "sizes"),
        (_output("FP32", [1]), b"", "'data'"),
        (_output("FP32", [1], data=[1], parameters={"binary_data_size": 4}), b"1234", "both"),
        (_output("FP32", [1], parameters={"binary_data_size": 8}), b"1234", "8 bytes"),
        (_output("FP32", [1], parameters={"binary_data_size": 4}), b"12345", "after the last blob"),
        (_output("FP32", [2], parameters={"binary_data_size": 4}), b"1234", "4 bytes"),
    ],
)
def test_outputs_that_are_wrong_are_told(given: dict[str, Any], blobs: bytes, words: str) -> None:
    with pytest.raises(Failed, match=words):
        outputs(_reply(given, blobs=blobs))


def test_an_output_twice_is_told() -> None:
    with pytest.raises(Failed, match="twice"):
        outputs(_reply(_output("INT8", [1], data=[1]), _output("INT8", [1], data=[1])))


def test_a_compressed_reply_that_swells_is_told() -> None:
    bomb = Reply("GET /", 200, {"content-encoding": "deflate"}, zlib.compress(bytes(100 << 20)))
    with pytest.raises(Failed, match="break off"):
        unpacked(bomb)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("a\n\tb  c", "a b c"), ("\x1b[31mred\ud800", "\\x1b[31mred\\ud800"), ("x" * 500, "x" * 159 + "…")],
)
def test_details_are_one_short_line(text: str, wanted: str) -> None:
    assert shortened(text) == wanted


@pytest.mark.parametrize(
    "listed", ["model_repository", "model_repository(unload_dependents)", "model_repository_extension"]
)
def test_extensions_have_one_spelling(listed: str) -> None:
    assert extension_name(listed) == "model_repository"


def test_a_deadline_is_for_all_that_a_check_does() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, 10)
    clock.advance(6)
    assert deadline.remaining() == 4
    clock.advance(4)
    with pytest.raises(NoReply):
        deadline.remaining()
    deadline.restart()
    assert deadline.remaining() == 10
    deadline.restart(2.5)
    assert deadline.remaining() == 2.5
