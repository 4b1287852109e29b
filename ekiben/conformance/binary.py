"""B: inference with tensors in binary, the binary tensor data extension."""

import gzip
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ekiben.conformance.context import Context
from ekiben.conformance.http_client import Reply
from ekiben.conformance.infer_reply import (
    HEADER_LENGTH,
    answered,
    binary_outputs,
    content_type,
    expect_equal,
    json_of,
    only,
    outputs,
    refused,
)
from ekiben.conformance.infer_request import as_binary, as_json, binary_body, encoded, outputs_wanted, request
from ekiben.conformance.points import TRITON_HTTP, point, triton
from ekiben.conformance.survey import Sample
from ekiben.conformance.values import BEYOND_FLOATS, HALVES, OCTETS, PLAIN, round_trips
from ekiben.conformance.verdicts import NotChecked, NotSupported, expect
from ekiben.types import Tensor, TensorSpec

_BINARY: Final = triton("binary_data")
_CALLERS: Final = range(400, 500)
_BEYOND_INT32: Final = 1 << 31


def _sample(context: Context) -> Sample:
    context.binary()
    return context.sample


def _two_inputs(context: Context) -> Sample:
    context.binary()
    return context.find(lambda each: len(each.inputs) > 1, "with two inputs")


def _two_outputs(context: Context) -> Sample:
    context.binary()
    return context.find(lambda each: len(each.outputs) > 1, "with two outputs")


def _post(context: Context, sample: Sample, inputs: Sequence[Any], blobs: Sequence[bytes], **members: object) -> Reply:
    body = binary_body(request(inputs, **members), blobs)
    return context.http.post(sample.path, body.body, **body.headers())


def _ask(context: Context, sample: Sample, **members: object) -> Reply:
    """The sample's inputs, all in binary."""
    inputs, blobs = sample.binary_inputs
    return _post(context, sample, inputs, blobs, **members)


def _returned(context: Context, sample: Sample, tensor: Tensor) -> Tensor:
    """What an echo answers to a tensor, both in binary."""
    given, blob = as_binary(sample.model.inputs[0].name, tensor)
    return only(
        outputs(_post(context, sample, [given], [blob], outputs=outputs_wanted(sample.outputs, binary_data=True)))
    )


@point("B1a", "Inputs may follow the JSON as blobs; Inference-Header-Content-Length says where the JSON ends", _BINARY)
def binary_inputs(context: Context) -> None:
    sample = _sample(context)
    expect_equal(outputs(_ask(context, sample)), sample.outputs, "binary inputs")


@point("B1b", "Without that header the body is all JSON, whatever its Content-Type", TRITON_HTTP)
def no_header(context: Context) -> None:
    sample = _sample(context)
    body = encoded(request(sample.json_inputs))
    reply = context.http.post(sample.path, body, content_type="application/octet-stream")
    expect_equal(outputs(reply), sample.outputs, "JSON sent as application/octet-stream")


@point("B2a", "Blobs are in the order of the inputs, whatever order that is", _BINARY)
def order_of_inputs(context: Context) -> None:
    sample = _two_inputs(context)
    inputs, blobs = sample.binary_inputs
    for step in (1, -1):
        reply = _post(context, sample, inputs[::step], blobs[::step])
        order = ", ".join(each["name"] for each in inputs[::step])
        expect_equal(outputs(reply), sample.outputs, f"inputs in the order {order}")


@point("B2b", "Inputs in JSON and in binary may be mixed", _BINARY)
def mixed_inputs(context: Context) -> None:
    sample = _two_inputs(context)
    for chosen in sample.inputs:
        pairs = [
            as_binary(name, tensor) if name == chosen else (as_json(name, tensor), b"")
            for name, tensor in sample.inputs.items()
        ]
        reply = _post(context, sample, [given for given, _ in pairs], [blob for _, blob in pairs])
        expect_equal(outputs(reply), sample.outputs, f"'{chosen}' in binary and the rest in JSON")


@point("B3a", "`binary_data` of an output says how it comes", _BINARY)
def each_output(context: Context) -> None:
    sample = _sample(context)
    for name, tensor in sample.outputs.items():
        for binary in (True, False):
            reply = _ask(context, sample, outputs=outputs_wanted((name,), binary_data=binary))
            _expect_binary(reply, [name] if binary else [])
            expect_equal(outputs(reply), {name: tensor}, f"'{name}' with binary_data {binary}")


@point("B3b", "`binary_data_output` of a request without outputs asks for all of them in binary", _BINARY)
def all_outputs(context: Context) -> None:
    sample = _sample(context)
    reply = _ask(context, sample, parameters={"binary_data_output": True})
    _expect_binary(reply, list(sample.outputs))
    expect_equal(outputs(reply), sample.outputs, "every output in binary")


