"""Ekiben: TensorFlow, TorchScript, ONNX and Python models from one `bentoml serve`, over the Open Inference Protocol.

What a service.py is written with is here: `ekiben.EngineService`, `ekiben.runner`, `ekiben.repository`,
`ekiben.Batching`, `ekiben.Label`.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ekiben.app import EngineService
    from ekiben.declare import Models, Runner, repository, runner
    from ekiben.preprocess import Label
    from ekiben.types import Batching

__all__ = ["Batching", "EngineService", "Label", "Models", "Runner", "__version__", "repository", "runner"]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Batching": "ekiben.types",
    "EngineService": "ekiben.app",
    "Label": "ekiben.preprocess",
    "Models": "ekiben.declare",
    "Runner": "ekiben.declare",
    "repository": "ekiben.declare",
    "runner": "ekiben.declare",
}
"""Looked up when asked for: a runner process imports this package too, and must not pay for BentoML."""


class _Package(ModuleType):
    """`runner` and `repository` are rooms too. As attributes of the package they are what service.py calls; the
    rooms are reached by importing from them, so the import system's own attribute for them is not set.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES:
            super().__setattr__(name, value)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ekiben' has no attribute '{name}'")


sys.modules[__name__].__class__ = _Package
