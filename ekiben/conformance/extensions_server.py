"""X6 to X12: extensions beside inference: repository, configuration, statistics, trace, logging, shared memory.

Settings are only read.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from ekiben.conformance.context import Context, on_path
from ekiben.conformance.infer_reply import answered, member
from ekiben.conformance.points import point, triton
from ekiben.conformance.verdicts import NotSupported, expect

_STATES: Final = ("UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING")
_DURATIONS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_TRACE: Final = ("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency")
_LOG: Final[Mapping[str, tuple[str, ...]]] = {
    "log_file": ("log_file",),
    "log_info": ("log_info",),
    "log_warning": ("log_warning", "log_warnings"),
    "log_error": ("log_error", "log_errors"),
    "log_verbose_level": ("log_verbose_level",),
    "log_format": ("log_format",),
}
"""A setting, and the spellings of it: Triton's document and its code differ."""


def _index(context: Context, body: bytes) -> list[dict[str, Any]]:
    lines = answered(on_path(context.http.post("/v2/repository/index", body))).json()
    expect(isinstance(lines, list), "a list of models", lines)
    expect(all(isinstance(line, dict) for line in lines), "objects in the index", lines)
    for line in lines:
        member(line, "name", str, "the index")
    return list(lines)


@point("X6a", "The index lists models with name, version, state and reason", triton("model_repository"))
def index(context: Context) -> None:
    lines = _index(context, b"{}")
    for line in lines:
        for key in ("version", "state", "reason"):
            expect(isinstance(line.get(key, ""), str), f"text, if anything, for '{key}'", line)
        expect(line.get("state", "") in ("", *_STATES), f"a state of {', '.join(_STATES)}", line)
    named = {line["name"] for line in lines}
    missing = [name for name in context.survey.names if name not in named]
    expect(not missing, f"'{''.join(missing[:1])}' in the index", sorted(named))


@point("X6b", "The index of what is ready has that alone", triton("model_repository"))
def ready_index(context: Context) -> None:
    whole = _index(context, b"{}")
    ready = _index(context, b'{"ready":true}')
    wrong = [line for line in ready if line.get("state", "READY") != "READY"]
    expect(not wrong, "only models that are READY", wrong)
    wanted = {line["name"] for line in whole if line.get("state") == "READY"}
    came = {line["name"] for line in ready}
    expect(wanted <= came, f"{', '.join(sorted(wanted - came))} among what is ready", sorted(came))


@point("X7", "A model's configuration agrees with its metadata", triton("model_configuration"))
def configuration(context: Context) -> None:
    model = context.sample.model
    document = answered(on_path(context.http.get(f"{model.path}/config"))).mapping()
    where = f"the configuration of '{model.name}'"
    expect(member(document, "name", str, where) == model.name, f"the name '{model.name}'", document["name"])
    largest = member(document, "max_batch_size", int, where)
    for key, specs in (("input", model.inputs), ("output", model.outputs)):
        tensors = member(document, key, list, where)
        expect(all(isinstance(each, dict) for each in tensors), f"objects in '{key}'", tensors)
        given = {each.get("name"): each for each in tensors}
        for spec in specs:
            expect(spec.name in given, f"'{spec.name}' in '{key}'", sorted(map(str, given)))
            datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
            expect(given[spec.name].get("data_type") == f"TYPE_{datatype}", f"TYPE_{datatype} for '{spec.name}'", given)
            dims = member(given[spec.name], "dims", list, f"'{spec.name}'")
            shape = [-1, *dims] if largest > 0 else dims
            expect(shape == list(spec.shape), f"dims that make {list(spec.shape)} for '{spec.name}'", dims)


def _statistics(context: Context, path: str) -> list[dict[str, Any]]:
    document = answered(on_path(context.http.get(path))).mapping()
    lines = member(document, "model_stats", list, "the statistics")
    expect(all(isinstance(line, dict) for line in lines), "objects in 'model_stats'", lines)
    return list(lines)


@point("X8a", "A model's statistics have counts, durations and batches", triton("statistics"))
def statistics(context: Context) -> None:
    model = context.sample.model
    lines = _statistics(context, f"{model.path}/stats")
    expect(bool(lines), f"statistics of '{model.name}'", "none")
    for line in lines:
        expect(member(line, "name", str, "a line") == model.name, f"the name '{model.name}'", line["name"])
        for key in ("last_inference", "inference_count", "execution_count"):
            member(line, key, int, "a model's statistics")
        member(line, "batch_stats", list, "a model's statistics")
        durations = member(line, "inference_stats", dict, "a model's statistics")
        for key in _DURATIONS:
            duration = member(durations, key, dict, "'inference_stats'")
            member(duration, "count", int, f"'{key}'")
            member(duration, "ns", int, f"'{key}'")


@point("X8b", "An inference is counted", triton("statistics"))
def counted(context: Context) -> None:
    sample = context.sample
    path = f"{sample.model.path}/stats"
    before = _successes(_statistics(context, path))
    answered(context.infer(sample))
    after = _successes(_statistics(context, path))
    expect(after > before, f"more than {before} successes after one more", after)


def _successes(lines: list[dict[str, Any]]) -> int:
    stats = [member(line, "inference_stats", dict, "a line") for line in lines]
    return sum(member(member(each, "success", dict, "a line"), "count", int, "'success'") for each in stats)


@point("X8c", "The statistics of all models are those of each", triton("statistics"))
def all_statistics(context: Context) -> None:
    lines = _statistics(context, "/v2/models/stats")
    names = sorted({str(line.get("name")) for line in lines})
    expect(context.sample.model.name in names, f"'{context.sample.model.name}' among the statistics", names)


@point("X9", "The trace settings can be read, for all models and for one", triton("trace"))
def trace(context: Context) -> None:
    for path in ("/v2/trace/setting", f"/v2/models/{quote(context.name, safe='')}/trace/setting"):
        document = answered(on_path(context.http.get(path))).mapping()
        for key in _TRACE:
            member(document, key, list if key == "trace_level" else str, "the trace settings")


@point("X10", "The log settings can be read", triton("logging"))
def logging(context: Context) -> None:
    document = answered(on_path(context.http.get("/v2/logging"))).mapping()
    for key, spellings in _LOG.items():
        found = [each for each in spellings if each in document]
        expect(bool(found), f"'{key}' in the log settings", sorted(document))
        value = document[found[0]]
        kind = {"log_file": str, "log_format": str, "log_verbose_level": int}.get(key, bool)
        expect(type(value) is kind, f"{kind.__name__} for '{key}'", value)


@point("X11", "The regions of system shared memory can be read", triton("shared_memory"))
def system_shared_memory(context: Context) -> None:
    _regions(context, "/v2/systemsharedmemory/status", {"name": str, "key": str, "offset": int, "byte_size": int})


@point("X12", "The regions of CUDA shared memory can be read", triton("shared_memory"))
def cuda_shared_memory(context: Context) -> None:
    _regions(context, "/v2/cudasharedmemory/status", {"name": str, "device_id": int, "byte_size": int})


def _regions(context: Context, path: str, members: Mapping[str, type]) -> None:
    reply = on_path(context.http.get(path))
    if reply.status == 400:
        # The extension can be switched off, and then says so with 400.
        raise NotSupported(f"{reply.asked} says {reply}")
    regions = answered(reply).json()
    expect(isinstance(regions, list), "a list of regions", regions)
    for region in regions:
        expect(isinstance(region, dict), "objects in the list of regions", region)
        for key, kind in members.items():
            member(region, key, kind, "a region")
