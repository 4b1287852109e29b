"""G1 to G12: the protocol's own calls over gRPC."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ekiben.conformance.context import NO_SUCH_MODEL, Context
from ekiben.conformance.grpc_call import attempted, called, refused_with
from ekiben.conformance.grpc_infer import outputs_of, raw_fields, typed_fields
from ekiben.conformance.infer_reply import expect_equal, only
from ekiben.conformance.infer_request import sample_tensor
from ekiben.conformance.points import GRPC_HTTP2, OIP_GRPC, TRITON_GRPC, point
from ekiben.conformance.survey import Sample
from ekiben.conformance.values import BEYOND_FLOATS, HALVES, OCTETS, PLAIN, round_trips
from ekiben.conformance.verdicts import NotChecked, NotSupported, expect
from ekiben.types import Tensor

_ID: Final = "conformance-42"
_LARGE_BYTES: Final = 8 << 20
_INVALID: Final = ("INVALID_ARGUMENT",)


def _infer(context: Context, fields: Mapping[str, Any], compression: str = "") -> Any:
    return called(context.grpc, "ModelInfer", compression, **fields)


def _given(context: Context) -> tuple[Sample, dict[str, Any]]:
    """The smallest model, and the fields of a right request to it."""
    sample = context.sample
    return sample, raw_fields(sample.model.name, sample.inputs)


def _returned(
    context: Context, sample: Sample, tensor: Tensor, form: Callable[..., dict[str, Any]] = raw_fields
) -> Tensor:
    """What an echo answers to a tensor."""
    fields = form(sample.model.name, {sample.model.inputs[0].name: tensor})
    return only(outputs_of(_infer(context, fields)))


@point("G1", "ServerLive and ServerReady say true", OIP_GRPC)
def health(context: Context) -> None:
    expect(called(context.grpc, "ServerLive").live, "live true", "false")
    expect(called(context.grpc, "ServerReady").ready, "ready true", "false")


@point("G2", "ServerMetadata has a name and a version", OIP_GRPC)
def server_metadata(context: Context) -> None:
    reply = called(context.grpc, "ServerMetadata")
    expect(bool(reply.name and reply.version), "a name and a version", f"'{reply.name}' and '{reply.version}'")


@point("G3a", "ModelReady says true of a model that is ready, and of its version", OIP_GRPC)
def model_ready(context: Context) -> None:
    expect(called(context.grpc, "ModelReady", name=context.name).ready, "ready true", "false")
    for sample in context.survey.samples[:1]:
        for version in sample.model.versions[-1:]:
            reply = called(context.grpc, "ModelReady", name=sample.model.name, version=version)
            expect(reply.ready, f"ready true for version '{version}'", "false")


@point("G3b", "ModelReady of a model that does not exist says false, or NOT_FOUND", OIP_GRPC)
def no_such_model_is_not_ready(context: Context) -> None:
    _not_ready(context, NO_SUCH_MODEL)


@point("G3c", "ModelReady of a model that is not loaded says false, or a status but OK", OIP_GRPC)
def unloaded_model_is_not_ready(context: Context) -> None:
    _not_ready(context, context.not_ready)


def _not_ready(context: Context, name: str) -> None:
    code, reply = attempted(context.grpc, "ModelReady", name=name)
    if code == "OK":
        expect(not reply.ready, f"ready false for '{name}'", "true")
    else:
        expect(code in ("NOT_FOUND", "UNAVAILABLE", "INVALID_ARGUMENT"), "ready false, or NOT_FOUND", f"{code} {reply}")


@point("G4", "ModelMetadata says the same as over HTTP", OIP_GRPC)
def model_metadata(context: Context) -> None:
    model = context.sample.model
    reply = called(context.grpc, "ModelMetadata", name=model.name)
    expect(reply.name == model.name, f"the name '{model.name}'", reply.name)
    for came, wanted in ((reply.inputs, model.inputs), (reply.outputs, model.outputs)):
        tensors = {each.name: (each.datatype, tuple(each.shape)) for each in came}
        specs = {spec.name: (spec.datatype, spec.shape) for spec in wanted}
        expect(tensors == specs, f"{specs}", tensors)


@point("G5a", "ModelInfer takes raw_input_contents", OIP_GRPC)
def raw(context: Context) -> None:
    for sample in context.survey.samples or (context.sample,):
        reply = _infer(context, raw_fields(sample.model.name, sample.inputs))
        expect_equal(outputs_of(reply), sample.outputs, f"raw tensors for '{sample.model.name}'")


@point("G5b", "ModelInfer takes typed contents", OIP_GRPC)
def typed(context: Context) -> None:
    for sample in context.survey.samples or (context.sample,):
        reply = _infer(context, typed_fields(sample.model.name, sample.inputs))
        expect_equal(outputs_of(reply), sample.outputs, f"typed tensors for '{sample.model.name}'")


@point("G5c", "With outputs in the request, just those come", OIP_GRPC)
def some_outputs(context: Context) -> None:
    sample = context.find(lambda each: len(each.outputs) > 1, "with two outputs")
    for name, tensor in sample.outputs.items():
        reply = _infer(context, raw_fields(sample.model.name, sample.inputs, outputs=[{"name": name}]))
        expect_equal(outputs_of(reply), {name: tensor}, f"a request for '{name}' alone")


@point("G6a", "Raw and typed contents together: INVALID_ARGUMENT", OIP_GRPC)
def both_forms(context: Context) -> None:
    sample, fields = _given(context)
    fields["inputs"] = typed_fields(sample.model.name, sample.inputs)["inputs"]
    refused_with(context.grpc, _INVALID, "raw and typed contents together", "ModelInfer", **fields)


@point("G6b", "Fewer raw_input_contents than inputs: INVALID_ARGUMENT", OIP_GRPC)
def too_few(context: Context) -> None:
    sample = context.find(lambda each: len(each.inputs) > 1, "with two inputs")
    fields = raw_fields(sample.model.name, sample.inputs)
    fields["raw_input_contents"].pop()
    refused_with(context.grpc, _INVALID, "one raw tensor too few", "ModelInfer", **fields)


@point("G6c", "More raw_input_contents than inputs: INVALID_ARGUMENT", OIP_GRPC)
def too_many(context: Context) -> None:
    _, fields = _given(context)
    fields["raw_input_contents"] = [*fields["raw_input_contents"], fields["raw_input_contents"][-1]]
    refused_with(context.grpc, _INVALID, "one raw tensor too many", "ModelInfer", **fields)


@point("G6d", "Contents of another size than the shape's: INVALID_ARGUMENT", OIP_GRPC)
def wrong_size(context: Context) -> None:
    _, fields = _given(context)
    fields["raw_input_contents"][0] += b"\x01"
    refused_with(context.grpc, _INVALID, "a raw tensor of one byte too many", "ModelInfer", **fields)


@point("G7a", "Each datatype comes back as it was sent, raw", OIP_GRPC)
def raw_datatypes(context: Context) -> str:
    return round_trips(context, {**_ALL, **HALVES}, lambda sample, tensor: _returned(context, sample, tensor))


@point("G7b", "Each datatype but FP16 and BF16 comes back as it was sent, typed", OIP_GRPC)
def typed_datatypes(context: Context) -> str:
    return round_trips(context, _ALL, lambda sample, tensor: _returned(context, sample, tensor, typed_fields))


_ALL: Final = {datatype: (*values, *BEYOND_FLOATS.get(datatype, ())) for datatype, values in PLAIN.items()}


@point("G7c", "Raw BYTES are each a length of four bytes and the element, whatever it is", TRITON_GRPC)
def octets(context: Context) -> str:
    return round_trips(context, {"BYTES": OCTETS}, lambda sample, tensor: _returned(context, sample, tensor))


@point("G8", "The reply has the model's name and the request's id", OIP_GRPC)
def id_returned(context: Context) -> None:
    sample, fields = _given(context)
    reply = _infer(context, {**fields, "id": _ID})
    expect(reply.model_name == sample.model.name, f"model_name '{sample.model.name}'", reply.model_name)
    expect(reply.id == _ID, f"id '{_ID}'", reply.id)


@point("G9a", "A model that does not exist: NOT_FOUND, for infer and metadata", TRITON_GRPC)
def unknown_model(context: Context) -> None:
    fields = raw_fields(NO_SUCH_MODEL, {"x": np.ones(1, np.float32)})
    refused_with(context.grpc, ("NOT_FOUND",), "a model that does not exist", "ModelInfer", **fields)
    refused_with(context.grpc, ("NOT_FOUND",), "metadata of no model", "ModelMetadata", name=NO_SUCH_MODEL)


@point("G9b", "A model that is not loaded: NOT_FOUND or UNAVAILABLE", TRITON_GRPC)
def unloaded_model(context: Context) -> None:
    fields = raw_fields(context.not_ready, {"x": np.ones(1, np.float32)})
    refused_with(context.grpc, ("NOT_FOUND", "UNAVAILABLE"), "a model that is not loaded", "ModelInfer", **fields)


@point("G9c", "An input or an output that the model has not: INVALID_ARGUMENT", TRITON_GRPC)
def unknown_tensor(context: Context) -> None:
    sample, fields = _given(context)
    first, *others = fields["inputs"]
    wrong = {**fields, "inputs": [{**first, "name": "conformance-no-such-input"}, *others]}
    refused_with(context.grpc, _INVALID, "an input that the model has not", "ModelInfer", **wrong)
    wrong = {**fields, "outputs": [{"name": "conformance-no-such-output"}]}
    refused_with(context.grpc, _INVALID, f"an output that '{sample.model.name}' has not", "ModelInfer", **wrong)


@point("G9d", "An input of another datatype than the model's: INVALID_ARGUMENT", TRITON_GRPC)
def wrong_datatype(context: Context) -> None:
    sample = context.find(lambda each: each.model.inputs[0].datatype != "FP64", "with an input that is not FP64")
    first = sample.model.inputs[0].name
    wrong = {**sample.inputs, first: np.ones(sample.inputs[first].shape, np.float64)}
    why = f"FP64 for a model of {sample.model.inputs[0].datatype}"
    refused_with(context.grpc, _INVALID, why, "ModelInfer", **raw_fields(sample.model.name, wrong))


@point("G10", "Without a model_version the server chooses; a version that is given answers, and is named", OIP_GRPC)
def version(context: Context) -> None:
    sample = context.versioned()
    fields = raw_fields(sample.model.name, sample.inputs)
    chosen = _infer(context, fields).model_version
    expect(chosen in sample.model.versions, f"a model_version of {', '.join(sample.model.versions)}", chosen)
    for wanted in sample.model.versions:
        came = _infer(context, {**fields, "model_version": wanted}).model_version
        expect(came == wanted, f"model_version '{wanted}'", came)


@point("G11", "A message may have 8 MiB", TRITON_GRPC)
def large(context: Context) -> None:
    sample, tensor = _large(context)
    fields = raw_fields(sample.model.name, {sample.model.inputs[0].name: tensor})
    code, reply = attempted(context.grpc, "ModelInfer", **fields)
    if code == "RESOURCE_EXHAUSTED":
        raise NotSupported(f"a message of {_LARGE_BYTES} bytes gets {code} {reply}")
    expect(code == "OK", "OK for a large message", f"{code} {reply}" if code != "OK" else "")
    came = only(outputs_of(reply))
    expect(bool(np.array_equal(came, tensor)), f"the {_LARGE_BYTES} bytes that were sent", "others")


def _large(context: Context) -> tuple[Sample, Tensor]:
    for datatype, sample in context.survey.echoes.items():
        spec = sample.model.inputs[0]
        if datatype in PLAIN and datatype != "BOOL" and -1 in spec.shape[1:]:
            tensor = sample_tensor(spec, "counting", 1)
            count = _LARGE_BYTES // tensor.nbytes
            sizes = [count if at == _last_variable(spec.shape) else size for at, size in enumerate(tensor.shape)]
            return sample, np.resize(sample_tensor(spec, "counting", 7), sizes)
    raise NotChecked("no model that returns its only input, of a variable size")


def _last_variable(shape: tuple[int, ...]) -> int:
    return max(at for at, size in enumerate(shape) if size < 0)


@point("G12", "A message may be compressed with gzip", GRPC_HTTP2)
def gzipped(context: Context) -> None:
    sample, fields = _given(context)
    expect_equal(outputs_of(_infer(context, fields, "gzip")), sample.outputs, "a message in gzip")
