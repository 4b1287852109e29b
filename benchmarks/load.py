"""The load generator: wrk, closed loop, one thread, the same request again and again."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.calls import Call

__all__ = ["LoadFailed", "Outcome", "drive", "parse", "wrk_version"]

SCRIPT: Final = Path(__file__).with_name("load.lua")
ANSWER_TIMEOUT_S: Final = 20
"""After this long wrk counts a request as timed out."""


class LoadFailed(Exception):
    """A run that measured nothing: wrk is missing or broke, or some answer was an error."""


class Outcome(msgspec.Struct, frozen=True):
    """What wrk saw in one run."""

    requests: int
    duration_us: int
    p50_us: float
    p99_us: float
    max_us: float
    failed_status: int
    failed_socket: int
    timed_out: int

    @property
    def per_second(self) -> float:
        return self.requests / (self.duration_us / 1e6)


def wrk_version() -> str:
    """The first line of `wrk -v`. Raises LoadFailed, saying what to install, where there is no wrk."""
    if shutil.which("wrk") is None:
        raise LoadFailed("wrk, the load generator, is not installed: apt-get install -y wrk")
    said = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False)  # exits with 1
    return said.stdout.splitlines()[0].split(" Copyright")[0]


def parse(output: str) -> Outcome:
    """The outcome that load.lua printed last. Raises LoadFailed if there is none, or if any request failed."""
    last = output.strip().rpartition("\n")[2]
    try:
        outcome = msgspec.json.decode(last, type=Outcome)
    except msgspec.DecodeError:
        raise LoadFailed(f"wrk printed no outcome:\n{output}") from None
    if outcome.failed_status or outcome.failed_socket or outcome.timed_out:
        raise LoadFailed(
            f"of {outcome.requests} requests {outcome.failed_status} were answered with an error, "
            f"{outcome.failed_socket} broke, {outcome.timed_out} timed out"
        )
    if not outcome.requests:
        raise LoadFailed("no request was answered")
    return outcome


def drive(url: str, call: Call, connections: int, seconds: int) -> Outcome:
    """Keep `connections` requests in flight for `seconds`. Raises LoadFailed."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(call.body)
        body.flush()
        headers = [part for pair in call.headers.items() for part in pair]
        command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"]
        command += ["--timeout", f"{ANSWER_TIMEOUT_S}s", "--script", str(SCRIPT), url + call.path, "--"]
        try:
            ran = subprocess.run(
                [*command, body.name, *headers],
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + 2 * ANSWER_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"wrk did not end within {seconds + 2 * ANSWER_TIMEOUT_S} s") from None
    if ran.returncode:
        raise LoadFailed(f"wrk failed: {ran.stdout}{ran.stderr}")
    return parse(ran.stdout)
