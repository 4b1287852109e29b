"""Priorities and timeouts by Triton's clients: what waits while a model is held by a file, and what runs first."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.conftest import Serve, Server

MODEL = """
import time
from pathlib import Path
class Model:
    def load(self, context): self.folder = context.path
    def infer(self, inputs):
        values = inputs["x"][:, 0].astype(int)
        with (self.folder / "begun").open("a") as begun:
            begun.writelines(f"{value}\\n" for value in values)
        while any((self.folder / name).exists() for name in ("hold", *(f"hold-{value}" for value in values))):
            time.sleep(0.002)
        return {"y": inputs["x"]}
"""
SIGNATURE = """
signatures:
  serving_default:
    inputs: [{name: x, datatype: FP32, shape: [-1, 1]}]
    outputs: [{name: y, datatype: FP32, shape: [-1, 1]}]
"""
YAML = {
    "ranked": "{max_batch_size: 1, max_queue_rows: 3, priority_levels: 2, default_priority: 2}",
    "late": "{max_batch_size: 1, timeout_us: 600000000, timeout_action: delay}",
    "ordered": "{max_batch_size: 1, preserve_ordering: true}",
}
PBTXT = """
backend: "python" max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }
dynamic_batching {
  priority_levels: 2 default_priority_level: 1
  default_queue_policy { max_queue_size: 9 }
  priority_queue_policy { key: 2 value { default_timeout_microseconds: 1000 allow_timeout_override: true } }
}
"""


class Kitchen:
    """A server, and the folders of its models."""

    def __init__(self, server: Server, models: Path) -> None:
        self.server = server
        self.models = models

    @contextlib.contextmanager
    def held(self, model: str, name: str = "hold") -> Iterator[None]:
        """Nothing that the model has begun ends meanwhile; its instance has one batch, and a second is ready."""
        hold = self.models / model / "1" / name
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def begun(self, model: str) -> list[int]:
        """The values that the model has been given, in that order."""
        path = self.models / model / "1" / "begun"
        return [int(line) for line in path.read_text().split() if int(line)] if path.exists() else []

    def figure(self, model: str, name: str, **labels: str) -> float:
        connection = HTTPConnection(self.server.host, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        wanted = [f'{key}="{value}"' for key, value in {"model": model, **labels}.items()]
        found = [line for line in text.splitlines() if line.startswith(f"{name}{{") and all(w in line for w in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def wait_for(self, model: str, name: str, value: float, **labels: str) -> None:
        self.server.wait(lambda: self.figure(model, name, **labels) == value, 60)


Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def kitchen(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    models = tmp_path_factory.mktemp("models")
    for name in (*YAML, "triton"):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(MODEL)
    for name, batching in YAML.items():
        count = 2 if name == "ordered" else 1
        text = f"runtime: python\nbatching: {batching}\ninstances: [{{count: {count}}}]\n{SIGNATURE}"
        (models / name / "model.yaml").write_text(text)
    (models / "triton" / "config.pbtxt").write_text(PBTXT)
    return Kitchen(serve("--repository", str(models)), models)


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, kitchen: Kitchen) -> Iterator[Ask]:
    """Starts an inference of one value in a thread of its own; a Future of the value that comes back."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    address = kitchen.server.host if request.param == "http" else kitchen.server.grpc

    def infer(model: str, value: int, wishes: dict[str, Any]) -> float:
        options = {"network_timeout": 120} if request.param == "http" else {}
        with module.InferenceServerClient(address, **options) as client:
            given = module.InferInput("x", [1, 1], "FP32")
            given.set_data_from_numpy(np.full((1, 1), value, np.float32))
            return float(client.infer(model, [given], **wishes).as_numpy("y")[0, 0])

    with ThreadPoolExecutor(16) as pool:
        yield lambda model, value, **wishes: pool.submit(infer, model, value, wishes)


