"""Magika: what kind of content a file's bytes are."""

import json
import shutil
from pathlib import Path

from models.sources import packaged_file

__all__ = ["build"]


def build(into: Path) -> None:
    """Copy the published `model.onnx` and write its labels to `labels.txt`."""
    folder = packaged_file("magika", "models/standard_v3_3/model.onnx").parent
    shutil.copyfile(folder / "model.onnx", into / "model.onnx")
    labels = json.loads((folder / "config.min.json").read_text(encoding="utf-8"))["target_labels_space"]
    (into / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
