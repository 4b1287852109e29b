"""Triton's `config.pbtxt` → ModelSettings.

Every field of Triton's schema is parsed. What changes answers and is not supported yet is an error; what only changes
speed or monitoring is named in a warning; nothing is passed over in silence.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import Message

from ekiben.errors import InvalidSettings
from ekiben.plain import nearest
from ekiben.repository.config import check_settings
from ekiben.repository.pbtxt_schema import MESSAGES, model_config
from ekiben.repository.selection import Policy
from ekiben.types import Batching, Instances, ModelSettings, Parameter, QueuePolicy, Signature, TensorSpec

__all__ = ["PBTXT_FILE", "read_pbtxt", "settings_of", "unknown_field"]

PBTXT_FILE: Final = "config.pbtxt"

_PLATFORMS: Final = {
    "onnxruntime_onnx": "onnx",
    "tensorflow_savedmodel": "tensorflow",
    "pytorch_libtorch": "torchscript",
}
_BACKENDS: Final = {"onnxruntime": "onnx", "tensorflow": "tensorflow", "pytorch": "torchscript", "python": "python"}
_SIGNATURE: Final = "serving_default"
_UNKNOWN_FIELD: Final = re.compile(
    r'Message type "inference\.(?P<message>[\w.]+)" has no field named "(?P<field>[^"]*)"'
)

_REFUSED: Final = (
    "sequence_batching",
    "ensemble_scheduling",
    "batch_input",
    "batch_output",
    "model_operations",
    "model_repository_agents",
    "cc_model_filenames",
    "input.reshape",
    "input.is_shape_tensor",
    "input.allow_ragged_batch",
    "input.is_non_linear_format_io",
    "output.reshape",
    "output.is_shape_tensor",
    "output.is_non_linear_format_io",
    "instance_group.secondary_devices",
)
"""Answers would differ without them."""

_WITHOUT_EFFECT: Final = (
    "runtime",
    "optimization",
    "metric_tags",
    "model_warmup",
    "response_cache.enable",
    "model_metrics",
    "instance_group.rate_limiter",
    "instance_group.profile",
    "instance_group.passive",
    "instance_group.host_policy",
)
"""The model answers the same without them, at another speed."""


def read_pbtxt(path: Path, model: str, warn: Callable[[str], None]) -> ModelSettings:
    """Read a `config.pbtxt` that lies in the folder of `model`; `warn` is told what has no effect yet.

    Label files stay relative to the model's folder. Raises InvalidSettings, naming the file and the field.
    """
    return settings_of(_parse(path), str(path), model, warn)


def settings_of(config: Any, where: str, model: str, warn: Callable[[str], None]) -> ModelSettings:
    """The settings that a ModelConfig message stands for. Messages start with `where`."""
    try:
        if config.name and config.name != model:
            raise InvalidSettings(f"the name is '{config.name}', and the model is '{model}': they must agree")
        refused = [field for field in _REFUSED if _is_set(config, field)]
        if refused:
            raise InvalidSettings(f"not supported yet: {', '.join(refused)}")
        if ignored := [field for field in _WITHOUT_EFFECT if _is_set(config, field)]:
            warn(f"{where}: not supported yet, and without effect: {', '.join(ignored)}")
        settings = ModelSettings(
            runtime=_runtime(config),
            file=config.default_model_filename,
            batching=_batching(config, lambda text: warn(f"{where}: {text}")),
            instances=_instances(config.instance_group, lambda text: warn(f"{where}: {text}")),
            signatures=_signatures(config),
            labels={output.name: output.label_filename for output in config.output if output.label_filename},
            decoupled=_decoupled(config.model_transaction_policy),
            version_policy=_version_policy(config.version_policy),
            parameters=_parameters(config),
        )
        check_settings(settings)
    except InvalidSettings as error:
        raise InvalidSettings(f"{where}: {error.message}") from None
    return settings


def _parse(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path}: is not UTF-8 text (byte {error.start})") from None
    try:
        return text_format.Parse(text, model_config())
    except text_format.ParseError as error:
        line = f" line {error.GetLine()}" if error.GetLine() else ""
        reason = unknown_field(str(error)) or re.sub(r"^\d+:\d+ : ('.*': )?", "", str(error)).replace("inference.", "")
        raise InvalidSettings(f"{path}{line}: {reason}") from None


def unknown_field(problem: str) -> str:
    """What protobuf's complaint of an unknown field means, with the nearest known one; '' for another complaint."""
    unknown = _UNKNOWN_FIELD.search(problem)
    if unknown is None:
        return ""
    fields = [field.split()[1] for field in MESSAGES[unknown["message"]].split("; ") if field]
    return f"unknown field '{unknown['field']}' in {unknown['message']}; {nearest(unknown['field'], fields)}"