@point("B3c", "`binary_data` of an output goes before `binary_data_output` of the request", _BINARY)
def overridden(context: Context) -> None:
    sample = _sample(context)
    for binary in (True, False):
        wanted = outputs_wanted(sample.outputs, binary_data=binary)
        reply = _ask(context, sample, parameters={"binary_data_output": not binary}, outputs=wanted)
        _expect_binary(reply, list(sample.outputs) if binary else [])


def _expect_binary(reply: Reply, names: Sequence[str]) -> None:
    outputs(reply)
    document, _ = json_of(reply)
    came = binary_outputs(document)
    expect(sorted(came) == sorted(names), f"{', '.join(names) or 'no output'} in binary", ", ".join(came) or "none")


@point(
    "B4a", "A reply with blobs has the header, type application/octet-stream, and blobs in its outputs' order", _BINARY
)
def binary_reply(context: Context) -> None:
    sample = max(context.survey.samples, key=lambda each: len(each.outputs), default=_sample(context))
    reply = answered(_ask(context, sample, parameters={"binary_data_output": True}))
    expect(HEADER_LENGTH in reply.headers, "Inference-Header-Content-Length for blobs", "none")
    kind = content_type(reply)
    expect(kind == "application/octet-stream", "Content-Type application/octet-stream for blobs", kind)
    expect_equal(outputs(reply), sample.outputs, "a reply with blobs")


@point("B4b", "A reply without blobs is plain JSON, without the header", _BINARY)
def json_reply(context: Context) -> None:
    reply = answered(_ask(context, _sample(context), parameters={"binary_data_output": False}))
    expect(HEADER_LENGTH not in reply.headers, "no Inference-Header-Content-Length", reply.headers.get(HEADER_LENGTH))
    kind = content_type(reply)
    expect(kind == "application/json", "Content-Type application/json", kind)


@point("B4c", "Outputs in JSON and in binary may be mixed", _BINARY)
def mixed_outputs(context: Context) -> None:
    sample = _two_outputs(context)
    first, *others = sample.outputs
    wanted = [*outputs_wanted((first,), binary_data=False), *outputs_wanted(others, binary_data=True)]
    reply = _ask(context, sample, outputs=wanted)
    _expect_binary(reply, others)
    expect_equal(outputs(reply), sample.outputs, "outputs in both forms")


@point("B5", "Elements are little-endian, row-major, BOOL one byte, FP16 and BF16 two", _BINARY)
def datatypes(context: Context) -> str:
    context.binary()
    values = {**PLAIN, **HALVES}
    for datatype, more in BEYOND_FLOATS.items():
        values[datatype] = (*values[datatype], *more)
    return round_trips(context, values, lambda sample, tensor: _returned(context, sample, tensor))


@point("B6a", "A BYTES element is its length in four bytes and its own, whatever they are", _BINARY)
def octets(context: Context) -> str:
    context.binary()
    return round_trips(context, {"BYTES": OCTETS}, lambda sample, tensor: _returned(context, sample, tensor))


@point("B6b", "A BYTES tensor of no elements is a blob of no bytes", _BINARY)
def no_elements(context: Context) -> None:
    context.binary()
    sample = context.echo("BYTES")
    spec = sample.model.inputs[0]
    if -1 not in spec.shape[1:]:
        raise NotChecked("no model that returns its BYTES input, of a variable size")
    tensor = np.empty([max(size, 1) if at == 0 else max(size, 0) for at, size in enumerate(spec.shape)], np.object_)
    given, blob = as_binary(spec.name, tensor)
    reply = _post(context, sample, [given], [blob], outputs=outputs_wanted(sample.outputs, binary_data=True))
    if reply.status in _CALLERS:
        raise NotSupported(f"a tensor of shape {list(tensor.shape)} is refused: {reply}")
    expect_equal(outputs(reply), dict.fromkeys(sample.outputs, tensor), "no elements", exact=True)


@point("B7a", "With the header 0 the body is one tensor, and every output comes in binary", TRITON_HTTP)
def raw(context: Context) -> None:
    context.binary()
    sample = context.find(_deducible, "with one numeric input of at most one variable dimension beside the first")
    _, (blob,) = sample.binary_inputs
    reply = _post_raw(context, sample, blob)
    expect_equal(outputs(reply), sample.outputs, "a raw body")
    _expect_binary(reply, list(sample.outputs))


@point("B7b", "A raw body for an input of one BYTES element is that element, without its length before it", TRITON_HTTP)
def raw_text(context: Context) -> None:
    context.binary()
    sample = context.find(_of_one_text, "that returns its BYTES input of one element")
    reply = _post_raw(context, sample, b"one \x00 element")
    came = only(outputs(reply))
    expect(came.reshape(-1).tolist() == [b"one \x00 element"], "the element that was sent", came.reshape(-1).tolist())


@point("B7c", "A raw body for a model of two inputs is refused", TRITON_HTTP)
def raw_for_two(context: Context) -> None:
    refused(_post_raw(context, _two_inputs(context), bytes(64)), "a raw body for a model of two inputs", _CALLERS)


