import http.server
import threading
from collections.abc import Iterator

import pytest

from benchmarks.calls import Call
from benchmarks.load import LoadFailed, drive, parse, wrk_version

GOOD = (
    '{"requests":1000,"duration_us":2000000,"p50_us":500.0,"p99_us":900.0,"max_us":1200.0,'
    '"failed_status":0,"failed_socket":0,"timed_out":0}'
)


def test_the_outcome_is_the_last_line() -> None:
    outcome = parse(f"Running 2s test @ http://127.0.0.1:1/\n  1 threads and 4 connections\n{GOOD}\n")

    assert outcome.per_second == 500
    assert (outcome.p50_us, outcome.p99_us, outcome.max_us) == (500, 900, 1200)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("unable to connect", "wrk printed no outcome:\nunable to connect"),
        ("", "wrk printed no outcome"),
        (GOOD.replace('"failed_status":0', '"failed_status":3'), "of 1000 requests 3 were answered with an error"),
        (GOOD.replace('"failed_socket":0', '"failed_socket":2'), "2 broke"),
        (GOOD.replace('"timed_out":0', '"timed_out":4'), "4 timed out"),
        (GOOD.replace('"requests":1000', '"requests":0'), "no request was answered"),
    ],
)
def test_a_run_that_measured_nothing_says_why(output: str, reason: str) -> None:
    with pytest.raises(LoadFailed, match=reason):
        parse(output)


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers 200 only to the body and header that the test sends."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        good = body == b"\x00binary\r\n\xff" and self.headers["X-Kind"] == "binary" and self.path == "/here"
        self.send_response(200 if good else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def wrk() -> None:
    try:
        wrk_version()
    except LoadFailed as error:
        pytest.skip(str(error))


def call(body: bytes) -> Call:
    return Call(path="/here", body=body, headers={"X-Kind": "binary"}, read=lambda headers, body: pytest.fail("unused"))


@pytest.mark.usefixtures("wrk")
def test_wrk_sends_body_and_headers_byte_for_byte(url: str) -> None:
    outcome = drive(url, call(b"\x00binary\r\n\xff"), connections=2, seconds=1)

    assert outcome.requests > 0
    assert 0 < outcome.p50_us <= outcome.p99_us <= outcome.max_us


@pytest.mark.usefixtures("wrk")
def test_answers_that_are_errors_are_no_measurement(url: str) -> None:
    with pytest.raises(LoadFailed, match="were answered with an error"):
        drive(url, call(b"other"), connections=2, seconds=1)
