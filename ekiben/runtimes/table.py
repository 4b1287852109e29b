"""The runtimes by name. A new framework is one new module and one line here."""

import importlib
from typing import Final, cast

from ekiben.errors import InvalidSettings, LoadFailed
from ekiben.runtimes.base import LoadContext, Session

__all__ = ["RUNTIMES", "load_session"]

RUNTIMES: Final = {
    "onnx": "ekiben.runtimes.onnx:OnnxSession",
    "python": "ekiben.runtimes.python:PythonSession",
    "tensorflow": "ekiben.runtimes.tensorflow:TensorflowSession",
    "torchscript": "ekiben.runtimes.torchscript:TorchscriptSession",
}
"""Name → 'module:Class' of its Session, imported only in a runner."""


def load_session(runtime: str, context: LoadContext) -> Session:
    """Import the runtime and load one instance; blocks for as long as both take.

    `runtime` is a name from RUNTIMES or 'module:Class'. Raises LoadFailed (InvalidSettings for an unknown name) with
    the reason, naming the model.
    """
    module_name, _, class_name = _target(runtime).partition(":")
    try:
        session_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise LoadFailed(
            f"model '{context.model}' version {context.version} needs runtime '{runtime}', which cannot be imported "
            f"here: {error}"
        ) from error
    return cast("Session", session_class(context))


def _target(runtime: str) -> str:
    if runtime in RUNTIMES:
        return RUNTIMES[runtime]
    module_name, separator, class_name = runtime.partition(":")
    if separator and module_name and class_name.isidentifier():
        return runtime
    raise InvalidSettings(
        f"unknown runtime '{runtime}': it must be one of {', '.join(sorted(RUNTIMES))}, or 'module:Class'"
    )
