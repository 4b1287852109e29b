"""X1 to X5: Triton's extensions of inference: classification, schedule policy, sequences, parameters, generate."""

import re
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np

from ekiben.conformance.context import Context, on_path
from ekiben.conformance.http_client import Reply
from ekiben.conformance.infer_reply import answered, content_type, expect_equal, member, outputs, refused
from ekiben.conformance.infer_request import as_json, encoded, outputs_wanted, request, sample_tensor
from ekiben.conformance.points import point, triton
from ekiben.conformance.survey import Model, Sample
from ekiben.conformance.values import PLAIN
from ekiben.conformance.verdicts import NotChecked, NotSupported, expect
from ekiben.types import Tensor

_CALLERS: Final = range(400, 500)
_CLASS: Final = re.compile(rb"([^:]+):(\d+)(?::(.*))?", re.DOTALL)
_MANY: Final = 1_000_000
_SEQUENCE: Final = 4711
_TEXT_INPUT: Final = "text_input"
_STRINGS: Final = {"STRING": "BYTES"}
"""The document's examples say STRING where it says BYTES itself."""


def _scores(context: Context) -> tuple[Sample, str]:
    """A model with a numeric output that is one row of two elements or more, and that output's name."""
    for sample in context.survey.samples:
        for spec in sample.model.outputs:
            tensor = sample.outputs.get(spec.name)
            if tensor is None or spec.datatype not in PLAIN or spec.datatype == "BOOL":
                continue
            if tensor.size > 1 and tensor.shape[-1] == tensor.size:
                return sample, spec.name
    raise NotChecked("no model with a numeric output of one row")


def _classified(context: Context, count: int) -> tuple[Tensor, Tensor]:
    """The best classes of an output, and the scores that they are of."""
    sample, name = _scores(context)
    reply = context.infer(sample, outputs=outputs_wanted((name,), classification=count))
    if "classification" not in context.survey.extensions:
        came = outputs(reply, _STRINGS).get(name) if reply.status == 200 else None
        if came is None or came.dtype != np.object_:
            raise NotSupported("the metadata do not list 'classification', and asking for classes got none")
    tensors = outputs(reply, _STRINGS)
    expect(name in tensors, f"output '{name}'", ", ".join(tensors) or "none")
    came = tensors[name]
    expect(came.dtype == np.object_, "BYTES for the classes", str(came.dtype))
    return came, sample.outputs[name]


@point(
    "X1a",
    "`classification` of an output asks for its best classes as value:index or value:index:label",
    triton("classification"),
)
def classes(context: Context) -> None:
    came, scores = _classified(context, 2)
    expect(came.shape[-1:] == (2,) and came.size == 2, "two classes in one row", list(came.shape))
    row = scores.reshape(-1)
    # Of equal scores either may come first.
    for element, score in zip(came.reshape(-1), sorted(row.tolist(), reverse=True), strict=False):
        form = _CLASS.fullmatch(element)
        expect(form is not None, "value:index or value:index:label", element)
        value, index = (form[1], int(form[2])) if form is not None else (b"", 0)
        expect(index < len(row) and row[index] == score, f"the index of score {score}", element)
        expect(_near(value, score), f"the value {score}", element)


def _near(text: bytes, score: float) -> bool:
    try:
        return bool(np.isclose(float(text), score, rtol=1e-4, atol=1e-6))
    except ValueError:
        return False


@point("X1b", "More classes than there are gives all of them", triton("classification"))
def all_classes(context: Context) -> None:
    came, scores = _classified(context, _MANY)
    expect(came.size == scores.size, f"{scores.size} classes", list(came.shape))


@point("X1c", "A number of classes below 0 is refused", triton("classification"))
def negative_classes(context: Context) -> None:
    _classified(context, 1)
    sample, name = _scores(context)
    reply = context.infer(sample, outputs=outputs_wanted((name,), classification=-1))
    refused(reply, "a negative number of classes")


