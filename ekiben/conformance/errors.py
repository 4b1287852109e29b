"""E: what a wrong request gets. Statuses are those that the documents name; texts are the server's own."""

from typing import Any, Final
from urllib.parse import quote

from ekiben.conformance.context import NO_SUCH_MODEL, Context
from ekiben.conformance.http_client import Reply
from ekiben.conformance.infer_reply import content_type, expect_equal, member, outputs, refused
from ekiben.conformance.infer_request import as_json, encoded, outputs_wanted, request, sample_tensor
from ekiben.conformance.points import OIP_REST, TRITON_HTTP, point, triton
from ekiben.conformance.survey import Sample
from ekiben.conformance.verdicts import NotChecked, expect

_CALLERS: Final = range(400, 500)
_NO_SUCH_TENSOR: Final = "conformance-no-such-tensor"


def _ask(context: Context, sample: Sample, inputs: list[dict[str, Any]], **members: object) -> Reply:
    return context.http.post(sample.path, encoded(request(inputs, **members)))


def _ask_unknown(context: Context) -> Reply:
    given = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
    return context.http.post(f"/v2/models/{NO_SUCH_MODEL}/infer", encoded(request([given])))


@point("E1a", "A failure is a JSON object whose `error` is text", OIP_REST)
def form(context: Context) -> None:
    _check_form(_ask_unknown(context), "a model that does not exist")


@point("E1b", "So is the failure of a request that cannot be read", OIP_REST)
def form_of_malformed(context: Context) -> None:
    path = f"/v2/models/{quote(context.name, safe='')}/infer"
    _check_form(context.http.post(path, b'{"inputs":['), "a body that breaks off")
    _check_form(context.http.post(path, b'{"id":"conformance"}'), "a request without 'inputs'")


def _check_form(reply: Reply, why: str) -> None:
    refused(reply, why)
    message: str = member(reply.mapping(), "error", str, f"the reply to {why}")
    expect(bool(message.strip()), f"a message for {why}", "an empty one")


@point("E1c", "Its Content-Type is application/json", OIP_REST)
def error_type(context: Context) -> None:
    kind = content_type(_ask_unknown(context))
    expect(kind == "application/json", "Content-Type application/json for an error", kind)


@point("E2", "A model that does not exist: 404 or 400, for infer and metadata", TRITON_HTTP)
def unknown_model(context: Context) -> None:
    for reply in (_ask_unknown(context), context.http.get(f"/v2/models/{NO_SUCH_MODEL}")):
        expect(reply.status in (404, 400), f"404 or 400 from {reply.asked}", str(reply))


@point("E3", "A model that is not loaded: 400, 404 or 503", TRITON_HTTP)
def unloaded_model(context: Context) -> None:
    given = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
    path = f"/v2/models/{quote(context.not_ready, safe='')}/infer"
    reply = context.http.post(path, encoded(request([given])))
    expect(reply.status in (400, 404, 503), f"400, 404 or 503 from {reply.asked}", str(reply))
    refused(reply, "a model that is not loaded")


@point("E4", "A body that is not JSON, or no object, is refused", OIP_REST)
def malformed(context: Context) -> None:
    path = context.sample.path
    for body in (b'{"inputs":[', b"\xff\xfe", b"[]", b"null", b'{"inputs":null}', b'{"inputs":[1]}'):
        refused(context.http.post(path, body), f"the body {body!r}")


@point("E5", "An input of another datatype than the model's: 4xx", TRITON_HTTP)
def wrong_datatype(context: Context) -> None:
    sample = context.find(lambda each: each.model.inputs[0].datatype not in ("BOOL", "BYTES"), "with a numeric input")
    first, *others = sample.json_inputs
    other = "INT32" if first["datatype"] != "INT32" else "INT64"
    wrong = {**first, "datatype": other, "data": [1] * len(first["data"])}
    refused(_ask(context, sample, [wrong, *others]), f"{other} for a model of {first['datatype']}", _CALLERS)


@point("E6", "An input of more dimensions than the model's: 4xx", TRITON_HTTP)
def wrong_shape(context: Context) -> None:
    sample = context.sample
    first, *others = sample.json_inputs
    wrong = {**first, "shape": [*first["shape"], 1, 1]}
    why = f"shape {wrong['shape']} for a model of {list(sample.model.inputs[0].shape)}"
    refused(_ask(context, sample, [wrong, *others]), why, _CALLERS)


@point("E7", "An input left out: 4xx", TRITON_HTTP)
def missing_input(context: Context) -> None:
    sample = context.find(lambda each: len(each.inputs) > 1, "with two inputs")
    refused(_ask(context, sample, sample.json_inputs[:1]), "a request with one input for a model of two", _CALLERS)


@point("E8", "An input that the model has not: 4xx", TRITON_HTTP)
def unknown_input(context: Context) -> None:
    sample = context.sample
    first, *others = sample.json_inputs
    wrong = {**first, "name": _NO_SUCH_TENSOR}
    refused(_ask(context, sample, [wrong, *others]), "an input of a name that the model has not", _CALLERS)


@point("E9", "An input given twice: 4xx", TRITON_HTTP)
def repeated_input(context: Context) -> None:
    sample = context.sample
    refused(_ask(context, sample, [*sample.json_inputs, sample.json_inputs[0]]), "an input given twice", _CALLERS)


@point("E10", "An output that the model has not: 4xx", TRITON_HTTP)
def unknown_output(context: Context) -> None:
    sample = context.sample
    wanted = outputs_wanted((_NO_SUCH_TENSOR,))
    refused(_ask(context, sample, sample.json_inputs, outputs=wanted), "an output that the model has not", _CALLERS)


@point("E11", "More rows than max_batch_size in the model's configuration: 4xx", triton("model_configuration"))
def too_many_rows(context: Context) -> None:
    for sample in context.survey.samples:
        reply = context.http.get(f"{sample.model.path}/config")
        if reply.status != 200:
            raise NotChecked("the server does not give a model's configuration")
        largest = reply.mapping().get("max_batch_size")
        if type(largest) is int and 0 < largest <= 1024:
            given = [
                as_json(spec.name, sample_tensor(spec, "ones", 1, rows=largest + 1)) for spec in sample.model.inputs
            ]
            refused(_ask(context, sample, given), f"{largest + 1} rows where max_batch_size is {largest}", _CALLERS)
            return
    raise NotChecked("no model with a max_batch_size from 1 to 1024")


@point("E12", "After refusals the server answers as before", OIP_REST)
def unharmed(context: Context) -> None:
    sample = context.sample
    context.http.post(sample.path, b'{"inputs":[')
    context.infer(sample, outputs=outputs_wanted((_NO_SUCH_TENSOR,)))
    expect_equal(outputs(context.infer(sample)), sample.outputs, "the request after two refusals")