def occupied(kitchen: Kitchen, ask: Ask, model: str) -> list[Future[Any]]:
    """Two requests that a held model has taken; whoever comes next waits in the queue."""
    taken = [ask(model, 1), ask(model, 1)]
    kitchen.wait_for(model, "ekiben_batches_in_flight", 2)
    return taken


def test_a_better_level_runs_first(kitchen: Kitchen, ask: Ask) -> None:
    before = len(kitchen.begun("ranked"))
    with kitchen.held("ranked"):
        answers = occupied(kitchen, ask, "ranked")
        for waiting, (value, wishes) in enumerate(((2, {"priority": 2}), (3, {}), (4, {"priority": 1}))):
            answers.append(ask("ranked", value, **wishes))
            kitchen.wait_for("ranked", "ekiben_queue_rows", waiting + 1)
    assert [answer.result(60) for answer in answers] == [1, 1, 2, 3, 4]
    assert kitchen.begun("ranked")[before:] == [1, 1, 4, 2, 3]


def test_a_request_waits_as_long_as_it_says(kitchen: Kitchen, ask: Ask) -> None:
    before = len(kitchen.begun("ranked"))
    counted = kitchen.figure("ranked", "ekiben_failures_total", reason="queue_timeout")
    with kitchen.held("ranked"):
        answers = occupied(kitchen, ask, "ranked")
        answers.append(ask("ranked", 2, timeout=600_000_000))
        with pytest.raises(InferenceServerException) as caught:
            ask("ranked", 3, timeout=2_000).result(60)
        assert "Request timeout expired: it waited over 2000 µs" in caught.value.message()
        assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE")
    assert [answer.result(60) for answer in answers] == [1, 1, 2]
    assert kitchen.begun("ranked")[before:] == [1, 1, 2]
    assert kitchen.figure("ranked", "ekiben_failures_total", reason="queue_timeout") == counted + 1


def test_a_late_request_runs_after_the_others(kitchen: Kitchen, ask: Ask) -> None:
    before = len(kitchen.begun("late"))
    with kitchen.held("late"):
        answers = occupied(kitchen, ask, "late")
        for waiting, (value, wishes) in enumerate(((2, {"timeout": 1}), (3, {}))):
            answers.append(ask("late", value, **wishes))
            kitchen.wait_for("late", "ekiben_queue_rows", waiting + 1)
    assert [answer.result(60) for answer in answers] == [1, 1, 2, 3]
    assert kitchen.begun("late")[before:] == [1, 1, 3, 2]


def test_a_full_level_says_when_to_come_again_and_leaves_room_for_the_other(kitchen: Kitchen, ask: Ask) -> None:
    with kitchen.held("ranked"):
        answers = occupied(kitchen, ask, "ranked")
        answers += [ask("ranked", 2) for _ in range(3)]
        kitchen.wait_for("ranked", "ekiben_queue_rows", 3)
        with pytest.raises(InferenceServerException, match=r"Exceeds maximum queue size: 3 requests .* level 2"):
            ask("ranked", 2).result(60)
        connection = HTTPConnection(kitchen.server.host, timeout=60)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2]}
        connection.request("POST", "/v2/models/ranked/infer", json.dumps({"inputs": [tensor]}))
        reply = connection.getresponse()
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) >= 1
        connection.close()
        answers.append(ask("ranked", 3, priority=1))
        kitchen.wait_for("ranked", "ekiben_queue_rows", 4)
    assert [answer.result(60) for answer in answers] == [1, 1, 2, 2, 2, 3]


def test_what_config_pbtxt_says_holds_as_in_triton(kitchen: Kitchen, ask: Ask) -> None:
    before = len(kitchen.begun("triton"))
    with kitchen.held("triton"):
        answers = occupied(kitchen, ask, "triton")
        answers.append(ask("triton", 2, timeout=1))
        kitchen.wait_for("triton", "ekiben_queue_rows", 1)
        for value, wishes, limit in ((3, {}, 1000), (4, {"timeout": 500}, 500), (5, {"timeout": 60_000_000}, 1000)):
            with pytest.raises(InferenceServerException, match=f"it waited over {limit} µs"):
                ask("triton", value, priority=2, **wishes).result(60)
        assert not answers[2].done(), "its level allows no override"
    assert [answer.result(60) for answer in answers] == [1, 1, 2]
    assert kitchen.begun("triton")[before:] == [1, 1, 2]


