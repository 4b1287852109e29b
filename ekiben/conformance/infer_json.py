"""J: inference with tensors in JSON."""

import gzip
import zlib
from typing import Final

import numpy as np

from ekiben.conformance.context import Context
from ekiben.conformance.http_client import Reply, unpacked
from ekiben.conformance.infer_reply import (
    answered,
    content_type,
    expect_equal,
    json_of,
    member,
    only,
    outputs,
    refused,
)
from ekiben.conformance.infer_request import (
    as_binary,
    as_json,
    binary_body,
    encoded,
    outputs_wanted,
    request,
    sample_tensor,
)
from ekiben.conformance.points import KSERVE_REST, OIP_REST, RFC_CONTENT, RFC_HTTP, RFC_JSON, TRITON_HTTP, point
from ekiben.conformance.survey import Sample
from ekiben.conformance.values import BEYOND_FLOATS, OCTETS, PLAIN, TEXTS, filled, round_trips
from ekiben.conformance.verdicts import Failed, NoReply, NotChecked, NotSupported, expect
from ekiben.types import Tensor

_ID: Final = "conformance-42"
_NESTED: Final = 20_000
_ENDLESS_BYTES: Final = 1 << 50
_NOT_FINITE: Final = (np.nan, np.inf, -np.inf, 1.0)


@point("J1a", "A request may have id, parameters and outputs beside its inputs", OIP_REST)
def full_request(context: Context) -> None:
    sample = context.sample
    wanted = [{**each, "parameters": {}} for each in outputs_wanted(sample.outputs)]
    given = [{**each, "parameters": {}} for each in sample.json_inputs]
    body = encoded(request(given, id=_ID, parameters={}, outputs=wanted))
    expect_equal(outputs(context.http.post(sample.path, body)), sample.outputs, "a request with every member")


@point("J1b", "A request of inputs alone, made from the metadata, is answered", OIP_REST)
def bare_request(context: Context) -> None:
    if context.survey.troubles and not context.survey.samples:
        raise Failed(context.survey.troubles[0])
    sample = context.sample
    expect_equal(outputs(context.infer(sample)), sample.outputs, "a request like one before")


@point("J1c", "A request without inputs is refused", OIP_REST)
def no_inputs(context: Context) -> None:
    refused(context.http.post(context.sample.path, b'{"id":"conformance-42"}'), "a request without 'inputs'")


@point("J2a", "The reply has model_name and outputs with name, datatype, shape and data", OIP_REST)
def reply_form(context: Context) -> None:
    sample = context.sample
    reply = context.infer(sample)
    document, _ = json_of(answered(reply))
    name = member(document, "model_name", str, "the reply")
    expect(name == sample.model.name, f"model_name '{sample.model.name}'", name)
    version = document.get("model_version")
    expect(version is None or isinstance(version, str), "text, if anything, for 'model_version'", version)
    outputs(reply)


@point("J2b", "The reply has the request's id", OIP_REST)
def id_returned(context: Context) -> None:
    document, _ = json_of(answered(context.infer(context.sample, id=_ID)))
    expect(document.get("id") == _ID, f"id '{_ID}'", document.get("id"))


@point("J2c", "The reply to a request without id has none, or a text of the server's own", OIP_REST)
def id_absent(context: Context) -> None:
    document, _ = json_of(answered(context.infer(context.sample)))
    came = document.get("id")
    expect(came is None or isinstance(came, str), "text, if anything, for 'id'", came)


@point("J2d", "The reply's Content-Type is application/json", OIP_REST)
def reply_type(context: Context) -> None:
    kind = content_type(answered(context.infer(context.sample)))
    expect(kind == "application/json", "Content-Type application/json", kind)


@point("J3a", "Without outputs in the request, every output comes", OIP_REST)
def every_output(context: Context) -> None:
    sample = max(context.survey.samples, key=lambda each: len(each.model.outputs), default=context.sample)
    named = sorted(spec.name for spec in sample.model.outputs)
    came = sorted(outputs(context.infer(sample)))
    expect(came == named, f"outputs {', '.join(named)}", ", ".join(came))


@point("J3b", "With outputs in the request, just those come", OIP_REST)
def some_outputs(context: Context) -> None:
    sample = context.find(lambda each: len(each.outputs) > 1, "with two outputs")
    for name, tensor in sample.outputs.items():
        came = outputs(context.infer(sample, outputs=outputs_wanted((name,))))
        expect_equal(came, {name: tensor}, f"a request for '{name}' alone")


@point("J4a", "Data may be nested as well as flat", KSERVE_REST)
def nested_data(context: Context) -> None:
    sample = context.sample
    given = [as_json(name, tensor, nested=True) for name, tensor in sample.inputs.items()]
    came = outputs(context.http.post(sample.path, encoded(request(given))))
    expect_equal(came, sample.outputs, "nested data")


