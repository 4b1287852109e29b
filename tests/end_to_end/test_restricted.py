"""Restricted endpoints of a running server, by real clients and by request lines that no client writes."""

import json
import queue
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.conftest import ROOT, Serve, Server

SECRETS = ("s3cret-of-http", "s3cret-of-grpc", "s3cret-of-the-file")
REFUSED = "This API is restricted, expecting header 'api-key'"
GRPC_REFUSED = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'"
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)
BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW[0].tolist()}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)
TYPED = json.dumps({"model": "simple", "inputs": {"INPUT0": ROW.tolist(), "INPUT1": ROW.tolist()}})


@pytest.fixture(scope="module")
def server(serve: Serve, testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Inference and model-repository want keys, from an option and a file, over HTTP and gRPC."""
    config = tmp_path_factory.mktemp("config") / "ekiben.yaml"
    config.write_text(f"grpc_restricted: ['health,trace:never={SECRETS[2]}']\naccess_log: true\n")
    models = str(testdata / "golden_triton" / "models")
    return serve(
        *("--config", str(config), "--repository", models, "--model-control", "explicit", "--load-model", "simple"),
        *("--http-restricted-api", f"inference,model-repository:api-key={SECRETS[0]}"),
        *("--grpc-restricted-protocol", f"inference,health:admin-key={SECRETS[1]}"),
    )


def inputs(library: Any) -> list[Any]:
    made = [library.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in made:
        each.set_data_from_numpy(ROW)
    return made


def post(server: Server, path: str, body: str, **headers: str) -> tuple[int, str]:
    fields = {"content-type": "application/json", **{name.replace("_", "-"): each for name, each in headers.items()}}
    request = urllib.request.Request(server.url + path, body.encode(), fields)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status), reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_tritonclient_over_http(server: Server) -> None:
    with triton_http.InferenceServerClient(server.host) as client:
        key = {"api-key": SECRETS[0]}
        assert client.is_server_ready()
        assert client.get_model_metadata("simple")["name"] == "simple"
        assert (client.infer("simple", inputs(triton_http), headers=key).as_numpy("OUTPUT0") == ROW * 2).all()
        assert client.get_model_repository_index(headers=key)
        for call in (lambda: client.infer("simple", inputs(triton_http)), client.get_model_repository_index):
            with pytest.raises(triton_http.InferenceServerException) as caught:
                call()
            assert (caught.value.status(), caught.value.message()) == ("403", REFUSED)


def test_tritonclient_over_grpc(server: Server) -> None:
    key = {"triton-grpc-protocol-admin-key": SECRETS[1]}
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        assert client.get_model_metadata("simple").name == "simple"
        assert client.is_server_ready(headers=key)
        assert (client.infer("simple", inputs(triton_grpc), headers=key).as_numpy("OUTPUT0") == ROW * 2).all()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=key)
        client.async_stream_infer("simple", inputs(triton_grpc))
        result, error = answers.get(timeout=60)
        assert (error, (result.as_numpy("OUTPUT0") == ROW * 2).all()) == (None, True)
        client.stop_stream()
        for call in (lambda: client.infer("simple", inputs(triton_grpc)), client.is_server_live):
            with pytest.raises(triton_grpc.InferenceServerException) as caught:
                call()
            assert (caught.value.status(), caught.value.message()) == ("StatusCode.UNAVAILABLE", GRPC_REFUSED)
        client.start_stream(lambda result, error: answers.put((result, error)))
        result, error = answers.get(timeout=60)
        assert (result, GRPC_REFUSED in str(error)) == (None, True)


def test_options_replace_what_the_file_restricts(server: Server) -> None:
    """As every list does; `trace` is open, though the file restricts it."""
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]


def test_typed_apis_want_the_key_of_inference(server: Server) -> None:
    assert post(server, "/predict", TYPED) == (403, json.dumps({"error": REFUSED}, separators=(",", ":")))
    assert post(server, "/predict", TYPED, api_key="nearly")[0] == 403
    status, reply = post(server, "/predict", TYPED, api_key=SECRETS[0])
    assert (status, json.loads(reply)["OUTPUT0"]) == (200, (ROW * 2).tolist())
    for path in ("/livez", "/readyz", "/healthz", "/metrics", "/", "/docs.json", "/schema.json"):
        assert server.status(path) == 200, path


def statuses(server: Server, lines: list[str], body: str) -> dict[str, str]:
    """The status of each request line, sent as it is."""
    host, _, port = server.host.rpartition(":")
    found = {}
    for line in lines:
        with socket.create_connection((host, int(port)), 30) as connection:
            head = f"{line}\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            reply = connection.makefile("rb").read().decode(errors="replace")
            assert "OUTPUT" not in reply, (line, reply)
            found[line] = reply.split(" ")[1] if reply else ""
    return found


def test_no_request_line_goes_around(server: Server) -> None:
    paths = (
        "/v2/models/simple/infer", "//v2/models/simple/infer", "/v2//models/simple/infer", "/v2/models/simple/infer/",
        "/v2/models/simple/infer?x", "/v2/models/simple/infer#x", "/v2/models/simple/infer;x",
        "/v2/models/simple//infer",
        "/./v2/models/simple/infer", "/livez/../v2/models/simple/infer", "/v2/%2e%2e/v2/models/simple/infer",
        "/v2/models/simple/%69nfer", "/%76%32/models/simple/infer", "/V2/models/simple/infer",
        "/v2/models/simple/INFER",
        "/v2/models/simple/versions/1/infer", "/v2/models/s%69mple/infer", "http://x/v2/models/simple/infer",
        "/v2/models/simple/infer%00", "/v2/models/simple/infer%20", "/v2/models/simple%2Finfer",
        "\\v2\\models\\simple\\infer",
    )  # fmt: skip
    for line, status in statuses(server, [f"POST {path} HTTP/1.1" for path in paths], BODY).items():
        assert status in ("403", "404", "405", "400"), (line, status)
    for line, status in statuses(
        server, [f"{method} /v2/models/simple/infer HTTP/1.1" for method in ("GET", "HEAD", "PUT", "OPTIONS")], BODY
    ).items():
        assert status == "405", line
    typed = (
        "/predict", "//predict", "/predict/", "/predict?x=/livez", "/./predict", "/livez/../predict", "/PREDICT",
        "/%70redict", "/metrics/../predict", "/static_content/../predict", "http://x/predict", "/predict;x",
        "/classify",
        "/predict/submit", "/v2/../predict",
    )  # fmt: skip
    for line, status in statuses(server, [f"POST {path} HTTP/1.1" for path in typed], TYPED).items():
        assert status in ("403", "404", "405", "307", "400"), (line, status)


def test_no_secret_is_told(server: Server) -> None:
    post(server, "/v2/models/simple/infer", BODY, api_key=SECRETS[0])
    post(server, "/v2/models/simple/infer", BODY, api_key="wrong")
    told = [server.log]
    for path in ("/metrics", "/docs.json", "/schema.json", "/v2", "/v2/models/simple/config", "/"):
        with urllib.request.urlopen(server.url + path, timeout=60) as reply:
            told.append(reply.read().decode())
    told += [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in server.processes()]
    assert len(told) > 9
    for secret in SECRETS:
        assert not [text for text in told if secret in text]
    assert "-H 'api-key: VALUE'" in server.log


def test_ekiben_infer_sends_the_header(server: Server) -> None:
    rows = json.dumps(ROW.tolist())
    command = [sys.executable, "-m", "ekiben.cli", "infer", "simple", "--url", server.url]
    command += ["--input", f"INPUT0={rows}", "--input", f"INPUT1={rows}"]

    def run(*options: str) -> tuple[int, str]:
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, cwd=ROOT)
        return done.returncode, done.stdout or done.stderr

    assert run("--header", f"api-key={SECRETS[0]}")[0] == 0
    assert run() == (1, f"ekiben: {REFUSED}\n")
    status, said = run("--header", SECRETS[0])
    assert (status, "must be NAME=VALUE" in said, SECRETS[0] in said) == (2, True, False)


SERVICE = """
import bentoml
import ekiben
import numpy as np


@bentoml.service(service_class=ekiben.EngineService)
class Doubles:
    models = ekiben.repository("store")

    @bentoml.api
    async def doubled(self, rows: np.ndarray) -> np.ndarray:
        return (await self.models.infer("simple", {"INPUT0": rows, "INPUT1": rows}))["OUTPUT0"]
"""


def test_a_service_without_an_engine_has_its_own_lock_and_the_key_of_its_engine(
    server: Server, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    bentoml_serve = [str(Path(sys.executable).with_name("bentoml")), "serve", "service:Doubles"]
    outer = serve(
        command=bentoml_serve,
        folder=tmp_path,
        ready=False,
        EKIBEN_URL=server.url,
        EKIBEN_URL_HEADER=f"api-key={SECRETS[0]}",
        EKIBEN_HTTP_RESTRICTED="inference:outer-key=another",
    )
    outer.wait(lambda: outer.status("/readyz") == 200)
    body = json.dumps({"rows": ROW.tolist()})
    assert post(outer, "/doubled", body)[0] == 403
    status, reply = post(outer, "/doubled", body, outer_key="another")
    assert (status, json.loads(reply)) == (200, (ROW * 2).tolist())
    outer.end()