def _is_set(message: Any, path: str) -> bool:
    """Whether the dotted field was given, in any element of repeated ones. A flag that was given as false was not."""
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        values = getattr(message, name)
        return any(_is_set(value, rest) for value in values) if rest else len(values) > 0
    if not message.HasField(name):
        return False
    value = getattr(message, name)
    if rest:
        return _is_set(value, rest)
    return isinstance(value, Message) or bool(value)


def _runtime(config: Any) -> str:
    """From `platform` or `backend`; '' where neither is given, for the files to tell."""
    runtimes = set()
    for field, known in (("platform", _PLATFORMS), ("backend", _BACKENDS)):
        if name := getattr(config, field):
            if name not in known:
                raise InvalidSettings(f"{field} '{name}' is not supported yet; known are {', '.join(known)}")
            runtimes.add(known[name])
    if len(runtimes) > 1:
        raise InvalidSettings(f"platform '{config.platform}' and backend '{config.backend}' do not agree")
    return runtimes.pop() if runtimes else ""


def _batching(config: Any, warn: Callable[[str], None]) -> Batching:
    """With a `max_batch_size` above 0 requests are batched whether or not `dynamic_batching` is there: with a delay of
    0 that only joins what waited for the model anyway.
    """
    dynamic = config.dynamic_batching
    size: int | None = config.max_batch_size
    if not config.HasField("max_batch_size"):
        size = 0 if config.input or config.output else None
    if size is not None and size < 0:
        raise InvalidSettings(f"max_batch_size must be 0 or more, got {size}")
    if size == 0 and (dynamic.preferred_batch_size or dynamic.max_queue_delay_microseconds):
        warn("dynamic_batching joins nothing, because max_batch_size is 0; what it says of the queue holds")
        return Batching(max_batch_size=0, **_waiting(dynamic, warn))
    if size is not None and any(preferred > size for preferred in dynamic.preferred_batch_size):
        raise InvalidSettings(
            f"preferred_batch_size must be at most max_batch_size {size}, got {list(dynamic.preferred_batch_size)}"
        )
    return Batching(
        max_batch_size=size,
        max_delay_us=dynamic.max_queue_delay_microseconds,
        preferred_sizes=tuple(dynamic.preferred_batch_size),
        **_waiting(dynamic, warn),
    )


def _waiting(dynamic: Any, warn: Callable[[str], None]) -> dict[str, Any]:
    """What Batching says of those that wait: priorities, timeouts, bounds and order.

    Where a policy is given Triton's defaults hold for what it leaves out; without one ours do.
    """
    levels = dynamic.priority_levels
    default = dynamic.default_priority_level
    policies = dict(sorted(dynamic.priority_queue_policy.items()))
    found: dict[str, Any] = {"preserve_ordering": dynamic.preserve_ordering}
    if dynamic.HasField("default_queue_policy"):
        found |= _queue_policy(dynamic.default_queue_policy)
    if not levels:
        idle = [name for name in ("default_priority_level", "priority_queue_policy") if _is_set(dynamic, name)]
        if idle:
            warn(f"without effect, because dynamic_batching.priority_levels is 0: {', '.join(idle)}")
        return found
    if not 1 <= default <= levels:
        raise InvalidSettings(f"default_priority_level must be from 1 to priority_levels {levels}, got {default}")
    for level in policies:
        if not 1 <= level <= levels:
            raise InvalidSettings(
                f"priority_queue_policy must be of levels from 1 to priority_levels {levels}, got {level}"
            )
    own = {level: QueuePolicy(**_queue_policy(policy)) for level, policy in policies.items()}
    return found | {"priority_levels": levels, "default_priority": default, "priority_policies": own}


