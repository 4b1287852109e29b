"""The command line as people run it: what it prints, where, and with which exit status."""

import http.server
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from ekiben import cli
from ekiben.repository.version_numbers import VersionNumbers
from ekiben.settings import Settings
from tests.certificates import Authority

_ROOT = Path(__file__).parents[1]
_TESTDATA = Path(os.environ.get("EKIBEN_TESTDATA", _ROOT.parent / "shared" / "testdata"))
_NEEDS_TESTDATA = pytest.mark.skipif(
    not _TESTDATA.is_dir() and "CI" not in os.environ, reason=f"no test data at {_TESTDATA}: set EKIBEN_TESTDATA"
)
_CONFIG = """
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("EKIBEN_", "BENTOML_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "home"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one model of two versions."""
    root = tmp_path / "tree"
    for version in ("1", "2"):
        (root / "m" / version).mkdir(parents=True)
        (root / "m" / version / "model.onnx").write_bytes(b"x" * 2048)
    (root / "m" / "config.pbtxt").write_text(_CONFIG)
    return root


class _Answers(http.server.BaseHTTPRequestHandler):
    """One model `m`: x and y are FP32 [-1, 2], and y is x, flattened to rows; binary both ways."""

    def do_GET(self) -> None:
        if self.path.startswith("/v2/models/m"):
            tensor = {"datatype": "FP32", "shape": [-1, 2]}
            about = {"name": "m", "versions": ["1"], "inputs": [{"name": "x", **tensor}], "outputs": []}
            self._send(200, json.dumps(about).encode())
        elif self.path.startswith("/v2/models/odd"):
            self._send(200, b"<html>")
        else:
            self._send(404, b'{"error": "there is no such model"}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        length = int(self.headers["Inference-Header-Content-Length"])
        tensor = json.loads(body[:length])["inputs"][0]
        shape = [tensor["shape"][0], math.prod(tensor["shape"][1:])]
        output = {**tensor, "name": "y", "shape": shape, "parameters": {"binary_data_size": len(body) - length}}
        head = json.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}).encode()
        self._send(200, head + body[length:], len(head))

    def _send(self, status: int, body: bytes, json_length: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if json_length:
            self.send_header("Inference-Header-Content-Length", str(json_length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["serv"], ["'serv'", "ekiben --help"]),
        (["serve", "--port", "x"], ["--port", "'x'", "ekiben serve --help"]),
        (["serve", "--prt", "1"], ["--prt"]),
        (["serve", "--model-control", "all"], ["--model-control", "'all'"]),
        (["import", "x"], ["--name"]),
        (["infer", "m"], ["--input"]),
        (["serve", "--workers", "2"], ["workers", "not supported yet", "2"]),
        (["serve", "--model-control", "poll"], ["'poll' is not supported yet"]),
        (["serve", "--load-model", "m"], ["load_models", "explicit"]),
        (["serve", "--host", "somewhere"], ["host", "'somewhere'", "IP address"]),
        (["serve", "--config", "/none.yaml"], ["/none.yaml"]),
        (["serve", "--repository", "/none"], ["'/none' is not a folder"]),
        (["list", "--repository", "/none"], ["'/none' is not a folder"]),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ekiben: ")
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err


@pytest.mark.parametrize("command", ["serve", "import", "list", "inspect", "infer", "conformance"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"ekiben {command}" in capsys.readouterr().out


def test_list_is_an_aligned_table(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--repository", str(tree)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "VERSION", "WORD", "WANTED", "RUNTIME", "SIZE", "CREATED", "LABELS"]
    assert [row[: head.index("CREATED")].split() for row in rows] == [
        ["m", "1", "no", "onnx", "2.0", "KiB"],
        ["m", "2", "yes", "onnx", "2.0", "KiB"],
    ]
    assert {row.index("onnx") for row in rows} == {head.index("RUNTIME")}


def test_list_says_what_is_wrong_with_a_model(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "m" / "config.pbtxt").write_text('name: "other"')
    (tree / "n" / "1").mkdir(parents=True)
    (tree / "n" / "1" / "weights.pkl").write_bytes(b"")
    assert cli.main(["list", "--repository", str(tree)]) == 0
    captured = capsys.readouterr()
    assert "ekiben: m: " in captured.err
    assert "'other'" in captured.err
    assert "ekiben: n version 1: " in captured.err
    assert captured.out.count("error") == 2


def test_an_empty_list_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["list", "--repository", str(tmp_path / "empty")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(tmp_path / "empty") in captured.err
    assert "ekiben import PATH" in captured.err


def test_a_pipe_that_closes_is_no_error(tree: Path) -> None:
    command = f'"{sys.executable}" -m ekiben.cli list --repository "{tree}" | true'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=_ROOT, timeout=60)
    assert done.stderr == ""


def test_inspect_prints_yaml_with_the_signature(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "m:1", "--repository", str(tree)]) == 0
    about = yaml.safe_load(capsys.readouterr().out)
    assert (about["name"], about["version"], about["wanted"]) == ("m", 1, False)
    assert about["runtime"] == "onnx"
    assert about["batching"]["max_queue_rows"] == 4096
    x = about["signatures"]["serving_default"]["inputs"][0]
    assert (x["name"], x["datatype"], x["shape"]) == ("x", "FP32", [-1, 2])
    assert cli.main(["inspect", "m", "--repository", str(tree)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["version"] == 2


def test_inspect_reads_the_signature_from_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = (
        "from ekiben.types import Signature, TensorSpec\n"
        "class Model:\n"
        "    def load(self, context): pass\n"
        "    def infer(self, inputs): raise ValueError('broken')\n"
        "    def close(self): pass\n"
    )
    (tmp_path / "tree" / "p" / "1").mkdir(parents=True)
    (tmp_path / "tree" / "p" / "1" / "model.py").write_text(code)
    assert cli.main(["inspect", "p", "--repository", str(tmp_path / "tree")]) == 1
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["runtime"] == "python"
    assert "the signature cannot be read" in captured.err


@pytest.mark.parametrize(("name", "words"), [("x", ["'x'", "it has m"]), ("m:9", ["'m'", "'9'", "it has 1, 2"])])
def test_inspect_names_what_there_is(
    name: str, words: list[str], tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", name, "--repository", str(tree)]) == 1
    err = capsys.readouterr().err
    for word in words:
        assert word in err


def test_infer_prints_for_people_and_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["infer", "m", "--url", url, "--input", "x=[[1, 2]]"]) == 0
    assert capsys.readouterr().out == "m version 1\ny: FP32 [1, 2]\n  [[1., 2.]]\n"
    assert cli.main(["infer", "m:1", "--url", url.removeprefix("http://"), "--json", "--input", "[1, 2]"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }


def test_infer_takes_arrays_from_files(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "example.npz", x=np.array([[3, 4]], np.float32))
    assert cli.main(["infer", "m", "--url", url, "--json", "--input", str(tmp_path / "example.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["data"] == [3.0, 4.0]


def test_infer_takes_an_image_and_prints_the_labels(
    url: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "m" / "config.pbtxt").unlink()
    (tree / "m" / "labels.txt").write_text("dark\nbright\n")
    (tree / "m" / "model.yaml").write_text(
        "labels: {y: labels.txt}\n"
        "preprocess:\n"
        "  {kind: image, input: x, output: y, size: [1, 2], colour: L, resize: stretch, interpolation: nearest}\n"
    )
    image = Image.new("L", (2, 1))
    image.putpixel((1, 0), 200)
    image.save(tmp_path / "photo.png")
    arguments = ["infer", "m", "--url", url, "--input", f"x=@{tmp_path / 'photo.png'}"]
    assert cli.main([*arguments, "--repository", str(tree)]) == 0
    assert capsys.readouterr().out == "m version 1\ny: FP32 [1, 2]\n  200.0000  bright\n  0.0000  dark\n"
    assert cli.main(arguments) == 1
    assert "no model 'm'" in capsys.readouterr().err


def test_infer_cuts_long_tensors(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "long.npy", np.zeros((500, 2), np.float32))
    assert cli.main(["infer", "m", "--url", url, "--input", f"x=@{tmp_path / 'long.npy'}"]) == 0
    out = capsys.readouterr().out
    assert "[500, 2]" in out
    assert len(out.splitlines()) < 20


@pytest.mark.parametrize(
    ("model", "value", "words"),
    [
        ("none", "x=[1, 2]", ["there is no such model"]),
        ("odd", "x=[1, 2]", ["does not answer as a server of the Open Inference Protocol"]),
        ("m", "z=[1, 2]", ["no input 'z'", "x"]),
        ("m", "x=[a]", ["'x'", "neither JSON"]),
        ("m", "x=@/none.npy", ["'/none.npy'"]),
    ],
)
def test_infer_says_what_is_wrong(
    model: str, value: str, words: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["infer", model, "--url", url, "--input", value]) == 1
    err = capsys.readouterr().err
    assert err.startswith("ekiben: ")
    for word in words:
        assert word in err


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_infer_without_a_server_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["infer", "m", "--url", f"http://127.0.0.1:{_free_port()}", "--input", "x=1"]) == 1
    assert "ekiben serve" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 1
    err = capsys.readouterr().err
    assert f"port {port} on 127.0.0.1" in err
    assert "--port" in err


def test_serve_becomes_bentoml_with_the_options_as_variables(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step is a call of execve, which would end the test: it is caught there."""
    called: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda *arguments: called.append(arguments))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "service.py").write_text("")
    (tmp_path / "ekiben.yaml").write_text("access_log: true\n")
    port = _free_port()
    cli.main(
        ["serve", "--host", "localhost", "--port", str(port), "--repository", "tree", "--repository", "store",
         "--model-control", "explicit", "--load-model", "m", "--config", "ekiben.yaml", "--state-dir", "state",
         "--trace-file", "trace.json", "--allow-load-override"]
    )  # fmt: skip
    ((program, command, environ),) = called
    assert program == sys.executable
    assert command[1:7] == ["-m", "bentoml", "serve", "service:Engine", "--working-dir", str(tmp_path)]
    assert command[7:] == ["--timeout-graceful-shutdown", "30"]
    assert (environ["BENTOML_HOST"], environ["BENTOML_PORT"]) == ("127.0.0.1", str(port))
    assert json.loads(environ["EKIBEN_REPOSITORY"]) == [str(tree), "store"]
    assert json.loads(environ["EKIBEN_LOAD_MODEL"]) == ["m"]
    assert environ["EKIBEN_CONFIG"] == str(tmp_path / "ekiben.yaml")
    assert environ["EKIBEN_ALLOW_LOAD_OVERRIDE"] == "true"
    assert environ["EKIBEN_STATE_DIR"] == str(tmp_path / "state")
    assert environ["EKIBEN_TRACE_FILE"] == str(tmp_path / "trace.json")


def test_serve_hands_on_secrets_and_files_as_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda *arguments: called.append(arguments))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "service.py").write_text("")
    expired = Authority(tmp_path).issue("server", days=-1)
    (tmp_path / "ekiben.yaml").write_text("tls_cert: server.pem\n")
    monkeypatch.setenv("EKIBEN_GRPC_RESTRICTED", "health:k=v, w")
    cli.main(
        ["serve", "--port", str(_free_port()), "--grpc-port", "0", "--repository", "store", "--config", "ekiben.yaml",
         "--tls-key", "server.key", "--http-restricted-api", "inference,health:k=SECRET",
         "--http-restricted-api", "trace:k=SECRET"]
    )  # fmt: skip
    ((_, command, environ),) = called
    assert not [text for text in command if "SECRET" in text or "server.key" in text]
    assert (environ["EKIBEN_TLS_CERT"], environ["EKIBEN_TLS_KEY"]) == (str(expired.cert), str(expired.key))
    settings = Settings.load(environ=environ)
    assert settings.http_restricted == ("inference,health:k=SECRET", "trace:k=SECRET")
    assert settings.grpc_restricted == ("health:k=v, w",)
    said = f"ekiben: clients will refuse the certificate '{expired.cert}': certificate has expired\n"
    assert capsys.readouterr().err == said


def test_a_trace_file_needs_its_folder(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none" / "trace.json"
    assert cli.main(["serve", "--repository", str(tree), "--trace-file", str(missing)]) == 2
    assert f"trace_file must lie in a folder that exists, got '{missing}'" in capsys.readouterr().err


def test_a_version_that_a_word_has_is_not_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    VersionNumbers(tmp_path / "home" / "ekiben" / "versions.json").assign("m", ["word"])
    assert cli.main(["import", "/none.onnx", "--name", "m", "--version", "1"]) == 2
    assert "it is 'word'" in capsys.readouterr().err


@_NEEDS_TESTDATA
def test_import_then_list_then_inspect(tmp_path: Path) -> None:
    """In processes of their own, for BentoML remembers its home."""
    environ = {**os.environ, "BENTOML_HOME": str(tmp_path / "home"), "BENTOML_DO_NOT_TRACK": "True"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ekiben.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=_ROOT,
            env=environ,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    model = _TESTDATA / "triton" / "simple" / "1" / "model.onnx"
    assert run("import", str(model), "--name", "simple", "--version", "first").strip() == "simple:first"
    rows = [line.split() for line in run("list").splitlines()]
    assert next(row for row in rows if row[0] == "simple")[:5] == ["simple", "1", "first", "yes", "onnx"]
    about = yaml.safe_load(run("inspect", "simple:first"))
    assert (about["version"], about["word"]) == (1, "first")
    assert [each["name"] for each in about["signatures"]["serving_default"]["inputs"]] == ["INPUT0", "INPUT1"]
