"""TensorFlow SavedModels, every signature of them, on the CPU or on one GPU."""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

# TensorFlow reads it when it is imported. The lines that this leaves out say which instructions the CPU has.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import tensorflow as tf

from ekiben.runtimes.base import (
    DEFAULT_SIGNATURE,
    LoadContext,
    load_failed,
    model_path,
    owned,
    resolve_signatures,
)
from ekiben.types import Signature, Tensor, TensorSpec

__all__ = ["TensorflowSession"]

_log: Final = logging.getLogger(__name__)

_DATATYPES: Final = {
    tf.bool: "BOOL",
    tf.uint8: "UINT8",
    tf.uint16: "UINT16",
    tf.uint32: "UINT32",
    tf.uint64: "UINT64",
    tf.int8: "INT8",
    tf.int16: "INT16",
    tf.int32: "INT32",
    tf.int64: "INT64",
    tf.float16: "FP16",
    tf.bfloat16: "BF16",
    tf.float32: "FP32",
    tf.float64: "FP64",
    tf.string: "BYTES",
}
_TYPES: Final = {datatype: dtype for dtype, datatype in _DATATYPES.items()}


class _Loaded(Protocol):
    """A SavedModel by one of TensorFlow's two loaders."""

    signatures: Mapping[str, Signature]

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Iterable[Any]: ...

    def close(self) -> None: ...


class TensorflowSession:
    """One SavedModel, by `tf.saved_model.load`, or by the TensorFlow 1 session loader where that fails.

    Inputs and outputs have the signature's own names. A tensor of unknown rank reads as shape [-1] unless model.yaml
    declares one. TensorFlow's thread pools belong to the process: the first instance loaded in it sets their size.
    """

    def __init__(self, context: LoadContext) -> None:
        path = model_path(context, "model.savedmodel", "saved_model.pb", "saved_model.pbtxt")
        folder = path.parent if path.is_file() else path
        if not any((folder / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise load_failed(context, f"there is no saved_model.pb in '{folder}'")
        self.device = _prepare(context)
        self._placement = f"/{self.device.upper() if self.device != 'cpu' else 'CPU:0'}"
        with tf.device(self._placement):
            self._model = _load(context, folder)
        if not self._model.signatures:
            raise load_failed(
                context, "the SavedModel has no signature to call; save it with tf.saved_model.save(…, signatures=…)"
            )
        self.signatures: Mapping[str, Signature] = resolve_signatures(context, self._model.signatures)
        own = self._model.signatures
        self._default = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in own else min(own)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Mapping[str, Tensor]:
        name = self._default if signature == DEFAULT_SIGNATURE else signature
        with tf.device(self._placement):
            results = self._model.run(name, inputs, outputs)
        # The session loader hands out the very arrays that were fed, where the graph passes them through.
        return {output: owned(_to_array(result), inputs) for output, result in zip(outputs, results, strict=True)}

    def close(self) -> None:
        self._model.close()


class _Functions:
    """The loader of TensorFlow 2."""

    def __init__(self, context: LoadContext, folder: Path) -> None:
        self._model = tf.saved_model.load(str(folder))  # its variables die with it
        self._functions = dict(self._model.signatures)
        self.signatures: Mapping[str, Signature] = _served(
            context,
            {
                name: (function.structured_input_signature[1], function.structured_outputs)
                for name, function in self._functions.items()
            },
        )
        self._types = {
            name: {spec.name: _TYPES[spec.datatype] for spec in signature.inputs}
            for name, signature in self.signatures.items()
        }

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Iterable[Any]:
        types = self._types[signature]
        # tf.constant copies: the inputs may die, or be written over, while a variable of the model keeps them.
        results = self._functions[signature](
            **{name: tf.constant(tensor, types[name]) for name, tensor in inputs.items()}
        )
        return [results[name].numpy() for name in outputs]

    def close(self) -> None:
        self._functions.clear()
        del self._model


class _Graph:
    """The loader of TensorFlow 1, which restores the graph and runs it in a session."""

    def __init__(self, context: LoadContext, folder: Path) -> None:
        options = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=context.threads,
            inter_op_parallelism_threads=context.threads,
            allow_soft_placement=True,
            gpu_options=tf.compat.v1.GPUOptions(allow_growth=True),
        )
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph, config=options)
        with graph.as_default():
            meta = tf.compat.v1.saved_model.load(self._session, [tf.saved_model.SERVING], str(folder))
        tensors = {
            name: (_in_graph(graph, definition.inputs), _in_graph(graph, definition.outputs))
            for name, definition in meta.signature_def.items()
            if not name.startswith("__saved_model_")
        }
        self.signatures: Mapping[str, Signature] = _served(context, tensors)
        self._tensors = tensors

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Iterable[Any]:
        given, made = self._tensors[signature]
        results: list[Any] = self._session.run(
            [made[name] for name in outputs], {given[name]: tensor for name, tensor in inputs.items()}
        )
        return results

    def close(self) -> None:
        self._session.close()


def _prepare(context: LoadContext) -> str:
    """Set threads and GPU memory growth before TensorFlow initialises, and resolve the device."""
    tf.get_logger().setLevel(logging.ERROR)
    # Too late for a second instance in this process with other figures; the first one's stay.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(context.threads)
        tf.config.threading.set_inter_op_parallelism_threads(context.threads)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
    if context.device == "auto":
        return "gpu:0" if gpus else "cpu"
    if context.device != "cpu" and int(context.device.partition(":")[2]) >= len(gpus):
        raise load_failed(context, f"TensorFlow sees {len(gpus)} GPU(s)")
    return context.device


def _load(context: LoadContext, folder: Path) -> _Loaded:
    try:
        return _Functions(context, folder)
    except Exception as error:
        reason = error
    try:
        model = _Graph(context, folder)
    except Exception as error:
        raise load_failed(
            context,
            f"TensorFlow cannot load '{folder.name}': {_brief(reason)}; its TensorFlow 1 loader: {_brief(error)}",
        ) from reason
    _log.info("model '%s': loaded by the TensorFlow 1 session loader, after: %s", context.model, _brief(reason))
    return model


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:400]}"


def _in_graph(graph: Any, infos: Mapping[str, Any]) -> dict[str, Any]:
    return {name: graph.as_graph_element(info.name) for name, info in infos.items()}


def _served(
    context: LoadContext, tensors: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> dict[str, Signature]:
    """The signatures all of whose tensors have a datatype in the protocol; the others are left out and logged."""
    signatures = {}
    for name, (inputs, outputs) in tensors.items():
        dtypes = {tensor.dtype for tensor in (*inputs.values(), *outputs.values())}
        if unknown := dtypes - _DATATYPES.keys():
            names = ", ".join(sorted(dtype.name for dtype in unknown))
            _log.warning("model '%s': signature '%s' is left out: no datatype for %s", context.model, name, names)
            continue
        declared = name in context.signatures
        signatures[name] = Signature(
            tuple(_spec(key, inputs[key], declared) for key in sorted(inputs)),
            tuple(_spec(key, outputs[key], declared) for key in sorted(outputs)),
        )
    return signatures


def _spec(name: str, tensor: Any, declared: bool) -> TensorSpec:
    if tensor.shape.rank is None:
        shape: tuple[int, ...] = () if declared else (-1,)
    else:
        shape = tuple(-1 if size is None else size for size in tensor.shape.as_list())
    return TensorSpec(name, _DATATYPES[tensor.dtype], shape)


def _to_array(result: Any) -> Tensor:
    """A scalar string comes as bytes, a scalar number as a numpy scalar."""
    return np.asarray(result, np.object_) if isinstance(result, bytes) else np.asarray(result)
