"""A Keras file as a SavedModel: `python -m ekiben.runtimes.keras_convert FILE FOLDER`.

A process of its own, so that the one that imports a model imports no framework. What goes wrong is said on the last
line of standard error.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

# Keras reads it when it is imported.
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf

from ekiben.runtimes.base import DEFAULT_SIGNATURE

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Read the file (.keras, or .h5 with the network in it) and write the folder."""
    source, folder = arguments
    try:
        convert(source, folder)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


def convert(source: str, folder: str) -> None:
    """Inputs are named as the model's input tensors, outputs as its output layers; code of Lambda layers is refused."""
    model = keras.models.load_model(source, compile=False, safe_mode=True)
    inputs = [
        tf.TensorSpec([None if size is None else size for size in tensor.shape], tensor.dtype, _name(tensor))
        for tensor in keras.tree.flatten(model.inputs)
    ]
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    outputs = getattr(model, "output_names", None) or [model.layers[-1].name]

    def infer(*tensors: Any) -> dict[str, Any]:
        given = keras.tree.pack_sequence_as(structure, list(tensors))
        result = model(given, training=False)
        return result if isinstance(result, dict) else dict(zip(outputs, keras.tree.flatten(result), strict=True))

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(name=DEFAULT_SIGNATURE, fn=infer, input_signature=inputs)
    archive.write_out(folder, verbose=False)


def _name(tensor: Any) -> str:
    name: str = tensor.name
    return name.partition(":")[0]


if __name__ == "__main__":
    main(sys.argv[1:])
