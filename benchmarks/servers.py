"""Servers under test: each one a process group of its own on a free loopback port, ended by its id."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.calls import Call, Floats
from benchmarks.paths import BENCH, ROOT
from benchmarks.processes import accepted_by, tree

__all__ = ["Server", "ServerFailed", "bare_uvicorn", "bentoml_batchable", "ekiben", "ekiben_grpc"]

BINARIES: Final = Path(sys.executable).parent
PEERS: Final = Path(__file__).parent / "peers"
START_LIMIT_S: Final = 120
STOP_LIMIT_S: Final = 15


class ServerFailed(Exception):
    """A server did not start, or does not answer as it should."""


class Server(msgspec.Struct, frozen=True):
    """A running server."""

    port: int
    root: int
    """The process that was started."""
    front: int
    """The process that answers HTTP: for ekiben and BentoML the service's worker."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """The JSON at `path`. Raises ServerFailed."""
        status, _, body = _exchange(self.port, "GET", path)
        if status != 200:
            raise ServerFailed(f"GET {path} was answered {status}: {body[:500]!r}")
        return msgspec.json.decode(body)

    def ask(self, call: Call) -> Floats:
        """Make the call once. Raises ServerFailed unless it is answered."""
        status, headers, body = _exchange(self.port, "POST", call.path, call.body, call.headers)
        if status != 200:
            raise ServerFailed(f"POST {call.path} was answered {status}: {body[:500]!r}")
        return call.read(headers, body)

    def check(self, call: Call, expected: Floats) -> None:
        """Make the call once. Raises ServerFailed unless the right numbers come back."""
        answer = self.ask(call)
        if answer.shape != expected.shape or not np.allclose(answer, expected, atol=1e-4):
            raise ServerFailed(f"POST {call.path} was answered {answer[:8]}, expected {expected[:8]}")


@contextlib.contextmanager
def ekiben(repository: Path) -> Iterator[Server]:
    """This engine over a repository folder. Ready means every model in it is."""
    command = [str(BINARIES / "ekiben"), "serve", "--repository", str(repository)]
    with _running(
        "ekiben", command, "/v2/health/ready", {"BENTOML_HOME": str(BENCH / "bentoml_home"), "EKIBEN_GRPC_PORT": "0"}
    ) as server:
        yield server


@contextlib.contextmanager
def ekiben_grpc(repository: Path) -> Iterator[tuple[Server, str]]:
    """The same with its gRPC port, whose address comes with it."""
    command = [str(BINARIES / "ekiben"), "serve", "--repository", str(repository)]
    port = _free_port()
    environment = {"BENTOML_HOME": str(BENCH / "bentoml_home"), "EKIBEN_GRPC_PORT": str(port)}
    with _running("ekiben", command, "/v2/health/ready", environment) as server:
        yield server, f"127.0.0.1:{port}"


@contextlib.contextmanager
def bentoml_batchable(model: Path) -> Iterator[Server]:
    """BentoML's own batching API over one ONNX file."""
    command = [str(BINARIES / "bentoml"), "serve", "bentoml_batchable:Batchable", "--working-dir", str(PEERS)]
    environment = {
        "BENTOML_HOME": str(BENCH / "bentoml_home"),
        "BENTOML_DO_NOT_TRACK": "True",
        "BENCH_MODEL": str(model),
    }
    with _running("bentoml", command, "/readyz", environment) as server:
        yield server


@contextlib.contextmanager
def bare_uvicorn() -> Iterator[Server]:
    """The floor: uvicorn and an ASGI app that answers fixed bytes to everything."""
    command = [str(BINARIES / "uvicorn"), "bare_uvicorn:app", "--app-dir", str(PEERS)]
    command += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    with _running("uvicorn", command, "/", {}) as server:
        yield server


@contextlib.contextmanager
def _running(name: str, command: list[str], ready_path: str, environment: Mapping[str, str]) -> Iterator[Server]:
    port = _free_port()
    log_path = BENCH / "logs" / f"{name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, port, ready_path, log_path)
        yield Server(port=port, root=process.pid, front=_front(process.pid, port, ready_path))
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailed(f"{process.args!r} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _exchange(port, "GET", path)[0] == 200:
                return
        time.sleep(0.1)
    raise ServerFailed(f"{process.args!r} was not ready within {START_LIMIT_S} s:\n{log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the parent to stop, then end whatever is left of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _front(root: int, port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    connection.getresponse().read()
    try:
        return accepted_by(connection.sock, tree(root))
    finally:
        connection.close()


def _exchange(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, {name.title(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
