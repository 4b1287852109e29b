"""What servers may do differently is no failure: each row is a little server with a way of its own."""

from typing import Any, NamedTuple

import pytest

from ekiben.conformance.suite import POINTS
from ekiben.conformance.verdicts import Verdict
from ekiben.wire.protos.oip import OIP
from tests.conformance.faults import (
    INFER,
    asking,
    document,
    drop,
    has,
    header,
    headers,
    lacks,
    no_header,
    on,
    put,
    reply,
    says,
    status,
    succeeds,
)
from tests.conformance.little import checked
from tests.conformance.little_grpc import GrpcAnswerer, GrpcAsked, GrpcFault
from tests.conformance.little_grpc import honest as grpc_honest
from tests.conformance.little_http import LENGTH, Answered, Answerer, Asked, Fault, as_json, honest
from tests.conformance.little_models import EXTENSIONS, MODELS, Refused


def _reversed(parsed: dict[str, Any]) -> None:
    parsed["outputs"].reverse()


def _nested(parsed: dict[str, Any]) -> None:
    for output in parsed["outputs"]:
        output["data"] = [[output["data"]]]


def _named_string(parsed: dict[str, Any]) -> None:
    for output in parsed["outputs"]:
        output["datatype"] = "STRING"


def _documented_log_keys(parsed: dict[str, Any]) -> None:
    parsed["log_warnings"], parsed["log_errors"] = parsed.pop("log_warning"), parsed.pop("log_error")


def _kserve_list(asked: Asked, answer: Answerer) -> Answered:
    """No index, but a list of names."""
    if asked.path.startswith("/v2/repository"):
        return as_json({"detail": "Not Found"}, 404)
    return as_json({"models": sorted(MODELS)}) if asked.path == "/v2/models" else answer(asked)


def _no_binary(asked: Asked, answer: Answerer) -> Answered:
    return as_json({"error": "what?"}, 400) if LENGTH in asked.headers else answer(asked)


def _never_compressed(asked: Asked, answer: Answerer) -> Answered:
    return answer(asked._replace(headers={**asked.headers, "accept-encoding": ""}))


def _absent(path: str) -> Fault:
    return status(404, on(path))


class Variant(NamedTuple):
    """A way of its own that a server may have, and the verdicts other than a pass that this brings."""

    name: str
    fault: Fault
    others: dict[str, Verdict] = {}  # noqa: RUF012 - never changed
    extensions: tuple[str, ...] = EXTENSIONS


def _unsupported(*ids: str) -> dict[str, Verdict]:
    return dict.fromkeys(ids, Verdict.UNSUPPORTED)


def _skipped(*ids: str) -> dict[str, Verdict]:
    return dict.fromkeys(ids, Verdict.SKIP)


def _without(extension: str) -> tuple[str, ...]:
    return tuple(each for each in EXTENSIONS if each != extension)


_BINARY = [point.id for point in POINTS if point.id.startswith("B")]
_CHARSET = {"content-type": "Application/JSON; charset=utf-8"}
_IN_JSON = (INFER, no_header(LENGTH), lacks(b"inary"))
_NO_ID = (INFER, lacks(b'"id"'))

HTTP = [
    Variant("health in JSON", reply(lambda _: as_json({"live": True}), on("/v2/health/.*"))),
    Variant("not ready is 503", status(503, says("no model"), on(".*/ready"))),
    Variant("unknown is 400", status(400, says("no model"))),
    Variant("errors are 422", status(422, says("input"))),
    Variant("too few elements is 500", status(500, says("count of the data"))),
    Variant("ids of its own", document(put(id="made up"), *_NO_ID)),
    Variant("nulls", document(put(id=None, parameters=None), *_NO_ID)),
    Variant("outputs in another order", document(_reversed, *_IN_JSON)),
    Variant("nested replies", document(_nested, *_IN_JSON)),
    Variant("types with a charset", headers(_CHARSET, succeeds, *_IN_JSON)),
    Variant("classes are STRING", document(_named_string, has(b'"classification"'))),
    Variant("log keys as documented", document(_documented_log_keys, on("/v2/logging"))),
    Variant("other names of extensions", honest, extensions=tuple(f"{each}_extension" for each in EXTENSIONS)),
    Variant("no versions", document(drop("versions"), on(r"/v2/models/[^/]*")), _skipped("P4b", "P5b", "P6", "G10")),
    Variant("nothing is listed", honest, _unsupported("X2a", "X2b", "X3a", "X3b", "X4"), extensions=()),
    Variant(
        "no index",
        _kserve_list,
        {**_skipped("P3b", "E3", "G3c", "G9b"), **_unsupported("X6a", "X6b", "X6c", "X6d")},
    ),
    Variant(
        "no binary",
        _no_binary,
        {**_unsupported(*_BINARY), **_skipped("J6a", "J6b", "J7b", "J10b")},
        _without("binary_tensor_data"),
    ),
    Variant("no compression", status(415, header("content-encoding")), _unsupported("J11b", "J11c", "B11a", "B11b")),
    Variant("plain replies", _never_compressed, _unsupported("J11d")),
    Variant("NaN is refused", status(400, INFER, has(b"NaN")), _unsupported("J10a")),
    Variant("no empty tensors", status(400, INFER, has(b'"shape":[1,0]')), _unsupported("J9a", "B6b")),
    Variant("no configuration", _absent(".*/config"), {**_unsupported("X7"), **_skipped("E11", "X3a", "X3b")}),
    Variant("no statistics", _absent(".*/stats"), _unsupported("X8a", "X8b", "X8c")),
    Variant(
        "no classification",
        asking(b'"classification":', b'"classificatiom":'),
        _unsupported("X1a", "X1b", "X1c"),
        _without("classification"),
    ),
    Variant("no trace settings", status(501, on(".*/trace/setting")), _unsupported("X9")),
    Variant("no log settings", status(405, on("/v2/logging")), _unsupported("X10")),
    Variant("shared memory is off", status(400, on(".*memory.*")), _unsupported("X11", "X12")),
    Variant("no generate", _absent(".*/generate.*"), _unsupported("X5a", "X5b")),
]


