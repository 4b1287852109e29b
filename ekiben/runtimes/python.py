"""Models that are Python code: a folder with a `model.py` that defines a class `Model`.

    class Model:
        signature = Signature(...)      # or declared in model.yaml
        def load(self, context): ...    # optional; context is a LoadContext: path, device, threads, parameters
        def infer(self, inputs): ...    # {name: array} in, {name: array} out; BYTES are object arrays of bytes
        def close(self): ...            # optional

An `infer` that yields makes the model decoupled: each {name: array} it yields is a response of its own, sent at once.
When the caller leaves, GeneratorExit is raised where it yielded, so its `finally` blocks run.

The arrays given to `infer` die after the call (after its last yield): what is to be kept must be copied.
"""

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from ekiben.errors import LoadFailed
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext, check_output, load_failed, model_path, owned
from ekiben.types import DATATYPES, Signature, Tensor, TensorSpec

__all__ = ["PythonSession"]


class PythonSession:
    """One `Model` of a user's `model.py`.

    The file gets a module name of its own, so models never meet under the name `model`. Files beside it are imported as
    `from . import helper` (always its own), or as `import helper` (from the folder, which stands first on sys.path).
    """

    def __init__(self, context: LoadContext) -> None:
        path = model_path(context, "model.py")
        self._folder = path.parent.resolve()
        self._model: Any = None
        self.device = _resolve_device(context)
        context = msgspec.structs.replace(context, device=self.device)
        self._module_name = f"ekiben_python_model_{id(self):x}"
        sys.dont_write_bytecode = True  # the folder belongs to a repository, which may be watching it
        sys.path.insert(0, str(self._folder))
        try:
            model_class = getattr(self._import(path), "Model", None)
            if not isinstance(model_class, type):
                raise load_failed(context, f"'{path.name}' defines no class `Model`")
            infer = getattr(model_class, "infer", None)
            if not callable(infer):
                raise load_failed(context, f"class `Model` in '{path.name}' has no method infer(self, inputs)")
            if inspect.iscoroutinefunction(infer) or inspect.isasyncgenfunction(infer):
                raise load_failed(
                    context, f"`Model.infer` in '{path.name}' must be a plain function, not async (it may yield)"
                )
            self.decoupled = inspect.isgeneratorfunction(infer) or bool(context.decoupled)
            self.signatures: Mapping[str, Signature] = {DEFAULT_SIGNATURE: _signature(context, model_class)}
            self._model = model_class()
            if hasattr(self._model, "load"):
                self._model.load(context)
        except LoadFailed:
            self._forget()
            raise
        except BaseException as error:  # the file may even call sys.exit()
            self._forget()
            raise load_failed(context, _place(error, self._folder)) from error
        self._outputs = {spec.name: spec for spec in self.signatures[DEFAULT_SIGNATURE].outputs}

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Mapping[str, Tensor]:
        return self._arrays("returned", self._model.infer(dict(inputs)), inputs, outputs)

    def stream(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]
    ) -> Generator[Mapping[str, Tensor], None, None]:
        responses = self._model.infer(dict(inputs))
        if isinstance(responses, Mapping) or not isinstance(responses, Iterable):
            raise TypeError(
                "Model.infer must return an iterator of dicts, since the model is decoupled; "
                f"it returned {type(responses).__name__}"
            )
        try:
            for results in responses:
                yield self._arrays("yielded", results, inputs, outputs)
        finally:
            if isinstance(responses, Generator):
                responses.close()

    def _arrays(
        self, verb: str, results: object, inputs: Mapping[str, Tensor], outputs: Sequence[str]
    ) -> Mapping[str, Tensor]:
        if not isinstance(results, Mapping):
            streamed = verb == "returned" and isinstance(results, Generator)
            hint = "; say `decoupled: true` in model.yaml to have it streamed" if streamed else ""
            raise TypeError(f"Model.infer must return a dict of outputs, it {verb} {type(results).__name__}{hint}")
        arrays = {}
        for name in outputs:
            if name not in results:
                raise ValueError(f"Model.infer {verb} no output '{name}', only {', '.join(map(repr, results))}")
            array = _to_array(results[name], self._outputs[name])
            check_output(self._outputs[name], array)
            arrays[name] = owned(array, inputs)
        return arrays

    def close(self) -> None:
        if hasattr(self._model, "close"):
            self._model.close()
        self._forget()

    def _import(self, path: Path) -> ModuleType:
        # A package, so that `from . import helper` finds the files beside it.
        spec = importlib.util.spec_from_file_location(
            self._module_name, path, submodule_search_locations=[str(self._folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"'{path.name}' is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self._module_name] = module
        spec.loader.exec_module(module)
        return module

    def _forget(self) -> None:
        """Take the folder and the modules that came from it out of the interpreter's tables."""
        with contextlib.suppress(ValueError):
            sys.path.remove(str(self._folder))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(self._folder):
                del sys.modules[name]


def _resolve_device(context: LoadContext) -> str:
    """No framework is asked, for none may be there: the driver's device files say how many GPUs there are."""
    count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if context.device == "auto":
        return "gpu:0" if count else "cpu"
    if context.device != "cpu" and int(context.device.partition(":")[2]) >= count:
        raise load_failed(context, f"this machine has {count} NVIDIA GPU(s)")
    return context.device


def _signature(context: LoadContext, model_class: type[Any]) -> Signature:
    if others := context.signatures.keys() - {DEFAULT_SIGNATURE}:
        raise load_failed(context, f"a Python model has one signature, '{DEFAULT_SIGNATURE}', and not '{min(others)}'")
    own = getattr(model_class, "signature", None)
    signature = context.signatures.get(DEFAULT_SIGNATURE, own)
    if not isinstance(signature, Signature):
        raise load_failed(
            context,
            f"no signature: declare one under `signatures: {DEFAULT_SIGNATURE}:` in model.yaml, or as the class "
            "attribute `signature = ekiben.types.Signature(…)` of Model",
        )
    return signature


def _place(error: BaseException, folder: Path) -> str:
    """The error, and the last line of the user's own files that it came through."""
    text = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {text}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)
    ]
    if not frames:
        return text
    return f"{Path(frames[-1].filename).relative_to(folder)}:{frames[-1].lineno}: {text}"


def _to_array(value: object, spec: TensorSpec) -> Tensor:
    """Lists, numbers and text are welcome; an array keeps its dtype."""
    if spec.datatype != "BYTES":
        return value if isinstance(value, np.ndarray) else np.asarray(value, DATATYPES[spec.datatype])
    array = np.asarray(value, np.object_)
    result = np.empty(array.shape, np.object_)
    result.reshape(-1)[:] = [_to_bytes(item, spec) for item in array.reshape(-1).tolist()]
    return result


def _to_bytes(item: object, spec: TensorSpec) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise TypeError(f"output '{spec.name}' is BYTES, but holds {type(item).__name__}")
