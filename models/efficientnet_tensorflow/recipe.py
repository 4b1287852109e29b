"""EfficientNet-Lite0 as a TensorFlow SavedModel. It takes images as the others do, channels first."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from models.efficientnet import INPUT, OUTPUT, SIDE, Convolution, network, write_labels

__all__ = ["build"]


def build(into: Path) -> None:
    """Write the SavedModel `model.savedmodel` and `labels.txt`."""
    layers = network()
    module = tf.Module()
    module.blocks = [[_variables(layer) for layer in block.convolutions] for block in layers.blocks]
    module.dense = [tf.Variable(layers.dense_weight, trainable=False), tf.Variable(layers.dense_bias, trainable=False)]

    def scores(image: tf.Tensor) -> dict[str, tf.Tensor]:
        # On a CPU TensorFlow convolves channels-last images only.
        value = tf.transpose(image, [0, 2, 3, 1])
        for block, variables in zip(layers.blocks, module.blocks, strict=True):
            before = value
            for layer, (weight, bias) in zip(block.convolutions, variables, strict=True):
                value = _convolve(value, layer, weight, bias)
            if block.skip:
                value += before
        weight, bias = module.dense
        return {OUTPUT: tf.nn.softmax(tf.matmul(tf.reduce_mean(value, axis=[1, 2]), weight) + bias)}

    function = tf.function(scores, input_signature=[tf.TensorSpec([None, 3, SIDE, SIDE], tf.float32, name=INPUT)])
    tf.saved_model.save(module, str(into / "model.savedmodel"), signatures={"serving_default": function})
    write_labels(into / "labels.txt")


def _variables(layer: Convolution) -> list[tf.Variable]:
    # TensorFlow's kernels are [height, width, in, out], and [height, width, channels, 1] for depthwise ones.
    axes = (2, 3, 0, 1) if layer.groups > 1 else (2, 3, 1, 0)
    weight = np.ascontiguousarray(layer.weight.transpose(axes))
    return [tf.Variable(weight, trainable=False), tf.Variable(layer.bias, trainable=False)]


def _convolve(value: tf.Tensor, layer: Convolution, weight: tf.Variable, bias: tf.Variable) -> tf.Tensor:
    convolution = tf.nn.depthwise_conv2d if layer.groups > 1 else tf.nn.conv2d
    strides = [1, layer.stride, layer.stride, 1]
    value = tf.nn.bias_add(convolution(value, weight, strides=strides, padding="SAME"), bias)
    return tf.nn.relu6(value) if layer.relu6 else value
