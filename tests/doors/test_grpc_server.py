"""The gRPC server on real sockets, under grpcio's own clients, h2load and raw bytes."""

import asyncio
import contextlib
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ekiben.doors.grpc_server import GrpcServer, Handler, StreamCall, Streaming, Unary, UnaryCall, streaming
from ekiben.testing import ManualClock
from ekiben.wire.h2 import ErrorCode, GrpcError, Limits, Memory
from ekiben.wire.h2.codes import DATA, END_HEADERS, END_STREAM, GOAWAY
from ekiben.wire.h2.replies import frame, reset
from tests.wire.h2.peer import HELLO, Peer, frames, message, open_window, request_fields, settings

E = ErrorCode
ANY_SIZE = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
PACKINGS = [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate]


class Port:
    """A server that listens, and grpcio channels to it."""

    def __init__(self, server: GrpcServer, number: int) -> None:
        self.server = server
        self.number = number
        self.address = f"127.0.0.1:{number}"

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel(self.address, options=ANY_SIZE) as channel:
            yield channel


@contextlib.asynccontextmanager
async def listening(
    handlers: Mapping[str, Handler], limits: Limits | None = None, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Port]:
    server = GrpcServer({path.encode(): handler for path, handler in handlers.items()}, limits, **options)
    listener = await asyncio.get_running_loop().create_server(server.protocol, "127.0.0.1", 0, ssl=tls)
    try:
        yield Port(server, listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        await server.close(0.0)
        await until(lambda: not server.protocols)
        assert server.memory.used_bytes == 0


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is inside the server
            await asyncio.sleep(0.001)


async def status_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def echo(call: UnaryCall) -> bytes:
    return bytes(call.message)


def later(call: UnaryCall) -> "asyncio.Future[bytes]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()

    def answer() -> None:
        if not future.cancelled():
            future.set_result(bytes(call.message))

    loop.call_soon(answer)
    return future


async def coroutine(call: UnaryCall) -> bytes:
    await asyncio.sleep(0)
    return bytes(call.message)


async def echoes(call: StreamCall, messages: AsyncIterator[memoryview]) -> None:
    async for each in messages:
        call.send(bytes(each))
        await call.drained()


class EchoReceiver:
    """The fast way to answer a stream."""

    def __init__(self, call: StreamCall) -> None:
        self.call = call

    def messages(self, messages: list[bytes | memoryview]) -> int:
        for each in messages:
            self.call.send([b"<", each, b">"])
        return len(messages)

    def ended(self) -> None:
        self.call.finish()

    def cancelled(self) -> None:
        pass


class GroupReceiver(EchoReceiver):
    """Answers all that has come at the end of the loop turn, in one go."""

    def __init__(self, call: StreamCall) -> None:
        super().__init__(call)
        self.waiting: list[bytes] = []
        self.over = False

    def messages(self, messages: list[bytes | memoryview]) -> int:
        self.waiting += map(bytes, messages)
        asyncio.get_running_loop().call_soon(self.answer)
        return 0

    def ended(self) -> None:
        self.over = True
        asyncio.get_running_loop().call_soon(self.answer)

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.call.send_all(waiting)
        self.call.consumed(len(waiting))
        if self.over:
            self.call.finish()


HANDLERS: dict[str, Handler] = {
    "/t/echo": Unary(echo),
    "/t/later": Unary(later),
    "/t/coroutine": Unary(coroutine),
    "/t/finish": Unary(later, lambda call, reply: [b"<", reply, b">"]),
    "/t/echoes": streaming(echoes),
    "/t/receiver": Streaming(EchoReceiver),
    "/t/groups": Streaming(GroupReceiver),
}


def test_unary_calls_of_every_kind_of_handler() -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port, port.channel() as channel:
            for name in ("echo", "later", "coroutine"):
                method = channel.unary_unary(f"/t/{name}")
                bodies = [b"", b"x", *(b"%d" % number * 50 for number in range(200))]
                assert await asyncio.gather(*(method(body) for body in bodies)) == bodies
            assert await channel.unary_unary("/t/finish")(b"x") == b"<x>"

    run(main)


@pytest.mark.parametrize("packing", PACKINGS)
def test_large_messages_packed_or_not(packing: grpc.Compression) -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port, port.channel() as channel:
            body = bytes(range(256)) * (64 << 10)  # 16 MB
            for size in (0, 1, 100, 5_000, 100_000, len(body)):
                for name in ("echo", "later"):
                    assert await channel.unary_unary(f"/t/{name}")(body[:size], compression=packing) == body[:size]

    run(main)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["echoes", "receiver", "groups"])
