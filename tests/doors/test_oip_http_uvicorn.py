"""The HTTP door behind uvicorn, over real sockets."""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from ekiben.types import (
    Request,
    Response,
)
from tests.doors.house import House, ints, run, until


@contextlib.asynccontextmanager
async def _uvicorn(app: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", http="httptools", loop="asyncio"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


def _ask(port: int, body: Any, path: str = "/v2/models/a%2Fb/infer", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def test_over_a_socket() -> None:
    async def test(house: House) -> None:
        text = json.dumps(ints(1)).encode()
        async with _uvicorn(house.door) as port:
            assert (await asyncio.to_thread(_ask, port, text))[0] == 200
            chunked = [text[:10], text[10:]]
            assert (await asyncio.to_thread(_ask, port, iter(chunked)))[0] == 200
            too_much = b" " * 300_000
            status, reply = await asyncio.to_thread(_ask, port, too_much)
            assert (status, "over 100000 bytes" in reply["error"]) == (400, True)
            status, reply = await asyncio.to_thread(_ask, port, iter([b" " * 60_000] * 5))
            assert (status, "over 100000 bytes" in reply["error"]) == (400, True)

    run(test, body_limit_bytes=100_000)


def test_the_connection_is_usable_after_a_body_over_the_limit() -> None:
    def talk(port: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        statuses = []
        for body in (b" " * 2_000_000, json.dumps(ints(1)).encode(), b" " * 2_000_000, json.dumps(ints(1)).encode()):
            connection.request("POST", "/v2/models/a%2Fb/infer", body)
            reply = connection.getresponse()
            reply.read()
            statuses.append(reply.status)
        connection.close()
        return statuses

    async def test(house: House) -> None:
        async with _uvicorn(house.door) as port:
            assert await asyncio.to_thread(talk, port) == [400, 200, 400, 200]

    run(test, body_limit_bytes=100_000)


def test_a_disconnect_frees_the_place_and_harms_nobody() -> None:
    async def test(house: House) -> None:
        held = house.runners["held"]
        requests: list[Request] = []
        infer = house.engine.infer

        def watched(request: Request) -> asyncio.Future[Response]:
            requests.append(request)
            return infer(request)

        house.engine.infer = watched  # type: ignore[method-assign]
        async with _uvicorn(house.door) as port:

            async def connect(value: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                text = json.dumps(ints(value)).encode()
                writer.write(b"POST /v2/models/held/infer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
                await writer.drain()
                return reader, writer

            scheduler = next(each for each in house.engine.versions() if each.view.model == "held").scheduler
            ahead = []
            for number in (101, 102):
                ahead.append(await connect(number))
                await until(lambda: len(held.batches) == len(ahead))
            waiting = [await connect(number) for number in (1, 2, 3, 4)]
            await until(lambda: scheduler.queue_rows == 4)
            waiting[1][1].close()
            await waiting[1][1].wait_closed()
            gone = requests[len(ahead) + 1]
            await until(lambda: gone.alive is not None and not gone.alive())

            def all_answered() -> bool:
                while held.running:
                    held.compute()
                return not scheduler.queue_rows

            await until(all_answered)
            for (reader, writer), value in zip([waiting[0], *waiting[2:]], (1, 3, 4), strict=True):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
                assert json.loads(body)["outputs"][0]["data"] == [value]
                writer.close()
            rows = [[int(part[0, 0]) for part in batch.inputs[0].parts] for batch in held.batches]
            assert 2 not in [row for batch in rows for row in batch]
            for _, writer in ahead:
                writer.close()

    run(test)
