"""A server that hangs, drops connections or answers garbage fails points; it never ends the run, and never holds it."""

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ekiben.conformance.verdicts import Result, Verdict
from tests.conformance.faults import INFER, reply, succeeds
from tests.conformance.little import HTTP_POINTS, checked, checked_at
from tests.conformance.little_http import Answered

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_MANY = 70 << 20


@contextlib.contextmanager
def _serving(answer: bytes, *, then_close: bool) -> Iterator[str]:
    """The address of something that reads a little, sends this, and closes or says no more."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.recv(1 << 16)
                self.request.sendall(answer)
            if not then_close:
                over.wait()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients may leave."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        over.set()
        server.shutdown()


def _fails(results: dict[str, Result]) -> None:
    assert set(results) == {point.id for point in HTTP_POINTS}
    assert results["P1"].verdict is Verdict.FAIL
    assert all("\n" not in result.detail and "\x1b" not in result.detail for result in results.values())


@pytest.mark.parametrize(
    ("answer", "then_close"),
    [
        (b"", False),
        (b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-", False),
        (_HEAD + b"Content-Length: 10\r\n\r\n{}", False),
        (_HEAD + b"Content-Length: 10\r\n\r\n{}", True),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", True),
        (_HEAD + b"Content-Length: -5\r\n\r\n{}", True),
        (b"HTTP/1.1 two hundred OK\r\n\r\n", True),
        (b"\x00\x01\x02\x1b[31m" * 100, True),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Header: x\r\n" * 1000 + b"\r\n{}", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, False),
        (_HEAD + b"\r\n" + b"[" * 100_000, True),
        (_HEAD + b'\r\n{"name": "\\ud800", "version": "\x1b[31m"}', True),
    ],
    ids=range(14),
)
def test_what_is_no_answer(answer: bytes, then_close: bool) -> None:
    with _serving(answer, then_close=then_close) as url:
        _fails(checked_at(url, seconds=0.1))


def test_a_reply_without_end_is_cut_off() -> None:
    with _serving(_HEAD + b"\r\n" + b" " * _MANY, then_close=True) as url:
        points = [point for point in HTTP_POINTS if point.id in ("P1", "P2a")]
        results = checked_at(url, points=points)
    assert "at most" in results["P1"].detail


def test_nobody_reads_what_is_sent() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        _fails(checked_at(f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.1))


_ODD: list[Any] = [
    None, True, 5, "text", [], {}, [[]], [{}], [None], {"outputs": None}, {"outputs": [None]}, {"outputs": [{}]},
    {"outputs": [{"name": 5}]}, {"outputs": [{"name": "out0", "datatype": "STRING", "shape": [], "data": []}]},
    {"outputs": [{"name": "out0", "datatype": "FP32", "shape": [1e400], "data": []}]},
    {"outputs": [{"name": "out0", "datatype": "FP32", "shape": [-1], "data": [1]}]},
    {"outputs": [{"name": "out0", "datatype": "INT8", "shape": [1], "data": [1000]}]},
    {"outputs": [{"name": "out0", "datatype": "BOOL", "shape": [1, 4], "data": "TTTT"}]},
    {"outputs": [{"name": "out0", "datatype": "BOOL", "shape": [1], "parameters": [], "data": [True]}]},
    {"outputs": [{"name": "out0", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": -1}}]},
    {"outputs": [{"name": "out0", "datatype": "BOOL", "shape": [10**30, 0], "data": []}]},
    {"name": [], "version": {}, "extensions": {}, "inputs": {}, "outputs": {}},
    {"name": "m", "inputs": [{"name": "\ud800", "datatype": "FP32", "shape": [1]}], "outputs": []},
    {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1] * 60}], "outputs": []},
    {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [10**30]}], "outputs": []},
    [{"name": "\ud800", "state": "READY"}, {"name": 5}, {"name": "a\nb", "state": "READY"}],
    {"models": ["\ud800", 5, None]}, {"model_stats": [None]}, {"error": {}}, {"max_batch_size": "8"},
]  # fmt: skip


@pytest.mark.parametrize("document", _ODD, ids=range(len(_ODD)))
@pytest.mark.parametrize("everywhere", [True, False], ids=["everywhere", "after the survey"])
def test_odd_json(document: Any, everywhere: bool) -> None:
    """In place of every success; and in place of those that come once the models are known."""
    odd = json.dumps(document).encode()
    count = [0]

    def change(honest: Answered) -> Answered:
        count[0] += 1
        return honest if not everywhere and count[0] < 100 else Answered(200, odd, honest.headers)

    results = checked(reply(change, succeeds), points=HTTP_POINTS, seconds=2)
    if everywhere:
        _fails(results)
    assert [result for result in results.values() if "cannot be understood" in result.detail] == []


@pytest.mark.parametrize("length", ["", "0", "-1", "1000000000", "many", "\u0665"])
def test_odd_header_lengths(length: str) -> None:
    fault = reply(
        lambda honest: Answered(200, honest.body, {**honest.headers, "inference-header-content-length": length}), INFER
    )
    results = checked(fault, points=HTTP_POINTS, seconds=2)
    assert results["J1b"].verdict is Verdict.FAIL
    assert [result for result in results.values() if "cannot be understood" in result.detail] == []