def test_streams_packed_or_not(name: str, packing: grpc.Compression) -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port, port.channel() as channel:
            bodies = [b"", b"a", b"b" * 5_000, b"", b"c" * 3_000_000, *[b"d" * 100_000] * 30, b"e"]
            call = channel.stream_stream(f"/t/{name}")(iter(bodies), compression=packing)
            got = [each async for each in call]
            assert got == ([b"<" + body + b">" for body in bodies] if name == "receiver" else bodies)
            assert await call.code() == grpc.StatusCode.OK

    run(main)


def test_many_small_messages_on_one_stream() -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port, port.channel() as channel:
            bodies = [b"%d" % number for number in range(3_000)]
            assert [each async for each in channel.stream_stream("/t/groups")(iter(bodies))] == bodies
            assert [each async for each in channel.stream_stream("/t/receiver")(iter(bodies))] == [
                b"<" + body + b">" for body in bodies
            ]

    run(main)


def test_a_receiver_is_told_when_its_client_is_behind() -> None:
    async def main() -> None:
        told: list[bool] = []
        calls: list[StreamCall] = []

        class Asked(EchoReceiver):
            def messages(self, messages: list[bytes | memoryview]) -> int:
                calls.append(self.call)
                told.append(self.call.send_all([b"x"]))
                told.append(self.call.send_all([bytes(1 << 20)] * 3))
                return len(messages)

        async with listening({"/t/asked": Streaming(Asked)}) as port:
            reader, writer = await connected(port)
            client = Peer()
            writer.write(HELLO + client.headers(1, request_fields(b"/t/asked")) + frame(DATA, 0, 1, message(b"")))
            await until(lambda: len(told) == 2)
            assert told == [True, False]
            waiting = asyncio.create_task(calls[0].drained())
            got = 0
            await asyncio.sleep(0)
            assert not waiting.done()
            while got < 3 << 20:
                got += len(await reader.read(1 << 16))
                writer.write(open_window(0, 1 << 16) + open_window(1, 1 << 16))
            await waiting
            assert calls[0].send_all([b"x"])
            writer.close()

    run(main)


def test_a_stream_is_a_conversation() -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port, port.channel() as channel:
            call = channel.stream_stream("/t/receiver")()
            for number in range(50):
                await call.write(b"%d" % number)
                assert await call.read() == b"<%d>" % number
            await call.done_writing()
            assert await call.read() == grpc.aio.EOF

    run(main)


def test_the_blocking_client() -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port:

            def client() -> list[bytes]:
                with grpc.insecure_channel(port.address) as channel:
                    replies: list[bytes] = [channel.unary_unary("/t/later")(b"%d" % number) for number in range(20)]
                    return replies + list(channel.stream_stream("/t/echoes")(iter([b"a", b"b"])))

            assert await asyncio.to_thread(client) == [*(b"%d" % number for number in range(20)), b"a", b"b"]

    run(main)


def test_errors() -> None:
    def refuse(call: UnaryCall) -> bytes:
        raise GrpcError(int(bytes(call.message)), "näh: 100 %\n")

    async def refuse_later(call: UnaryCall) -> bytes:
        raise GrpcError(int(bytes(call.message)), "näh: 100 %\n")

    def fail(call: UnaryCall) -> bytes:
        raise KeyError("secret")

    async def fail_stream(call: StreamCall, messages: AsyncIterator[memoryview]) -> None:
        await anext(messages)  # grpcio's asyncio client takes an end before its first message for a fault of its own
        call.send(b"one")
        raise KeyError("known")

    def translate(error: Exception) -> GrpcError | None:
        return GrpcError(5, "no such key") if error.args == ("known",) else None

    handlers: dict[str, Handler] = {
        "/t/refuse": Unary(refuse),
        "/t/refuse_later": Unary(refuse_later),
        "/t/fail": Unary(fail),
        "/t/stream": streaming(fail_stream),
        "/t/unfinished": Unary(echo, lambda call, reply: reply),
        "/t/open": Streaming(lambda call: EchoReceiver(1 / 0)),  # type: ignore[arg-type]  # it never gets so far
    }

    async def main() -> None:
        async with listening(handlers, translate=translate) as port, port.channel() as channel:
            codes = {code.value[0]: code for code in grpc.StatusCode}
            for number in range(1, 17):
                for name in ("refuse", "refuse_later"):
                    got = await status_of(channel.unary_unary(f"/t/{name}")(b"%d" % number))
                    assert got == (codes[number], "näh: 100 %\n")
            assert await status_of(channel.unary_unary("/t/fail")(b"")) == (codes[13], "internal error")
            assert (await status_of(channel.unary_unary("/t/nothing")(b"")))[0] == codes[12]
            assert (await status_of(channel.stream_stream("/t/open")(iter([b""])).read()))[0] == codes[13]
            call = channel.stream_stream("/t/stream")(iter([b""]))
            assert await call.read() == b"one"
            assert await status_of(call.read()) == (codes[5], "no such key")

    logging.disable(logging.CRITICAL)
    try:
        run(main)
    finally:
        logging.disable(logging.NOTSET)