@point("X2a", "`priority` and `timeout` of a request are taken", triton("schedule_policy"))
def schedule(context: Context) -> None:
    context.listed("schedule_policy")
    sample = context.sample
    for given in ({"priority": 1}, {"priority": 0, "timeout": 60_000_000}):
        expect_equal(outputs(context.infer(sample, parameters=given)), sample.outputs, f"a request with {given}")


@point("X2b", "A `priority` or `timeout` that is no number is refused", triton("schedule_policy"))
def odd_schedule(context: Context) -> None:
    context.listed("schedule_policy")
    for given in ({"priority": "high"}, {"timeout": "long"}):
        refused(context.infer(context.sample, parameters=given), f"a request with {given}")


@point("X3a", "A request may be the start, a middle or the end of a sequence", triton("sequence"))
def sequence(context: Context) -> None:
    model = _sequence_model(context)
    for given in ({"sequence_start": True}, {}, {"sequence_end": True}):
        answered(_ask_once(context, model, {"sequence_id": _SEQUENCE, **given}))


@point("X3b", "A model of sequences refuses a request that belongs to none", triton("sequence"))
def no_sequence(context: Context) -> None:
    refused(_ask_once(context, _sequence_model(context), {}), "a request without sequence_id", _CALLERS)


def _sequence_model(context: Context) -> Model:
    """A model whose configuration has sequence_batching."""
    context.listed("sequence")
    for model in context.survey.models:
        reply = context.http.get(f"{model.path}/config")
        if reply.status == 200 and reply.mapping().get("sequence_batching"):
            return model
    raise NotChecked("no model with sequence_batching in its configuration")


def _ask_once(context: Context, model: Model, parameters: dict[str, object]) -> Reply:
    given = [as_json(spec.name, sample_tensor(spec, "ones", 1)) for spec in model.inputs]
    return context.http.post(f"{model.path}/infer", encoded(request(given, parameters=parameters)))


@point("X4", "A parameter whose name starts with triton_ is refused", triton("parameters"))
def reserved_parameter(context: Context) -> None:
    context.listed("parameters")
    refused(context.infer(context.sample, parameters={"triton_conformance": "x"}), "a reserved parameter", _CALLERS)


@point("X5a", "`generate` takes text_input and gives one flat object, with text_output", triton("generate"))
def generate(context: Context) -> None:
    reply = answered(_generated(context, "generate"))
    kind = content_type(reply)
    expect(kind == "application/json", "Content-Type application/json", kind)
    _check_generated(reply.mapping())


@point("X5b", "`generate_stream` gives events, each `data:` with such an object", triton("generate"))
def generate_stream(context: Context) -> None:
    reply = answered(_generated(context, "generate_stream"))
    kind = content_type(reply)
    expect(kind == "text/event-stream", "Content-Type text/event-stream", kind)
    events = [each for each in reply.body.replace(b"\r\n", b"\n").split(b"\n\n") if each.strip()]
    expect(bool(events), "one event or more", "none")
    for event in events:
        expect(event.startswith(b"data:"), "an event of `data:` and JSON", repr(event))
        _check_generated(msgspec.structs.replace(reply, body=event.removeprefix(b"data:")).mapping())


def _generated(context: Context, verb: str) -> Reply:
    body = encoded({_TEXT_INPUT: "a text"})
    for model in context.survey.models:
        if [(spec.name, spec.datatype) for spec in model.inputs] == [(_TEXT_INPUT, "BYTES")]:
            return on_path(context.http.post(f"{model.path}/{verb}", body))
    on_path(context.http.post(f"/v2/models/{quote(context.name, safe='')}/{verb}", body))
    raise NotChecked(f"no model with one input '{_TEXT_INPUT}' of BYTES")


def _check_generated(document: dict[str, Any]) -> None:
    member(document, "model_name", str, "what is generated")
    output = document.get("text_output")
    texts = output if isinstance(output, list) else [output]
    expect(bool(texts) and all(isinstance(each, str) for each in texts), "text for 'text_output'", document)
