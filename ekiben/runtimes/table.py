"""The runtimes by name. A new framework is one new module and one line here."""

import importlib
from typing import Final, NamedTuple, cast

from ekiben.errors import InvalidSettings, LoadFailed
from ekiben.runtimes.base import LoadContext, Session

__all__ = ["RUNTIMES", "Entry", "load_session", "platform_of"]


class Entry(NamedTuple):
    """Where a runtime's Session class is, and the platform its models report on the wire."""

    target: str
    """'module:Class', imported only in a runner."""
    platform: str


RUNTIMES: Final = {
    "onnx": Entry("ekiben.runtimes.onnx:OnnxSession", "onnxruntime_onnx"),
    "python": Entry("ekiben.runtimes.python:PythonSession", "python"),
    "tensorflow": Entry("ekiben.runtimes.tensorflow:TensorflowSession", "tensorflow_savedmodel"),
    "torchscript": Entry("ekiben.runtimes.torchscript:TorchscriptSession", "pytorch_libtorch"),
}


def platform_of(runtime: str) -> str:
    """The platform that models of this runtime report; 'python' for a 'module:Class' of the user's own.

    Raises InvalidSettings for a name that is neither.
    """
    return _entry(runtime).platform


def load_session(runtime: str, context: LoadContext) -> Session:
    """Import the runtime and load one instance; blocks for as long as both take.

    `runtime` is a name from RUNTIMES or 'module:Class'. Raises LoadFailed (InvalidSettings for an unknown name) with
    the reason, naming the model.
    """
    entry = _entry(runtime)
    module_name, _, class_name = entry.target.partition(":")
    try:
        session_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise LoadFailed(
            f"model '{context.model}' version {context.version} needs runtime '{runtime}', which cannot be imported "
            f"here: {error}"
        ) from error
    return cast("Session", session_class(context))


def _entry(runtime: str) -> Entry:
    if runtime in RUNTIMES:
        return RUNTIMES[runtime]
    module_name, separator, class_name = runtime.partition(":")
    if separator and module_name and class_name.isidentifier():
        return Entry(runtime, "python")
    raise InvalidSettings(
        f"unknown runtime '{runtime}': it must be one of {', '.join(sorted(RUNTIMES))}, or 'module:Class'"
    )
