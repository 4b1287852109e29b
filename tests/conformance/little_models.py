"""A little server of the Open Inference Protocol, written apart from Ekiben: its models, and how they infer."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip
EXTENSIONS = (
    "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
    "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters",
    "statistics", "trace", "logging",
)  # fmt: skip
LARGEST_BATCH = 8


class Refused(Exception):
    """A request that is answered with an error: its gRPC code, which HTTP's status goes by, and a message."""

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.code = code


class Spec(NamedTuple):
    """A tensor of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Model(NamedTuple):
    """`kind`: echo, pair (sum and difference) or sequence."""

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    kind: str = "echo"
    versions: tuple[str, ...] = ("1",)

    @property
    def batched(self) -> bool:
        return self.inputs[0].shape[:1] == (-1,)


def _echo(name: str, *tensors: tuple[str, tuple[int, ...]], **more: Any) -> Model:
    inputs, outputs = (
        tuple(Spec(f"{kind}{place}", *tensor) for place, tensor in enumerate(tensors)) for kind in ("in", "out")
    )
    return Model(name, inputs, outputs, **more)


MODELS = {
    model.name: model
    for model in (
        *(_echo(f"echo_{datatype.lower()}", (datatype, (-1, -1))) for datatype in DTYPES),
        _echo("a model/of two", ("FP32", (-1, 4)), ("BYTES", (-1, 1))),
        _echo("pair", ("INT32", (-1, 4)), ("INT32", (-1, 4)), kind="pair"),
        _echo("scalar", ("FP32", ())),
        _echo("versions", ("INT32", (-1, 1)), versions=("1", "2")),
        _echo("steps", ("INT32", (-1, 1)), kind="sequence"),
        Model("text", (Spec("text_input", "BYTES", (1,)),), (Spec("text_output", "BYTES", (1,)),)),
        _echo("asleep", ("FP32", (-1, 4))),
    )
}


class State:
    """What a server remembers: which models are loaded, how often each answered, which sequences are open."""

    def __init__(self) -> None:
        self.loaded = set(MODELS) - {"asleep"}
        self.successes = dict.fromkeys(MODELS, 0)
        self.sequences: set[object] = set()

    def model(self, name: str, version: str = "") -> Model:
        """A model that is loaded, in a version that it has."""
        model = MODELS.get(name) if name in self.loaded else None
        if model is None:
            raise Refused(f"no model '{name}'", "NOT_FOUND")
        if version and version not in model.versions:
            raise Refused(f"model '{name}' has no version '{version}'", "NOT_FOUND")
        return model

    def change(self, name: str, verb: str) -> None:
        """Load or unload."""
        if name not in MODELS:
            if verb == "load":
                raise Refused(f"failed to load '{name}'", "INTERNAL")
            return
        (self.loaded.add if verb == "load" else self.loaded.discard)(name)

    def infer(
        self, model: Model, inputs: Sequence[tuple[str, str, Array]], wanted: Sequence[str], given: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Outputs by name, of inputs as name, datatype and tensor."""
        tensors: dict[str, Array] = {}
        specs = {spec.name: spec for spec in model.inputs}
        for name, datatype, tensor in inputs:
            if name not in specs:
                raise Refused(f"unknown input '{name}'")
            if name in tensors:
                raise Refused(f"input '{name}' twice")
            spec = specs[name]
            if datatype != spec.datatype:
                raise Refused(f"datatype of '{name}' is {datatype}, not {spec.datatype}")
            fits = len(tensor.shape) == len(spec.shape) and all(
                size in (-1, came) for size, came in zip(spec.shape, tensor.shape, strict=True)
            )
            if not fits:
                raise Refused(f"shape of '{name}' is {tensor.shape}, not {spec.shape}")
            if model.batched and tensor.shape[0] > LARGEST_BATCH:
                raise Refused(f"batch of {tensor.shape[0]} rows is over {LARGEST_BATCH}")
            tensors[name] = tensor
        missing = [name for name in specs if name not in tensors]
        if missing:
            raise Refused(f"missing input '{missing[0]}'")
        outputs = self._run(model, [tensors[name] for name in specs], given)
        for name in wanted:
            if name not in outputs:
                raise Refused(f"unknown output '{name}'")
        self.successes[model.name] += 1
        return {name: outputs[name] for name in outputs if name in wanted or not wanted}

    def _run(self, model: Model, inputs: list[Array], given: Mapping[str, Any]) -> dict[str, Array]:
        if model.kind == "sequence":
            identity = given.get("sequence_id")
            if not identity:
                raise Refused("sequence without an id")
            if given.get("sequence_start"):
                self.sequences.add(identity)
            if identity not in self.sequences:
                raise Refused("sequence without a start")
            if given.get("sequence_end"):
                self.sequences.discard(identity)
        if model.kind == "pair":
            inputs = [inputs[0] + inputs[1], inputs[0] - inputs[1]]
        return {spec.name: tensor for spec, tensor in zip(model.outputs, inputs, strict=True)}


