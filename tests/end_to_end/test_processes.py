"""The processes of a running server: what they import, and what is left when one of them is killed."""

import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.conftest import Serve, Server

SETTINGS = (
    "runtime: python\n"
    "signatures: {serving_default: {inputs: [{name: x, datatype: FP32, shape: [-1, 2]}], "
    "outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]}}\n"
)
FRAMEWORKS = ("torch", "tensorflow", "onnxruntime", "onnx", "keras")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one model in Python."""
    folder = tmp_path / "double" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(
        "import os, signal\n"
        "class Model:\n"
        "    def load(self, context): pass\n"
        "    def infer(self, inputs):\n"
        "        return {'y': inputs['x'] * 2}\n"
        "    def close(self): pass\n"
    )
    (tmp_path / "double" / "model.yaml").write_text(SETTINGS)
    return tmp_path


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def engine_of(server: Server) -> int:
    (found,) = [pid for pid in server.processes() if "_bentoml_impl.worker.service" in command(pid)]
    return found


def runners_of(server: Server) -> list[int]:
    return [pid for pid in server.processes() if "ekiben.runner.worker" in command(pid)]


def double(server: Server) -> float:
    client = triton.InferenceServerClient(server.host)
    given = triton.InferInput("x", [1, 2], "FP32")
    given.set_data_from_numpy(np.array([[3, 4]], np.float32))
    answer = client.infer("double", [given]).as_numpy("y")
    client.close()
    return float(answer[0, 1])


def test_the_engine_process_maps_no_framework(golden: Server) -> None:
    maps = Path(f"/proc/{engine_of(golden)}/maps").read_text()
    loaded = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/site-packages/" in line}
    assert any("/numpy/" in path for path in loaded)
    assert not [path for path in loaded if any(f"/site-packages/{name}/" in path for name in FRAMEWORKS)]


@pytest.mark.parametrize("victim", ["engine", "parent"])
def test_nothing_is_left_after_kill_9(serve: Serve, models: Path, victim: str) -> None:
    server = serve("--repository", str(models))
    assert double(server) == 8
    runners = runners_of(server)
    assert len(runners) == 1
    os.kill(engine_of(server) if victim == "engine" else server.process.pid, signal.SIGKILL)
    if victim == "parent":
        server.process.wait(30)
        server.wait(lambda: not server.processes(), 30)
        assert server.status() == 0
    else:
        server.wait(lambda: not Path(f"/proc/{runners[0]}").exists(), 30)


def test_a_killed_runner_is_replaced_and_the_server_goes_on(serve: Serve, models: Path) -> None:
    server = serve("--repository", str(models))
    (first,) = runners_of(server)
    os.kill(first, signal.SIGKILL)
    assert double(server) == 8
    (second,) = runners_of(server)
    assert second != first
    assert 'ekiben_runner_restarts_total{model="double",version="1"} 1.0' in metrics(server)


def metrics(server: Server) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as reply:
        return str(reply.read().decode())


@pytest.fixture
def closing(tmp_path: Path) -> Path:
    """A repository whose model says when it is closed, and runs for as long as it is told."""
    folder = tmp_path / "slow" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(
        "import pathlib, time\n"
        "class Model:\n"
        "    def load(self, context): self.path = context.path\n"
        "    def infer(self, inputs):\n"
        "        time.sleep(float(inputs['x'][0, 0]))\n"
        "        return {'y': inputs['x'] * 2}\n"
        "    def close(self): (self.path / 'closed').touch()\n"
    )
    (tmp_path / "slow" / "model.yaml").write_text(SETTINGS + "execution_timeout_ms: 0\n")
    return tmp_path


def test_sigterm_closes_every_model(serve: Serve, closing: Path) -> None:
    server = serve("--repository", str(closing))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert (closing / "slow" / "1" / "closed").exists()


def test_a_worker_whose_parent_is_gone_ends_though_a_request_hangs(serve: Serve, closing: Path) -> None:
    server = serve("--repository", str(closing))
    with socket.create_connection(("127.0.0.1", int(server.host.rpartition(":")[2]))) as connection:
        content = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[3600,0]}]}'
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        server.wait(lambda: 'ekiben_batches_in_flight{model="slow",version="1"} 1.0' in metrics(server), 30)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(30)
        server.wait(lambda: not server.processes(), 30)


def test_a_model_is_not_unknown_while_the_server_starts(serve: Serve, closing: Path) -> None:
    model = closing / "slow" / "1" / "model.py"
    model.write_text(model.read_text().replace("def load(self, context):", "def load(self, context): time.sleep(3);"))
    server = serve("--repository", str(closing), ready=False)
    seen = set()

    def ready() -> bool:
        seen.add(server.status("/v2/models/slow/stats"))
        return server.status() == 200

    server.wait(ready, 60)
    assert 404 not in seen


def test_sigterm_ends_everything(serve: Serve, models: Path) -> None:
    server = serve("--repository", str(models))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert server.processes() == []