def _queue_policy(policy: Any) -> dict[str, Any]:
    action = policy.DESCRIPTOR.fields_by_name["timeout_action"].enum_type.values_by_number[policy.timeout_action]
    return {
        "timeout_action": action.name.lower(),
        "timeout_us": policy.default_timeout_microseconds,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_rows": policy.max_queue_size or Batching().max_queue_rows,
    }


def _instances(groups: Iterable[Any], warn: Callable[[str], None]) -> tuple[Instances, ...]:
    instances: list[Instances] = []
    for group in groups:
        count = group.count if group.HasField("count") else 1
        if count < 1:
            raise InvalidSettings(f"instance_group count must be 1 or more, got {count}")
        kind = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
        if kind == "KIND_CPU":
            if group.gpus:
                raise InvalidSettings(f"instance_group of KIND_CPU must not name gpus, got {list(group.gpus)}")
            instances.append(Instances("cpu", count))
        elif group.gpus:
            instances += [Instances(f"gpu:{_gpu(index)}", count) for index in group.gpus]
        elif kind == "KIND_GPU":
            warn("instance_group of KIND_GPU without gpus: the instances are on GPU 0 only; name more in gpus")
            instances.append(Instances("gpu:0", count))
        else:
            instances.append(Instances("auto", count))
    return tuple(instances) or ModelSettings().instances


def _gpu(index: int) -> int:
    if index < 0:
        raise InvalidSettings(f"instance_group gpus must be 0 or more, got {index}")
    return index


def _signatures(config: Any) -> dict[str, Signature]:
    if not config.input and not config.output:
        return {}
    if not config.input or not config.output:
        missing = "output" if config.input else "input"
        raise InvalidSettings(f"no {missing} is declared: declare inputs and outputs, or neither")
    batched = config.max_batch_size > 0
    inputs = tuple(_tensor(tensor, batched, tensor.optional) for tensor in config.input)
    outputs = tuple(_tensor(tensor, batched, False) for tensor in config.output)
    for kind, specs in (("input", inputs), ("output", outputs)):
        names = [spec.name for spec in specs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidSettings(f"{kind} '{twice[0]}' is declared twice")
    return {_SIGNATURE: Signature(inputs, outputs)}


def _tensor(tensor: Any, batched: bool, optional: bool) -> TensorSpec:
    if not tensor.name:
        raise InvalidSettings("a tensor has no name")
    name = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    if name == "TYPE_INVALID":
        raise InvalidSettings(f"tensor '{tensor.name}' needs a data_type")
    if any(size == 0 or size < -1 for size in tensor.dims):
        raise InvalidSettings(f"tensor '{tensor.name}' has dims {list(tensor.dims)}: each must be 1 or more, or -1")
    if not tensor.dims and not batched:
        raise InvalidSettings(f"tensor '{tensor.name}' needs dims")
    datatype = "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    return TensorSpec(tensor.name, datatype, ((-1,) if batched else ()) + tuple(tensor.dims), optional)


def _version_policy(policy: Any) -> Policy:
    given = [field.name for field, _ in policy.ListFields()]
    if len(given) > 1:
        raise InvalidSettings(f"version_policy must be one of latest, all and specific, got {' and '.join(given)}")
    if given == ["all"]:
        return "all"
    if given == ["specific"]:
        return tuple(policy.specific.versions)
    return f"latest:{policy.latest.num_versions or 1}"


def _decoupled(policy: Any) -> bool | None:
    return bool(policy.decoupled) if policy.HasField("decoupled") else None


def _parameters(config: Any) -> dict[str, Parameter]:
    return {key: value.string_value for key, value in sorted(config.parameters.items())}
