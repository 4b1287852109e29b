"""EfficientNet-Lite0 as an ONNX graph."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.efficientnet import INPUT, OUTPUT, SIDE, Convolution, network, write_labels

__all__ = ["build"]


class _Graph:
    """Nodes and weights, added in order; each node's only output is named after it."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, operator: str, inputs: list[str], output: str = "", **attributes: object) -> str:
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def convolution(self, inputs: str, layer: Convolution) -> str:
        name = f"conv_{len(self.nodes)}"
        before, after = layer.padding
        output = self.node(
            "Conv",
            [inputs, self.weight(f"{name}.weight", layer.weight), self.weight(f"{name}.bias", layer.bias)],
            name,
            kernel_shape=list(layer.weight.shape[2:]),
            strides=[layer.stride, layer.stride],
            pads=[before, before, after, after],
            group=layer.groups,
        )
        return self.node("Clip", [output, "zero", "six"]) if layer.relu6 else output


def build(into: Path) -> None:
    """Write `model.onnx` (opset 17, dynamic batch) and `labels.txt`."""
    layers = network()
    graph = _Graph()
    graph.weight("zero", np.array(0, np.float32))
    graph.weight("six", np.array(6, np.float32))
    value = INPUT
    for block in layers.blocks:
        before = value
        for convolution in block.convolutions:
            value = graph.convolution(value, convolution)
        if block.skip:
            value = graph.node("Add", [value, before])
    value = graph.node("Flatten", [graph.node("GlobalAveragePool", [value])], axis=1)
    dense = [graph.weight("dense.weight", layers.dense_weight), graph.weight("dense.bias", layers.dense_bias)]
    graph.node("Softmax", [graph.node("Gemm", [value, *dense])], OUTPUT, axis=1)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "efficientnet_lite0",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", len(layers.dense_bias)])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="ekiben",
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, into / "model.onnx")
    write_labels(into / "labels.txt")
