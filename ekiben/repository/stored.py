"""What a model in the Bento model store is, read from its files and its `model.yaml` without BentoML's loaders.

`model.yaml` in a store folder is BentoML's own file. Our settings for the model stand in it under
`metadata: ekiben:`, so that `bentoml.onnx.save_model(…, metadata={"ekiben": {…}})` can declare them too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ekiben.errors import LoadFailed
from ekiben.repository.detect import detect

__all__ = ["IMPORTED_LABEL", "SETTINGS_KEY", "Stored", "read_stored"]

IMPORTED_LABEL: Final = ("ekiben", "imported")
"""The label (key, value) of what `ekiben import` stored."""

SETTINGS_KEY: Final = "ekiben"
"""The key of our settings in a stored model's metadata."""

_FRAMEWORKS: Final = {
    "bentoml.onnx": ("onnx", "saved_model.onnx"),
    "bentoml.tensorflow": ("tensorflow", ""),
    "bentoml.torchscript": ("torchscript", "saved_model.pt"),
    "bentoml.pytorch_lightning": ("torchscript", "saved_model.pt"),
}
"""Module that stored the model → our runtime, and the file it writes (bentoml/_internal/frameworks)."""


class Stored(NamedTuple):
    """How to serve one stored version. `batched` says what the saver declared; None: it said nothing."""

    runtime: str
    file: str
    batched: bool | None


def read_stored(path: Path, module: str, signatures: Mapping[str, Any]) -> Stored:
    """Say how to serve the store folder `path`, given `module` and `signatures` of its BentoML `model.yaml`.

    A signature is a mapping, or an object, with `batchable` and `batch_dim`. BentoML's savers write `batchable: false`
    by default, so only `true` is an answer; a batch dimension other than 0 cannot be batched here, and that is False.
    Raises LoadFailed for a module whose models cannot be served, with the reason.
    """
    if module in _FRAMEWORKS:
        runtime, file = _FRAMEWORKS[module]
        if not (path / file).exists():
            raise LoadFailed(f"'{path}' was stored by {module}, but its file '{file}' is missing")
        return Stored(runtime, file, _batched(signatures))
    if module.startswith("bentoml.") and module != "bentoml.models":
        raise LoadFailed(
            f"'{path}' was stored by {module}, whose models are not served; save the model as ONNX, TorchScript or a "
            "SavedModel, or load it in the `Model` class of a model.py, and `ekiben import` that"
        )
    runtime, file = detect(path)
    return Stored(runtime, file, _batched(signatures))


def _batched(signatures: Mapping[str, Any]) -> bool | None:
    hints = [_batch_hint(signature) for signature in signatures.values()]
    if not hints or None in hints:
        return None
    return all(hints)


def _batch_hint(signature: Any) -> bool | None:
    if not _field(signature, "batchable", False):
        return None
    dimensions = _field(signature, "batch_dim", 0)
    return all(dimension == 0 for dimension in (dimensions if isinstance(dimensions, list | tuple) else [dimensions]))


def _field(signature: Any, name: str, default: object) -> Any:
    return signature.get(name, default) if isinstance(signature, Mapping) else getattr(signature, name, default)
