"""Triton's own answers to real HTTP requests, and the rule by which ours is judged (golden_triton/README.md)."""

import base64
import gzip
import http.client
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.conftest import Server

_PREFIX = re.compile(r"\[request id: [^\]]*\] ")
_QUOTED = re.compile(r"'([^']*)'")
_FORMATS = {"FP32": np.float32, "FP64": np.float64}


class _Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def test_golden_http(golden: Server, testdata: Path) -> None:
    """In one go and in order, as loading and unloading build on each other. All faults are shown at once."""
    faults: list[str] = []
    for line in (testdata / "golden_triton" / "http.jsonl").read_text().splitlines():
        case = json.loads(line)
        reply = _exchange(golden.url, case)
        triton = case["reply"]
        expected = _Reply(triton["status"], _lower(triton["headers"]), base64.b64decode(triton["body_b64"]))
        fault = _judge(case, expected, reply)
        if fault:
            faults.append(f"{case['n']} {case['id']}: {fault}; ours: {reply.status} {reply.body[:300]!r}")
    if faults:
        pytest.fail("\n".join(faults))


def test_golden_http_with_shared_memory(golden_shm: Server, testdata: Path) -> None:
    """Where the extension is on its replies are Triton's, to the letter."""
    found = 0
    for line in (testdata / "golden_triton" / "http.jsonl").read_text().splitlines():
        case = json.loads(line)
        if case["want"]["rule"] == "shared-memory":
            found += 1
            reply = _exchange(golden_shm.url, case)
            assert (reply.status, reply.body) == (case["reply"]["status"], base64.b64decode(case["reply"]["body_b64"]))
    assert found == 3


def _exchange(url: str, case: dict[str, Any]) -> _Reply:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        body = base64.b64decode(case.get("body_b64") or "")
        connection.request(case["method"], case["path"], body or None, case.get("headers") or {})
        reply = connection.getresponse()
        return _Reply(reply.status, _lower(dict(reply.getheaders())), reply.read())
    finally:
        connection.close()


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _judge(case: dict[str, Any], golden: _Reply, ours: _Reply) -> str:
    """What is wrong with our reply, '' for nothing."""
    rule = case["want"]["rule"]
    if ours.status == 500 and rule not in ("error-or-as-triton",):
        return "500"
    match rule:
        case "exact":
            return _exact(golden, ours)
        case "error":
            return _error(golden, ours)
        case "client-error":
            return "" if ours.status == 400 and len(_message(ours)) > 10 else "not a clear 400"
        case "shape":
            return _shape(case["id"], golden, ours)
        case "better":
            return _better(case, ours)
        case "shared-memory":
            return "" if ours.status == 501 and "allow_client_shm" in _message(ours) else "a clear refusal expected"
        case "error-or-as-triton":
            return "" if ours.status >= 400 and len(_message(ours)) > 10 else _exact(golden, ours)
    return f"unknown rule {rule}"


def _exact(golden: _Reply, ours: _Reply) -> str:
    if golden.status != ours.status:
        return f"status {golden.status} expected"
    name = "inference-header-content-length"
    if (name in golden.headers) != (name in ours.headers):
        return "binary header expected" if name in golden.headers else "no binary header expected"
    if golden.headers.get("content-encoding") != ours.headers.get("content-encoding"):
        return f"content-encoding {golden.headers.get('content-encoding')} expected"
    if not golden.body:
        return "" if not ours.body else "empty body expected"
    left, right = _outputs(golden), _outputs(ours)
    if left != right:
        return f"outputs {left} expected"
    return ""


def _outputs(reply: _Reply) -> dict[str, Any]:
    """The reply as comparable values: outputs by name, floats as the bits of their datatype."""
    body = reply.body
    encoding = reply.headers.get("content-encoding")
    if encoding:
        body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
    length = int(reply.headers.get("inference-header-content-length", len(body)))
    document = json.loads(body[:length])
    blobs = body[length:]
    outputs = {}
    for output in document.pop("outputs", []):
        size = output.get("parameters", {}).pop("binary_data_size", None)
        if size is not None:
            output["blob"], blobs = blobs[:size], blobs[size:]
        elif output["datatype"] in _FORMATS:
            output["data"] = np.array(output["data"], _FORMATS[output["datatype"]]).tobytes()
        outputs[output.pop("name")] = output
    assert not blobs
    return {**document, "outputs": outputs}


def _message(reply: _Reply) -> str:
    try:
        document = json.loads(reply.body)
    except ValueError:
        return ""
    return str(document["error"]) if isinstance(document, dict) and set(document) == {"error"} else ""


def _error(golden: _Reply, ours: _Reply) -> str:
    if golden.status != ours.status:
        return f"status {golden.status} expected"
    if ours.headers.get("accept-encoding") != golden.headers.get("accept-encoding"):
        return "accept-encoding expected"
    text = _PREFIX.sub("", _message(golden))
    mine = _message(ours)
    missing = [name for name in _QUOTED.findall(text) if name not in mine]
    return f"{text!r} expected, {missing} missing" if not mine or missing else ""


def _shape(identity: str, golden: _Reply, ours: _Reply) -> str:
    if golden.status != ours.status:
        return f"status {golden.status} expected"
    left, right = json.loads(golden.body), json.loads(ours.body)
    if identity.startswith("index"):
        return "" if left == right else f"{left} expected"
    return _form(left, right, "$")


def _form(golden: Any, ours: Any, where: str) -> str:
    if isinstance(golden, dict):
        if not isinstance(ours, dict) or golden.keys() - ours.keys():
            return f"{where}: keys {sorted(golden)} expected, not {sorted(ours)}"
        return next((fault for key in golden if (fault := _form(golden[key], ours[key], f"{where}.{key}"))), "")
    if isinstance(golden, list):
        if not isinstance(ours, list):
            return f"{where}: a list expected"
        return _form(golden[0], ours[0], f"{where}[0]") if golden and ours else ""
    return "" if type(golden) is type(ours) else f"{where}: {type(golden)} expected"


_NOT_FOUND = {"root-unknown", "metadata-version-nonint", "models-list"}


def _better(case: dict[str, Any], ours: _Reply) -> str:
    wanted = 404 if case["id"] in _NOT_FOUND or "404" in case["want"]["say"] else 400
    if ours.status != wanted:
        return f"status {wanted} expected: {case['want']['say']}"
    if case["id"] == "simple-extra-input" and "INPUT2" not in _message(ours):
        return "the unexpected input is not named"
    return ""


def test_comparison_sees_bits() -> None:
    head = b'{"outputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[%s]}]}'
    one = _Reply(200, {}, head % b"0.10000000149011612")
    same = _Reply(200, {}, head % b"0.1")
    other = _Reply(
        200, {}, head % repr(struct.unpack("f", struct.pack("f", math.nextafter(0.1, 1) + 1e-8))[0]).encode()
    )
    assert not _exact(one, same)
    assert _exact(one, other)
