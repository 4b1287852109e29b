"""ONNX models by ONNX Runtime, on the CPU or on one CUDA GPU."""

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext, load_failed, model_path, resolve_signatures
from ekiben.types import DATATYPES, Signature, Tensor, TensorSpec

__all__ = ["OnnxSession"]

_log: Final = logging.getLogger(__name__)

_DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_BFLOAT16: Final = DATATYPES["BF16"]
_CUDA: Final = "CUDAExecutionProvider"
_ERRORS_ONLY: Final = 3
_NOTHING: Final = 4
_ONNX_BFLOAT16: Final = 16
"""TensorProto.BFLOAT16."""
_FIRST_IR_WITH_REAL_DEFAULTS: Final = 4
"""Before this IR version every weight had to be a graph input as well, so being one says nothing."""


class OnnxSession:
    """One ONNX Runtime session.

    Initialisers that are also graph inputs, and inputs of an optional type, are optional inputs. An output that is no
    tensor (a sequence or map, as of skl2onnx's ZipMap) is left out, and that is logged.

    ONNX strings are UTF-8 text. BYTES that are not still pass through unchanged: see _decode.
    """

    def __init__(self, context: LoadContext) -> None:
        path = model_path(context, "model.onnx", "saved_model.onnx")
        self._session, self.device = _open(context, path)
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = _NOTHING  # what goes wrong in a run is raised
        self.signatures: Mapping[str, Signature] = resolve_signatures(
            context, {DEFAULT_SIGNATURE: _read_signature(context, self._session, path)}
        )
        signature = self.signatures[DEFAULT_SIGNATURE]
        self._datatypes = {spec.name: spec.datatype for spec in (*signature.inputs, *signature.outputs)}
        reads_text = any(spec.datatype == "BYTES" for spec in signature.inputs)
        writes_bfloat16 = any(spec.datatype == "BF16" for spec in signature.outputs)
        if reads_text and writes_bfloat16:
            raise load_failed(context, "ONNX Runtime has no way to run BYTES inputs and BF16 outputs together")
        # Binding keeps tensors on the GPU and is the only way to BF16 outputs, but it takes no strings.
        self._bound = writes_bfloat16 or (self.device != "cpu" and not reads_text)

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Mapping[str, Tensor]:
        feed, marked = _decode(inputs)
        for name, tensor in inputs.items():
            if name not in feed:
                feed[name] = (
                    np.require(tensor, requirements="C") if tensor.dtype != _BFLOAT16 else _bfloat16_to_ort(tensor)
                )
        results = self._run_bound(feed, outputs) if self._bound else self._run_plain(feed, outputs)
        encode = _from_marked if marked else str.encode
        return {
            name: _each(encode, result) if self._datatypes[name] == "BYTES" else result
            for name, result in zip(outputs, results, strict=True)
        }

    def close(self) -> None:
        del self._session

    def _run_plain(self, feed: Mapping[str, Any], outputs: Sequence[str]) -> list[Tensor]:
        results: list[Tensor] = self._session.run(list(outputs), feed, self._options)
        return results

    def _run_bound(self, feed: Mapping[str, Any], outputs: Sequence[str]) -> list[Tensor]:
        binding = self._session.io_binding()
        device, index = ("cpu", 0) if self.device == "cpu" else ("cuda", int(self.device.partition(":")[2]))
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                value = onnxruntime.OrtValue.ortvalue_from_numpy(value, device, index)
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            on_host = self._datatypes[name] in ("BYTES", "BF16")
            binding.bind_output(name, "cpu" if on_host else device, 0 if on_host else index)
        self._session.run_with_iobinding(binding, self._options)
        values = zip(outputs, binding.get_outputs(), strict=True)
        return [
            _bfloat16_from_ort(value) if self._datatypes[name] == "BF16" else value.numpy() for name, value in values
        ]


