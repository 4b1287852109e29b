"""TorchScript archives, on the CPU or on one GPU."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext, check_output, load_failed, model_path
from ekiben.types import DATATYPES, Signature, Tensor, TensorSpec

__all__ = ["TorchscriptSession", "argument_order", "load_module", "parts", "to_numpy", "to_torch"]

_BFLOAT16: Final = DATATYPES["BF16"]
_INDEXED: Final = re.compile(r".*__(\d+)")


class TorchscriptSession:
    """One ScriptModule in inference mode.

    An archive does not say what it takes and gives, so a signature must be declared. Inputs whose names are all
    arguments of `forward` go to those; otherwise they go by position: in the order declared, or by index where all are
    named `anything__INDEX`, as Triton's PyTorch models name them. A module that returns a dict gives its outputs by
    name; a tensor, tuple or list gives them by position (by index likewise). A signature other than the default calls
    the module's method of that name. State is explicit: what a model is to remember comes out as an output and goes in
    again as an input.
    """

    def __init__(self, context: LoadContext) -> None:
        path = model_path(context, "model.pt", "saved_model.pt")
        _check_declared(context)
        self.device = _resolve_device(context)
        self._torch_device = torch.device(self.device.replace("gpu", "cuda"))
        torch.set_num_threads(context.threads)
        try:
            module = load_module(path, self._torch_device)
        except Exception as error:
            raise load_failed(context, f"PyTorch cannot load '{path.name}' as TorchScript: {error}") from error
        self.signatures: Mapping[str, Signature] = context.signatures
        self._calls = {name: _call(context, module, name) for name in context.signatures}
        self._own = {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Mapping[str, Tensor]:
        call = self._calls[signature]
        tensors = {name: to_torch(tensor).to(self._torch_device) for name, tensor in inputs.items()}
        taken = self._own | {_storage(tensor) for tensor in tensors.values()}
        try:
            with torch.inference_mode():
                result = call.function(*call.arguments(tensors), **call.named_arguments(tensors))
        except Exception as error:
            # The last line says what is wrong; those before it are where, in generated code.
            raise RuntimeError(str(error).strip().rpartition("\n")[2]) from error
        results = call.results(result)
        arrays = {name: to_numpy(results[name], _storage(results[name]) in taken) for name in outputs}
        for name, array in arrays.items():
            check_output(call.specs[name], array)
        return arrays

    def close(self) -> None:
        self._calls.clear()
        if self.device != "cpu":
            torch.cuda.empty_cache()


def load_module(path: Path, device: Any) -> Any:
    """The ScriptModule in an archive, ready to infer."""
    with warnings.catch_warnings():
        # No other loader reads what users have; torch.export's archives get a runtime of their own.
        warnings.filterwarnings("ignore", "`torch.jit.load` is deprecated", DeprecationWarning)
        return torch.jit.load(str(path), map_location=device).eval()


class _Call(msgspec.Struct):
    """How one signature is called."""

    function: Callable[..., Any]
    positions: Sequence[str] | None
    """Input names in the order of the arguments; None passes them by name."""
    specs: Mapping[str, TensorSpec]
    """The declared outputs."""
    outputs: Sequence[str]
    """Output names in the order of a tuple's parts."""

    def arguments(self, tensors: Mapping[str, Any]) -> list[Any]:
        return [] if self.positions is None else [tensors.get(name) for name in self.positions]

    def named_arguments(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return tensors if self.positions is None else {}

    def results(self, result: Any) -> Mapping[str, Any]:
        """What the module returned, by output name."""
        if isinstance(result, dict):
            named = result
        else:
            tensors = list(parts(result))
            if len(tensors) != len(self.outputs):
                raise RuntimeError(f"the model returned {len(tensors)} tensors, its signature has {len(self.outputs)}")
            named = dict(zip(self.outputs, tensors, strict=True))
        for name in self.outputs:
            if not isinstance(named.get(name), torch.Tensor):
                raise RuntimeError(f"the model returned no tensor '{name}', only {', '.join(map(repr, named))}")
        return named


def parts(result: Any) -> Iterable[Any]:
    """The tensors in what a module returned, nested tuples and lists taken apart."""
    if isinstance(result, tuple | list):
        for part in result:
            yield from parts(part)
    else:
        yield result


def _check_declared(context: LoadContext) -> None:
    if DEFAULT_SIGNATURE not in context.signatures:
        raise load_failed(
            context,
            "a TorchScript archive does not say what its inputs and outputs are; declare them under "
            f"`signatures: {DEFAULT_SIGNATURE}:` in model.yaml, or let `ekiben import` find them with "
            "--example FILE.npz or --input NAME:FP32:-1,3,224,224",
        )
    for name, signature in context.signatures.items():
        for spec in (*signature.inputs, *signature.outputs):
            if spec.datatype == "BYTES":
                raise load_failed(
                    context, f"signature '{name}' declares '{spec.name}' as BYTES; PyTorch has no such tensor"
                )


def _resolve_device(context: LoadContext) -> str:
    count = torch.cuda.device_count()
    if context.device == "auto":
        return "gpu:0" if count else "cpu"
    if context.device != "cpu" and int(context.device.partition(":")[2]) >= count:
        raise load_failed(context, f"PyTorch sees {count} GPU(s)")
    return context.device


def _call(context: LoadContext, module: Any, name: str) -> _Call:
    method = "forward" if name == DEFAULT_SIGNATURE else name
    function = getattr(module, method, None)
    if not isinstance(function, torch.ScriptMethod):
        raise load_failed(context, f"signature '{name}' is declared, but the module has no exported method '{method}'")
    signature = context.signatures[name]
    try:
        positions = argument_order(function, [spec.name for spec in signature.inputs])
    except ValueError as error:
        raise load_failed(context, f"signature '{name}': {error}") from None
    outputs = {spec.name: spec for spec in signature.outputs}
    order = _positions([spec.name for spec in signature.outputs])
    return _Call(module if method == "forward" else function, positions, outputs, order)


def argument_order(function: Any, names: Sequence[str]) -> Sequence[str] | None:
    """The inputs in the order in which the method takes them, or None where it takes them by these names.

    Raises ValueError where they are too few or too many.
    """
    arguments = function.schema.arguments[1:]
    needed = {argument.name for argument in arguments if not argument.has_default_value()}
    by_name = set(names) <= {argument.name for argument in arguments}
    if not len(needed) <= len(names) <= len(arguments) or (by_name and not needed <= set(names)):
        takes = ", ".join(argument.name for argument in arguments)
        raise ValueError(f"the inputs {', '.join(names) or 'none'} are given, but the model takes {takes or 'none'}")
    return None if by_name else _positions(names)


def _positions(names: Sequence[str]) -> Sequence[str]:
    """Names by position: by index where every name has one, else as they are."""
    indexes = [int(match[1]) for name in names if (match := _INDEXED.fullmatch(name))]
    if sorted(indexes) == list(range(len(names))):
        return [name for _, name in sorted(zip(indexes, names, strict=True))]
    return names


def to_torch(tensor: Tensor) -> Any:
    """A tensor that shares the array's memory only where that may be written to: a module may work in place."""
    if tensor.dtype == _BFLOAT16:
        return torch.from_numpy(np.require(tensor.view(np.uint16), requirements=["C", "W"])).view(torch.bfloat16)
    return torch.from_numpy(np.require(tensor, requirements=["C", "W"]))


def to_numpy(tensor: Any, borrowed: bool = True) -> Tensor:
    """An array with the tensor's values: a copy, unless the memory is not `borrowed` from an input or the module."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        array: Tensor = tensor.view(torch.uint16).numpy().view(_BFLOAT16)
    else:
        array = tensor.numpy()
    return array.copy() if borrowed else array


def _storage(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address
