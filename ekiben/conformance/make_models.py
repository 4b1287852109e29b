"""A small repository in Triton's layout that has a model for every point: ONNX models that return what they are given.

The files are protobuf messages of a few fields, written here without the onnx package.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ekiben.errors import InvalidSettings
from ekiben.types import TensorSpec
from ekiben.wire.protos.schema import ProtoFile, Schema

__all__ = ["make_models"]

_IR_VERSION: Final = 8
_OPERATORS: Final = 17
_LARGEST_BATCH: Final = 8
_ELEMENTS: Final[Mapping[str, int]] = {
    "FP32": 1,
    "UINT8": 2,
    "INT8": 3,
    "UINT16": 4,
    "INT16": 5,
    "INT32": 6,
    "INT64": 7,
    "BYTES": 8,
    "BOOL": 9,
    "FP16": 10,
    "FP64": 11,
    "UINT32": 12,
    "UINT64": 13,
}
"""Datatype → ONNX' number of it. BF16 is left out: ONNX Runtime gives Python no array of it."""

_ONNX: Final = Schema(
    ProtoFile(
        "onnx.proto",
        "onnx",
        {
            "ModelProto": "1 ir_version int64; 7 graph GraphProto; 8 opset_import OperatorSetIdProto*",
            "OperatorSetIdProto": "1 domain string; 2 version int64",
            "GraphProto": "1 node NodeProto*; 2 name string; 11 input ValueInfoProto*; 12 output ValueInfoProto*",
            "NodeProto": "1 input string*; 2 output string*; 4 op_type string",
            "ValueInfoProto": "1 name string; 2 type TypeProto",
            "TypeProto": "1 tensor_type TypeProto.Tensor@value",
            "TypeProto.Tensor": "1 elem_type int32; 2 shape TensorShapeProto",
            "TensorShapeProto": "1 dim TensorShapeProto.Dimension*",
            "TensorShapeProto.Dimension": "1 dim_value int64@value; 2 dim_param string@value",
        },
    )
)
"""The part of onnx.proto that these models need."""


class _Node(msgspec.Struct, frozen=True):
    """`operator` of the inputs at these places gives the next output."""

    operator: str
    inputs: tuple[int, ...]


class _Recipe(msgspec.Struct, frozen=True):
    """A model: shapes include the batch dimension, which is there where `largest_batch` is over 0."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[_Node, ...]
    largest_batch: int = _LARGEST_BATCH
    versions: tuple[int, ...] = (1,)


def _echo(*tensors: tuple[str, tuple[int, ...]], largest_batch: int = _LARGEST_BATCH) -> _Recipe:
    """Each output is the input of the same place; tensors are datatype and shape."""
    inputs, outputs = (
        tuple(TensorSpec(f"{kind}{place}", *tensor) for place, tensor in enumerate(tensors))
        for kind in ("INPUT", "OUTPUT")
    )
    return _Recipe(inputs, outputs, tuple(_Node("Identity", (place,)) for place in range(len(tensors))), largest_batch)


def _recipes() -> dict[str, _Recipe]:
    pair = _echo(("INT32", (-1, 16)), ("INT32", (-1, 16)))
    return {
        **{f"echo_{datatype.lower()}": _echo((datatype, (-1, -1))) for datatype in _ELEMENTS},
        "echo_word": _echo(("BYTES", (-1, 1))),
        "echo_two": _echo(("FP32", (-1, 4)), ("BYTES", (-1, 1))),
        "echo_square": _echo(("FP32", (2, 2)), largest_batch=0),
        "echo_scalar": _echo(("FP32", ()), largest_batch=0),
        "sum_and_difference": msgspec.structs.replace(pair, nodes=(_Node("Add", (0, 1)), _Node("Sub", (0, 1)))),
        "scores": _echo(("FP32", (-1, 4))),
        "two_versions": msgspec.structs.replace(_echo(("INT32", (-1, 1))), versions=(1, 2)),
    }


def make_models(folder: Path) -> Sequence[str]:
    """Write the models below a folder, and return their names. Raises InvalidSettings where one is there already."""
    recipes = _recipes()
    for name in recipes:
        if (folder / name).exists():
            raise InvalidSettings(f"{folder / name} exists already; name a new folder with --make-models")
    for name, recipe in recipes.items():
        for version in recipe.versions:
            place = folder / name / str(version)
            place.mkdir(parents=True)
            (place / "model.onnx").write_bytes(_model(name, recipe))
        if all(spec.shape for spec in recipe.inputs):
            # The file has no way to say a scalar: the model then speaks for itself.
            (folder / name / "config.pbtxt").write_text(_config(name, recipe))
    return sorted(recipes)


def _model(name: str, recipe: _Recipe) -> bytes:
    nodes = [
        {"input": [recipe.inputs[at].name for at in node.inputs], "output": [spec.name], "op_type": node.operator}
        for node, spec in zip(recipe.nodes, recipe.outputs, strict=True)
    ]
    graph = {
        "name": name,
        "node": nodes,
        "input": [_value(spec) for spec in recipe.inputs],
        "output": [_value(spec) for spec in recipe.outputs],
    }
    model = _ONNX.message("ModelProto")(ir_version=_IR_VERSION, graph=graph, opset_import=[{"version": _OPERATORS}])
    return bytes(model.SerializeToString())


def _value(spec: TensorSpec) -> dict[str, Any]:
    sizes = [{"dim_value": size} if size >= 0 else {"dim_param": f"d{at}"} for at, size in enumerate(spec.shape)]
    tensor = {"elem_type": _ELEMENTS[spec.datatype], "shape": {"dim": sizes}}
    return {"name": spec.name, "type": {"tensor_type": tensor}}


def _config(name: str, recipe: _Recipe) -> str:
    lines = [f'name: "{name}"', 'platform: "onnxruntime_onnx"', f"max_batch_size: {recipe.largest_batch}"]
    for kind, specs in (("input", recipe.inputs), ("output", recipe.outputs)):
        for spec in specs:
            datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
            dims = ", ".join(str(size) for size in (spec.shape[1:] if recipe.largest_batch else spec.shape))
            lines.append(f'{kind} [ {{ name: "{spec.name}" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]')
    if len(recipe.versions) > 1:
        lines.append("version_policy: { all: {} }")
    return "\n".join(lines) + "\n"
