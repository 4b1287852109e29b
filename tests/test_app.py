"""The service as BentoML sees it, in processes of their own, for BentoML keeps its configuration for good."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAM = """
import json, service
from bentoml._internal.configuration.containers import BentoMLContainer as container
service.Engine.inject_config()
print(json.dumps([container.config.get()["api_server"]["ssl"], service.Engine.config.get("ssl")]))
"""


def configured(tmp_path: Path, **variables: str) -> Any:
    """BentoML's TLS options, and the service's own, which a Bento that is built takes along."""
    environ = {**os.environ, "BENTOML_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_files_of_tls_are_told_to_bentoml_and_not_to_a_bento(tmp_path: Path) -> None:
    options, own = configured(
        tmp_path, EKIBEN_TLS_CERT="/c.pem", EKIBEN_TLS_KEY="/k.pem", EKIBEN_TLS_CLIENT_CA="/ca.pem"
    )
    assert (options["enabled"], options["certfile"], options["keyfile"]) == (True, "/c.pem", "/k.pem")
    assert (options["ca_certs"], options["cert_reqs"]) == ("/ca.pem", 2)
    assert options["ciphers"].startswith("ECDHE")
    assert own is None


def test_without_files_bentomls_own_options_stay(tmp_path: Path) -> None:
    options, own = configured(tmp_path)
    assert (options["enabled"], options["certfile"], own) == (False, None, None)
