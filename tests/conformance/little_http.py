"""The HTTP part of the little server: a function from request to reply, which faults wrap, and a socket around it."""

import contextlib
import gzip
import http.server
import json
import re
import ssl
import threading
import urllib.parse
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.conformance.little_models import (
    DTYPES,
    EXTENSIONS,
    MODELS,
    Array,
    Model,
    Refused,
    State,
    best_classes,
    check_parameters,
    config,
    packed,
    unpacked,
)

LENGTH = "inference-header-content-length"
_STATUSES = {"NOT_FOUND": 404, "INTERNAL": 500, "UNIMPLEMENTED": 501}
_MOST_BYTES = 64 << 20
_NESTING = re.compile(rb"\[{100}")


class Asked(NamedTuple):
    """A request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


class Answered(NamedTuple):
    """A reply."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


Answerer = Callable[[Asked], Answered]
Fault = Callable[[Asked, Answerer], Answered]
"""Stands before the honest answerer: it may change the request, the reply, or not ask at all."""


def honest(asked: Asked, answer: Answerer) -> Answered:
    """No fault."""
    return answer(asked)


def as_json(document: object, status: int = 200) -> Answered:
    """A reply of JSON."""
    return Answered(status, json.dumps(document).encode(), {"content-type": "application/json"})


class LittleHttp:
    """Answers requests."""

    def __init__(self, state: State, extensions: tuple[str, ...] = EXTENSIONS) -> None:
        self._state = state
        self._extensions = extensions

    def answer(self, asked: Asked) -> Answered:
        """The right reply."""
        try:
            if int(asked.headers.get("content-length", "0")) > _MOST_BYTES:
                return as_json({"error": "too large"}, 413)
            return self._routed(asked)
        except Refused as error:
            return as_json({"error": str(error)}, _STATUSES.get(error.code, 400))

    def _routed(self, asked: Asked) -> Answered:
        parts = [urllib.parse.unquote(part) for part in asked.path.split("/")[1:]]
        routes: list[tuple[str, Callable[[], Answered]]] = []
        match parts:
            case ["v2"]:
                about = {"name": "little", "version": "1", "extensions": list(self._extensions)}
                routes = [("GET", lambda: as_json(about))]
            case ["v2", "health", "live" | "ready"]:
                routes = [("GET", lambda: Answered(200))]
            case ["v2", "repository", "index"]:
                routes = [("POST", lambda: self._index(asked))]
            case ["v2", "repository", "models", name, "load" | "unload" as verb]:
                routes = [("POST", lambda: self._change(name, verb))]
            case ["v2", "models", "stats"]:
                routes = [("GET", lambda: self._statistics([MODELS[name] for name in sorted(self._state.loaded)]))]
            case ["v2", "trace", "setting"] | ["v2", "models", _, "trace", "setting"]:
                routes = [("GET", lambda: as_json(TRACE))]
            case ["v2", "logging"]:
                routes = [("GET", lambda: as_json(LOG))]
            case ["v2", "systemsharedmemory" | "cudasharedmemory" as kind, "status"]:
                routes = [("GET", lambda: as_json([REGIONS[kind]]))]
            case ["v2", "models", name, "versions", version, *rest]:
                routes = self._of_model(asked, name, version, rest)
            case ["v2", "models", name, *rest]:
                routes = self._of_model(asked, name, "", rest)
        if not routes:
            return as_json({"error": "Not Found"}, 404)
        if asked.method != routes[0][0]:
            return as_json({"error": "Method Not Allowed"}, 405)
        return routes[0][1]()

    def _of_model(
        self, asked: Asked, name: str, version: str, rest: list[str]
    ) -> list[tuple[str, Callable[[], Answered]]]:
        find = self._state.model
        match rest:
            case []:
                return [("GET", lambda: as_json(metadata(find(name, version))))]
            case ["ready"]:
                return [("GET", lambda: Answered(200) if find(name, version) else Answered(400))]
            case ["config"]:
                return [("GET", lambda: as_json(config(find(name, version))))]
            case ["stats"]:
                return [("GET", lambda: self._statistics([find(name, version)]))]
            case ["infer"]:
                return [("POST", lambda: self._infer(asked, find(name, version), version))]
            case ["generate" | "generate_stream" as verb]:
                return [("POST", lambda: self._generate(asked, find(name, version), verb))]
        return []

    def _index(self, asked: Asked) -> Answered:
        only_ready = json.loads(asked.body or b"{}").get("ready")
        states = {name: "READY" if name in self._state.loaded else "UNAVAILABLE" for name in MODELS}
        return as_json(
            [
                {"name": name, "version": version, "state": state}
                for name, state in states.items()
                if state == "READY" or not only_ready
                for version in MODELS[name].versions
            ]
        )

    def _change(self, name: str, verb: str) -> Answered:
        self._state.change(name, verb)
        return Answered(200)

    def _statistics(self, models: list[Model]) -> Answered:
        never = {"count": 0, "ns": 0}
        lines = [
            {
                "name": model.name,
                "version": model.versions[-1],
                "last_inference": 0,
                "inference_count": self._state.successes[model.name],
                "execution_count": self._state.successes[model.name],
                "inference_stats": {
                    "success": {"count": self._state.successes[model.name], "ns": 1},
                    **dict.fromkeys(("fail", "queue", "compute_input", "compute_infer", "compute_output"), never),
                },
                "batch_stats": [],
            }
            for model in models
        ]
        return as_json({"model_stats": lines})

    def _generate(self, asked: Asked, model: Model, verb: str) -> Answered:
        text = read_document(asked.body).get("text_input")
        if not isinstance(text, str) or model.name != "text":
            raise Refused("no text_input")
        document = {"model_name": model.name, "model_version": "1", "text_output": text}
        if verb == "generate":
            return as_json(document)
        events = f"data: {json.dumps(document)}\n\n" * 2
        return Answered(200, events.encode(), {"content-type": "text/event-stream; charset=utf-8"})

    def _infer(self, asked: Asked, model: Model, version: str) -> Answered:
        body, encoding = asked.body, asked.headers.get("content-encoding", "")
        if encoding:
            if encoding not in ("gzip", "deflate"):
                raise Refused("unknown compression", "UNIMPLEMENTED")
            body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
        document, inputs = read_request(asked.headers.get(LENGTH), body, model)
        given = check_parameters(document.get("parameters") or {})
        wishes = {each["name"]: each.get("parameters") or {} for each in document.get("outputs") or []}
        outputs = self._state.infer(model, inputs, list(wishes), given)
        default = bool(given.get("binary_data_output")) or asked.headers.get(LENGTH) == "0"
        reply = write_reply(model, version, document.get("id"), outputs, wishes, default)
        accepted = asked.headers.get("accept-encoding")
        if accepted in ("gzip", "deflate"):
            pack = gzip.compress if accepted == "gzip" else zlib.compress
            return Answered(200, pack(reply.body), {**reply.headers, "content-encoding": accepted})
        return reply