@point("J4b", "Data that are not as many as the shape says are refused", KSERVE_REST)
def wrong_count(context: Context) -> None:
    sample = context.sample
    first, *others = sample.json_inputs
    data = first["data"]
    for wrong, what in (([*data, data[-1]], "one element too many"), (data[:-1], "one element too few")):
        body = encoded(request([{**first, "data": wrong}, *others]))
        refused(context.http.post(sample.path, body), f"data with {what}")


@point("J4c", "Data are in row-major order", KSERVE_REST)
def row_major(context: Context) -> None:
    sample, tensor = _square(context)
    for nested in (False, True):
        body = encoded(request([as_json(sample.model.inputs[0].name, tensor, nested=nested)]))
        came = only(outputs(context.http.post(sample.path, body)))
        how = "nested" if nested else "flat"
        expect_equal({"output": came}, {"output": tensor}, f"{how} data of shape {list(tensor.shape)}", exact=True)


def _square(context: Context) -> tuple[Sample, Tensor]:
    """An echo, and an input for it of two dimensions, of two elements or more each."""
    for datatype, sample in context.survey.echoes.items():
        tensor = sample_tensor(sample.model.inputs[0], "counting", 3, rows=2)
        if datatype in PLAIN and datatype != "BOOL" and sum(size > 1 for size in tensor.shape) > 1:
            return sample, tensor
    raise NotChecked("no model that returns its only input, of two dimensions")


@point("J5a", "Each datatype comes back as it was sent", KSERVE_REST)
def datatypes(context: Context) -> str:
    return round_trips(context, PLAIN, lambda sample, tensor: _returned(context, sample, tensor))


@point("J5b", "Integers beyond 2^53 come back as they were sent", KSERVE_REST)
def long_integers(context: Context) -> str:
    return round_trips(context, BEYOND_FLOATS, lambda sample, tensor: _returned(context, sample, tensor))


def _returned(context: Context, sample: Sample, tensor: Tensor) -> Tensor:
    """What an echo answers to a tensor, both in JSON."""
    return only(outputs(context.infer(sample, {sample.model.inputs[0].name: tensor})))


@point("J6a", "FP16 or BF16 data in JSON are refused, or taken as the numbers they are", TRITON_HTTP)
def half_input(context: Context) -> None:
    sample = context.echo("FP16", "BF16")
    reply = context.infer(sample, outputs=outputs_wanted(sample.outputs, binary_data=True))
    _refused_or_equal(reply, sample, "FP16 data in JSON")


@point("J6b", "An FP16 or BF16 output in JSON is refused, or has the numbers that it should", TRITON_HTTP)
def half_output(context: Context) -> None:
    sample = context.echo("FP16", "BF16")
    _refused_or_equal(_in_binary_out_json(context, sample, *sample.inputs.values()), sample, "an FP16 output in JSON")


def _refused_or_equal(reply: Reply, sample: Sample, what: str) -> None:
    if reply.status == 200:
        expect_equal(outputs(reply), sample.outputs, what, exact=True)
    else:
        refused(reply, what)


def _in_binary_out_json(context: Context, sample: Sample, tensor: Tensor) -> Reply:
    given, blob = as_binary(sample.model.inputs[0].name, tensor)
    body = binary_body(request([given]), [blob])
    return context.http.post(sample.path, body.body, **body.headers())


@point("J7a", "BYTES are text in JSON, of any language", KSERVE_REST)
def text(context: Context) -> str:
    return round_trips(context, {"BYTES": TEXTS}, lambda sample, tensor: _returned(context, sample, tensor))


@point("J7b", "BYTES that are not UTF-8, asked for in JSON, get an answer that is", RFC_JSON)
def not_text(context: Context) -> None:
    context.blobs()
    sample = context.echo("BYTES")
    for tensor in filled(sample, OCTETS):
        _in_binary_out_json(context, sample, tensor).mapping()
    expect_equal(outputs(context.infer(sample)), sample.outputs, "the next request")


@point("J8a", "Parameters may be text, numbers and booleans", KSERVE_REST)
def parameters(context: Context) -> None:
    sample = context.sample
    given = {"my_text": "x", "my_number": 5, "my_fraction": 0.5, "my_flag": True}
    expect_equal(outputs(context.infer(sample, parameters=given)), sample.outputs, "a request with parameters")


@point("J8b", "A parameter that is an object is refused or ignored, and does no harm", KSERVE_REST)
def odd_parameter(context: Context) -> None:
    sample = context.sample
    reply = context.infer(sample, parameters={"my_object": {"a": [1]}})
    if reply.status == 200:
        expect_equal(outputs(reply), sample.outputs, "a request with an object as parameter")
    else:
        refused(reply, "a parameter that is an object", range(400, 500))


@point("J9a", "A tensor may have no elements", KSERVE_REST)
def empty_tensor(context: Context) -> None:
    fits = [each for each in context.survey.echoes.values() if -1 in each.model.inputs[0].shape[1:]]
    sample = next((each for each in fits if each.model.inputs[0].datatype in PLAIN), None)
    if sample is None:
        raise NotChecked("no model that returns its only input, of a variable size")
    tensor = sample_tensor(sample.model.inputs[0], "zeros", 0)
    reply = context.infer(sample, {sample.model.inputs[0].name: tensor})
    if 400 <= reply.status < 500:
        raise NotSupported(f"a tensor of shape {list(tensor.shape)} is refused: {reply}")
    came = only(outputs(reply))
    expect_equal({"output": came}, {"output": tensor}, f"a tensor of shape {list(tensor.shape)}", exact=True)