def check_parameters(given: object) -> dict[str, Any]:
    """A request's parameters, which must be of the right kinds."""
    if not isinstance(given, dict):
        raise Refused("parameters are no object")
    for name, value in given.items():
        if isinstance(value, dict | list):
            raise Refused(f"parameter '{name}' is an object or a list")
        if name.startswith("triton_"):
            raise Refused(f"parameter '{name}' is reserved")
        if name in ("priority", "timeout") and type(value) is not int:
            raise Refused(f"schedule parameter '{name}' is no number")
    return given


def packed(tensor: Array) -> bytes:
    """A tensor as bytes of its own."""
    if tensor.dtype == np.object_:
        return b"".join(struct.pack("<I", len(each)) + each for each in tensor.reshape(-1))
    return tensor.tobytes()


def unpacked(datatype: str, shape: Sequence[int], data: bytes) -> Array:
    """The tensor in bytes."""
    count = int(np.prod(shape))
    if datatype != "BYTES":
        dtype = np.dtype(DTYPES[datatype])
        if len(data) != count * dtype.itemsize:
            raise Refused(f"size of the data is {len(data)}, not {count * dtype.itemsize}")
        return np.frombuffer(data, dtype).reshape(shape)
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise Refused("size of a BYTES tensor: a length breaks off")
        (length,) = struct.unpack_from("<I", data, at)
        elements.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    if len(elements) != count or at != len(data):
        raise Refused(f"size of a BYTES tensor is {len(elements)}, not {count}")
    tensor = np.empty(count, np.object_)
    tensor[:] = elements
    return tensor.reshape(shape)


def best_classes(tensor: Array, count: int, *, batched: bool) -> Array:
    """Classes of each row as value:index."""
    if tensor.dtype == np.object_ or tensor.dtype == np.bool_:
        raise Refused("classification of no numbers")
    rows = tensor.reshape(tensor.shape[0], -1) if batched else tensor.reshape(1, -1)
    count = min(count, rows.shape[1])
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    found = np.empty((len(rows), count), np.object_)
    for row, places in enumerate(order):
        found[row] = [f"{rows[row][at]}:{at}".encode() for at in places]
    return found if batched else found[0]


def config(model: Model) -> dict[str, Any]:
    """As in Triton's ModelConfig."""
    start = 1 if model.batched else 0
    made: dict[str, Any] = {"name": model.name, "platform": "little", "max_batch_size": LARGEST_BATCH * start}
    for key, specs in (("input", model.inputs), ("output", model.outputs)):
        made[key] = [
            {
                "name": spec.name,
                "data_type": f"TYPE_{'STRING' if spec.datatype == 'BYTES' else spec.datatype}",
                "dims": list(spec.shape[start:]),
            }
            for spec in specs
        ]
    if model.kind == "sequence":
        made["sequence_batching"] = {"max_sequence_idle_microseconds": 1000}
    return made
