"""Triton's own answers to real gRPC requests, and the rule by which ours is judged (golden_triton/README.md)."""

import asyncio
import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import pytest
from google.protobuf import json_format

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.doors.oip_grpc_settings import OipGrpcSettings
from ekiben.doors.oip_grpc_shm import OipGrpcSharedMemory
from ekiben.engine.engine import Engine
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.shared_memory import NO_REGIONS, Regions, SharedMemory
from ekiben.extensions.traces import Traces
from ekiben.repository.layout import open_repositories
from ekiben.runner.supervisor import Runner
from ekiben.types import VersionSource
from ekiben.wire.protos.oip import OIP
from tests.doors.grpc_house import OPTIONS, call, serving, stream

_PREFIX = re.compile(r"\[request id: [^\]]*\] ")
_QUOTED = re.compile(r"'([^']*)'")


class _Reply(NamedTuple):
    code: str
    details: str
    messages: list[bytes]


def test_golden_grpc(testdata: Path, tmp_path: Path) -> None:
    """In one go and in order, as loading and unloading build on each other. All faults are shown at once."""
    golden = testdata / "golden_triton"
    cases = [json.loads(line) for line in (golden / "grpc.jsonl").read_text().splitlines()]
    models = golden / "models"
    names = sorted(path.name for path in models.iterdir() if path.name != "unloaded")
    faults = asyncio.run(_replay(models, names, tmp_path, cases))
    if faults:
        pytest.fail("\n".join(faults))


def test_golden_grpc_with_shared_memory(testdata: Path, tmp_path: Path) -> None:
    """Where the extension is on its replies are Triton's, to the letter."""
    golden = testdata / "golden_triton"
    cases = [json.loads(line) for line in (golden / "grpc.jsonl").read_text().splitlines()]
    cases = [case for case in cases if case["want"]["rule"] == "shared-memory"]
    assert len(cases) == 4
    for case in cases:
        case["want"]["rule"] = "to the letter"
    faults = asyncio.run(_replay(golden / "models", ["identity_fp32"], tmp_path, cases, Regions(1 << 20)))
    if faults:
        pytest.fail("\n".join(faults))


async def _replay(
    models: Path, names: list[str], state: Path, cases: list[dict[str, Any]], regions: SharedMemory = NO_REGIONS
) -> list[str]:
    reader = open_repositories([str(models)], home=state, state_directory=state)

    def make_runner(source: VersionSource, changed: Callable[[], None]) -> Runner:
        return Runner(source, source.settings, SYSTEM_CLOCK, lambda _: changed(), 1)

    engine = Engine(reader.scan, make_runner, SYSTEM_CLOCK, explicit=True, load_models=tuple(names))
    await engine.start()
    faults: list[str] = []
    settings = OipGrpcSettings(engine, Traces(), LogSettings())
    try:
        doors = OipGrpc(engine, regions).methods, OipGrpcSharedMemory(regions).methods, settings.methods
        async with serving(*doors) as address, grpc.aio.insecure_channel(address, OPTIONS) as channel:
            for case in cases:
                reply = await _exchange(channel, case)
                triton = case["reply"]
                messages = [base64.b64decode(message) for message in triton.get("messages", [])]
                fault = _judge(case, _Reply(triton["code"], triton.get("details", ""), messages), reply)
                if fault:
                    faults.append(f"{case['n']} {case['id']}: {fault}; ours: {reply}")
    finally:
        await engine.stop()
    return faults


async def _exchange(channel: Any, case: dict[str, Any]) -> _Reply:
    requests = [base64.b64decode(request) for request in case["requests_b64"]]
    try:
        if case["stream"]:
            return _Reply("OK", "", await stream(channel, case["method"], requests))
        return _Reply("OK", "", [await call(channel, case["method"], requests[0])])
    except grpc.aio.AioRpcError as error:
        return _Reply(error.code().name, error.details() or "", [])


def _judge(case: dict[str, Any], golden: _Reply, ours: _Reply) -> str:
    """What is wrong with our reply, '' for nothing."""
    match case["want"]["rule"]:
        case "exact":
            return _exact(case, golden, ours)
        case "to the letter":
            return "" if ours == golden else f"{golden} expected"
        case "error":
            return _error(golden, ours)
        case "shape":
            return _shape(case, golden, ours)
        case "better":
            fine = ours.code in ("INVALID_ARGUMENT", "NOT_FOUND") and len(ours.details) > 10
            return "" if fine else f"not better: {case['want']['say']}"
        case "shared-memory":
            refused = ours.code == "UNIMPLEMENTED" and "allow_client_shm" in ours.details
            return "" if refused else "a clear refusal expected"
        case "error-or-as-triton":
            return "" if ours.code != "OK" and len(ours.details) > 10 else _exact(case, golden, ours)
    return f"unknown rule {case['want']['rule']}"


def _decoded(case: dict[str, Any], reply: _Reply) -> list[dict[str, Any]]:
    kind = OIP.message(case["method"].rpartition("/")[2] + "Response")
    messages = [
        json_format.MessageToDict(kind.FromString(message), preserving_proto_field_name=True)
        for message in reply.messages
    ]
    for message in messages:
        if "error_message" in message:
            message["error_message"] = _PREFIX.sub("", message["error_message"])
        infer = message.get("infer_response", message)
        if "raw_output_contents" in infer:
            raw = infer.pop("raw_output_contents")
            outputs = zip(infer["outputs"], raw, strict=True)
            infer["outputs"] = {output.pop("name"): {**output, "raw": blob} for output, blob in outputs}
    return messages


def _exact(case: dict[str, Any], golden: _Reply, ours: _Reply) -> str:
    if golden.code != ours.code:
        return f"{golden.code} expected"
    left, right = _decoded(case, golden), _decoded(case, ours)
    return "" if left == right else f"{left} expected, not {right}"


def _error(golden: _Reply, ours: _Reply) -> str:
    if golden.code != ours.code:
        return f"{golden.code} expected"
    text = _PREFIX.sub("", golden.details)
    missing = [name for name in _QUOTED.findall(text) if name not in ours.details]
    return f"{text!r} expected, {missing} missing" if not ours.details or missing else ""


def _shape(case: dict[str, Any], golden: _Reply, ours: _Reply) -> str:
    if golden.code != ours.code:
        return f"{golden.code} expected"
    left, right = _decoded(case, golden), _decoded(case, ours)
    if case["id"].startswith("index"):
        return "" if left == right else f"{left} expected"
    return _form(left, right, "$")


def _form(golden: Any, ours: Any, where: str) -> str:
    if isinstance(golden, dict):
        if not isinstance(ours, dict) or golden.keys() - ours.keys():
            return f"{where}: keys {sorted(golden)} expected, not {sorted(ours)}"
        return next((fault for key in golden if (fault := _form(golden[key], ours[key], f"{where}.{key}"))), "")
    if isinstance(golden, list):
        if not isinstance(ours, list) or bool(golden) != bool(ours):
            return f"{where}: a list like {golden} expected"
        return _form(golden[0], ours[0], f"{where}[0]") if golden else ""
    return "" if type(golden) is type(ours) else f"{where}: {type(golden)} expected"
