"""KServe's InferenceGRPCClient, unmodified, in a process and an environment of its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Server

PYTHON = ROOT / ".venv-kserve" / "bin" / "python"
CLIENT = Path(__file__).parent / "kserve" / "client.py"


@pytest.fixture
def interpreter() -> Path:
    """One that has KServe's client. In CI it must be there."""
    if not PYTHON.exists():
        missing = f"no {PYTHON.relative_to(ROOT)}: scripts/install_clients makes it"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return PYTHON


def test_kserves_grpc_client(golden: Server, interpreter: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(interpreter), str(CLIENT), golden.grpc], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    sums = {"OUTPUT0": [[number + 1 for number in range(16)]], "OUTPUT1": [[number - 1 for number in range(16)]]}
    assert said == {
        "live": True,
        "ready": True,
        "models": [True, False],
        "raw": sums,
        "raw id": "0",
        "raw bytes": ["a", "", "é"],
        "typed": sums,
        "typed id": "0",
        "typed bytes": ["a", "", "é"],
        "many": list(range(200)),
        "many sums": list(range(1, 201)),
        "unknown": ["NOT_FOUND", "Request for unknown model: 'nope' is not found"],
    }
