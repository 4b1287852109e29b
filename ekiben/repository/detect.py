"""Which runtime a model's files are for, told from their names and, where `.pt` may be anything, a zip's listing.

No framework is imported. What cannot be served is refused here with the reason and what to do about it.
"""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ekiben.errors import InvalidSettings, LoadFailed

__all__ = ["KERAS_SUFFIXES", "Detected", "detect", "usual_file"]

KERAS_SUFFIXES: Final = (".keras", ".h5", ".hdf5")
"""What only `ekiben import` reads, by converting it."""

_TORCH_SUFFIXES: Final = (".pt", ".pth", ".ts", ".jit")
_PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".joblib")
_USUAL_FILES: Final = {
    "onnx": ("model.onnx", "saved_model.onnx"),
    "python": ("model.py",),
    "tensorflow": ("model.savedmodel",),
    "torchscript": ("model.pt", "saved_model.pt"),
}
"""Runtime → what its model is called where nothing else is said, the first that is there."""

_USUAL_NAMES: Final = ("", *(name for names in _USUAL_FILES.values() for name in names))
_SAVED_MODEL: Final = ("saved_model.pb", "saved_model.pbtxt")
_MODEL_CLASS: Final = re.compile(rb"^(class\s+Model\b|Model\s*[:=]|from\s.+\bimport\b.*\bModel\b)", re.MULTILINE)


class Detected(NamedTuple):
    """A runtime's name, and the model's file or folder inside the folder looked at ('' is that folder itself)."""

    runtime: str
    file: str


def detect(path: Path, runtime: str = "") -> Detected:
    """Say which runtime serves the model at `path`; `runtime` narrows the choice to one.

    `path` is a file, or a folder with one model directly inside. For a file the answer is relative to its folder.
    Raises LoadFailed with the reason when nothing there can be served, InvalidSettings when more than one can.
    """
    if path.is_file():
        found = _detect_file(path)
        if found is None or (runtime and found.runtime != runtime):
            raise LoadFailed(_refusal(path, (path,), runtime))
        return found
    if not path.is_dir():
        raise LoadFailed(f"there is no model at '{path}'")
    entries = sorted(path.iterdir())
    found_here = [found for entry in entries if (found := _detect_entry(entry)) is not None]
    candidates = sorted({found for found in found_here if runtime in ("", found.runtime)})
    if any(found.runtime == "python" for found in candidates):
        candidates = [found for found in candidates if found.runtime == "python"]
    if len(candidates) > 1:
        candidates = [found for found in candidates if found.file in _USUAL_NAMES] or candidates
    if len(candidates) > 1:
        names = ", ".join(f"'{found.file or '.'}' ({found.runtime})" for found in candidates)
        raise InvalidSettings(
            f"'{path}' holds more than one model: {names}; name one with `runtime` and `file` in model.yaml"
        )
    if not candidates:
        raise LoadFailed(_refusal(path, entries, runtime))
    return candidates[0]


def usual_file(path: Path, runtime: str) -> str:
    """Which file or folder in a version's folder the runtime loads when none is named; '' for the folder itself."""
    return next((name for name in _USUAL_FILES.get(runtime, ()) if (path / name).exists()), "")


def _detect_entry(entry: Path) -> Detected | None:
    """What one entry of a folder is on its own; None for what is no model."""
    if entry.is_file():
        return None if entry.suffix == ".py" and entry.name != "model.py" else _detect_file(entry)
    if any((entry / name).is_file() for name in _SAVED_MODEL) and not entry.name.isdigit():
        return Detected("tensorflow", entry.name)
    if entry.suffix == ".onnx" and (entry / "model.onnx").is_file():
        return Detected("onnx", f"{entry.name}/model.onnx")
    return None


def _detect_file(path: Path) -> Detected | None:
    suffix = path.suffix.lower()
    if path.name in _SAVED_MODEL:
        return Detected("tensorflow", "")
    if suffix == ".onnx":
        return Detected("onnx", path.name)
    if suffix in _TORCH_SUFFIXES and _is_torchscript(path):
        return Detected("torchscript", path.name)
    if suffix == ".py" and _MODEL_CLASS.search(path.read_bytes()):
        return Detected("python", path.name)
    return None


def _zip_names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except Exception:  # anyone may have written the file, and zipfile raises many things over a broken one
        return []


def _is_torchscript(path: Path) -> bool:
    """A TorchScript archive carries its code and its constants; a saved state dict only a pickle."""
    names = _zip_names(path)
    return any("/code/" in name for name in names) and any(name.endswith("/constants.pkl") for name in names)


def _refusal(path: Path, entries: Sequence[Path], runtime: str) -> str:
    """Why `path` holds nothing to serve, and what to do."""
    for entry in entries:
        if reason := _why_not(entry):
            return f"'{entry}' {reason}"
    versions = [entry.name for entry in entries if entry.is_dir() and entry.name.isdigit()]
    if versions:
        return (
            f"'{path}' holds version folders ({', '.join(versions)}) and no model of its own; name one of them, or "
            "serve the folder above it with `--repository`"
        )
    wanted = f" for runtime '{runtime}'" if runtime else ""
    return (
        f"'{path}' holds no model{wanted} that can be served: looked for *.onnx, saved_model.pb, a TorchScript archive "
        "(*.pt) and model.py with a class Model"
    )


def _why_not(path: Path) -> str:
    """The reason for a kind of file that people try and that cannot be served; '' for any other file."""
    suffix = path.suffix.lower()
    if not path.is_file():
        return ""
    if suffix in KERAS_SUFFIXES:
        return "is a Keras file, which is not served as it is; `ekiben import` converts it to a SavedModel"
    if suffix in _PICKLE_SUFFIXES:
        return (
            "is a pickle, and loading a pickle runs any code that is in it; export the model to ONNX (skl2onnx, "
            "onnxmltools, torch.onnx), or load it yourself in the `Model` class of a model.py"
        )
    if suffix == ".pt2":
        return (
            "is a torch.export archive, which no runtime reads yet; export to ONNX with torch.onnx.export, or save "
            "TorchScript with torch.jit.trace(model, example).save(file)"
        )
    if suffix in (*_TORCH_SUFFIXES, ".bin", ".ckpt", ".safetensors") and not _is_torchscript(path):
        if suffix == ".bin" and not _zip_names(path):
            return ""
        return (
            "holds weights or a pickled module and no TorchScript code, so the network is not in it; build the "
            "network, load the weights with load_state_dict, and save it with "
            "torch.jit.trace(model.eval(), example).save(file) or torch.onnx.export"
        )
    if path.name == "model.py":
        return "defines no class `Model` with load(context), infer(inputs) and close()"
    if path.name.startswith("export.meta") or suffix == ".meta":
        return (
            "is a TensorFlow 1 meta graph (session bundle or checkpoint), not a SavedModel; load it in TensorFlow and "
            "save it with tf.compat.v1.saved_model.simple_save"
        )
    return ""