@point("J9b", "A tensor may be a scalar, with shape []", KSERVE_REST)
def scalar(context: Context) -> None:
    sample = context.find(lambda each: any(not spec.shape for spec in each.model.inputs), "with a scalar input")
    came = outputs(context.infer(sample))
    for spec in sample.model.outputs:
        if not spec.shape and spec.name in came:
            expect(came[spec.name].shape == (), f"shape [] for '{spec.name}'", list(came[spec.name].shape))


@point("J10a", "NaN and infinities in JSON, as the tokens that Python and Triton write, come back", TRITON_HTTP)
def not_finite(context: Context) -> None:
    sample = context.echo("FP32", "FP64")
    for tensor in filled(sample, _NOT_FINITE):
        reply = context.infer(sample, {sample.model.inputs[0].name: tensor})
        if 400 <= reply.status < 500:
            raise NotSupported(f"the tokens NaN and Infinity are refused: {reply}")
        came = only(outputs(reply))
        expect_equal({"output": came}, {"output": tensor}, "NaN and infinities", exact=True)


@point("J10b", "NaN and infinities of a model, asked for in JSON, are refused or come as such", TRITON_HTTP)
def not_finite_output(context: Context) -> None:
    context.blobs()
    sample = context.echo("FP32", "FP64")
    for tensor in filled(sample, _NOT_FINITE):
        reply = _in_binary_out_json(context, sample, tensor)
        if reply.status != 200:
            refused(reply, "NaN in a JSON output")
            return
        came = only(outputs(reply))
        expect_equal({"output": came}, {"output": tensor}, "NaN and infinities", exact=True)


@point("J11a", "A request may come in chunks", RFC_HTTP)
def chunked(context: Context) -> None:
    sample = context.sample
    body = encoded(request(sample.json_inputs))
    pieces = (body[:1], body[1:20], body[20:])
    expect_equal(outputs(context.http.post_chunked(sample.path, pieces)), sample.outputs, "a request in chunks")


@point("J11b", "A request may be compressed with gzip", TRITON_HTTP)
def gzipped(context: Context) -> None:
    _packed(context, gzip.compress(encoded(request(context.sample.json_inputs))), "gzip")


@point("J11c", "A request may be compressed with deflate, in zlib's format", TRITON_HTTP)
def deflated(context: Context) -> None:
    _packed(context, zlib.compress(encoded(request(context.sample.json_inputs))), "deflate")


def _packed(context: Context, body: bytes, encoding: str) -> None:
    reply = context.http.post(context.sample.path, body, content_encoding=encoding)
    if 400 <= reply.status < 500 or reply.status == 501:
        raise NotSupported(f"{encoding} is refused: {reply}")
    expect_equal(outputs(reply), context.sample.outputs, f"a request in {encoding}")


@point("J11d", "A reply is compressed where Accept-Encoding asks for it", RFC_CONTENT)
def packed_reply(context: Context) -> str:
    sample = max(context.survey.samples, key=_size, default=context.sample)
    body = encoded(request(sample.json_inputs))
    taken: list[str] = []
    for encoding in ("gzip", "deflate"):
        reply = answered(context.http.post(sample.path, body, accept_encoding=encoding))
        if "content-encoding" in reply.headers:
            expect(reply.headers["content-encoding"] == encoding, f"{encoding}", reply.headers["content-encoding"])
            expect_equal(outputs(unpacked(reply)), sample.outputs, f"a reply in {encoding}")
            taken.append(encoding)
    if not taken:
        raise NotSupported("replies are not compressed")
    return " and ".join(taken)


def _size(sample: Sample) -> int:
    return sum(tensor.size for tensor in sample.outputs.values())


@point("J11e", "JSON that nests without end is refused", TRITON_HTTP)
def endless_nesting(context: Context) -> None:
    sample = context.sample
    body = b'{"inputs":%b%b}' % (b"[" * _NESTED, b"]" * _NESTED)
    refused(context.http.post(sample.path, body), f"JSON that nests {_NESTED} levels deep")
    expect_equal(outputs(context.infer(sample)), sample.outputs, "the next request")


@point("J11f", "A body too large to be taken is refused before it is there", RFC_CONTENT)
def endless_body(context: Context) -> None:
    path = context.sample.path
    fields = {"content_type": "application/json", "content_length": str(_ENDLESS_BYTES)}
    context.deadline.restart(context.deadline.seconds / 4)
    try:
        reply = context.http.exchange("POST", path, (b'{"inputs":[',), fields)
    except NoReply:
        raise NotSupported(f"a body of {_ENDLESS_BYTES} bytes is waited for") from None
    expect(reply.status >= 400, f"a status of 400 or more for a body of {_ENDLESS_BYTES} bytes", str(reply))
