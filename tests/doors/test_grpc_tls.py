"""TLS on the gRPC port: on asyncio and on uvloop, with files that change and clients that are not as they should be."""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from ekiben.doors.grpc_calls import Call, Methods
from ekiben.doors.grpc_port import GrpcPort
from ekiben.doors.grpc_tls import Certificates
from ekiben.errors import InvalidSettings
from ekiben.testing import ManualClock
from ekiben.tls import TlsFiles
from tests.certificates import Authority, Pair

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
MIB = 1 << 20
Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    made: Loop = request.param
    return made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(scope="module")
def renewed(authority: Authority) -> Pair:
    return authority.issue("renewed")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Pair:
    return authority.issue("client")


def run(loop: Loop, test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test)


def echo(message: memoryview, _call: Call) -> bytes:
    return bytes(message)


async def echoes(messages: AsyncIterator[memoryview], _call: Call) -> AsyncIterator[bytes]:
    async for message in messages:
        yield bytes(message)


METHODS = Methods({"/t/echo": echo}, {"/t/echoes": echoes})


@contextlib.asynccontextmanager
async def serving(
    pair: Pair, client_ca: Path | str = "", handshake_s: float = 20.0, plain: bool = False
) -> AsyncIterator[int]:
    """The port of a server with these files."""
    port = GrpcPort([METHODS], 128 * MIB)
    files = None if plain else TlsFiles(str(pair.cert), str(pair.key), str(client_ca))
    try:
        yield await port.listen("127.0.0.1", 0, files, handshake_s)
    finally:
        await port.close()


def channel(port: int, ca: Path, client: Pair | None = None) -> grpc.aio.Channel:
    key, cert = (client.key.read_bytes(), client.cert.read_bytes()) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, cert)
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=ANY_SIZE)


async def says(port: int, ca: Path, client: Pair | None = None) -> str:
    """'hello' if a call is answered, else the code of its failure."""
    async with channel(port, ca, client) as connected:
        try:
            return str((await connected.unary_unary("/t/echo")(b"hello", timeout=30)).decode())
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)


def context(ca: Path, client: Pair | None = None, *alpn: str) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(ca))
    if client is not None:
        made.load_cert_chain(client.cert, client.key)
    if alpn:
        made.set_alpn_protocols(list(alpn))
    return made


async def connect(port: int, with_context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=with_context)


async def serial(port: int, ca: Path) -> str:
    """The number of the certificate that a new client is shown."""
    _, writer = await connect(port, context(ca, None, "h2"))
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()


def overwrite(target: Pair, source: Pair) -> None:
    """As a tool does that writes the files in place."""
    shutil.copyfile(source.cert, target.cert)
    shutil.copyfile(source.key, target.key)


def mounted(folder: Path, name: str, pair: Pair) -> None:
    """As Kubernetes does: the files are links into a folder that one link names, which is replaced at once."""
    (folder / name).mkdir(parents=True)
    shutil.copyfile(pair.cert, folder / name / "tls.crt")
    shutil.copyfile(pair.key, folder / name / "tls.key")
    (folder / "..data_tmp").symlink_to(name)
    (folder / "..data_tmp").rename(folder / "..data")
    for file in ("tls.crt", "tls.key"):
        if not (folder / file).is_symlink():
            (folder / file).symlink_to(f"..data/{file}")


def test_calls_and_a_large_message(loop: Loop, authority: Authority, server: Pair) -> None:
    async def test() -> None:
        async with serving(server) as port, channel(port, authority.ca) as connected:
            large = os.urandom(64 * MIB)
            assert await connected.unary_unary("/t/echo")(large, timeout=120) == large
            stream = connected.stream_stream("/t/echoes")(iter([b"a", large, b"b"]), timeout=120)
            assert [reply async for reply in stream] == [b"a", large, b"b"]

    run(loop, test())


