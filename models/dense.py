"""Small networks of dense layers: their weights, and how they are written as ONNX."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Dense", "write_onnx"]


class Dense(NamedTuple):
    """One layer: `weight` [inputs, outputs], `bias` [outputs], both f32."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


def write_onnx(path: Path, input_name: str, output_name: str, layers: Sequence[Dense]) -> None:
    """Write layers with ReLU between them and a sigmoid at the end (opset 17, f32 [N, inputs] → [N, outputs])."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = input_name
    for number, layer in enumerate(layers, start=1):
        names = [f"dense_{number}.weight", f"dense_{number}.bias"]
        weights += [numpy_helper.from_array(array, name) for array, name in zip(layer, names, strict=True)]
        nodes.append(helper.make_node("Gemm", [value, *names], [f"dense_{number}"]))
        last = number == len(layers)
        value = output_name if last else f"relu_{number}"
        nodes.append(helper.make_node("Sigmoid" if last else "Relu", [f"dense_{number}"], [value]))
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(input_name, TensorProto.FLOAT, ["batch", layers[0].weight.shape[0]])],
        [helper.make_tensor_value_info(output_name, TensorProto.FLOAT, ["batch", layers[-1].weight.shape[1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="ekiben")
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
