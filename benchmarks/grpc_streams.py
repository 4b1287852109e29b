"""The part of `grpc` on streams: messages on one stream against unary calls on one connection, by the same client."""

import time
from collections.abc import Callable
from typing import Final

import msgspec
from tritonclient.grpc import service_pb2

from benchmarks import models
from benchmarks.grpc_load import streamed_per_second, unary_per_second
from benchmarks.processes import cpu_seconds
from benchmarks.report import Target, table
from benchmarks.runs import progress
from benchmarks.servers import Server, ServerFailed
from benchmarks.spread import ratios, spread

__all__ = ["Sample", "compare", "targets"]

IN_FLIGHT: Final = 128
RATE_BOUND: Final = 1.5
CPU_BOUND: Final = 0.8
WARM_S: Final = 2
SERVICE: Final = "/inference.GRPCInferenceService/"


class Sample(msgspec.Struct, frozen=True):
    """One run."""

    per_second: float
    front_us: float
    """CPU µs a message of the process that answers."""


def compare(server: Server, address: str, message: bytes, repeats: int, seconds: int) -> dict[str, list[Sample]]:
    """Unary and streamed in turn, `IN_FLIGHT` at any time. Raises LoadFailed, ServerFailed."""
    found: dict[str, list[Sample]] = {"unary": [], "streamed": []}

    def unary(length_s: float) -> float:
        return unary_per_second(address, SERVICE + "ModelInfer", message, IN_FLIGHT, length_s, _check_unary)

    def streamed(length_s: float) -> float:
        return streamed_per_second(address, SERVICE + "ModelStreamInfer", message, IN_FLIGHT, length_s, _check_streamed)

    for turn in range(repeats + 1):
        for name, drive in (("unary", unary), ("streamed", streamed)):
            sample = _sample(server, drive, seconds if turn else WARM_S)
            if turn:
                found[name].append(sample)
                progress(f"{turn}/{repeats} {name}, {IN_FLIGHT} in flight: {sample.per_second:,.0f}/s")
    return found


def targets(found: dict[str, list[Sample]]) -> list[Target]:
    """What the streams must be worth; prints the table."""
    rows = [
        [
            name,
            str(spread(sample.per_second for sample in samples)),
            str(spread(sample.front_us for sample in samples)),
        ]
        for name, samples in found.items()
    ]
    print(table([f"one connection, {IN_FLIGHT} in flight", "messages/s", "front CPU µs"], rows) + "\n")
    unary, streamed = found["unary"], found["streamed"]
    what = f"grpc, {IN_FLIGHT} in flight on one connection: streamed over unary, "
    return [
        Target(
            what + "messages/s",
            RATE_BOUND,
            True,
            ratios([sample.per_second for sample in streamed], [sample.per_second for sample in unary]),
        ),
        Target(
            what + "engine CPU a message",
            CPU_BOUND,
            False,
            ratios([sample.front_us for sample in streamed], [sample.front_us for sample in unary]),
        ),
    ]


def _sample(server: Server, drive: Callable[[float], float], length_s: float) -> Sample:
    start, before = time.monotonic(), cpu_seconds(server.front)
    per_second = drive(length_s)
    spent, passed = cpu_seconds(server.front) - before, time.monotonic() - start
    return Sample(per_second, spent / (per_second * passed) * 1e6)


def _check_unary(reply: bytes) -> None:
    _check(service_pb2.ModelInferResponse.FromString(reply))


def _check_streamed(reply: bytes) -> None:
    answer = service_pb2.ModelStreamInferResponse.FromString(reply)
    if answer.error_message:
        raise ServerFailed(f"the server answered {answer.error_message}")
    _check(answer.infer_response)


def _check(answer: service_pb2.ModelInferResponse) -> None:
    if len(answer.raw_output_contents[0]) != 4 * models.CLASSES:
        raise ServerFailed(f"the server answered {answer}")