def _typed_reply(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    """Replies as typed contents, where there are such."""
    reply = answer(asked)
    if asked.method == "ModelInfer" and all(each.datatype in ("INT32", "BOOL") for each in reply.outputs):
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
            if output.datatype == "BOOL":
                output.contents.bool_contents.extend(bool(each) for each in raw)
            else:
                output.contents.int_contents.extend(memoryview(raw).cast("i"))
        del reply.raw_output_contents[:]
    return reply


def _empty_contents(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    reply = answer(asked)
    for output in getattr(reply, "outputs", ()):
        if asked.method == "ModelInfer":
            output.contents.SetInParent()
    return reply


def _not_found(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    if asked.method == "ModelReady" and asked.message.name.startswith("conformance"):
        raise Refused("no such model", "NOT_FOUND")
    return answer(asked)


def _core_only(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    core = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer")
    if asked.method not in core:
        raise Refused("Method not found!", "UNIMPLEMENTED")
    return answer(asked)


def _bare_stream(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    """As MLServer has it: no envelope."""
    reply = answer(asked)
    return reply.infer_response if asked.method == "ModelStreamInfer" else reply


def _four_mib(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    if asked.message.ByteSize() > 4 << 20:
        raise Refused("too large", "RESOURCE_EXHAUSTED")
    return answer(asked)


def _off(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    if "SharedMemory" in asked.method:
        raise Refused("switched off", "UNAVAILABLE")
    return answer(asked)


_EXTENSIONS = ("G13a", "G13b", "G14", "G15", "G16", "G17", "G18", "G19", "G20", "G21", "G22")

GRPC: list[tuple[str, GrpcFault, dict[str, Verdict]]] = [
    ("typed replies", _typed_reply, {}),
    ("empty contents beside raw ones", _empty_contents, {}),
    ("readiness of nothing is NOT_FOUND", _not_found, {}),
    ("no more than the protocol's own", _core_only, _unsupported(*_EXTENSIONS)),
    ("a stream without envelopes", _bare_stream, _unsupported("G13a", "G13b")),
    ("messages of 4 MiB", _four_mib, _unsupported("G11")),
    ("shared memory is off", _off, _unsupported("G20", "G21")),
]


@pytest.mark.parametrize("variant", HTTP, ids=[variant.name for variant in HTTP])
def test_over_http(variant: Variant) -> None:
    _check(variant.fault, grpc_honest, variant.extensions, variant.others)


@pytest.mark.parametrize(("fault", "others"), [row[1:] for row in GRPC], ids=[row[0] for row in GRPC])
def test_over_grpc(fault: GrpcFault, others: dict[str, Verdict]) -> None:
    _check(honest, fault, EXTENSIONS, others)


def _check(fault: Fault, grpc_fault: GrpcFault, extensions: tuple[str, ...], others: dict[str, Verdict]) -> None:
    results = checked(fault, grpc_fault, extensions=extensions)
    came = {result.id: result for result in results.values() if result.verdict is not Verdict.PASS}
    assert {id: result.verdict for id, result in came.items()} == others, came
    assert all(result.detail for result in came.values())


def test_what_a_bare_message_looks_like() -> None:
    """The guard of the stream points tells the two kinds of message apart by this."""
    bare = OIP.message("ModelInferResponse")(model_name="m", outputs=[{"name": "o"}]).SerializeToString()
    assert OIP.message("ModelInferResponse").FromString(bare).outputs
    assert not OIP.message("ModelStreamInferResponse").FromString(bare).infer_response.outputs
