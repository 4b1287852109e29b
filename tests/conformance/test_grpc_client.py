"""The suite's gRPC client over a real connection, with grpcio's own server at the other end."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ekiben.clock import SYSTEM_CLOCK
from ekiben.conformance.deadline import Deadline
from ekiben.conformance.grpc_call import GrpcStatus
from ekiben.conformance.grpc_client import GrpcioClient
from ekiben.conformance.http_client import SYSTEM_TRUST, Tls
from ekiben.conformance.verdicts import NoReply
from ekiben.errors import InvalidSettings, Unavailable

_ECHO = "/test.Service/Echo"


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Echo returns the message and the metadata; Fail has a status; Hang waits for the end; Endless does not end."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def service(self, details: Any) -> Any:
        match details.method.rpartition("/")[2]:
            case "Echo":
                return grpc.unary_unary_rpc_method_handler(self._echo)
            case "Fail":
                return grpc.unary_unary_rpc_method_handler(self._fail)
            case "Hang":
                return grpc.unary_unary_rpc_method_handler(lambda *_: self.over.wait() and b"")
            case "Endless":
                return grpc.stream_stream_rpc_method_handler(self._endless)
        return None

    def _echo(self, message: bytes, context: Any) -> bytes:
        return message + b"|" + str(dict(context.invocation_metadata()).get("x-key", "")).encode()

    def _fail(self, _message: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        raise AssertionError

    def _endless(self, messages: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        (message,) = messages
        while not self.over.is_set():
            yield message


Serve = Callable[[Any], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with these credentials (None: plain text), and gives its address."""
    handler = _Handler()
    servers: list[Any] = []

    def start(credentials: Any = None) -> str:
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((handler,))
        where = "127.0.0.1:0"
        port = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    handler.over.set()
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def connect() -> Iterator[Callable[..., GrpcioClient]]:
    """Makes clients, and closes them."""
    made: list[GrpcioClient] = []

    def client(address: str, seconds: float = 60, headers: Any = (), tls: Tls = SYSTEM_TRUST) -> GrpcioClient:
        made.append(GrpcioClient(address, Deadline(SYSTEM_CLOCK, seconds), headers, tls))
        return made[-1]

    yield client
    for each in made:
        each.close()


@pytest.mark.parametrize("compression", ["", "gzip", "deflate"])
def test_a_call_has_its_metadata_and_compression(
    serve: Serve, connect: Callable[..., GrpcioClient], compression: str
) -> None:
    client = connect(serve(None), headers=[("X-Key", "42"), ("Host", "elsewhere")])
    client.check_reachable()
    assert client.call(_ECHO, b"a" * 1000, compression) == b"a" * 1000 + b"|42"


def test_a_status_is_told(serve: Serve, connect: Callable[..., GrpcioClient]) -> None:
    client = connect(f"grpc://{serve(None)}")
    for method, code in (("Fail", "NOT_FOUND"), ("Nothing", "UNIMPLEMENTED")):
        with pytest.raises(GrpcStatus) as status:
            client.call(f"/test.Service/{method}", b"")
        assert status.value.code == code
    with pytest.raises(GrpcStatus, match="no such thing"):
        client.call("/test.Service/Fail", b"")


def test_a_call_without_an_answer_ends_with_the_deadline(serve: Serve, connect: Callable[..., GrpcioClient]) -> None:
    with pytest.raises(NoReply, match="got none in"):
        connect(serve(None), seconds=0.5).call("/test.Service/Hang", b"")


def test_an_endless_stream_is_cut_off(serve: Serve, connect: Callable[..., GrpcioClient]) -> None:
    assert set(connect(serve(None)).stream("/test.Service/Endless", [b"x"])) == {b"x"}


def test_nobody_there(connect: Callable[..., GrpcioClient]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(Unavailable, match=address):
            connect(address, seconds=0.5).check_reachable()


def test_something_else_there(connect: Callable[..., GrpcioClient]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Unavailable, match="no gRPC server"):
            connect(f"127.0.0.1:{silent.getsockname()[1]}", seconds=0.5).check_reachable()


@pytest.mark.parametrize("address", ["nowhere", "http://127.0.0.1:1", "127.0.0.1:", "grpcs://host"])
def test_addresses_of_another_form(connect: Callable[..., GrpcioClient], address: str) -> None:
    with pytest.raises(InvalidSettings, match="HOST:PORT"):
        connect(address)


def test_a_header_that_grpc_cannot_send(connect: Callable[..., GrpcioClient]) -> None:
    with pytest.raises(InvalidSettings, match="'trace-bin'"):
        connect("127.0.0.1:1", headers=[("trace-bin", "x")])


def test_tls(serve: Serve, connect: Callable[..., GrpcioClient], tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    made, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
               str(key), "-out", str(made), "-days", "2", "-subj", "/CN=server", "-addext",
               "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    address = "grpcs://" + serve(grpc.ssl_server_credentials([(key.read_bytes(), made.read_bytes())]))
    assert connect(address, tls=Tls(ca=str(made))).call(_ECHO, b"a") == b"a|"
    with pytest.raises(InvalidSettings, match=r"/none\.pem"):
        connect(address, tls=Tls(ca="/none.pem"))