TRACE = {
    "trace_file": "", "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0",
}  # fmt: skip
LOG = {
    "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
    "log_format": "default",
}  # fmt: skip
REGIONS: dict[str, dict[str, object]] = {
    "systemsharedmemory": {"name": "r", "key": "/r", "offset": 0, "byte_size": 8},
    "cudasharedmemory": {"name": "c", "device_id": 0, "byte_size": 8},
}


def metadata(model: Model) -> dict[str, Any]:
    """What GET of a model says."""
    inputs, outputs = ([spec._asdict() for spec in specs] for specs in (model.inputs, model.outputs))
    return {
        "name": model.name,
        "versions": list(model.versions),
        "platform": "little",
        "inputs": inputs,
        "outputs": outputs,
    }


def read_document(body: bytes) -> dict[str, Any]:
    """A JSON object."""
    if _NESTING.search(body):
        raise Refused("nesting without end")
    try:
        document = json.loads(body)
    except ValueError:
        raise Refused("no JSON") from None
    if not isinstance(document, dict):
        raise Refused("no object")
    return document


def read_request(given: str | None, body: bytes, model: Model) -> tuple[dict[str, Any], list[tuple[str, str, Array]]]:
    """The JSON of a request, and its inputs as name, datatype and tensor."""
    if given == "0":
        return {}, [_raw_input(body, model)]
    length = len(body) if given is None else _header_length(given, len(body))
    document, blobs = read_document(body[:length]), body[length:]
    listed = document.get("inputs")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Refused("inputs missing")
    inputs: list[tuple[str, str, Array]] = []
    for each in listed:
        name, datatype, shape = each.get("name"), each.get("datatype"), each.get("shape")
        if not isinstance(name, str) or datatype not in DTYPES or not isinstance(shape, list):
            raise Refused("input without name, datatype or shape")
        size = (each.get("parameters") or {}).get("binary_data_size")
        if (size is None) == ("data" not in each):
            raise Refused(f"input '{name}' must have one form of data: " + ("none" if size is None else "both"))
        if size is None:
            inputs.append((name, datatype, _from_json(datatype, shape, each["data"])))
            continue
        if given is None:
            raise Refused("binary data without the header")
        if size > len(blobs):
            raise Refused("body is short")
        inputs.append((name, datatype, unpacked(datatype, shape, blobs[:size])))
        blobs = blobs[size:]
    if blobs:
        raise Refused("body is long")
    return document, inputs