def test_only_certified_clients_are_let_in_and_the_others_are_told_why(
    loop: Loop, authority: Authority, server: Pair, client: Pair, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("client")

    async def alert(port: int, pair: Pair | None, newest: ssl.TLSVersion) -> str:
        with_context = context(authority.ca, pair, "h2")
        with_context.maximum_version = newest
        try:
            reader, writer = await connect(port, with_context)
            # In TLS 1.3 a client is through before the server has looked at its certificate.
            greeting = await reader.read(1)
            writer.close()
            return "let in" if greeting else "closed without a word"
        except ssl.SSLError as error:
            return str(error.reason)

    async def test() -> None:
        async with serving(server, authority.ca) as port:
            assert await says(port, authority.ca, client) == "hello"
            assert await says(port, authority.ca) == "UNAVAILABLE"
            assert await says(port, authority.ca, stranger) == "UNAVAILABLE"
            for newest, missing in (
                (ssl.TLSVersion.TLSv1_3, "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
                (ssl.TLSVersion.TLSv1_2, "SSLV3_ALERT_HANDSHAKE_FAILURE"),
            ):
                assert await alert(port, client, newest) == "let in"
                assert await alert(port, None, newest) == missing
                assert await alert(port, stranger, newest) == "TLSV1_ALERT_UNKNOWN_CA"
            assert await says(port, authority.ca, client) == "hello"

    run(loop, test())


def test_a_client_that_does_not_offer_http_2_reads_what_to_do(loop: Loop, authority: Authority, server: Pair) -> None:
    async def test() -> None:
        async with serving(server) as port:
            for alpn in ([], ["http/1.1"]):
                reader, writer = await connect(port, context(authority.ca, None, *alpn))
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                reply = await reader.read()
                assert reply.startswith(b"HTTP/1.1 505 ")
                assert b"offer 'h2'" in reply
                writer.close()
            assert await says(port, authority.ca) == "hello"

    run(loop, test())


def test_curl_of_http_1_prints_what_to_do(loop: Loop, authority: Authority, server: Pair) -> None:
    async def test() -> None:
        async with serving(server) as port:
            command = ["curl", "-sS", "--http1.1", "--cacert", str(authority.ca), f"https://127.0.0.1:{port}/"]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            assert "This port speaks gRPC over HTTP/2" in done.stdout

    run(loop, test())


def test_plain_clients_on_a_tls_port_and_tls_clients_on_a_plain_one(
    loop: Loop, authority: Authority, server: Pair
) -> None:
    async def plain(port: int) -> str:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connected:
            try:
                return str((await connected.unary_unary("/t/echo")(b"hello", timeout=30)).decode())
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)

    async def test() -> None:
        async with serving(server) as port:
            for _ in range(5):
                assert await plain(port) == "UNAVAILABLE"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(100_000))
            with contextlib.suppress(ConnectionResetError):
                assert len(await reader.read()) < 100  # an alert at most
            writer.close()
            assert await says(port, authority.ca) == "hello"
        async with serving(server, plain=True) as port:
            assert await says(port, authority.ca) == "UNAVAILABLE"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connect(port, context(authority.ca, None, "h2"))
            assert await plain(port) == "hello"

    run(loop, test())


def test_handshakes_that_are_not_finished_hold_nobody_up_and_end(
    loop: Loop, authority: Authority, server: Pair
) -> None:
    async def test() -> None:
        async with serving(server, handshake_s=3.0) as port:
            half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
            for number, (_, writer) in enumerate(half):
                writer.write(b"\x16\x03\x01\x02\x00\x01"[: number % 7])  # the start of a ClientHello, or nothing
            assert await says(port, authority.ca) == "hello"
            for reader, writer in half:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            assert await says(port, authority.ca) == "hello"

    run(loop, test())