def test_metadata_and_deadline_reach_the_handler() -> None:
    seen: list[UnaryCall] = []

    def look(call: UnaryCall) -> bytes:
        seen.append(call)
        return b""

    async def main() -> None:
        async with listening({"/t/look": Unary(look)}) as port, port.channel() as channel:
            method = channel.unary_unary("/t/look")
            await method(b"", metadata=(("key", "value"), ("raw-bin", b"\0\xff")), timeout=100)
            await method(b"")
            first, second = seen
            assert (b"key", b"value") in first.head.metadata
            assert (b"raw-bin", b"\0\xff") in first.head.metadata
            assert first.deadline is not None
            assert 0 < first.deadline - port.server.now() <= 101
            assert second.deadline is None

    run(main)


@pytest.mark.parametrize("how", ["cancel", "deadline", "disconnect"])
def test_a_call_that_is_given_up_cancels_its_work(how: str) -> None:
    async def main() -> None:
        futures: list[asyncio.Future[bytes]] = []
        ended: list[str] = []

        def forever(call: UnaryCall) -> "asyncio.Future[bytes]":
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        async def stream_forever(call: StreamCall, messages: AsyncIterator[memoryview]) -> None:
            try:
                async for _ in messages:
                    pass
            finally:
                ended.append("stream")

        handlers: dict[str, Handler] = {"/t/forever": Unary(forever), "/t/stream": streaming(stream_forever)}
        async with listening(handlers) as port, port.channel() as channel:
            timeout = 0.2 if how == "deadline" else None
            unary = channel.unary_unary("/t/forever")(b"", timeout=timeout)
            stream = channel.stream_stream("/t/stream")(timeout=timeout)
            await stream.write(b"x")
            await until(lambda: futures and next(iter(port.server.protocols)).machine.calls == 2)
            if how == "cancel":
                unary.cancel()
                stream.cancel()
            elif how == "disconnect":
                await channel.close()
            await until(lambda: futures[0].cancelled() and ended)
            await until(lambda: not any(each.machine.calls for each in port.server.protocols))

    run(main)


def test_the_server_ends_calls_at_their_deadline_by_itself() -> None:
    async def main() -> None:
        clock = ManualClock()
        futures: list[asyncio.Future[bytes]] = []

        def forever(call: UnaryCall) -> "asyncio.Future[bytes]":
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        async with listening({"/t/forever": Unary(forever)}, clock=clock) as port, port.channel() as channel:
            call = channel.unary_unary("/t/forever")(b"", timeout=1000)
            await until(lambda: futures)
            clock.advance(1100)  # the client rounds its timeout up
            (protocol,) = port.server.protocols
            protocol.tick()
            assert (await status_of(call))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
            assert futures[0].cancelled()

    run(main)


def test_limits_reach_grpcio_clients() -> None:
    async def main() -> None:
        limits = Limits(message_bytes=1000, receive_bytes=1 << 20)
        async with listening(HANDLERS, limits, memory=Memory(1 << 20)) as port, port.channel() as channel:
            method = channel.unary_unary("/t/echo")
            exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(await method(bytes(1000))) == 1000
            assert (await status_of(method(bytes(1001))))[0] == exhausted
            for packing in PACKINGS[1:]:
                assert len(await method(bytes(1000), compression=packing)) == 1000
                assert (await status_of(method(bytes(100_000), compression=packing)))[0] == exhausted
                call = channel.stream_stream("/t/echoes")(iter([bytes(100_000)]), compression=packing)
                assert (await status_of(call.read()))[0] == exhausted

    run(main)


def test_close_lets_calls_end() -> None:
    async def main() -> None:
        futures: list[asyncio.Future[bytes]] = []

        def wait(call: UnaryCall) -> "asyncio.Future[bytes]":
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        async with listening({"/t/wait": Unary(wait)}) as port, port.channel() as channel:
            call = channel.unary_unary("/t/wait")(b"")
            await until(lambda: futures)
            closing = asyncio.create_task(port.server.close(20.0))
            (protocol,) = port.server.protocols
            await until(lambda: protocol.machine._control.left)
            futures[0].set_result(b"done")
            assert await call == b"done"
            await closing
            assert not port.server.protocols

    run(main)


def test_clients_of_old_connections_come_again() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with listening(HANDLERS, Limits(max_age_s=100), clock=clock) as port, port.channel() as channel:
            method = channel.unary_unary("/t/echo")
            assert await method(b"1") == b"1"
            (old,) = port.server.protocols
            clock.advance(111)
            old.tick()
            await until(lambda: old not in port.server.protocols)
            assert await method(b"2") == b"2"
            (new,) = port.server.protocols
            assert new is not old

    run(main)


