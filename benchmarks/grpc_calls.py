"""`grpc`: small calls over HTTP/2: unary, this server against grpcio's on the same engine; and streamed over unary."""

import contextlib
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc
from tritonclient.grpc import service_pb2

from benchmarks import grpc_streams, models, servers
from benchmarks.load import LoadFailed
from benchmarks.paths import BENCH, ROOT
from benchmarks.report import Target, save, table
from benchmarks.runs import progress
from benchmarks.spread import ratios, spread

__all__ = ["requests_per_second", "run"]

BOUNDS: Final = {1: 1.7, 16: 2.2, 64: 3.0}
"""Calls in flight, one a connection → what our server must be worth over grpcio's."""
METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
WARM_S: Final = 2
_RATE: Final = re.compile(r"finished in [\d.]+s, ([\d.]+) req/s")
_FAILED: Final = re.compile(r"(\d+) failed, (\d+) errored, (\d+) timeout")


def run(repeats: int, seconds: int) -> list[Target]:
    """Both servers run the tiny MLP; h2load has one stream on each connection."""
    repository = models.mlp_repository()
    message = _message()
    body = BENCH / "grpc_body.bin"
    body.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    found: dict[str, dict[int, list[float]]] = {"ekiben": {}, "grpcio": {}}
    for count in BOUNDS:
        with servers.ekiben_grpc(repository) as (_, ours), _grpcio(repository) as theirs:
            addresses = {"ekiben": ours, "grpcio": theirs}
            for address in addresses.values():
                _check(address, message)
                requests_per_second(address, body, count, WARM_S)
            for turn in range(repeats):
                for name, address in addresses.items():
                    rate = requests_per_second(address, body, count, seconds)
                    found[name].setdefault(count, []).append(rate)
                    progress(f"{turn + 1}/{repeats} {name}, {count} in flight: {rate:,.0f}/s")
    rows = [[name, *(str(spread(rates)) for rates in counts.values())] for name, counts in found.items()]
    print(table(["calls/s", *(f"{count} in flight" for count in BOUNDS)], rows) + "\n")
    with servers.ekiben_grpc(repository) as (server, address):
        streams = grpc_streams.compare(server, address, message, repeats, seconds)
    targets = [
        Target(
            f"grpc, {count} in flight: calls/s over grpcio's server",
            bound,
            True,
            ratios(found["ekiben"][count], found["grpcio"][count]),
        )
        for count, bound in BOUNDS.items()
    ]
    targets += grpc_streams.targets(streams)
    load = {"repeats": repeats, "seconds": seconds, "generator": "h2load; for streams benchmarks/grpc_load.py"}
    save("grpc", load, {"calls_per_second": found, "one_connection": streams}, targets)
    return targets


def requests_per_second(address: str, body: Path, connections: int, seconds: int) -> float:
    """Closed loop by h2load. Raises LoadFailed if it is missing or a call failed."""
    command = ["h2load", "--threads", "1", "--clients", str(connections), "--max-concurrent-streams", "1"]
    command += ["--duration", str(seconds), "--data", str(body), "--header", "content-type: application/grpc"]
    command += ["--header", "te: trailers", f"http://{address}{METHOD}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
    except FileNotFoundError:
        raise LoadFailed("h2load is not installed: apt-get install nghttp2-client") from None
    rate, failed = _RATE.search(done.stdout), _FAILED.search(done.stdout)
    if rate is None or failed is None or failed.groups() != ("0", "0", "0"):
        raise LoadFailed(f"h2load said: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return float(rate[1])


def _message() -> bytes:
    row = models.random_rows(1, models.FEATURES)
    request = service_pb2.ModelInferRequest(model_name="mlp")
    request.inputs.add(name="x", datatype="FP32", shape=row.shape)
    request.raw_input_contents.append(row.tobytes())
    return bytes(request.SerializeToString())


def _check(address: str, message: bytes) -> None:
    with grpc.insecure_channel(address) as channel:
        reply = channel.unary_unary(METHOD)(message, timeout=60, wait_for_ready=True)
    answer = service_pb2.ModelInferResponse.FromString(reply)
    if len(answer.raw_output_contents[0]) != 4 * models.CLASSES:
        raise servers.ServerFailed(f"the server at {address} answered {answer}")


@contextlib.contextmanager
def _grpcio(repository: Path) -> Iterator[str]:
    peer = Path(__file__).parent / "peers" / "grpcio_engine.py"
    with subprocess.Popen(
        [sys.executable, str(peer), str(repository)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise servers.ServerFailed("the server on grpcio did not start")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
