"""A real server under load while things go wrong: runners killed, callers leaving, queues full, bad input."""

import gzip
import json
import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Serve, Server
from tests.end_to_end.test_processes import engine_of, runners_of

MODEL = """
import time
class Model:
    def load(self, context): self.seconds = context.parameters.get("sleep_ms", 0) / 1000
    def infer(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("a negative value")
        time.sleep(self.seconds)
        return {"y": inputs["x"] * 2}
    def close(self): pass
"""
RESTARTS = 'ekiben_runner_restarts_total{model="fast",version="1"}'
REQUESTS = 'ekiben_requests_total{model="fast",version="1"}'
SETTINGS = """
runtime: python
batching: {{max_batch_size: {size}, max_queue_rows: {rows}}}
parameters: {{sleep_ms: {sleep_ms}}}
signatures:
  serving_default:
    inputs: [{{name: x, datatype: FP32, shape: [-1, 2]}}]
    outputs: [{{name: y, datatype: FP32, shape: [-1, 2]}}]
"""


@pytest.fixture(scope="module")
def server(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """`fast` answers at once, `slow` takes 20 ms a batch, `narrow` the same with room for few."""
    models = tmp_path_factory.mktemp("models")
    for name, size, rows, sleep_ms in (("fast", 64, 4096, 0), ("slow", 8, 4096, 20), ("narrow", 1, 4, 50)):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(MODEL)
        (models / name / "model.yaml").write_text(SETTINGS.format(size=size, rows=rows, sleep_ms=sleep_ms))
    return serve("--repository", str(models))


def body(*rows: float) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": [[row, row] for row in rows]}
    return json.dumps({"inputs": [tensor]}).encode()


def ask(connection: HTTPConnection, model: str, *rows: float) -> tuple[int, str]:
    connection.request("POST", f"/v2/models/{model}/infer", body(*rows))
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def counts(server: Server, model: str) -> dict[str, float]:
    connection = HTTPConnection(server.host, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("ekiben_") and f'model="{model}"' in line
    }


def test_a_runner_killed_under_load_costs_no_answer(server: Server) -> None:
    stop = threading.Event()
    answers: Counter[int] = Counter()
    wrong: list[str] = []

    def client(seed: int) -> Counter[int]:
        chance, seen = random.Random(seed), Counter[int]()
        connection = HTTPConnection(server.host, timeout=60)
        while not stop.is_set():
            value = float(chance.randrange(1000))
            status, text = ask(connection, "fast", value)
            seen[status] += 1
            if status == 200:
                if json.loads(text)["outputs"][0]["data"] != [value * 2] * 2:
                    wrong.append(text)
            elif status != 503 or "runner died" not in text:
                wrong.append(text)
        connection.close()
        return seen

    with ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(client, seed) for seed in range(16)]
        for _ in range(5):
            before = counts(server, "fast")
            (victim,) = [pid for pid in runners_of(server) if is_running(pid, "fast")]
            os.kill(victim, signal.SIGKILL)
            wait_for_more(server, RESTARTS, before, 1)
            wait_for_more(server, REQUESTS, counts(server, "fast"), 100)
        stop.set()
        for each in clients:
            answers += each.result(timeout=60)
    assert wrong == []
    assert answers[200] > 500
    assert answers[503] <= 5, "a request was in flight at two kills in a row"
    assert set(answers) <= {200, 503}


def wait_for_more(server: Server, name: str, before: dict[str, float], more: int) -> None:
    """Return once a counter of `fast` has grown by that much."""
    server.wait(lambda: counts(server, "fast")[name] >= before[name] + more, 60)


def is_running(pid: int, model: str) -> bool:
    """Whether a runner's process was started for this model."""
    return f" {model}:" in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_of_a_full_batch_only_the_poisoned_request_fails(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        connections = [HTTPConnection(server.host, timeout=60) for _ in range(8)]
        values = [1, 2, 3, -4, 5, 6, 7, 8]
        answers = list(pool.map(lambda pair: ask(pair[0], "slow", pair[1]), zip(connections, values, strict=True)))
        for connection in connections:
            connection.close()
    assert [status for status, _ in answers] == [200, 200, 200, 500, 200, 200, 200, 200]
    assert "a negative value" in answers[3][1]


def test_callers_that_leave_free_their_place(server: Server) -> None:
    connections = [socket.create_connection(("127.0.0.1", int(server.host.rpartition(":")[2]))) for _ in range(40)]
    for connection in connections:
        sent = body(1)
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(sent)}\r\n\r\n"
        connection.sendall(head.encode() + sent)
    for connection in connections[1:]:
        connection.close()
    assert connections[0].recv(15) == b"HTTP/1.1 200 OK"
    connections[0].close()
    server.wait(lambda: counts(server, "slow")['ekiben_queue_rows{model="slow",version="1"}'] == 0, 30)
    after = HTTPConnection(server.host, timeout=60)
    assert ask(after, "slow", 2)[0] == 200
    after.close()