def test_refused_connections_are_told_of_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with listening(HANDLERS, max_connections=0, clock=clock) as port:
            for _second in range(3):
                for _ in range(5):
                    reader, writer = await connected(port)
                    with contextlib.suppress(ConnectionResetError):
                        assert await reader.read() == b""
                    writer.close()
                clock.advance(1)

    run(main)
    refused = [record.getMessage().split(",")[0] for record in caplog.records]
    assert refused == ["gRPC: 1 refused", "gRPC: 5 refused", "gRPC: 5 refused"]


def certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls_is_the_listeners_affair(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["h2"])

    async def main() -> None:
        async with listening(HANDLERS, tls=context) as port:
            credentials = grpc.ssl_channel_credentials(cert.read_bytes())
            async with grpc.aio.secure_channel(f"localhost:{port.number}", credentials, options=ANY_SIZE) as channel:
                body = bytes(8 << 20)
                assert await channel.unary_unary("/t/later")(body) == body
                call = channel.stream_stream("/t/echoes")(iter([b"a", b"b"]))
                assert [each async for each in call] == [b"a", b"b"]

    run(main)


class Transport(asyncio.Transport):
    """Counts writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass


def test_replies_of_one_turn_are_one_write() -> None:
    async def main() -> None:
        for name in ("echo", "later"):
            server = GrpcServer({b"/t/" + name.encode(): HANDLERS[f"/t/{name}"]})
            protocol, transport = server.protocol(), Transport()
            protocol.connection_made(transport)
            client = Peer()
            calls = [
                client.headers(number, request_fields(b"/t/" + name.encode()))
                + frame(DATA, END_STREAM, number, message(b"x"))
                for number in range(1, 65, 2)
            ]
            protocol.data_received(HELLO)
            transport.writes.clear()
            protocol.data_received(b"".join(calls))
            await until(lambda writes=transport.writes: writes)  # type: ignore[misc]  # a default is a binding
            assert len(transport.writes) == 1
            assert len([each for each in frames(transport.writes[0]) if each.kind == DATA]) == 32
            protocol.connection_lost(None)
            await server.close(0.0)

    run(main)


async def connected(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port.number)


def test_a_client_that_breaks_the_rules_may_read_why_and_others_go_on() -> None:
    async def main() -> None:
        async with listening(HANDLERS) as port, port.channel() as channel:
            assert await channel.unary_unary("/t/echo")(b"x") == b"x"
            reader, writer = await connected(port)
            client = Peer()
            path = request_fields(b"/t/later")
            pairs = [
                client.headers(number, path) + frame(DATA, END_STREAM, number, message(b"x")) + reset(number, E.CANCEL)
                for number in range(1, 8001, 2)
            ]
            writer.write(HELLO + b"".join(pairs))
            got = frames(await reader.read())
            assert got[-1].kind == GOAWAY
            assert got[-1].payload[4:8] == b"\0\0\0\x0b"
            writer.close()
            assert await channel.unary_unary("/t/echo")(b"y") == b"y"

    run(main)


def test_a_client_that_never_reads_is_refused_and_closed() -> None:
    async def main() -> None:
        clock = ManualClock()
        handlers = {"/t/big": Unary(lambda call: bytes(1 << 20))}
        async with listening(handlers, Limits(backlog_bytes=4 << 20), clock=clock) as port:
            _reader, writer = await connected(port)
            client = Peer()
            writer.write(HELLO + settings((4, (1 << 31) - 1)) + open_window(0, 1 << 30))
            await until(lambda: port.server.protocols)
            (protocol,) = port.server.protocols
            machine = protocol.machine
            for number in range(1, 400, 2):
                path = client.headers(number, request_fields(b"/t/big"), END_HEADERS)
                writer.write(path + frame(DATA, END_STREAM, number, message(b"")))
                await until(lambda last=number: machine._streams.last_id == last)  # type: ignore[misc]  # bound now
            assert machine.calls == 0
            assert (4 << 20) < machine._outbox.backlog_bytes < (6 << 20)
            for seconds in (1, 61):
                clock.advance(seconds)
                protocol.tick()
            await until(lambda: not port.server.protocols)
            writer.close()

    run(main)


def test_h2load(tmp_path: Path) -> None:
    h2load = shutil.which("h2load")
    if h2load is None:
        pytest.skip("no h2load here (Debian: nghttp2-client)")

    async def main() -> None:
        async with listening(HANDLERS) as port:
            body = tmp_path / "body"
            body.write_bytes(message(b"x" * 200))
            process = await asyncio.create_subprocess_exec(
                h2load, "-n", "2000", "-c", "4", "-m", "16", "-d", str(body), "-H", "content-type: application/grpc",
                "-H", "te: trailers", f"http://{port.address}/t/later",
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await process.communicate()
            assert b"2000 succeeded, 0 failed, 0 errored" in out

    run(main)
