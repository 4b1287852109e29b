"""Declared runners and the conversions that their handles do."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from bentoml.exceptions import BentoMLException
from PIL import Image

import ekiben
from ekiben.declare import Models
from ekiben.errors import NotFound
from ekiben.types import Batching, Instances, ModelSettings, Request, Response, Signature, TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec("x", "INT32", (-1, 2)), TensorSpec("words", "BYTES", (-1, 1), optional=True)),
    outputs=(TensorSpec("y", "FP32", (-1, 3)),),
)
ONE = Signature(inputs=(TensorSpec("x", "FP32", (-1, 2)),), outputs=SIGNATURE.outputs)
PREPROCESS = {"kind": "image", "input": "x", "output": "y", "size": [2, 2], "top_k": 2}


class Served(msgspec.Struct):
    default: Signature
    settings: ModelSettings = ModelSettings()
    labels: Mapping[str, tuple[str, ...]] = {}


class FakeDoor:
    """Remembers the request and answers three scores a row."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.requests: list[Request] = []

    async def version(self, model: str, version: str = "") -> Served:
        if model == "nope":
            raise NotFound("Request for unknown model: 'nope' is not found")
        return self.served

    async def infer(self, request: Request) -> Response:
        self.requests.append(request)
        return Response("m", "1", {"y": np.array([[0.1, 0.7, 0.2]], np.float32)})


def ask(served: Served, inputs: Any, model: str = "m") -> Request:
    door = FakeDoor(served)
    asyncio.run(Models(lambda: door).infer(model, inputs))
    return door.requests[0]


def test_a_call_says_how_it_wants_to_wait() -> None:
    door = FakeDoor(Served(SIGNATURE))
    inputs = {"x": [[1, 2]], "words": [["a", "b"]]}
    asyncio.run(Models(lambda: door).infer("m", inputs, priority=2, timeout_us=5))
    assert (door.requests[0].priority, door.requests[0].timeout_us) == (2, 5)
    for priority, timeout_us in ((-1, 0), (0, -1)):
        with pytest.raises(BentoMLException, match=f"must be 0 or more, got {priority} and {timeout_us}"):
            asyncio.run(Models(lambda: door).infer("m", inputs, priority=priority, timeout_us=timeout_us))


@pytest.mark.parametrize(
    "value", [[[1, 2]], np.array([[1, 2]], np.int64), np.array([[1.0, 2.0]]), np.array([[1, 2]], np.uint8)]
)
def test_arrays_of_a_near_dtype_become_the_declared_one(value: Any) -> None:
    request = ask(Served(SIGNATURE), {"x": value, "words": [["a"], [b"b\0"]]})
    assert request.inputs["x"].dtype == np.int32
    assert request.inputs["x"].tolist() == [[1, 2]]
    assert request.inputs["words"].tolist() == [[b"a"], [b"b\0"]], "NULs at the end stay"


def test_one_array_is_enough_for_a_model_with_one_input() -> None:
    assert ask(Served(ONE), [[1, 2]]).inputs["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": [[1.5, 2]]}, "model 'm': input 'x' takes INT32, and float64 values do not fit without loss"),
        ({"x": [[2**40, 2]]}, "takes INT32, and int64 values do not fit"),
        ({"x": [["a", "b"]]}, "values do not fit without loss"),
        ({"x": [[1], [1, 2]]}, "model 'm': input 'x' is not a tensor"),
        ({"x": [[float("nan"), 1]]}, "without loss"),
        ({"words": [[1]]}, "input 'words' takes text, got int"),
        ([[1, 2]], r"model 'm' has 2 inputs: name them \(x, words\)"),
    ],
)
def test_what_would_lose_something_is_refused(inputs: Any, words: str) -> None:
    with pytest.raises(BentoMLException, match=words) as caught:
        ask(Served(SIGNATURE), inputs)
    assert caught.value.error_code == 400


def test_errors_have_bentomls_statuses() -> None:
    with pytest.raises(BentoMLException, match="'nope' is not found") as caught:
        ask(Served(ONE), [[1, 2]], model="nope")
    assert caught.value.error_code == 404


def test_classify_prepares_asks_and_names_the_best() -> None:
    async def test() -> None:
        door = FakeDoor(Served(ONE, ModelSettings(preprocess=PREPROCESS), {"y": ("cat", "dog", "owl")}))
        labels = await Models(lambda: door).classify(Image.new("RGB", (8, 6)), "m")
        assert [(label.label, label.index) for label in labels] == [("dog", 1), ("owl", 2)]
        assert door.requests[0].inputs["x"].shape == (1, 3, 2, 2)
        with pytest.raises(BentoMLException, match="no preprocess declaration") as caught:
            await Models(lambda: FakeDoor(Served(ONE))).classify(Image.new("RGB", (8, 6)), "m")
        assert caught.value.error_code == 501

    asyncio.run(test())


def test_a_declaration_wins_over_the_models_own_settings() -> None:
    declared = ekiben.runner("m:latest", runtime="onnx", device="cpu", batching=Batching(max_batch_size=3))
    own = ModelSettings(runtime="python", instances=(Instances(device="auto", count=2),), labels={"y": "l.txt"})
    assert declared.configured(own) == ModelSettings(
        runtime="onnx",
        batching=Batching(max_batch_size=3),
        instances=(Instances(device="cpu", count=2),),
        labels={"y": "l.txt"},
    )
    assert ekiben.runner("m:latest").configured(own) == own


def test_a_handle_without_an_engine_says_what_to_do() -> None:
    class Mine:
        model = ekiben.runner("m:latest")

    with pytest.raises(BentoMLException, match=r"service_class=ekiben\.EngineService") as caught:
        asyncio.run(Mine().model.infer([[1, 2]]))
    assert caught.value.error_code == 503