def _open(context: LoadContext, path: Path) -> tuple[Any, str]:
    """The session, and the device that it came to be on."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = context.threads
    options.inter_op_num_threads = 1
    # Waiting threads that spin take the cores that other runners need: on two shared cores, two threads without
    # spinning were faster in every run and took a third less CPU time (a 12-layer convolution, batch 1).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    device = _wanted_device(context)
    providers: list[object] = ["CPUExecutionProvider"]
    if device != "cpu":
        onnxruntime.preload_dlls()
        settings = {
            "device_id": device.partition(":")[2],
            "arena_extend_strategy": "kSameAsRequested",
            # The default searches for the best convolution anew, and long, at every new batch size.
            "cudnn_conv_algo_search": "HEURISTIC",
        }
        providers.insert(0, (_CUDA, settings))
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:
        raise load_failed(context, f"ONNX Runtime cannot load '{path.name}': {error}") from error
    if device != "cpu" and _CUDA not in session.get_providers():
        if context.device != "auto":
            raise load_failed(context, "ONNX Runtime found no such GPU, or not the CUDA libraries that it needs")
        device = "cpu"
    return session, device


def _wanted_device(context: LoadContext) -> str:
    has_cuda = _CUDA in onnxruntime.get_available_providers()
    if context.device == "auto":
        return "gpu:0" if has_cuda else "cpu"
    if context.device != "cpu" and not has_cuda:
        raise load_failed(context, "this ONNX Runtime has no CUDA support; install onnxruntime-gpu, or use 'cpu'")
    return context.device


def _read_signature(context: LoadContext, session: Any, path: Path) -> Signature:
    inputs = [_read_spec(context, argument) for argument in session.get_inputs()]
    if _ir_version(path) >= _FIRST_IR_WITH_REAL_DEFAULTS or context.signatures:
        inputs += [_read_spec(context, argument, optional=True) for argument in session.get_overridable_initializers()]
    outputs = []
    for argument in session.get_outputs():
        if argument.type in _DATATYPES:
            outputs.append(_read_spec(context, argument))
        else:
            _log.warning("model '%s': output '%s' is left out: %s", context.model, argument.name, argument.type)
    if not outputs:
        raise load_failed(context, "no output of the model is a tensor (for skl2onnx: export with zipmap=False)")
    return Signature(tuple(inputs), tuple(outputs))


def _read_spec(context: LoadContext, argument: Any, optional: bool = False) -> TensorSpec:
    kind = argument.type
    if kind.startswith("optional("):
        kind, optional = kind.removeprefix("optional(").removesuffix(")"), True
    if kind not in _DATATYPES:
        raise load_failed(context, f"'{argument.name}' has type {argument.type}, which no datatype stands for")
    shape = tuple(size if isinstance(size, int) else -1 for size in argument.shape)
    return TensorSpec(argument.name, _DATATYPES[kind], shape, optional)


def _ir_version(path: Path) -> int:
    """`ir_version` is ModelProto's first field, a varint; 0 for a file that does not start with it."""
    with path.open("rb") as file:
        head = file.read(2)
    return head[1] if len(head) == 2 and head[0] == 8 else 0


def _bfloat16_to_ort(tensor: Tensor) -> Any:
    bits = np.require(tensor, requirements="C").view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)


def _bfloat16_from_ort(value: Any) -> Tensor:
    """A copy of an OrtValue in host memory, which ONNX Runtime itself does not turn into an array."""
    tensor = np.empty(value.shape(), _BFLOAT16)
    if tensor.nbytes:
        ctypes.memmove(tensor.ctypes.data, value.data_ptr(), tensor.nbytes)
    return tensor


_MARKS: Final = 0x10FE00
"""Private-use code points 0x10FE80 to 0x10FEFF stand for the bytes 0x80 to 0xFF."""
_TO_MARKS: Final = {0xDC00 + byte: chr(_MARKS + byte) for byte in range(0x80, 0x100)} | {
    _MARKS + byte: "".join(chr(_MARKS + part) for part in chr(_MARKS + byte).encode()) for byte in range(0x80, 0x100)
}
_FROM_MARKS: Final = {_MARKS + byte: chr(0xDC00 + byte) for byte in range(0x80, 0x100)}


def _decode(inputs: Mapping[str, Tensor]) -> tuple[dict[str, Any], bool]:
    """BYTES tensors as ONNX strings, and whether marks stand for bytes in them.

    ONNX Runtime takes and gives `str`, and fails on anything that is not UTF-8. Valid UTF-8 is what the model sees,
    unchanged. In a run that also holds other bytes, each such byte (and each byte of a character that is itself a mark)
    becomes one private-use character, and every mark in the outputs becomes its byte again: reversible for any bytes.
    """
    tensors = {name: tensor for name, tensor in inputs.items() if tensor.dtype == np.object_}
    try:
        return {name: _each(bytes.decode, tensor) for name, tensor in tensors.items()}, False
    except UnicodeDecodeError:
        return {name: _each(_to_marked, tensor) for name, tensor in tensors.items()}, True


def _to_marked(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape").translate(_TO_MARKS)


def _from_marked(value: str) -> bytes:
    return value.translate(_FROM_MARKS).encode("utf-8", "surrogateescape")


def _each(function: Callable[[Any], object], tensor: Tensor) -> Tensor:
    result = np.empty(tensor.shape, np.object_)
    result.reshape(-1)[:] = [function(value) for value in tensor.reshape(-1).tolist()]
    return result
