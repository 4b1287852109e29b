"""Import the built demo models into the Bento model store: `python -m scripts.import_models`, in the project's root.

`scripts/build_models.py --import` runs it. A model that is stored from the same recipe already is left alone; one whose
recipe changed becomes the next version.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ekiben.errors import EkibenError
from ekiben.importer import import_model
from ekiben.settings import bentoml_home
from scripts.build_models import BUILD, Report, built_path, exclusive, names, recipe_digest, reporting

__all__ = ["import_built"]

_MARK: Final = "recipe.sha256"
"""In a stored version's folder: the digest of the recipe that it was built from."""


def import_built(wanted: Sequence[str], into: Path, home: Path, report: Report) -> None:
    """Store those of `wanted`, built in `into`, that the Bento model store in `home` has not. For the main thread.

    Raises EkibenError with the reason for the first that cannot be imported.
    """
    with exclusive(into):
        for name in wanted:
            digest = recipe_digest(name)
            versions = {path.parent.name: path for path in (home / "models" / name).glob(f"*/{_MARK}")}
            stored = [version for version, mark in versions.items() if mark.read_text() == digest]
            if stored:
                report(f"{name}: imported already, as version {stored[0]}", True)
                continue
            report(f"{name}: importing", False)
            started = time.monotonic()
            version = _next_version(home / "models" / name)
            tag = import_model(built_path(name, into), name=name, version=version, home=home)
            (home / "models" / name / version / _MARK).write_text(digest)
            report(f"{name}: imported as {tag} in {time.monotonic() - started:.1f} s", True)


def _next_version(folder: Path) -> str:
    """One more than the largest version that is a number."""
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    return str(max(numbers, default=0) + 1)


def main() -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(description="Import the built demo models into the Bento model store.")
    parser.add_argument("--models", nargs="+", metavar="NAME", default=names(), help="default: all")
    parser.add_argument("--into", type=Path, metavar="FOLDER", default=BUILD, help="where they were built")
    arguments = parser.parse_args()
    try:
        with reporting("importing the demo models", len(arguments.models)) as report:
            import_built(arguments.models, arguments.into, bentoml_home(os.environ), report)
    except EkibenError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
