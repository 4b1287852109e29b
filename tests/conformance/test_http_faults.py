"""The suite can fail: each row is a server with one fault, and the points that must find it, and no other."""

import json
from typing import Any

import numpy as np
import pytest

from ekiben.conformance.verdicts import Verdict
from tests.conformance.faults import (
    INFER,
    asking,
    body,
    document,
    drop,
    first_time,
    has,
    header,
    headers,
    lacks,
    no_header,
    on,
    outputs,
    put,
    reply,
    request,
    says,
    status,
    succeeds,
)
from tests.conformance.little import HTTP_POINTS, checked, failed
from tests.conformance.little_http import LENGTH, Answered, Answerer, Asked, Fault

_MODEL = "/v2/models/echo_bool"
_TWO = on(r"/v2/models/a%20model%2Fof%20two/infer")
_UNKNOWN = "/v2/models/conformance-no-such-model"
_ALL_BINARY = b'"binary_data_output":true'
_NONE_BINARY = b'"binary_data_output":false'
_OCTETS = "application/octet-stream"
_TEXT = {"content-type": "text/plain"}


def _data(change: Any) -> Any:
    """Change the elements of an output in JSON."""

    def changed(output: dict[str, Any]) -> None:
        if "data" in output:
            output["data"] = change(output, output["data"])

    return changed


def _through_float(output: dict[str, Any], data: list[Any]) -> list[Any]:
    return [int(float(each)) for each in data] if output["datatype"] in ("INT64", "UINT64") else data


def _at_most_100(output: dict[str, Any], data: list[Any]) -> list[Any]:
    return [min(each, 100) for each in data] if output["datatype"] == "INT8" else data


def _column_major(output: dict[str, Any], data: list[Any]) -> list[Any]:
    if len(output["shape"]) != 2 or min(output["shape"]) < 2:
        return data
    return list(np.array(data, object).reshape(output["shape"]).T.reshape(-1))


def _latin(output: dict[str, Any], data: list[Any]) -> list[Any]:
    return [each.encode().decode("latin-1") for each in data] if output["datatype"] == "BYTES" else data


def _scalar_as_list(output: dict[str, Any]) -> None:
    output["shape"] = output["shape"] or [1]


def _halves_as_bits(_: Answered) -> Answered:
    document = {"model_name": "m", "outputs": [{"name": "out0", "datatype": "FP16", "shape": [1, 1], "data": [15360]}]}
    return Answered(200, json.dumps(document).encode(), {"content-type": "application/json"})


def _not_utf8(_: Answered) -> Answered:
    text = b'{"model_name":"m","outputs":[{"name":"out0","datatype":"BYTES","shape":[1,1],"data":["\xff"]}]}'
    return Answered(200, text, {"content-type": "application/json"})


def _without_header(honest: Answered) -> Answered:
    return Answered(honest.status, honest.body, {"content-type": _OCTETS})


def _with_header(honest: Answered) -> Answered:
    return Answered(honest.status, honest.body, {"content-type": _OCTETS, LENGTH: str(len(honest.body))})


def _swapped_blobs(honest: Answered) -> Answered:
    length = int(honest.headers[LENGTH])
    sizes = [each["parameters"]["binary_data_size"] for each in json.loads(honest.body[:length])["outputs"]]
    head, first, second = honest.body[:length], honest.body[length:][: sizes[0]], honest.body[length:][sizes[0] :]
    return Answered(honest.status, head + second + first, honest.headers)


def _big_endian(honest: Answered) -> Answered:
    length = int(honest.headers[LENGTH])
    if b'"INT16"' not in honest.body[:length] or b'"UINT16"' in honest.body[:length]:
        return honest
    swapped = np.frombuffer(honest.body[length:], np.int16).byteswap().tobytes()
    return Answered(honest.status, honest.body[:length] + swapped, honest.headers)


def _no_outputs(asked: Asked) -> Asked:
    parsed = json.loads(asked.body)
    parsed.pop("outputs", None)
    return asked._replace(body=json.dumps(parsed).encode())


def _all_or_none(asked: Asked) -> Asked:
    """One output wanted in binary makes all of them so."""
    return asked._replace(body=asked.body.replace(b'"binary_data":false', b'"binary_data":true '))


def _breaks_after_two_refusals() -> Fault:
    """The request after a body that breaks off and an unknown output, in that order, fails."""
    refusals: list[str] = []

    def fault(asked: Asked, answer: Answerer) -> Answered:
        honest = answer(asked)
        if refusals == ["no JSON", "unknown output"]:
            refusals.clear()
            return Answered(500, b'{"error":"broken"}', {"content-type": "application/json"})
        text = "no JSON" if b"no JSON" in honest.body else "unknown output" if b"unknown output" in honest.body else ""
        refusals[:] = [*refusals, text][-2:]
        return honest

    return fault


