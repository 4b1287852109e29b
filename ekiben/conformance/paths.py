"""P: which paths there are, and what GET says of the server and its models."""

from typing import Any
from urllib.parse import quote

from ekiben.conformance.context import NO_SUCH_MODEL, Context
from ekiben.conformance.http_client import Reply
from ekiben.conformance.infer_reply import answered, expect_equal, json_of, member, outputs
from ekiben.conformance.infer_request import encoded, request
from ekiben.conformance.points import OIP_REST, RFC_CONTENT, RFC_URI, point
from ekiben.conformance.verdicts import expect
from ekiben.types import DATATYPES

_NO_SUCH_VERSION = "4294967295"


@point("P1", "The server's metadata have name, version and extensions", OIP_REST)
def server_metadata(context: Context) -> None:
    document = answered(context.http.get("/v2")).mapping()
    for key in ("name", "version"):
        member(document, key, str, "the server's metadata")
    extensions = member(document, "extensions", list, "the server's metadata")
    expect(all(isinstance(each, str) for each in extensions), "text in 'extensions'", extensions)


@point("P2a", "A live server says 200, with any body", OIP_REST)
def live(context: Context) -> None:
    answered(context.http.get("/v2/health/live"))


@point("P2b", "A ready server says 200, with any body", OIP_REST)
def ready(context: Context) -> None:
    answered(context.http.get("/v2/health/ready"))


@point("P3a", "A model that does not exist is not ready: any status but 200", OIP_REST)
def no_such_model_is_not_ready(context: Context) -> None:
    _not_ready(context.http.get(f"/v2/models/{NO_SUCH_MODEL}/ready"))


@point("P3b", "A model that is not loaded is not ready: any status but 200", OIP_REST)
def unloaded_model_is_not_ready(context: Context) -> None:
    _not_ready(context.http.get(f"/v2/models/{quote(context.not_ready, safe='')}/ready"))


def _not_ready(reply: Reply) -> None:
    expect(reply.status >= 400, f"a status of 400 or more from {reply.asked}", str(reply))


@point("P4a", "A model that is ready says 200, with any body", OIP_REST)
def model_ready(context: Context) -> None:
    answered(context.http.get(f"/v2/models/{quote(context.name, safe='')}/ready"))


@point("P4b", "So does a version of it", OIP_REST)
def version_ready(context: Context) -> None:
    model = context.versioned().model
    answered(context.http.get(f"{model.version_path(model.versions[-1])}/ready"))


@point("P5a", "A model's metadata have name, platform, inputs and outputs, with datatypes and shapes", OIP_REST)
def model_metadata(context: Context) -> None:
    _check_metadata(context.name, answered(context.http.get(f"/v2/models/{quote(context.name, safe='')}")).mapping())


@point("P5b", "So do those of a version", OIP_REST)
def version_metadata(context: Context) -> None:
    model = context.versioned().model
    reply = answered(context.http.get(model.version_path(model.versions[-1])))
    _check_metadata(model.name, reply.mapping())


def _check_metadata(name: str, document: dict[str, Any]) -> None:
    where = f"the metadata of '{name}'"
    expect(member(document, "name", str, where) == name, f"the name '{name}'", document["name"])
    member(document, "platform", str, where)
    versions = document.get("versions") or []
    expect(
        isinstance(versions, list) and all(isinstance(each, str) for each in versions), "text in 'versions'", versions
    )
    for kind in ("inputs", "outputs"):
        for tensor in member(document, kind, list, where):
            expect(isinstance(tensor, dict), f"objects in '{kind}'", tensor)
            of = f"'{member(tensor, 'name', str, kind)}'"
            datatype = member(tensor, "datatype", str, of)
            expect(datatype in DATATYPES, f"a datatype of the protocol for {of}", datatype)
            shape = member(tensor, "shape", list, of)
            expect(all(type(size) is int and size >= -1 for size in shape), f"sizes, -1 for variable, for {of}", shape)


@point("P6", "POST to `infer` answers, of a model and of a version, which the reply then names", OIP_REST)
def infer(context: Context) -> None:
    sample = context.sample
    expect_equal(outputs(context.infer(sample)), sample.outputs, "a request like one before")
    sample = context.versioned()
    version = sample.model.versions[-1]
    path = f"{sample.model.version_path(version)}/infer"
    document, _ = json_of(answered(context.http.post(path, encoded(request(sample.json_inputs)))))
    expect(document.get("model_version") == version, f"model_version '{version}'", document.get("model_version"))


@point("P7", "A version that does not exist is refused: ready, metadata and infer", OIP_REST)
def no_such_version(context: Context) -> None:
    sample = context.sample
    path = sample.model.version_path(_NO_SUCH_VERSION)
    infer = context.http.post(f"{path}/infer", encoded(request(sample.json_inputs)))
    for reply in (context.http.get(f"{path}/ready"), context.http.get(path), infer):
        expect(reply.status >= 400, f"a status of 400 or more from {reply.asked}", str(reply))


@point("P8a", "A path that does not exist says 404", RFC_CONTENT)
def unknown_path(context: Context) -> None:
    reply = context.http.get("/v2/conformance-no-such-path")
    expect(reply.status == 404, f"404 from {reply.asked}", str(reply))


@point("P8b", "A method that a path has not says 405", RFC_CONTENT)
def unknown_method(context: Context) -> None:
    reply = context.http.get(f"/v2/models/{quote(context.name, safe='')}/infer")
    expect(reply.status == 405, f"405 from {reply.asked}", str(reply))


@point("P9", "A model's name in a path may be percent-encoded", RFC_URI)
def encoded_name(context: Context) -> None:
    name = "".join(f"%{byte:02X}" for byte in context.name.encode())
    document = answered(context.http.get(f"/v2/models/{name}")).mapping()
    expect(document.get("name") == context.name, f"the metadata of '{context.name}'", document)
