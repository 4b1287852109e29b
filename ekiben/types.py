"""The nouns every room speaks: tensors and their signature, request and response, what a repository says.

Tensors are numpy arrays. A BYTES tensor is an array of dtype object that holds `bytes`. BF16 is
`ml_dtypes.bfloat16`. Arrays in a Request may be read-only views of received bytes; nobody writes to them.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from ekiben.errors import InvalidSettings

__all__ = [
    "DATATYPES",
    "Batching",
    "Catalogue",
    "Infer",
    "Instances",
    "LoadOverride",
    "ModelSettings",
    "ModelSource",
    "Parameter",
    "QueuePolicy",
    "Request",
    "Response",
    "Signature",
    "Tensor",
    "TensorSpec",
    "Trace",
    "VersionSource",
    "datatype_of",
]

Tensor: TypeAlias = NDArray[Any]
Parameter: TypeAlias = bool | int | float | str

DATATYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
"""Open Inference Protocol datatype → numpy dtype."""

_LARGEST: Final = (1 << 31) - 1
_MOST_INSTANCES: Final = 64
_MOST_THREADS: Final = 1024
_MOST_LEVELS: Final = 256
_TIMEOUT_ACTIONS: Final = ("reject", "delay")
_NAMES: Final = {dtype: name for name, dtype in DATATYPES.items()}


def datatype_of(array: Tensor) -> str:
    """The protocol's name of an array's dtype; numpy text and byte strings count as BYTES.

    Raises InvalidSettings for a dtype that the protocol has no name for (complex, datetime, …).
    """
    if array.dtype.kind in "SU":
        return "BYTES"
    try:
        return _NAMES[array.dtype.newbyteorder("=")]
    except KeyError:
        raise InvalidSettings(f"dtype '{array.dtype}' has no datatype in the Open Inference Protocol") from None


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One named input or output. `shape` is the full shape, batch dimension included; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    """An input that a request may leave out."""

    def __post_init__(self) -> None:
        if self.datatype not in DATATYPES:
            raise InvalidSettings(f"tensor '{self.name}' has unknown datatype '{self.datatype}'")
        if any(size < -1 for size in self.shape):
            raise InvalidSettings(f"tensor '{self.name}' has a dimension below -1: {list(self.shape)}")


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """Named inputs and outputs of one way to call a model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class QueuePolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What holds for the requests of one priority level while they wait. None: as Batching says."""

    max_queue_rows: int | None = None
    timeout_us: int | None = None
    timeout_action: str | None = None
    allow_timeout_override: bool | None = None

    def __post_init__(self) -> None:
        _check_waiting("batching.priority_policies: ", self)


class Batching(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How requests for one version are put together, and how long and in what order they wait for that.

    `max_batch_size` 0 means that the model has no batch dimension and every request runs alone; None lets the
    loader decide from the signature (every tensor leads with -1: 64, else 0). `max_delay_us` 0 takes what has
    gathered while the instance was busy. `target_latency_ms` is kept for the adaptive policy; until then it means
    no delay.

    `max_queue_rows` bounds each priority level. `timeout_us` is how long a request may wait; 0 means no limit. Then it
    is refused (`timeout_action` reject), or waits on behind all that are not late (delay). With
    `allow_timeout_override` a request's own timeout counts where it is the shorter one.

    `priority_levels` 0 means no priorities; else level 1 is the best one, and a request that names none, or one that
    there is not, has `default_priority`. `priority_policies` are by level. `preserve_ordering` completes requests in
    the order in which they came.
    """

    max_batch_size: int | None = None
    max_delay_us: int = 0
    preferred_sizes: tuple[int, ...] = ()
    max_queue_rows: int = 4096
    timeout_us: int = 0
    timeout_action: str = "reject"
    allow_timeout_override: bool = True
    priority_levels: int = 0
    default_priority: int = 0
    priority_policies: dict[int, QueuePolicy] = {}
    preserve_ordering: bool = False
    policy: str = "fixed"
    target_latency_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_delay_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _LARGEST:
                raise InvalidSettings(f"batching.{name} must be from 0 to {_LARGEST}, got {value}")
        _check_waiting("batching.", self)
        self._check_levels()
        if any(size < 1 for size in self.preferred_sizes):
            raise InvalidSettings(f"batching.preferred_sizes must be 1 or more, got {list(self.preferred_sizes)}")
        if self.policy != "fixed":
            raise InvalidSettings(f"batching.policy must be 'fixed', got '{self.policy}'")
        if self.target_latency_ms is not None and self.target_latency_ms <= 0:
            raise InvalidSettings(f"batching.target_latency_ms must be over 0, got {self.target_latency_ms}")

    def _check_levels(self) -> None:
        levels = self.priority_levels
        if not 0 <= levels <= _MOST_LEVELS:
            raise InvalidSettings(f"batching.priority_levels must be from 0 to {_MOST_LEVELS}, got {levels}")
        if levels and not 1 <= self.default_priority <= levels:
            raise InvalidSettings(
                f"batching.default_priority must be from 1 to priority_levels {levels}, got {self.default_priority}"
            )
        if not levels and (self.default_priority or self.priority_policies):
            raise InvalidSettings("batching.default_priority and priority_policies need priority_levels, which is 0")
        for level in self.priority_policies:
            if not 1 <= level <= levels:
                raise InvalidSettings(
                    f"batching.priority_policies must be of levels from 1 to priority_levels {levels}, got {level}"
                )
        if self.preserve_ordering:
            if levels > 1:
                raise InvalidSettings(
                    f"batching.preserve_ordering allows one priority level at most, and priority_levels is {levels}"
                )
            policies: tuple[Batching | QueuePolicy, ...] = (self, *self.priority_policies.values())
            if any(policy.timeout_action == "delay" for policy in policies):
                raise InvalidSettings("batching.preserve_ordering does not go with timeout_action 'delay'")