def _one_output(parsed: dict[str, Any]) -> None:
    del parsed["outputs"][1:]


def _asleep(state: str) -> Any:
    def change(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["name"] == "asleep":
                line["state"] = state

    return change


def _no_count(parsed: dict[str, Any]) -> None:
    parsed["model_stats"][0]["inference_stats"]["success"]["count"] = 5


def _no_ns(parsed: dict[str, Any]) -> None:
    del parsed["model_stats"][0]["inference_stats"]["fail"]["ns"]


def _reversed_classes(output: dict[str, Any]) -> None:
    output["data"] = output["data"][::-1]


_PLAIN_BINARY = (
    on(f"{_MODEL}/infer"), header(LENGTH), no_header("content-encoding"), lacks(b'"outputs"', b"binary_data_output"),
)  # fmt: skip

FAULTS: list[tuple[str, str, Fault]] = [
    ("P1", "a version that is no text", document(put(version=1), on("/v2"))),
    ("P1", "no name", document(drop("name"), on("/v2"))),
    ("P2a", "not live", status(503, on("/v2/health/live"))),
    ("P2b", "not ready", status(400, on("/v2/health/ready"))),
    ("P3a", "every name is ready", status(200, on(f"{_UNKNOWN}/ready"))),
    ("P3b", "what is not loaded is ready", first_time(status(200), on("/v2/models/asleep/ready"))),
    ("P4a", "a model is never ready", status(400, on(f"{_MODEL}/ready"))),
    ("P4b", "a version is never ready", status(404, on(f"{_MODEL}/versions/1/ready"))),
    ("P5a", "no platform", document(drop("platform"), on(_MODEL))),
    ("P5b", "versions have no metadata", status(404, on(f"{_MODEL}/versions/1"))),
    ("P6", "another version answers", document(put(model_version="7"), on(f"{_MODEL}/versions/1/infer"))),
    ("P7", "any version is ready", status(200, on(f"{_MODEL}/versions/4294967295/ready"))),
    ("P7", "any version has metadata", status(200, on(f"{_MODEL}/versions/4294967295"))),
    ("P7", "any version infers", status(200, on(f"{_MODEL}/versions/4294967295/infer"))),
    ("P8a", "any path is there", status(200, on("/v2/conformance-no-such-path"))),
    ("P8b", "GET is as good as POST", status(200, on(f"{_MODEL}/infer", "GET"))),
    ("P9", "names are not decoded", status(404, on(".*%65.*"))),
    ("J1a", "an input has no parameters", status(400, INFER, has(b'"parameters":{}'))),
    ("J1b", "a request needs an id", status(500, INFER, succeeds, lacks(b'"id"', b"sequence_id"))),
    ("J1c E1b", "a request needs no inputs", status(200, says("inputs missing"), has(b'"id"'))),
    ("J2a", "another model answers", document(put(model_name="other"), INFER)),
    ("J2b", "the id is lost", document(drop("id"), INFER)),
    ("J2b", "another id comes", document(put(id="other"), INFER, has(b'"id"'))),
    ("J2c", "an id that is no text", document(put(id=5), INFER, lacks(b'"id"'))),
    ("J2d", "JSON as text", headers(_TEXT, INFER, succeeds, no_header(LENGTH))),
    ("J3a", "one output is left out", document(_one_output, _TWO, lacks(b'"outputs"'))),
    ("J3b", "outputs of the request are not looked at", request(_no_outputs, _TWO, no_header(LENGTH))),
    ("J4a J4c", "only flat data", status(400, INFER, has(b'"data":[['))),
    ("J4b", "the number of elements is not counted", status(200, says("count of the data"))),
    ("J4c", "column-major", outputs(_data(_column_major))),
    ("J5a", "INT8 is cut", outputs(_data(_at_most_100))),
    ("J5b", "64-bit integers go through a float", outputs(_data(_through_float))),
    ("J6a", "FP16 in JSON is taken for something else", reply(_halves_as_bits, says("half precision in JSON"))),
    ("J6b", "FP16 comes as its bits", reply(_halves_as_bits, says("half precision out"))),
    ("J7a", "text in another coding", outputs(_data(_latin))),
    ("J7b", "JSON that is not UTF-8", reply(_not_utf8, says("not UTF-8"))),
    ("J8a", "a parameter that is a fraction", status(400, has(b"my_fraction"))),
    ("J8b", "an object as parameter is too much", status(500, says("is an object or a list"))),
    ("J9a", "an empty tensor is too much", status(500, has(b'"shape":[1,0]'), no_header(LENGTH))),
    ("J9b", "a scalar becomes a list", outputs(_scalar_as_list, on("/v2/models/scalar/infer"))),
    ("J10a J10b", "NaN becomes null", body(b"NaN", b"null", INFER)),
    ("J10a", "NaN is too much", status(500, INFER, no_header(LENGTH), has(b"NaN"))),
    ("J10b", "NaN becomes null for those who sent it in binary", body(b"NaN", b"null", INFER, header(LENGTH))),
    ("J11a", "chunks are not read", status(500, header("transfer-encoding"))),
    ("J11b", "gzip is too much", status(500, header("content-encoding", "gzip"), no_header(LENGTH))),
    ("J11c", "deflate is too much", status(500, header("content-encoding", "deflate"), no_header(LENGTH))),
    (
        "J11d",
        "a compressed reply breaks off",
        reply(lambda honest: Answered(200, honest.body[:-5], honest.headers), header("accept-encoding"), INFER),
    ),
    ("J11d", "another compression comes", headers({"content-encoding": "br"}, header("accept-encoding"), INFER)),
    ("J11e", "endless nesting is taken", status(200, says("nesting"))),
    ("J11f", "endless bodies are taken", status(200, says("too large"))),
    ("E1a E1b", "`detail` for `error`", body(b'"error"', b'"detail"', INFER)),
    ("E1a", "an empty message", body(b"no model 'conformance-no-such-model'", b"", INFER)),
    ("E1b", "what cannot be read gets a page", reply(lambda _: Answered(400, b"<p>no</p>"), INFER, says("no JSON"))),
    ("E1c", "an error is text", headers(_TEXT, on(f"{_UNKNOWN}/infer"))),
    ("E2", "an unknown model is the server's fault", status(500, on(f"{_UNKNOWN}/infer"))),
    ("E2", "an unknown model has metadata", status(200, on(_UNKNOWN))),
    ("E3", "what is not loaded answers", status(200, on("/v2/models/asleep/infer"))),
    ("E4", "a list is a request", status(200, says("no object"))),
    ("E5", "datatypes are not compared", status(200, says("datatype of"))),
    ("E5", "a wrong datatype is the server's fault", status(500, says("datatype of"))),
    ("E6", "shapes are not compared", status(200, says("shape of"))),
    ("E7", "an input may be left out", status(200, says("missing input"))),
    ("E8", "any input is taken", status(200, says("unknown input"))),
    ("E9", "an input may come twice", status(200, says("twice"))),
    ("E10", "any output is wanted", status(200, says("unknown output"))),
    ("E11", "a batch may be any", status(200, says("batch of"))),
    ("E12", "refusals do harm", _breaks_after_two_refusals()),
    ("B1a", "blobs are too much", status(500, *_PLAIN_BINARY, has(b'"inputs"'), succeeds)),
    ("B1b", "JSON must be called so", status(400, header("content-type", _OCTETS), no_header(LENGTH))),
    ("B2a", "blobs are in the model's order", status(400, _TWO, header(LENGTH), lambda asked, _: _reversed(asked))),
    ("B2b", "all inputs are of one form", status(400, _TWO, header(LENGTH), has(b'"data"'))),
    ("B3a B4c", "binary_data false is not looked at", request(_all_or_none, lacks(b"binary_data_output"))),
    ("B3b B4a", "binary_data_output is not looked at", asking(_ALL_BINARY, _ALL_BINARY.replace(b"true", b"null"))),
    ("B3c", "binary_data_output goes before binary_data", request(_all_or_none, has(_ALL_BINARY))),
    ("B3b B4a", "the header is left out", reply(_without_header, has(_ALL_BINARY), lacks(b'"outputs"'))),
    ("B4a", "blobs as JSON", headers({"content-type": "application/json"}, has(_ALL_BINARY), succeeds)),
    ("B4a", "blobs are swapped", reply(_swapped_blobs, _TWO, has(_ALL_BINARY))),
    ("B4b", "JSON as text", headers(_TEXT, has(_NONE_BINARY), lacks(b'"outputs"'))),
    ("B4b", "the header without blobs", reply(_with_header, has(_NONE_BINARY), lacks(b'"outputs"'))),
    ("B4c", "one output in binary makes all so", request(_all_or_none, has(b'"binary_data":true'))),
    ("B5", "big-endian", reply(_big_endian, INFER, lambda _, answered: LENGTH in answered.headers)),
    ("B6a", "BYTES end at NUL", body(b"a\x00b", b"a\x00\x00", INFER)),
    ("B6b", "no elements are too few", status(500, has(b'"shape":[1,0]'), header(LENGTH))),
    ("B7a", "raw bodies are not taken", status(400, header(LENGTH, "0"), on("/v2/models/echo_.*"), succeeds)),
    ("B7b", "raw text must have its length", status(400, header(LENGTH, "0"), on("/v2/models/text/infer"))),
    ("B7c", "a raw body is the first of two", status(200, says("raw body for two"))),
    ("B8a", "a header may be anything", status(200, says("header is no number"))),
    ("B8b", "a header may be negative", status(500, says("header is negative"))),
    ("B8c", "a header may be over the body", status(200, says("header is over the body"))),
    ("B8d", "a header may be huge", status(500, says("header is beyond 32 bits"))),
    ("B9a", "a short body is filled up", status(200, says("body is short"))),
    ("B9b", "what is left over is left", status(200, says("body is long"))),
    ("B10a", "data twice", status(200, says("one form of data: both"))),
    ("B10b", "no data", status(200, says("one form of data: none"))),
    ("B10c", "blobs without the header", status(200, INFER, no_header(LENGTH), has(b"binary_data_size"))),
    ("B11a", "gzip is not for blobs", status(500, header(LENGTH), header("content-encoding", "gzip"))),
    ("B11b", "deflate is not for blobs", status(500, header(LENGTH), header("content-encoding", "deflate"))),
    ("X1a", "the worst class first", outputs(_reversed_classes, has(b'"classification":2'))),
    ("X1b", "a thousand classes are too many", status(400, has(b'"classification":1000'))),
    ("X1c", "less than no classes", status(200, says("less than nothing"))),
    ("X2a", "no priority", status(400, has(b'"priority":1'))),
    ("X2b", "a priority in words", status(200, says("schedule parameter"))),
    ("X3a", "sequences do not end", status(400, has(b"sequence_end"))),
    ("X3b", "sequences need no id", status(200, says("sequence without an id"))),
    ("X4", "reserved parameters are taken", status(200, says("is reserved"))),
    ("X5a", "no text_output", document(drop("text_output"), on(".*/generate"))),
    ("X5b", "lines without data:", body(b"data: ", b"", on(".*/generate_stream"))),
    ("X5b", "events of no type", headers(_TEXT, on(".*/generate_stream"))),
    ("X6a", "a state of the server's own", document(_asleep("ASLEEP"), on(".*/index"))),
    ("X6b", "ready is not looked at", asking(b'{"ready":true}', b'{            }', on(".*/index"))),
    ("X6c", "unloading fails", status(500, on(".*/asleep/unload"))),
    ("X6d", "anything is loaded", status(200, on(".*/conformance-no-such-model/load"))),
    ("X7", "another name in the configuration", document(put(name="other"), on(f"{_MODEL}/config"))),
    ("X8a", "a duration without ns", document(_no_ns, on(f"{_MODEL}/stats"))),
    ("X8b", "nothing is counted", document(_no_count, on(f"{_MODEL}/stats"))),
    ("X8c", "statistics of no model", document(lambda _: {"model_stats": []}, on("/v2/models/stats"))),
    ("X9", "no trace_level", document(drop("trace_level"), on("/v2/trace/setting"))),
    ("X9", "no trace settings of a model", status(400, on(f"{_MODEL}/trace/setting"))),
    ("X10", "a flag in words", document(put(log_info="yes"), on("/v2/logging"))),
    ("X11", "regions of no size", document(lambda lines: lines[0].pop("byte_size") and None, on("/v2/system.*"))),
    ("X12", "regions are no list", document(lambda lines: lines[0], on("/v2/cuda.*"))),
]  # fmt: skip


def _reversed(asked: Asked) -> bool:
    head = asked.body[: int(asked.headers[LENGTH])]
    return 0 <= head.find(b"in1") < head.find(b"in0")


@pytest.mark.parametrize(
    ("points", "fault"), [row[::2] for row in FAULTS], ids=[f"{row[0]}: {row[1]}" for row in FAULTS]
)
def test_a_fault_fails_its_points_and_no_other(points: str, fault: Fault) -> None:
    results = checked(fault, points=HTTP_POINTS)
    assert sorted(failed(results)) == sorted(points.split()), failed(results)
    for result in failed(results).values():
        assert "cannot be understood" not in result


def test_every_point_over_http_has_a_fault() -> None:
    assert {id for points, _, _ in FAULTS for id in points.split()} == {point.id for point in HTTP_POINTS}


def test_without_a_fault_every_point_passes() -> None:
    results = checked()
    assert {result.id: result.detail for result in results.values() if result.verdict is not Verdict.PASS} == {}