def test_a_client_that_leaves_in_the_middle_of_a_handshake_harms_nobody(
    loop: Loop, authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(server, authority.ca) as port:
            for size in range(0, 500, 20):
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                hello = context(authority.ca, None, "h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
                with contextlib.suppress(ssl.SSLWantReadError):
                    hello.do_handshake()
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(outgoing.read()[:size])
                await writer.drain()
                writer.transport.abort()
            assert await says(port, authority.ca, authority.issue("another")) == "hello"
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    run(loop, test())


@pytest.mark.parametrize("how", ["in place", "as Kubernetes does"])
def test_a_new_certificate_is_shown_to_new_clients_and_open_streams_go_on(
    how: str, loop: Loop, authority: Authority, server: Pair, renewed: Pair, tmp_path: Path
) -> None:
    folder = tmp_path / "mount"
    mounted(folder, "first", server)
    pair = Pair(folder / "tls.crt", folder / "tls.key")

    async def test() -> None:
        async with serving(pair) as port, channel(port, authority.ca) as connected:
            first = await serial(port, authority.ca)
            stream = connected.stream_stream("/t/echoes")(timeout=60)
            await stream.write(b"before")
            assert await stream.read() == b"before"
            if how == "in place":
                overwrite(pair, renewed)
            else:
                mounted(folder, "second", renewed)
            second = await serial(port, authority.ca)
            assert second != first
            assert await serial(port, authority.ca) == second
            await stream.write(b"after")
            assert await stream.read() == b"after"
            assert await connected.unary_unary("/t/echo")(b"too", timeout=30) == b"too"
            await stream.done_writing()
            assert await says(port, authority.ca) == "hello"

    run(loop, test())


def test_half_written_files_leave_the_old_certificate_and_one_line_in_the_log(
    authority: Authority, server: Pair, renewed: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(tmp_path / "cert", tmp_path / "key")
    overwrite(pair, server)
    clock = ManualClock()
    certificates = Certificates(TlsFiles(str(pair.cert), str(pair.key), str(authority.ca)), clock)
    first = certificates.current()
    assert certificates.current() is first

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]

    pair.cert.write_bytes(renewed.cert.read_bytes())
    for _ in range(5):
        assert certificates.current() is first
        clock.advance(1.0)
    assert len(errors()) == 1
    assert "keeps its old certificate" in errors()[0]
    assert f"TLS key '{pair.key}' does not belong to the certificate '{pair.cert}'" in errors()[0]
    pair.key.unlink()
    assert certificates.current() is first
    assert len(errors()) == 2
    assert f"'{pair.key}' cannot be read" in errors()[1]
    pair.key.write_bytes(renewed.key.read_bytes())
    second = certificates.current()
    assert second is not first
    assert certificates.current() is second
    pair.key.write_bytes(server.key.read_bytes())
    assert certificates.current() is second
    assert len(errors()) == 3  # what was said before is said again, since all was well in between


def test_files_that_could_not_be_used_are_tried_again_though_nothing_seems_to_change(
    server: Pair, renewed: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written within one step of the file system's clock cannot be told from what was read."""
    pair = Pair(tmp_path / "cert", tmp_path / "key")
    overwrite(pair, server)
    clock = ManualClock()
    certificates = Certificates(TlsFiles(str(pair.cert), str(pair.key)), clock)
    first = certificates.current()
    shutil.copyfile(renewed.cert, pair.cert)
    assert certificates.current() is first
    marks = certificates._marks
    shutil.copyfile(renewed.key, pair.key)
    monkeypatch.setattr("ekiben.doors.grpc_tls._marks", lambda _files: marks)
    assert certificates.current() is first
    clock.advance(0.9)
    assert certificates.current() is first
    clock.advance(0.1)
    assert certificates.current() is not first


def test_a_client_whose_ca_is_withdrawn_cannot_resume(
    loop: Loop, authority: Authority, server: Pair, client: Pair, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    trusted = tmp_path / "trusted.pem"
    shutil.copyfile(authority.ca, trusted)

    async def resume(port: int, with_context: ssl.SSLContext, session: Any) -> tuple[bool, Any]:
        """Whether the session was taken, by a client in a thread, since asyncio's cannot resume."""

        def talk() -> tuple[bool, Any]:
            with (
                socket.create_connection(("127.0.0.1", port), 30) as plain,
                with_context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure,
            ):
                assert secure.recv(1)
                return bool(secure.session_reused), secure.session

        return await asyncio.to_thread(talk)

    async def test() -> None:
        async with serving(server, trusted) as port:
            for newest in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
                shutil.copyfile(authority.ca, trusted)
                with_context = context(authority.ca, client, "h2")
                with_context.maximum_version = newest
                _, session = await resume(port, with_context, None)
                reused, session = await resume(port, with_context, session)
                assert reused  # as long as nothing has changed
                shutil.copyfile(other.ca, trusted)
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await resume(port, with_context, session)

    run(loop, test())


def test_files_that_cannot_be_used_at_the_start_are_refused(server: Pair) -> None:
    async def test() -> None:
        port = GrpcPort([METHODS], MIB)
        with pytest.raises(InvalidSettings, match="'/none' cannot be read"):
            await port.listen("127.0.0.1", 0, TlsFiles(str(server.cert), "/none"))
        await port.close()

    asyncio.run(test())