def test_a_full_queue_refuses_with_a_reason_and_recovers(server: Server) -> None:
    with ThreadPoolExecutor(24) as pool:
        connections = [HTTPConnection(server.host, timeout=60) for _ in range(24)]
        answers = list(pool.map(lambda connection: ask(connection, "narrow", 1), connections))
        for connection in connections:
            connection.close()
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) == {200, 503}
    assert all("Exceeds maximum queue size" in text for status, text in answers if status == 503)
    again = HTTPConnection(server.host, timeout=60)
    assert ask(again, "narrow", 1)[0] == 200
    again.close()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hostile(seed: int) -> Iterator[bytes]:
    """Whole HTTP requests that are wrong in many ways."""
    chance = random.Random(seed)
    good = body(1)
    tensors: list[object] = [
        {"name": "x", "datatype": "FP32", "shape": [1 << 62, 1 << 62], "data": [1]},
        {"name": "x", "datatype": "FP32", "shape": [-1, 2], "data": [1, 2]},
        {"name": "x" * 100_000, "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [[[[[1]]]]]},
        {"name": "x", "datatype": "FP32", "shape": [1] * 1000, "data": [1]},
        {"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["\udc80", None]},
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 1 << 62}},
        None,
        [],
    ]
    bodies = [json.dumps({"inputs": [tensor]}).encode() for tensor in tensors]
    bodies += [b"", b"{", b"[" * 200_000, b'{"a":' * 50_000, b"\0" * 1000, b"\xff" * 1000, good[:-3], good + b"x"]
    bodies += [bytes(chance.randrange(256) for _ in range(chance.randrange(1, 400))) for _ in range(40)]
    for wrong in bodies:
        yield request(b"/v2/models/fast/infer", wrong)
        yield request(b"/v2/models/fast/infer", wrong, b"Inference-Header-Content-Length: 5\r\n")
        yield request(b"/v2/models/fast/infer", wrong, b"Content-Encoding: gzip\r\n")
    for path in (
        b"/v2/models/..%2f..%2fetc/infer",
        b"/v2/models/%00/infer",
        b"/v2//models",
        b"/v2/models/" + b"a" * 5000,
    ):
        yield request(path, good)
    for value in (b"-1", b"99999999999999", b"abc", b"1e3", b""):
        yield request(b"/v2/models/fast/infer", good, b"Inference-Header-Content-Length: " + value + b"\r\n")


def request(path: bytes, content: bytes, header: bytes = b"") -> bytes:
    length = str(len(content)).encode()
    return b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: " + length + b"\r\n" + header + b"\r\n" + content


def test_bad_input_is_refused_and_changes_nothing(server: Server) -> None:
    engine = engine_of(server)
    port = int(server.host.rpartition(":")[2])

    def storm(seed: int) -> Counter[int]:
        seen = Counter[int]()
        for raw in hostile(seed):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(30)
                connection.sendall(raw)
                seen[int(connection.recv(12).split()[1])] += 1
        return seen

    storm(0)
    before = resident_bytes(engine)
    seen = storm(1) + storm(2)
    assert all(400 <= status < 500 or status == 501 for status in seen), seen
    assert resident_bytes(engine) - before < 16 << 20
    assert engine_of(server) == engine
    connection = HTTPConnection(server.host, timeout=30)
    assert ask(connection, "fast", 21)[0] == 200
    connection.close()


def test_a_body_over_the_limit_and_a_gzip_bomb_are_refused_in_bounded_memory(server: Server) -> None:
    engine = engine_of(server)
    port = int(server.host.rpartition(":")[2])
    before = resident_bytes(engine)
    bomb = gzip.compress(b" " * (1 << 30), 9)
    for raw in (
        b"POST /v2/models/fast/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n",
        request(b"/v2/models/fast/infer", bomb, b"Content-Encoding: gzip\r\n"),
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            connection.sendall(raw)
            assert connection.recv(12) == b"HTTP/1.1 400"
    assert resident_bytes(engine) - before < 300 << 20


def test_slow_and_silent_callers_do_not_stop_the_others(server: Server) -> None:
    port = int(server.host.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    for index, connection in enumerate(silent):
        connection.sendall(request(b"/v2/models/fast/infer", body(1))[: 20 + index % 60])
    quick = HTTPConnection(server.host, timeout=30)
    for _ in range(20):
        assert ask(quick, "fast", 1)[0] == 200
    quick.close()
    for connection in silent:
        connection.close()


def test_nan_and_infinity_travel(server: Server) -> None:
    connection = HTTPConnection(server.host, timeout=30)
    tensor = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[NaN,Infinity]}]}'
    connection.request("POST", "/v2/models/fast/infer", tensor)
    data = json.loads(connection.getresponse().read())["outputs"][0]["data"]
    connection.close()
    assert np.isnan(data[0])
    assert np.isinf(data[1])