def _deducible(sample: Sample) -> bool:
    """Whether a model has one input, whose shape follows from its size."""
    specs = sample.model.inputs
    return len(specs) == 1 and specs[0].datatype != "BYTES" and _beside_rows(specs[0]).count(-1) <= 1


def _of_one_text(sample: Sample) -> bool:
    """Whether a model has one input, of one BYTES element, and returns it."""
    specs = sample.model.inputs
    single = len(specs) == 1 and specs[0].datatype == "BYTES" and _beside_rows(specs[0]) == (1,)
    return single and [*map(np.ndarray.tolist, sample.inputs.values())] == [
        *map(np.ndarray.tolist, sample.outputs.values())
    ]


def _beside_rows(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape[1:] if spec.shape[:1] == (-1,) else spec.shape


def _post_raw(context: Context, sample: Sample, body: bytes) -> Reply:
    return context.http.post(
        sample.path, body, content_type="application/octet-stream", inference_header_content_length="0"
    )


@point("B8a", "A header that is no number: 4xx", TRITON_HTTP)
def header_no_number(context: Context) -> None:
    _header(context, "many", "a header that is no number")


@point("B8b", "A header below 0: 4xx", TRITON_HTTP)
def header_negative(context: Context) -> None:
    _header(context, "-1", "a header below 0")


@point("B8c", "A header over the length of the body: 4xx", TRITON_HTTP)
def header_over_body(context: Context) -> None:
    inputs, blobs = _sample(context).binary_inputs
    length = len(binary_body(request(inputs), blobs).body) + 1
    _header(context, str(length), "a header over the length of the body")


@point("B8d", "A header beyond 32 bits: 4xx", TRITON_HTTP)
def header_beyond_int32(context: Context) -> None:
    _header(context, str(_BEYOND_INT32), "a header beyond 32 bits")


def _header(context: Context, value: str, why: str) -> None:
    sample = _sample(context)
    inputs, blobs = sample.binary_inputs
    body = binary_body(request(inputs), blobs)
    headers = {**body.headers(), "inference_header_content_length": value}
    refused(context.http.post(sample.path, body.body, **headers), why, _CALLERS)


@point("B9a", "A body that ends before its last blob does: 4xx", TRITON_HTTP)
def short(context: Context) -> None:
    sample = _sample(context)
    inputs, blobs = sample.binary_inputs
    refused(_post(context, sample, inputs, [*blobs[:-1], blobs[-1][:-1]]), "a body one byte short", _CALLERS)


@point("B9b", "A body that goes on after its last blob: 4xx", TRITON_HTTP)
def long(context: Context) -> None:
    sample = _sample(context)
    inputs, blobs = sample.binary_inputs
    refused(_post(context, sample, inputs, [*blobs, b"x"]), "a body one byte too long", _CALLERS)


@point("B10a", "An input with both `data` and `binary_data_size`: 4xx", TRITON_HTTP)
def both_forms(context: Context) -> None:
    sample = _sample(context)
    inputs, blobs = sample.binary_inputs
    wrong = {**inputs[0], "data": sample.json_inputs[0]["data"]}
    refused(_post(context, sample, [wrong, *inputs[1:]], blobs), "an input with data twice", _CALLERS)


@point("B10b", "An input with neither: 4xx", TRITON_HTTP)
def neither_form(context: Context) -> None:
    sample = _sample(context)
    first, *others = sample.json_inputs
    wrong = {key: value for key, value in first.items() if key != "data"}
    body = encoded(request([wrong, *others]))
    refused(context.http.post(sample.path, body), "an input without data", _CALLERS)


@point("B10c", "`binary_data_size` in a request without the header is refused", TRITON_HTTP)
def size_without_header(context: Context) -> None:
    sample = _sample(context)
    inputs, blobs = sample.binary_inputs
    body = binary_body(request(inputs), blobs).body
    refused(context.http.post(sample.path, body), "binary data without the header")


@point("B11a", "With gzip the header is the length of the JSON before compression", TRITON_HTTP)
def gzipped(context: Context) -> None:
    _packed(context, gzip.compress, "gzip")


@point("B11b", "With deflate likewise", TRITON_HTTP)
def deflated(context: Context) -> None:
    _packed(context, zlib.compress, "deflate")


def _packed(context: Context, pack: Any, encoding: str) -> None:
    sample = _sample(context)
    plain = context.http.post(sample.path, pack(encoded(request(sample.json_inputs))), content_encoding=encoding)
    if plain.status != 200:
        raise NotSupported(f"{encoding} is refused: {plain}")
    inputs, blobs = sample.binary_inputs
    body = binary_body(request(inputs), blobs)
    reply = context.http.post(sample.path, pack(body.body), content_encoding=encoding, **body.headers())
    expect_equal(outputs(reply), sample.outputs, f"binary inputs in {encoding}")
