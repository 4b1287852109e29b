"""`ekiben conformance` as people run it: what it prints, where, and with which exit status."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ekiben import cli
from ekiben.conformance.suite import POINTS
from tests.conformance.faults import INFER, document, on, put, status
from tests.conformance.little import HTTP_POINTS
from tests.conformance.little_http import Answered, Answerer, Asked, as_json, serving
from tests.conformance.little_models import State

Certificate = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def url() -> Iterator[str]:
    """A server without faults."""
    with serving(State()) as address:
        yield address


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    """Makes a certificate that signs itself, and its key, as files."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")

    def make(name: str) -> tuple[Path, Path]:
        made, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                   "-keyout", str(key), "-out", str(made), "-days", "2", "-subj", f"/CN={name}",
                   "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        return made, key

    return make


def test_a_server_without_faults(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", url, "--allow-load", "asleep"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "little 1; models: 17 usable of 20"
    rows = [line for line in lines[2:-2] if not line.startswith(" ")]
    assert [row.split()[0] for row in rows] == [point.id for point in HTTP_POINTS]
    for point, row in zip(HTTP_POINTS, rows, strict=True):
        assert row.index("pass") == rows[0].index("pass")
        assert row.index(point.title) == rows[0].index(HTTP_POINTS[0].title)
        assert row.endswith(point.source)
    assert lines[-1].startswith(f"{url}: {len(HTTP_POINTS)} passed, 0 failed, 0 not supported, 0 skipped")
    assert "--grpc" in lines[-1]
    assert "\x1b" not in out


def test_a_fault_is_told_and_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(State(), document(put(id="other"), INFER)) as url:
        assert cli.main(["conformance", url.removeprefix("http://"), "--only", "J2b,P"]) == 1
    out = capsys.readouterr().out
    assert "J2b  FAIL" in out
    assert "expected id 'conformance-42'; got other" in out
    assert "14 passed, 1 failed" in out


def test_models_that_cannot_be_used_are_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", url, "--only", "P1", "--model", "steps", "--model", "none"]) == 0
    captured = capsys.readouterr()
    assert "models: 0 usable of 2" in captured.out
    assert "not usable: 'steps': expected 200" in captured.err
    assert "not usable: 'none': expected 200" in captured.err


def test_results_for_machines(url: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert cli.main(["conformance", url, "--only", "P,X6c", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert (document["url"], document["server"]) == (url, "little 1")
    assert document["summary"] == {"pass": 14, "fail": 0, "not supported": 0, "skip": 1}
    assert [point["id"] for point in document["points"]] == [
        point.id for point in POINTS if point.id.startswith("P") or point.id == "X6c"
    ]
    assert document["points"][-1] == {
        "id": "X6c",
        "title": next(point.title for point in POINTS if point.id == "X6c"),
        "source": "Triton extension_model_repository.md",
        "verdict": "skip",
        "detail": "no model may be loaded and unloaded (--allow-load)",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["which server"]),
        (["ftp://127.0.0.1"], ["ftp://127.0.0.1"]),
        (["http://127.0.0.1:99999"], ["99999"]),
        (["http://127.0.0.1:{port}"], ["127.0.0.1", "{port}", "cannot be reached"]),
        (["{url}", "--grpc", "127.0.0.1:{port}", "--timeout", "1"], ["no gRPC server answers at 127.0.0.1:{port}"]),
        (["{url}", "--grpc", "nowhere"], ["HOST:PORT", "nowhere"]),
        (["{url}", "--only", "Q"], ["'Q'", "--list"]),
        (["{url}", "--only", "G"], ["--grpc"]),
        (["{url}", "--timeout", "0"], ["--timeout", "0"]),
        (["{url}", "--timeout", "nan"], ["--timeout"]),
        (["{url}", "-H", "no colon"], ["-H", "no colon"]),
        (["{url}", "-H", "A: b\r\nC: d"], ["-H"]),
        (["{url}", "--json", "/none/results.json"], ["/none"]),
        (["https://127.0.0.1:1", "--cacert", "/none.pem"], ["/none.pem"]),
        (["{url}", "--nonsense"], ["--nonsense"]),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], words: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = _free_port()
    assert cli.main(["conformance", *(each.format(url=url, port=port) for each in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ekiben: ")
    assert captured.err.count("\n") == 1
    for word in words:
        assert word.format(port=port) in captured.err


def test_without_grpcio_it_is_said_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "ekiben.conformance.grpc_client", raising=False)
    assert cli.main(["conformance", url, "--grpc", "127.0.0.1:1"]) == 2
    assert "pip install 'ekiben[conformance]'" in capsys.readouterr().err


def test_headers_are_sent_along(capsys: pytest.CaptureFixture[str]) -> None:
    def closed(asked: Asked, answer: Answerer) -> Answered:
        if asked.headers.get("authorization") != "Bearer 42" or asked.headers["host"] != "models.test":
            return as_json({"error": "who are you?"}, 401)
        return answer(asked)

    with serving(State(), closed) as url:
        assert cli.main(["conformance", url, "--only", "P,J"]) == 1
        capsys.readouterr()
        headers = ["-H", "Authorization: Bearer 42", "-H", "Host: models.test"]
        assert cli.main(["conformance", url, "--only", "P,J", *headers]) == 0


def test_a_prefix_of_the_address_is_kept() -> None:
    def behind(asked: Asked, answer: Answerer) -> Answered:
        if not asked.path.startswith("/serving/models/v2"):
            return as_json({"error": "no"}, 404)
        return answer(asked._replace(path=asked.path.removeprefix("/serving/models")))

    with serving(State(), behind) as url:
        assert cli.main(["conformance", f"{url}/serving/models/", "--only", "P,J"]) == 0


def test_tls(certificate: Certificate, capsys: pytest.CaptureFixture[str]) -> None:
    made, key = certificate("server")
    other, other_key = certificate("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    context.load_verify_locations(other)
    with serving(State(), tls=context) as url:
        assert cli.main(["conformance", url, "--only", "P1"]) == 2
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert cli.main(["conformance", url, "--only", "P1", "--insecure"]) == 0
        assert cli.main(["conformance", url, "--only", "P1", "--cacert", str(made)]) == 0
        capsys.readouterr()
        context.verify_mode = ssl.CERT_REQUIRED
        trusted = ["conformance", url, "--only", "P1", "--cacert", str(made)]
        assert cli.main([*trusted, "--cert", str(other), "--key", str(other_key)]) == 0
        assert cli.main(trusted) == 1
        assert "expected an HTTP reply" in capsys.readouterr().out


def test_the_points_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "--list"]) == 0
    out = capsys.readouterr().out
    for point in POINTS:
        assert f"| {point.id} | {point.title} | {point.source} |" in out


def test_a_model_may_be_loaded_only_with_leave(url: str) -> None:
    changes: list[str] = []

    def watched(asked: Asked, answer: Answerer) -> Answered:
        if asked.path.endswith("load"):
            changes.append(asked.path)
        return answer(asked)

    with serving(State(), watched) as watched_url:
        assert cli.main(["conformance", watched_url]) == 0
        assert changes == []
        assert cli.main(["conformance", watched_url, "--allow-load", "asleep", "--only", "X6c,X6d"]) == 0
    model = "/v2/repository/models/asleep/"
    unknown = "/v2/repository/models/conformance-no-such-model/load"
    assert changes == [model + "load", model + "unload", model + "load", model + "unload", unknown]


def test_a_run_that_cannot_write_its_results_says_so(url: str, tmp_path: Path) -> None:
    assert cli.main(["conformance", url, "--only", "P1", "--json", str(tmp_path)]) == 1


def test_a_silent_server_is_given_the_time_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert cli.main(["conformance", address, "--timeout", "0.1", "--only", "P1,P2"]) == 1
    assert "got none in 0.1 s" in capsys.readouterr().out


def test_models_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "models"
    assert cli.main(["conformance", "--make-models", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(path) for path in sorted(folder.iterdir())]
    assert cli.main(["conformance", "--make-models", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_optional_path_that_is_absent_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(State(), status(501, on("/v2/logging"))) as url:
        assert cli.main(["conformance", url, "--only", "X10"]) == 0
    assert "X10  not supported" in capsys.readouterr().out
