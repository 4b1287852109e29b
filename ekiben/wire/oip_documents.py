"""The Open Inference Protocol's JSON documents beside inference: metadata, configuration, statistics, index, errors.

The keys are the protocol's and Triton's; perf_analyzer and others read them by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from ekiben.metrics import BatchStatistics, Duration, VersionStatistics
from ekiben.types import Batching, Instances, ModelSettings, QueuePolicy, Signature, TensorSpec

__all__ = [
    "EXTENSIONS",
    "error_body",
    "index_body",
    "model_config_body",
    "model_metadata_body",
    "server_metadata_body",
    "statistics_body",
]

EXTENSIONS: Final = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "schedule_policy",
    "statistics",
    "generate",
    "trace",
    "logging",
)
"""Names of the extensions that are always there."""

_BACKENDS: Final = {"onnx": "onnxruntime", "torchscript": "pytorch"}
"""Runtime → Triton's name of the backend, where it is another one."""

_NEVER: Final = {"count": 0, "ns": 0}
_USUAL: Final = Batching()
_QUEUE: Final = ("timeout_action", "timeout_us", "allow_timeout_override", "max_queue_rows")
"""What Batching and QueuePolicy both have."""


def error_body(message: str) -> bytes:
    """`{"error": …}`. Whatever the text holds, this does not fail."""
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def server_metadata_body(version: str, more: Sequence[str] = ()) -> bytes:
    """What `GET /v2` answers; `more` extensions than those that are always there."""
    return orjson.dumps({"name": "ekiben", "version": version, "extensions": (*EXTENSIONS, *more)})


def model_metadata_body(name: str, versions: Sequence[str], platform: str, signature: Signature) -> bytes:
    """What `GET /v2/models/M` answers; shapes include the batch dimension."""
    return orjson.dumps(
        {
            "name": name,
            "versions": versions,
            "platform": platform,
            "inputs": [_tensor(spec) for spec in signature.inputs],
            "outputs": [_tensor(spec) for spec in signature.outputs],
        }
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


def model_config_body(name: str, platform: str, settings: ModelSettings, signature: Signature) -> bytes:
    """The version's configuration as Triton's ModelConfig message in JSON; a load may be given it again.

    With a batch dimension `dims` are without it. `dynamic_batching` is there when something of it is set. `platform` is
    empty for a runtime that Triton has no platform for. `model_transaction_policy` is there when the version is
    decoupled.
    """
    batching = settings.batching
    largest = batching.max_batch_size or 0
    config: dict[str, Any] = {
        "name": name,
        "platform": "" if platform == settings.runtime else platform,
        "backend": _BACKENDS.get(settings.runtime, settings.runtime),
        "runtime": "",
        "version_policy": _version_policy(settings.version_policy),
        "max_batch_size": largest,
        "input": [
            {
                **_config_tensor(spec, largest),
                "format": "FORMAT_NONE",
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": spec.optional,
                "is_non_linear_format_io": False,
            }
            for spec in signature.inputs
        ],
        "output": [
            {
                **_config_tensor(spec, largest),
                "label_filename": settings.labels.get(spec.name, ""),
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
            for spec in signature.outputs
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
    }
    if dynamic := _dynamic_batching(batching):
        config["dynamic_batching"] = dynamic
    if settings.decoupled:
        config["model_transaction_policy"] = {"decoupled": True}
    config |= {
        "instance_group": [_instance_group(f"{name}_{place}", each) for place, each in enumerate(settings.instances)],
        "default_model_filename": settings.file,
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {key: {"string_value": str(value)} for key, value in settings.parameters.items()},
        "model_warmup": [],
    }
    return orjson.dumps(config)


def _dynamic_batching(batching: Batching) -> dict[str, Any]:
    """Empty where nothing of it is set."""
    policy: dict[str, Any] = {}
    if any(getattr(batching, name) != getattr(_USUAL, name) for name in _QUEUE):
        policy = {"default_queue_policy": _queue_policy(batching, batching)}
    ordered = batching.preserve_ordering or batching.priority_levels
    if not (policy or ordered or batching.max_delay_us or batching.preferred_sizes):
        return {}
    return {
        "preferred_batch_size": batching.preferred_sizes,
        "max_queue_delay_microseconds": batching.max_delay_us,
        "preserve_ordering": batching.preserve_ordering,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority,
        **policy,
        "priority_queue_policy": {
            str(level): _queue_policy(own, batching) for level, own in sorted(batching.priority_policies.items())
        },
    }


def _queue_policy(own: Batching | QueuePolicy, common: Batching) -> dict[str, Any]:
    """What holds at a level: its own policy, and the model's where that says nothing."""
    action, timeout_us, override, rows = (
        getattr(common if getattr(own, name) is None else own, name) for name in _QUEUE
    )
    return {
        "timeout_action": action.upper(),
        "default_timeout_microseconds": timeout_us,
        "allow_timeout_override": override,
        "max_queue_size": rows,
    }


def _config_tensor(spec: TensorSpec, largest: int) -> dict[str, Any]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    dims = spec.shape[1:] if largest else spec.shape
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": dims}


def _version_policy(policy: str | tuple[int, ...]) -> dict[str, Any]:
    if isinstance(policy, tuple):
        return {"specific": {"versions": policy}}
    kind, _, number = policy.partition(":")
    return {"all": {}} if kind == "all" else {"latest": {"num_versions": int(number or 1)}}


def _instance_group(name: str, instances: Instances) -> dict[str, Any]:
    kind, _, index = instances.device.partition(":")
    return {
        "name": name,
        "kind": f"KIND_{kind.upper()}",
        "count": instances.count,
        "gpus": [int(index)] if index else [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


def statistics_body(versions: Iterable[VersionStatistics]) -> bytes:
    """What `GET /v2/models/stats` and its like answer."""
    return orjson.dumps({"model_stats": [_statistics(version) for version in versions]})


def _statistics(version: VersionStatistics) -> dict[str, Any]:
    return {
        "name": version.name,
        "version": version.version,
        "last_inference": version.last_inference_ms,
        "inference_count": version.inference_count,
        "execution_count": version.execution_count,
        "inference_stats": {
            "success": _duration(version.success),
            "fail": _duration(version.fail),
            "queue": _duration(version.queue),
            "compute_input": _duration(version.compute_input),
            "compute_infer": _duration(version.compute_infer),
            "compute_output": _duration(version.compute_output),
            "cache_hit": _NEVER,
            "cache_miss": _NEVER,
        },
        "response_stats": {},
        "batch_stats": [_batch_statistics(batch) for batch in version.batch_stats],
        "memory_usage": [],
    }


def _batch_statistics(batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": batch.batch_size,
        "compute_input": _duration(batch.compute_input),
        "compute_infer": _duration(batch.compute_infer),
        "compute_output": _duration(batch.compute_output),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def index_body(lines: Iterable[Mapping[str, str]]) -> bytes:
    """What `POST /v2/repository/index` answers: each line's `name`, and `version`, `state` and `reason` where known."""
    return orjson.dumps([{key: value for key, value in line.items() if value} for line in lines])
