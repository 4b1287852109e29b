"""The income network as a TensorFlow SavedModel."""

from pathlib import Path

import tensorflow as tf

from models import income

__all__ = ["build"]


def build(into: Path) -> None:
    """Write the SavedModel `model.savedmodel`."""
    module = tf.Module()
    module.layers = [[tf.Variable(array, trainable=False) for array in layer] for layer in income.layers()]

    def probability(features: tf.Tensor) -> dict[str, tf.Tensor]:
        (hidden_weight, hidden_bias), (weight, bias) = module.layers
        hidden = tf.nn.relu(tf.matmul(features, hidden_weight) + hidden_bias)
        return {income.OUTPUT: tf.sigmoid(tf.matmul(hidden, weight) + bias)}

    spec = tf.TensorSpec([None, income.FEATURES], tf.float32, name=income.INPUT)
    function = tf.function(probability, input_signature=[spec])
    tf.saved_model.save(module, str(into / "model.savedmodel"), signatures={"serving_default": function})
