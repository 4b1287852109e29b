"""The example models that Triton ships, served as they are, asked by Triton's own clients over both doors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.conftest import Serve, Server

_MODELS = ("simple", "simple_int8", "simple_string")


@pytest.fixture(scope="module")
def server(serve: Serve, testdata: Path) -> Server:
    return serve("--repository", str(testdata / "triton"), EKIBEN_STRICT_READINESS="true")


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    made: Any
    if request.param == "http":
        made = tritonclient.http.InferenceServerClient(server.host)
    else:
        made = tritonclient.grpc.InferenceServerClient(server.grpc)
    yield made
    made.close()


def _module(client: Any) -> Any:
    return tritonclient.grpc if isinstance(client, tritonclient.grpc.InferenceServerClient) else tritonclient.http


def _ask(client: Any, model: str, datatype: str, *values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """OUTPUT0 and OUTPUT1 for INPUT0 and INPUT1."""
    module = _module(client)
    inputs = [module.InferInput(f"INPUT{place}", list(value.shape), datatype) for place, value in enumerate(values)]
    for given, value in zip(inputs, values, strict=True):
        given.set_data_from_numpy(value)
    outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
    answer = client.infer(model, inputs, outputs=outputs)
    return [answer.as_numpy(name) for name in ("OUTPUT0", "OUTPUT1")]


@pytest.mark.parametrize(("model", "datatype"), [("simple", "INT32"), ("simple_int8", "INT8")])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_sum_and_the_difference(client: Any, model: str, datatype: str, rows: int) -> None:
    dtype = np.dtype(datatype.lower())
    first = np.arange(rows * 16, dtype=dtype).reshape(rows, 16) - 60
    second = np.full((rows, 16), 7, dtype)
    total, difference = _ask(client, model, datatype, first, second)
    assert total.dtype == difference.dtype == dtype
    np.testing.assert_array_equal(total, first + second)
    np.testing.assert_array_equal(difference, first - second)


@pytest.mark.parametrize("rows", [1, 8])
def test_the_same_of_numbers_in_text(client: Any, rows: int) -> None:
    first = np.arange(rows * 16).reshape(rows, 16) * 1000 - 40
    second = np.full((rows, 16), 7)
    total, difference = _ask(client, "simple_string", "BYTES", _text(first), _text(second))
    np.testing.assert_array_equal(total, _text(first + second))
    np.testing.assert_array_equal(difference, _text(first - second))


def _text(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array([str(number).encode() for number in numbers.reshape(-1)], np.object_).reshape(numbers.shape)


def test_text_that_is_no_number_fails_its_own_request_only(client: Any) -> None:
    ones = np.ones((1, 16), np.int64)
    words = np.full((1, 16), b"pear", np.object_)
    with pytest.raises(InferenceServerException, match="simple_string"):
        _ask(client, "simple_string", "BYTES", words, _text(ones))
    assert _ask(client, "simple_string", "BYTES", _text(ones), _text(ones))[0][0, 0] == b"2"


@pytest.mark.parametrize("model", _MODELS)
def test_they_say_of_themselves_what_their_files_say(client: Any, model: str) -> None:
    datatype = {"simple": "INT32", "simple_int8": "INT8", "simple_string": "STRING"}[model]
    keywords = {"as_json": True} if _module(client) is tritonclient.grpc else {}
    config = client.get_model_config(model, **keywords)
    config = config.get("config", config)
    assert (config["name"], config["platform"], config["max_batch_size"]) == (model, "onnxruntime_onnx", 8)
    assert (config["backend"], config["default_model_filename"]) == ("onnxruntime", "model.onnx")
    described = [
        (tensor["name"], tensor["data_type"], [int(size) for size in tensor["dims"]])
        for tensor in (*config["input"], *config["output"])
    ]
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    assert described == [(name, f"TYPE_{datatype}", [16]) for name in names]
    metadata = client.get_model_metadata(model, **keywords)
    assert metadata["platform"] == "onnxruntime_onnx"
    assert [[int(size) for size in tensor["shape"]] for tensor in metadata["inputs"]] == [[-1, 16], [-1, 16]]


def test_what_is_over_the_batch_size_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8 for 'simple'"):
        _ask(client, "simple", "INT32", *[np.ones((9, 16), np.int32)] * 2)
