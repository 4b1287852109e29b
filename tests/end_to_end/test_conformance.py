"""Ekiben against the suite that it brings: a process against a process, HTTP and gRPC."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ekiben.conformance.make_models import make_models
from ekiben.conformance.suite import POINTS
from tests.conftest import Serve, Server

_LATER = ("X2", "X3", "X5", "X9", "X10", "X11", "X12", "G18", "G19", "G20", "G21")
"""Extensions that a server may still lack."""


def _checked(server: Server, file: Path, *options: str) -> dict[str, Any]:
    program = [str(Path(sys.executable).with_name("ekiben")), "conformance", server.url, "--grpc", server.grpc]
    command = [*program, "--timeout", "60", "--json", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 failed, " in done.stdout
    results = {point["id"]: point for point in json.loads(file.read_text())["points"]}
    assert set(results) == {point.id for point in POINTS}
    missing = {id for id, point in results.items() if point["verdict"] == "not supported"}
    assert {id for id in missing if not id.startswith(_LATER)} == set()
    return results


def test_the_models_of_the_recorded_requests(golden: Server, tmp_path: Path) -> None:
    results = _checked(golden, tmp_path / "results.json", "--allow-load", "unloaded")
    skipped = {id for id, point in results.items() if point["verdict"] == "skip" and not id.startswith(_LATER)}
    assert skipped == {"J9b", "B7b"}
    assert golden.status("/v2/models/unloaded/ready") != 200


def test_the_models_that_the_suite_makes(serve: Serve, tmp_path: Path) -> None:
    names = make_models(tmp_path / "models")
    loads = [option for name in names if name != "scores" for option in ("--load-model", name)]
    server = serve("--repository", str(tmp_path / "models"), "--model-control", "explicit", *loads)
    results = _checked(server, tmp_path / "results.json", "--allow-load", "scores")
    assert {id for id, point in results.items() if point["verdict"] == "skip" and not id.startswith(_LATER)} == set()
