"""`python tests/run_demo_model.py FOLDER INPUTS.npz OUTPUTS.npz`: run a model folder once in its real runtime.

A process of its own for each, since frameworks must not meet in one.
"""

import sys
from pathlib import Path

import numpy as np

from ekiben.plain import convert, load_yaml
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext
from ekiben.runtimes.table import load_session
from ekiben.types import ModelSettings


def main(folder: Path, inputs: Path, outputs: Path) -> None:
    """Load, run, save."""
    settings = convert(load_yaml(folder / "model.yaml"), ModelSettings, folder.name)
    context = LoadContext(
        model=folder.name,
        version=1,
        path=folder,
        file=settings.file,
        device="cpu",
        threads=1,
        signatures=settings.signatures,
        batched=None,
        parameters=settings.parameters,
    )
    session = load_session(settings.runtime, context)
    names = [spec.name for spec in session.signatures[DEFAULT_SIGNATURE].outputs]
    with np.load(inputs) as arrays:
        results = session.run(DEFAULT_SIGNATURE, dict(arrays), names)
    np.savez(outputs, **results)  # type: ignore[arg-type]  # numpy types its keyword arguments as its own flag
    session.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
