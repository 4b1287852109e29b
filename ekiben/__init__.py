"""Ekiben: TensorFlow, TorchScript, ONNX and Python models from one `bentoml serve`, over the Open Inference Protocol.

What a service.py is written with is here: `ekiben.EngineService`, `ekiben.runner`, `ekiben.repository`,
`ekiben.Batching`, `ekiben.Label`.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ekiben.app import EngineService
    from ekiben.declare import Models, Runner, repository, runner
    from ekiben.preprocess import Label
    from ekiben.types import Batching

__all__ = ["Batching", "EngineService", "Label", "Models", "Runner", "repository", "runner"]

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


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ekiben' has no attribute '{name}'")