def _check_waiting(where: str, policy: Batching | QueuePolicy) -> None:
    """Raise InvalidSettings for a wrong bound, timeout or action."""
    for name, least in (("max_queue_rows", 1), ("timeout_us", 0)):
        value = getattr(policy, name)
        if value is not None and not least <= value <= _LARGEST:
            raise InvalidSettings(f"{where}{name} must be from {least} to {_LARGEST}, got {value}")
    action = policy.timeout_action
    if action is not None and action not in _TIMEOUT_ACTIONS:
        raise InvalidSettings(f"{where}timeout_action must be 'reject' or 'delay', got '{action}'")


class Instances(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`count` executors on one device: `auto`, `cpu` or `gpu:N`. `threads` 0: usable cores over all instances."""

    device: str = "auto"
    count: int = 1
    threads: int = 0

    def __post_init__(self) -> None:
        kind, _, index = self.device.partition(":")
        if not (self.device in ("auto", "cpu") or (kind == "gpu" and index.isdigit())):
            raise InvalidSettings(f"instances.device must be 'auto', 'cpu' or 'gpu:N', got '{self.device}'")
        if not 1 <= self.count <= _MOST_INSTANCES:
            raise InvalidSettings(f"instances.count must be from 1 to {_MOST_INSTANCES}, got {self.count}")
        if not 0 <= self.threads <= _MOST_THREADS:
            raise InvalidSettings(f"instances.threads must be from 0 to {_MOST_THREADS}, got {self.threads}")


class ModelSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What `model.yaml` says, resolved. `version_policy` is 'latest:N', 'all' or a list of versions."""

    runtime: str = ""
    """A name from runtimes.table; '' lets the repository detect it from the files."""
    file: str = ""
    """The model's file inside its version folder, where more than one would do."""
    batching: Batching = Batching()
    instances: tuple[Instances, ...] = (Instances(),)
    signatures: dict[str, Signature] = {}
    """Declared signatures by name; 'serving_default' is the default one. Empty: the runtime reads the model."""
    labels: dict[str, str] = {}
    """Output name → file with one class label a line, beside the model."""
    preprocess: dict[str, Any] | None = None
    """Declaration for ekiben.preprocess; kept as plain data here."""
    decoupled: bool | None = None
    """Whether a request gets any number of responses, as a stream, and not exactly one. None: as the model has it."""
    version_policy: str | tuple[int, ...] = "latest:1"
    execution_timeout_ms: float = 60_000.0
    """A batch that runs longer ends its runner; of a stream, each response by itself. 0: no limit."""
    load_timeout_ms: float = 300_000.0
    parameters: dict[str, Parameter] = {}
    """Runtime-specific options."""

    def __post_init__(self) -> None:
        if not self.instances:
            raise InvalidSettings("instances must be one or more, got none")


class VersionSource(msgspec.Struct, frozen=True):
    """One version that a repository wants loaded."""

    model: str
    version: int
    path: str
    """Folder of this version's files."""
    settings: ModelSettings
    word: str = ""
    """The repository's own name for it where that is not the integer (a Bento store version)."""


class ModelSource(msgspec.Struct, frozen=True):
    """What a repository says of one model: the versions wanted by its policy, or why it cannot be read."""

    name: str
    versions: tuple[VersionSource, ...] = ()
    error: str = ""


class LoadOverride(msgspec.Struct, frozen=True):
    """What a caller gives, for one load, instead of what the repository says of a model."""

    config: str
    """Triton's ModelConfig as the text of a JSON object."""
    files: Mapping[str, bytes] = {}
    """Path in the model's folder, as in `1/model.onnx`, → content: the whole folder. Empty: the repository's own."""


Catalogue: TypeAlias = Mapping[str, ModelSource]
"""The full set a repository wants; a model left out is to be unloaded."""


class Trace(msgspec.Struct, gc=False):
    """How a request went through the engine, which writes it. Times are seconds on its clock; 0: not reached.

    For a request that runs again, because its batch failed, they are those of the last time.
    """

    version: str = ""
    """The integer of the version that it came to."""
    rows: int = 0
    batch_rows: int = 0
    """Rows of the batch that it rode in."""
    attempts: int = 0
    """How often it was handed to a runner."""
    queued: float = 0.0
    taken: float = 0.0
    """Its batch was formed."""
    submitted: float = 0.0
    """The batch lay in the runner's shared memory."""
    compute_start: float = 0.0
    """As the runner's own times say, counted back from when its answer arrived."""
    input_end: float = 0.0
    output_start: float = 0.0
    compute_end: float = 0.0
    answered: float = 0.0
    """It had its response or its error."""


class Request(msgspec.Struct, gc=False):
    """One inference request, as every door hands it to the engine."""

    model: str
    inputs: dict[str, Tensor]
    version: str = ""
    """'' is the policy's default; else an integer as text, or the repository's word."""
    id: str = ""
    outputs: tuple[str, ...] = ()
    """Names of the outputs wanted; () is all."""
    parameters: dict[str, Parameter] = {}
    signature: str = ""
    """'' is the model's default signature."""
    alive: Callable[[], bool] | None = None
    """Says whether the caller still waits; asked before the request costs anything. None: always."""
    priority: int = 0
    """From 1, the best; 0: the model's default. Without meaning where the model has no priorities."""
    timeout_us: int = 0
    """How long it may wait for its batch, where the model allows it to say so; 0: as long as the model has it."""
    deadline: float | None = None
    """When the caller gives up, on the engine's clock; None: never."""
    trace: Trace | None = None
    """What the engine is to write down of its way. None: nothing."""


class Response(msgspec.Struct, gc=False):
    """The answer. Outputs are in the order asked for, else in the signature's. The arrays are the caller's."""

    model: str
    version: str
    outputs: dict[str, Tensor]


Infer: TypeAlias = Callable[[Request], Awaitable[Response]]
