"""Real servers for tests: `ekiben serve` as a process on a free port, ended with all that it started."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

ROOT = Path(__file__).parents[1]
READY_SECONDS = 240


TESTDATA = Path(os.environ.get("EKIBEN_TESTDATA") or ROOT.parent / "shared" / "testdata")


def pytest_sessionstart() -> None:
    """In CI the test data must be there; elsewhere what needs them is skipped."""
    if os.environ.get("CI") and not TESTDATA.is_dir():
        raise pytest.UsageError(f"no test data at {TESTDATA}: set EKIBEN_TESTDATA")


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The models and recorded requests of other servers."""
    if not TESTDATA.is_dir():
        pytest.skip(f"no test data at {TESTDATA}: set EKIBEN_TESTDATA")
    return TESTDATA


class Server:
    """A running `ekiben serve`."""

    def __init__(self, command: list[str], environment: Mapping[str, str], port: int, log: Path, folder: Path) -> None:
        self.grpc = f"127.0.0.1:{environment['EKIBEN_GRPC_PORT']}"
        self.url = f"http://127.0.0.1:{port}"
        self.host = f"127.0.0.1:{port}"
        self._log = log
        self._mark = f"TEST_SERVER={log}".encode()
        environment = {**environment, "TEST_SERVER": str(log)}
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=stream, cwd=folder, start_new_session=True
            )

    @property
    def log(self) -> str:
        """Everything that it wrote so far."""
        return self._log.read_text(errors="replace")

    def processes(self) -> list[int]:
        """Ids of every process alive that was started from it, however deep; each inherits a variable with its mark."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marked = self._mark in (entry / "environ").read_bytes()
                    alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                except OSError:
                    continue
                if marked and alive:
                    found.append(int(entry.name))
        return found

    def status(self, path: str = "/v2/health/ready") -> int:
        """The status that a GET answers; 0: nobody does."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait(self, condition: Callable[[], bool], seconds: float = READY_SECONDS) -> None:
        """Return once the condition holds; fail with the log when the time is over."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not so within {seconds} s; the log says:\n{self.log}"
            time.sleep(0.02)

    def wait_until_ready(self) -> None:
        """Return once it is ready; fail with the log when it ends instead."""
        self.wait(lambda: self.status() == 200 or self.process.poll() is not None)
        assert self.process.poll() is None, f"the server ended:\n{self.log}"

    def end(self) -> None:
        """Ask it to end, and make it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts `ekiben serve` with the given options and variables, and waits until it is ready (ready=False: not)."""
    started: list[Server] = []

    def start(
        *options: str,
        home: Path | None = None,
        ready: bool = True,
        command: list[str] | None = None,
        folder: Path = ROOT,
        **variables: str,
    ) -> Server:
        port = free_port()
        place = tmp_path_factory.mktemp("server")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("EKIBEN_", "BENTOML_"))},
            "BENTOML_HOME": str(home or place / "home"),
            "EKIBEN_GRPC_PORT": str(free_port()),
            "BENTOML_DO_NOT_TRACK": "true",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **variables,
        }
        program = command or [str(Path(sys.executable).with_name("ekiben")), "serve"]
        server = Server([*program, "--port", str(port), *options], environment, port, place / "log", folder)
        started.append(server)
        if ready:
            server.wait_until_ready()
        return server

    yield start
    for server in started:
        server.end()


@pytest.fixture(scope="session")
def golden(serve: Serve, testdata: Path) -> Server:
    """The models of the recorded requests, in explicit mode, each loaded but `unloaded`."""
    models = testdata / "golden_triton" / "models"
    names = sorted(path.name for path in models.iterdir() if path.name != "unloaded")
    loads = [option for name in names for option in ("--load-model", name)]
    return serve("--repository", str(models), "--model-control", "explicit", *loads)


@pytest.fixture(scope="session")
def golden_shm(serve: Serve, testdata: Path) -> Server:
    """Some of them on a server that takes shared memory from its clients."""
    names = ("identity_bool", "identity_bytes", "identity_fp16", "identity_fp32", "simple")
    loads = [option for name in names for option in ("--load-model", name)]
    models = str(testdata / "golden_triton" / "models")
    return serve("--repository", models, "--model-control", "explicit", "--allow-client-shm", *loads)