def test_a_call_is_dropped_at_its_deadline(kitchen: Kitchen) -> None:
    before = len(kitchen.begun("ranked"))
    counted = kitchen.figure("ranked", "ekiben_failures_total", reason="deadline")
    client = tritonclient.grpc.InferenceServerClient(kitchen.server.grpc)
    given = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), 7, np.float32))
    with ThreadPoolExecutor(3) as pool, kitchen.held("ranked"):
        taken = occupied(
            kitchen, lambda model, _: pool.submit(client.infer, model, [given], client_timeout=60), "ranked"
        )
        with pytest.raises(InferenceServerException) as caught:
            client.infer("ranked", [given], client_timeout=0.2)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        kitchen.wait_for("ranked", "ekiben_failures_total", counted + 1, reason="deadline")
        assert kitchen.figure("ranked", "ekiben_queue_rows") == 0

        ended = threading.Event()
        client.start_stream(lambda result, error: ended.set(), stream_timeout=0.2)
        for _ in range(2):
            client.async_stream_infer("ranked", [given])
        assert ended.wait(60)
        kitchen.wait_for("ranked", "ekiben_failures_total", counted + 3, reason="deadline")
        assert kitchen.figure("ranked", "ekiben_queue_rows") == 0
        client.stop_stream(cancel_requests=True)
    assert [float(answer.result(60).as_numpy("y")[0, 0]) for answer in taken] == [7, 7]
    client.close()
    assert kitchen.begun("ranked")[before:] == [7, 7]


def test_answers_keep_the_order_of_their_requests(kitchen: Kitchen) -> None:
    client = tritonclient.grpc.InferenceServerClient(kitchen.server.grpc)
    done: list[int] = []
    all_done = threading.Event()

    def finished(value: int, result: Any, error: Any) -> None:
        assert error is None
        assert result.as_numpy("y")[0, 0] == value
        done.append(value)
        if len(done) == 2:
            all_done.set()

    def start(value: int) -> None:
        given = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
        given.set_data_from_numpy(np.full((1, 1), value, np.float32))
        client.async_infer("ordered", [given], partial(finished, value), client_timeout=120)

    def run() -> int:
        return int(client.get_inference_statistics("ordered").model_stats[0].inference_count)

    before = run()
    with kitchen.held("ordered", "hold-1"):
        start(1)
        kitchen.server.wait(lambda: 1 in kitchen.begun("ordered"), 60)
        start(2)
        kitchen.server.wait(lambda: run() == before + 1, 60)
        assert done == [], "the second has run, and waits for the first"
    assert all_done.wait(60)
    assert done == [1, 2]
    client.close()


def test_the_configuration_is_reported(kitchen: Kitchen) -> None:
    with tritonclient.grpc.InferenceServerClient(kitchen.server.grpc) as client:
        batching = client.get_model_config("triton").config.dynamic_batching
    assert (batching.priority_levels, batching.default_priority_level) == (2, 1)
    assert not batching.default_queue_policy.allow_timeout_override
    assert batching.default_queue_policy.max_queue_size == 9
    assert batching.priority_queue_policy[2].default_timeout_microseconds == 1000
    with tritonclient.http.InferenceServerClient(kitchen.server.host) as client:
        assert "schedule_policy" in client.get_server_metadata()["extensions"]
        policy = client.get_model_config("late")["dynamic_batching"]["default_queue_policy"]
        assert (policy["timeout_action"], policy["default_timeout_microseconds"]) == ("DELAY", 600_000_000)
        assert client.get_model_config("ordered")["dynamic_batching"]["preserve_ordering"] is True
