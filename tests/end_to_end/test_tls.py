"""A server whose two ports speak TLS, by clients that nobody here wrote."""

import json
import os
import queue
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import gevent.ssl
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.certificates import Authority, Pair
from tests.conftest import ROOT, Serve, Server, free_port

MIB = 1 << 20
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Where the server has its files, which tests may write to."""
    made = authority.issue("server")
    folder = tmp_path_factory.mktemp("mounted")
    return Pair(Path(shutil.copy(made.cert, folder)), Path(shutil.copy(made.key, folder)))


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.issue("client")


def models(testdata: Path) -> list[str]:
    folder = testdata / "golden_triton" / "models"
    loads = [option for name in ("simple", "identity_fp32") for option in ("--load-model", name)]
    return ["--repository", str(folder), "--model-control", "explicit", *loads]


def ready(server: Server) -> Server:
    server.wait(lambda: "Ekiben is ready" in server.log or server.process.poll() is not None)
    assert server.process.poll() is None, server.log
    return server


@pytest.fixture(scope="module")
def tls(serve: Serve, testdata: Path, pair: Pair) -> Server:
    """Whoever trusts the CA may call."""
    return ready(serve(*models(testdata), "--tls-cert", str(pair.cert), "--tls-key", str(pair.key), ready=False))


@pytest.fixture(scope="module")
def mutual(serve: Serve, testdata: Path, pair: Pair, authority: Authority) -> Server:
    """Only certified clients may call; set by variables, and started by BentoML's own command."""
    bentoml_serve = [str(Path(sys.executable).with_name("bentoml")), "serve", "service:Engine"]
    return ready(
        serve(
            command=bentoml_serve,
            ready=False,
            EKIBEN_REPOSITORY=str(testdata / "golden_triton" / "models"),
            EKIBEN_MODEL_CONTROL="explicit",
            EKIBEN_LOAD_MODEL="simple",
            EKIBEN_TLS_CERT=str(pair.cert),
            EKIBEN_TLS_KEY=str(pair.key),
            EKIBEN_TLS_CLIENT_CA=str(authority.ca),
        )
    )


def tensor(client: Any, name: str, value: np.ndarray[Any, Any], datatype: str) -> Any:
    given = client.InferInput(name, list(value.shape), datatype)
    given.set_data_from_numpy(value)
    return given


def doubled(client: Any, library: Any) -> bool:
    """Whether `simple` answers."""
    inputs = [tensor(library, name, ROW, "INT32") for name in ("INPUT0", "INPUT1")]
    return bool((client.infer("simple", inputs).as_numpy("OUTPUT0") == ROW * 2).all())


def http_client(server: Server, ca: Path, pair: Pair | None = None) -> Any:
    def context() -> Any:
        made = gevent.ssl.create_default_context(cafile=str(ca))
        if pair is not None:
            made.load_cert_chain(pair.cert, pair.key)
        return made

    return triton_http.InferenceServerClient(
        server.host, ssl=True, ssl_context_factory=context, connection_timeout=120, network_timeout=120
    )


def grpc_client(server: Server, ca: Path, pair: Pair | None = None) -> Any:
    files = {"private_key": str(pair.key), "certificate_chain": str(pair.cert)} if pair else {}
    return triton_grpc.InferenceServerClient(server.grpc, ssl=True, root_certificates=str(ca), **files)


