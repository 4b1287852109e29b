import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from benchmarks.grpc_load import streamed_per_second, unary_per_second
from benchmarks.load import LoadFailed
from ekiben.doors.grpc_server import GrpcServer, StreamCall, Streaming, Unary, UnaryCall
from ekiben.wire.h2 import GrpcError, Limits

DRIVERS: Final = {"unary": unary_per_second, "streamed": streamed_per_second}


class Receiver:
    """Answers each message with `reply`."""

    def __init__(self, call: StreamCall, reply: Callable[[bytes], bytes]) -> None:
        self.call = call
        self.reply = reply

    def messages(self, messages: list[bytes | memoryview]) -> int:
        self.call.send_all([self.reply(bytes(message)) for message in messages])
        return len(messages)

    def ended(self) -> None:
        self.call.finish()

    def cancelled(self) -> None:
        """Nothing runs."""


class Growing:
    """Replies that are a byte longer each time."""

    def __init__(self) -> None:
        self.size = 0

    def reply(self, _message: bytes) -> bytes:
        self.size += 1
        return bytes(self.size)


class Failing:
    """The same reply a hundred times, then an error."""

    def __init__(self) -> None:
        self.left = 100

    def reply(self, message: bytes) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise GrpcError(8, "enough")
        return message


def both(name: str, reply: Callable[[bytes], bytes]) -> dict[bytes, Unary | Streaming]:
    def answer(call: UnaryCall) -> bytes:
        return reply(bytes(call.message))

    return {
        f"/{name}/unary".encode(): Unary(answer),
        f"/{name}/streamed".encode(): Streaming(lambda call: Receiver(call, reply)),
    }


@pytest.fixture
def address() -> Iterator[str]:
    """A server in a thread, whose windows are small."""
    handlers = (
        both("echo", lambda message: message) | both("growing", Growing().reply) | both("failing", Failing().reply)
    )
    ready = threading.Event()
    found: list[object] = []

    async def serve() -> None:
        limits = Limits(stream_window_bytes=65_535, connection_window_bytes=65_535)
        server = GrpcServer(handlers, limits)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(server.protocol, "127.0.0.1", 0)
        stop = asyncio.Event()
        found.extend((listener.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(stop.set)))
        ready.set()
        await stop.wait()
        listener.close()
        await server.close(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    port, stop = found
    yield f"127.0.0.1:{port}"
    assert callable(stop)
    stop()
    thread.join()


@pytest.mark.parametrize("name", list(DRIVERS))
@pytest.mark.parametrize(("size", "in_flight"), [(0, 1), (200, 1), (200, 300), (3_000, 64), (60_000, 2)])
def test_each_message_is_answered_and_the_first_is_shown(address: str, name: str, size: int, in_flight: int) -> None:
    message = bytes(range(200)) * (size // 200)
    shown: list[bytes] = []
    assert DRIVERS[name](address, f"/echo/{name}", message, in_flight, 0.2, shown.append) > 0
    assert shown == [message]


@pytest.mark.parametrize("name", list(DRIVERS))
@pytest.mark.parametrize("kind", ["growing", "failing", "unknown"])
def test_answers_that_are_not_alike_are_no_measurement(address: str, kind: str, name: str) -> None:
    with pytest.raises(LoadFailed):
        DRIVERS[name](address, f"/{kind}/{name}", b"x" * 50, 4, 20, lambda reply: None)


def test_nobody_there_is_a_failure() -> None:
    with pytest.raises(LoadFailed, match="refused"):
        unary_per_second("127.0.0.1:1", "/echo/unary", b"", 1, 1, lambda reply: None)