def _header_length(given: str, size: int) -> int:
    try:
        length = int(given)
    except ValueError:
        raise Refused("header is no number") from None
    if length < 0:
        raise Refused("header is negative")
    if length >= 1 << 31:
        raise Refused("header is beyond 32 bits")
    if length > size:
        raise Refused("header is over the body")
    return length


def _raw_input(body: bytes, model: Model) -> tuple[str, str, Array]:
    if len(model.inputs) != 1:
        raise Refused("raw body for two inputs")
    (spec,) = model.inputs
    if spec.datatype == "BYTES":
        element = np.empty(1, np.object_)
        element[0] = body
        return spec.name, spec.datatype, element.reshape([1] * len(spec.shape))
    fixed = int(np.prod([size for size in spec.shape if size > 0])) * np.dtype(DTYPES[spec.datatype]).itemsize
    sizes = [1 if at == 0 and size < 0 else size for at, size in enumerate(spec.shape)]
    sizes = [len(body) // fixed if size < 0 else size for size in sizes]
    return spec.name, spec.datatype, unpacked(spec.datatype, sizes, body)


def _from_json(datatype: str, shape: list[int], data: object) -> Array:
    if datatype in ("FP16", "BF16"):
        raise Refused("half precision in JSON")
    flat = flattened(data)
    if len(flat) != int(np.prod(shape)):
        raise Refused(f"count of the data is {len(flat)}, not that of {shape}")
    if datatype == "BYTES":
        tensor = np.empty(len(flat), np.object_)
        tensor[:] = [each.encode() for each in flat]
        return tensor.reshape(shape)
    with np.errstate(all="ignore"):
        return np.array(flat, DTYPES[datatype]).reshape(shape)


def flattened(data: Any) -> list[Any]:
    """Elements of nested lists."""
    return [inner for each in data for inner in flattened(each)] if isinstance(data, list) else [data]


def write_reply(
    model: Model, version: str, identity: object, outputs: dict[str, Array], wishes: dict[str, Any], default: bool
) -> Answered:
    """The reply to an inference, with blobs where they are wished for."""
    listed, blobs = [], []
    datatypes = {spec.name: spec.datatype for spec in model.outputs}
    for name, tensor in outputs.items():
        datatype = datatypes[name]
        count = wishes.get(name, {}).get("classification", 0)
        if count:
            if count < 0:
                raise Refused("classification of less than nothing")
            tensor, datatype = best_classes(tensor, count, batched=model.batched), "BYTES"
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(tensor.shape)}
        if wishes.get(name, {}).get("binary_data", default):
            blobs.append(packed(tensor))
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        elif datatype in ("FP16", "BF16"):
            raise Refused("half precision out in JSON")
        elif datatype == "BYTES":
            try:
                output["data"] = [each.decode() for each in tensor.reshape(-1)]
            except UnicodeDecodeError:
                raise Refused("output is not UTF-8") from None
        else:
            output["data"] = tensor.reshape(-1).tolist()
        listed.append(output)
    document: dict[str, Any] = {
        "model_name": model.name,
        "model_version": version or model.versions[-1],
        "outputs": listed,
    }
    if identity:
        document["id"] = identity
    head = json.dumps(document).encode()
    if not blobs:
        return Answered(200, head, {"content-type": "application/json"})
    return Answered(200, head + b"".join(blobs), {"content-type": "application/octet-stream", LENGTH: str(len(head))})


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Answerer

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        declared = int(headers.get("content-length", "0"))
        if declared > _MOST_BYTES:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = self._chunks()
        else:
            body = self.rfile.read(declared)
        reply = type(self).answer(Asked(self.command, self.path, headers, body))
        self.send_response(reply.status)
        for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, format: str, *arguments: object) -> None:
        """Not needed."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is none of the server's business."""


@contextlib.contextmanager
def serving(
    state: State, fault: Fault = honest, *, extensions: tuple[str, ...] = EXTENSIONS, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """The address of a server with this fault."""
    little = LittleHttp(state, extensions)
    handler = type("Handler", (_Handler,), {"answer": staticmethod(lambda asked: fault(asked, little.answer))})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