def test_tritonclient_over_http(tls: Server, authority: Authority) -> None:
    with http_client(tls, authority.ca) as client:
        assert client.is_server_ready()
        assert doubled(client, triton_http)
        large = np.random.default_rng(1).random((1, 64 * MIB // 4), np.float32)
        answer = client.infer("identity_fp32", [tensor(triton_http, "INPUT0", large, "FP32")])
        assert (answer.as_numpy("OUTPUT0") == large).all()


def test_tritonclient_over_grpc(tls: Server, authority: Authority) -> None:
    with grpc_client(tls, authority.ca) as client:
        assert client.is_server_ready()
        assert doubled(client, triton_grpc)
        large = np.random.default_rng(1).random((1, 64 * MIB // 4), np.float32)
        inputs = [tensor(triton_grpc, "INPUT0", large, "FP32")]
        assert (client.infer("identity_fp32", inputs, client_timeout=120).as_numpy("OUTPUT0") == large).all()


def test_the_banner_is_right_and_the_call_in_it_works(tls: Server) -> None:
    assert f"Ekiben is ready: HTTP https://{tls.host}, gRPC {tls.grpc} " in tls.log
    (line,) = [line for line in tls.log.splitlines() if line.startswith("Try: ")]
    command = shlex.split(line.removeprefix("Try: "))
    done = subprocess.run([*command, "-sS", "--fail"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model_name"] in ("simple", "identity_fp32")


def test_http_has_forward_secrecy_with_tls_1_2_and_nothing_older(tls: Server, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with urllib.request.urlopen(f"https://{tls.host}/v2/health/ready", context=context, timeout=30) as reply:
        assert reply.status == 200
    context.set_ciphers("AES128-GCM-SHA256:AES256-SHA@SECLEVEL=0")
    with pytest.raises(OSError, match=r"HANDSHAKE_FAILURE|EOF"):
        urllib.request.urlopen(f"https://{tls.host}/v2/health/ready", context=context, timeout=30)


def test_bentomls_client(tls: Server, authority: Authority) -> None:
    """In a process of its own, for the client leaves a folder behind."""
    program = (
        "import bentoml, json, sys\n"
        "with bentoml.SyncHTTPClient(sys.argv[1]) as client:\n"
        "    rows = [list(range(16))]\n"
        "    answer = client.predict(model='simple', inputs={'INPUT0': rows, 'INPUT1': rows})\n"
        "    print(json.dumps(answer['OUTPUT0']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"https://{tls.host}"],
        env={**os.environ, "SSL_CERT_FILE": str(authority.ca)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == (ROW * 2).tolist()


def infer(server: Server, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ekiben.cli", "infer", "simple", "--url", f"https://{server.host}"]
    rows = json.dumps(ROW.tolist())
    inputs = ["--input", f"INPUT0={rows}", "--input", f"INPUT1={rows}"]
    return subprocess.run(
        [*command, *inputs, *options],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


def test_ekiben_infer(tls: Server, mutual: Server, authority: Authority, client_pair: Pair) -> None:
    ca, cert, key = str(authority.ca), str(client_pair.cert), str(client_pair.key)
    for done in (
        infer(tls, "--cacert", ca),
        infer(tls, SSL_CERT_FILE=ca),
        infer(tls, EKIBEN_URL_CACERT=ca),
        infer(mutual, "--cacert", ca, "--cert", cert, "--key", key),
        infer(mutual, EKIBEN_URL_CACERT=ca, EKIBEN_URL_CERT=cert, EKIBEN_URL_KEY=key),
    ):
        assert done.stdout.startswith("simple version 1\n"), done.stderr
    for done, words in (
        (infer(tls), "name the CA of its certificate with --cacert"),
        (infer(tls, "--cacert", "/none"), "TLS CA '/none' cannot be read"),
        (infer(mutual, "--cacert", ca), "cannot be reached"),
        (infer(mutual, "--cacert", ca, "--cert", cert, "--key", ca), "holds no private key"),
    ):
        assert done.returncode in (1, 2)
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_only_certified_clients_are_let_in(mutual: Server, authority: Authority, client_pair: Pair) -> None:
    with http_client(mutual, authority.ca, client_pair) as client:
        assert doubled(client, triton_http)
    with grpc_client(mutual, authority.ca, client_pair) as client:
        assert doubled(client, triton_grpc)
    with grpc_client(mutual, authority.ca) as client, pytest.raises(triton_grpc.InferenceServerException) as caught:
        client.is_server_live()
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    curl = ["curl", "-sS", "--cacert", str(authority.ca)]
    certified = ["--cert", str(client_pair.cert), "--key", str(client_pair.key)]
    url = f"https://{mutual.host}/v2"
    assert subprocess.run([*curl, url], capture_output=True, timeout=60).returncode != 0
    assert b'"ekiben"' in subprocess.run([*curl, *certified, url], capture_output=True, timeout=60).stdout
    assert "--cert CLIENT.pem --key CLIENT.key" in mutual.log


def test_clients_without_tls_leave_the_server_as_it_is(tls: Server, authority: Authority) -> None:
    assert tls.status() == 0
    with triton_grpc.InferenceServerClient(tls.grpc) as client:
        with pytest.raises(triton_grpc.InferenceServerException) as caught:
            client.is_server_live()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
    with http_client(tls, authority.ca) as client:
        assert doubled(client, triton_http)
    assert "Traceback" not in tls.log


def test_a_new_certificate_is_served_while_a_stream_goes_on(tls: Server, authority: Authority, pair: Pair) -> None:
    def shown() -> str:
        host, _, port = tls.grpc.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), ca_certs=str(authority.ca), timeout=30)

    def ask(number: int) -> None:
        inputs = [tensor(triton_grpc, name, ROW, "INT32") for name in ("INPUT0", "INPUT1")]
        client.async_stream_infer("simple", inputs, request_id=str(number))
        result, error = answers.get(timeout=60)
        assert error is None
        assert result.get_response().id == str(number)

    answers: queue.Queue[Any] = queue.Queue()
    with grpc_client(tls, authority.ca) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        ask(1)
        before = shown()
        renewed = authority.issue("renewed")
        shutil.copyfile(renewed.cert, pair.cert)
        assert shown() == before  # the key is still the old one
        shutil.copyfile(renewed.key, pair.key)
        tls.wait(lambda: shown() != before, 30)
        assert ssl.PEM_cert_to_DER_cert(shown()) == ssl.PEM_cert_to_DER_cert(renewed.cert.read_text())
        ask(2)
        client.stop_stream()
    with grpc.secure_channel(tls.grpc, grpc.ssl_channel_credentials(authority.ca.read_bytes())) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30) == b"\x08\x01"
    assert tls.log.count("keeps its old certificate") == 1


def test_grpc_may_have_tls_alone_and_bentomls_options_warn_that_it_has_none(
    serve: Serve, testdata: Path, authority: Authority
) -> None:
    made = authority.issue("alone")
    server = serve(*models(testdata), "--grpc-tls-cert", str(made.cert), "--grpc-tls-key", str(made.key))
    with grpc_client(server, authority.ca) as client:
        assert doubled(client, triton_grpc)
    assert f"HTTP http://{server.host}" in server.log
    server.end()
    bentoml_serve = [str(Path(sys.executable).with_name("bentoml")), "serve", "service:Engine"]
    options = ["--ssl-certfile", str(made.cert), "--ssl-keyfile", str(made.key)]
    server = ready(serve(*options, command=bentoml_serve, ready=False, EKIBEN_REPOSITORY=models(testdata)[1]))
    assert f"HTTP https://{server.host}" in server.log
    assert "the gRPC port has no TLS, though HTTP has" in server.log
    server.end()


def test_what_is_wrong_is_said_before_anything_starts(authority: Authority, tmp_path: Path) -> None:
    alone = authority.issue("alone-too")
    expired = authority.issue("expired", days=-1)
    environment = {**os.environ, "BENTOML_HOME": str(tmp_path / "home")}

    def serve_with(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "ekiben.cli", "serve", "--port", str(free_port()), "--grpc-port", "0"]
        done = subprocess.run(
            [*command, *options], env=environment, capture_output=True, text=True, timeout=60, cwd=ROOT
        )
        return done.returncode, done.stderr

    cert, key = str(alone.cert), str(alone.key)
    for options, words in (
        (["--tls-cert", cert], "tls_key must be given with tls_cert"),
        (["--tls-cert", "/none", "--tls-key", key], "TLS certificate '/none' cannot be read"),
        (["--tls-cert", cert, "--tls-key", str(expired.key)], "does not belong to the certificate"),
        (["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key], "TLS client CA"),
        (["--http-restricted-api", "inference:SECRET"], "http_restricted[0] must be"),
        (["--grpc-restricted-protocol", "inferences:key=SECRET"], "unknown group 'inferences'; the groups are health"),
    ):
        status, said = serve_with(*options)
        assert (status, words in said, said.count("\n")) == (2, True, 1), said
        assert "SECRET" not in said.replace("admin-key=SECRET", "")


def test_an_expired_certificate_is_served_with_a_warning(serve: Serve, testdata: Path, authority: Authority) -> None:
    expired = authority.issue("expired-too", days=-1)
    options = ["--tls-cert", str(expired.cert), "--tls-key", str(expired.key)]
    server = ready(serve(*models(testdata), *options, ready=False))
    assert f"ekiben: clients will refuse the certificate '{expired.cert}': certificate has expired" in server.log
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
