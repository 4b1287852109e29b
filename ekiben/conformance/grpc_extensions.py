"""G13 to G21: streams, health and Triton's extensions over gRPC."""

from typing import Any, Final

import numpy as np

from ekiben.conformance.context import NO_SUCH_MODEL, Context
from ekiben.conformance.grpc_call import GrpcStatus, attempted, called, decoded, optional, streamed
from ekiben.conformance.grpc_infer import message, outputs_of, raw_fields
from ekiben.conformance.infer_reply import expect_equal
from ekiben.conformance.points import GRPC_HEALTH, TRITON_GRPC, point, triton
from ekiben.conformance.verdicts import Failed, NotSupported, expect
from ekiben.wire.protos.grpc import HEALTH
from ekiben.wire.protos.oip import OIP

_SERVING: Final = 1
_OFF: Final = ("UNIMPLEMENTED", "UNAVAILABLE", "INVALID_ARGUMENT")
"""What a server says where shared memory is switched off."""


def _replies(context: Context, requests: list[Any]) -> list[Any]:
    name = context.sample.model.name
    came = streamed(context.grpc, requests)
    for data in came:
        bare = decoded(OIP, "ModelInferResponse", data)
        if bare.model_name == name and bare.outputs:
            raise NotSupported("the stream has bare ModelInferResponse messages, not ModelStreamInferResponse")
    expect(len(came) == len(requests), f"{len(requests)} replies to as many requests", f"{len(came)}")
    return [decoded(OIP, "ModelStreamInferResponse", data) for data in came]


@point("G13a", "A stream answers each request in its order", TRITON_GRPC)
def stream(context: Context) -> None:
    sample = context.sample
    ids = ["one", "two", "three"]
    requests = [message(raw_fields(sample.model.name, sample.inputs, id=each)) for each in ids]
    replies = _replies(context, requests)
    for reply in replies:
        expect(not reply.error_message, "no error_message", reply.error_message)
        expect_equal(outputs_of(reply.infer_response), sample.outputs, "a reply in a stream")
    came = [reply.infer_response.id for reply in replies]
    expect(came == ids, f"ids {', '.join(ids)}", ", ".join(came))


@point("G13b", "A request that fails gets error_message, and the stream goes on", TRITON_GRPC)
def stream_error(context: Context) -> None:
    sample = context.sample
    right = message(raw_fields(sample.model.name, sample.inputs))
    wrong = message(raw_fields(NO_SUCH_MODEL, {"x": np.ones(1, np.float32)}))
    first, second, third = _replies(context, [right, wrong, right])
    expect(bool(second.error_message), "error_message for a model that does not exist", "none")
    for reply in (first, third):
        expect(not reply.error_message, "no error_message for the others", reply.error_message)
        expect_equal(outputs_of(reply.infer_response), sample.outputs, "a reply in a stream with an error")


@point("G14", "grpc.health.v1.Health says SERVING", GRPC_HEALTH)
def health(context: Context) -> None:
    try:
        data = context.grpc.call(f"/{HEALTH.services[0]}/Check", b"")
    except GrpcStatus as status:
        if status.code == "UNIMPLEMENTED":
            raise NotSupported(f"Health says {status}") from None
        raise Failed(f"expected SERVING; got {status}") from None
    came = decoded(HEALTH, "HealthCheckResponse", data).status
    expect(came == _SERVING, "SERVING (1)", f"status {came}")


@point("G15", "RepositoryIndex lists the models", triton("model_repository"))
def index(context: Context) -> None:
    models = optional(context.grpc, "RepositoryIndex").models
    names = sorted({each.name for each in models})
    expect(context.name in names, f"'{context.name}' in the index", names)


@point("G16", "ModelConfig agrees with the metadata", triton("model_configuration"))
def configuration(context: Context) -> None:
    model = context.sample.model
    config = optional(context.grpc, "ModelConfig", name=model.name).config
    expect(config.name == model.name, f"the name '{model.name}'", config.name)
    for came, specs in ((config.input, model.inputs), (config.output, model.outputs)):
        given = {each.name: [-1, *each.dims] if config.max_batch_size > 0 else [*each.dims] for each in came}
        wanted = {spec.name: [*spec.shape] for spec in specs}
        expect(given == wanted, f"{wanted}", given)


@point("G17", "ModelStatistics count an inference", triton("statistics"))
def statistics(context: Context) -> None:
    sample = context.sample
    name = sample.model.name
    before = optional(context.grpc, "ModelStatistics", name=name).model_stats
    expect(bool(before) and before[0].name == name, f"statistics of '{name}'", str(before))
    called(context.grpc, "ModelInfer", **raw_fields(name, sample.inputs))
    after = optional(context.grpc, "ModelStatistics", name=name).model_stats
    counts = [sum(each.inference_stats.success.count for each in stats) for stats in (before, after)]
    expect(counts[1] > counts[0], f"more than {counts[0]} successes after one more", counts[1])


@point("G18", "TraceSetting can be read", triton("trace"))
def trace(context: Context) -> None:
    settings = optional(context.grpc, "TraceSetting").settings
    expect("trace_level" in settings, "'trace_level' among the trace settings", sorted(settings))


@point("G19", "LogSettings can be read", triton("logging"))
def logging(context: Context) -> None:
    settings = optional(context.grpc, "LogSettings").settings
    expect("log_verbose_level" in settings, "'log_verbose_level' among the log settings", sorted(settings))


@point("G20", "SystemSharedMemoryStatus can be read", triton("shared_memory"))
def system_shared_memory(context: Context) -> None:
    _status(context, "SystemSharedMemoryStatus")


@point("G21", "CudaSharedMemoryStatus can be read", triton("shared_memory"))
def cuda_shared_memory(context: Context) -> None:
    _status(context, "CudaSharedMemoryStatus")


def _status(context: Context, method: str) -> None:
    code, reply = attempted(context.grpc, method)
    if code in _OFF:
        raise NotSupported(f"{method} says {code} {reply}")
    expect(code == "OK", f"OK from {method}", f"{code} {reply}" if code != "OK" else "")
    for name, region in reply.regions.items():
        expect(region.name == name, f"a region of the name '{name}'", region.name)
