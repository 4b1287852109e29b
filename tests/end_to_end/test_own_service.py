"""The README's promise to a BentoML user: a declared runner is two lines in any service."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.conftest import Serve, Server

SERVICE = """
import bentoml
import ekiben
import numpy as np


@bentoml.service(service_class=ekiben.EngineService)
class Fraud:
    model = ekiben.runner("fraud:latest")

    @bentoml.api
    async def score(self, rows: np.ndarray) -> np.ndarray:
        return (await self.model.infer(rows))["score"]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with `fraud`, which answers the sum of each row."""
    folder = tmp_path_factory.mktemp("fraud")
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["rows", "axes"], ["score"], keepdims=1)],
        "fraud",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "a.onnx")
    environment = {**os.environ, "BENTOML_HOME": str(folder / "home")}
    command = [str(Path(sys.executable).with_name("ekiben")), "import", str(folder / "a.onnx"), "--name", "fraud"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (folder / "service.py").write_text(SERVICE)
    return folder / "home"


def start(serve: Serve, home: Path, **variables: str) -> Server:
    bentoml = [str(Path(sys.executable).with_name("bentoml")), "serve", "service:Fraud"]
    ready = "EKIBEN_URL" not in variables
    server = serve(command=bentoml, home=home, folder=home.parent, ready=ready, **variables)
    server.wait(lambda: server.status("/readyz") == 200)
    return server


def score(server: Server, rows: object) -> tuple[int, object]:
    request = urllib.request.Request(
        f"{server.url}/score", json.dumps({"rows": rows}).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status), json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_declared_runner_answers_in_its_own_service_and_through_another(serve: Serve, home: Path) -> None:
    engine = start(serve, home)
    assert score(engine, [[1, 2, 3], [4, 5, 6]]) == (200, [[6.0], [15.0]])
    assert engine.status("/v2/models/fraud/ready") == 200
    client = start(serve, home.parent / "empty", EKIBEN_URL=engine.url)
    assert score(client, np.ones((2, 3)).tolist()) == (200, [[3.0], [3.0]])
    assert client.status("/v2/models/fraud/ready") == 404
    status, answer = score(client, [[1, 2]])
    assert (status, "unexpected shape for input 'rows' for model 'fraud'" in str(answer)) == (400, True)
    engine.end()
    status, _ = score(client, [[1, 2, 3]])
    assert status == 503  # BentoML keeps the text of a 5xx for the log
    assert "cannot be reached" in client.log
