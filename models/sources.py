"""Files inside the packages that a recipe takes its weights from."""

import importlib.util
from pathlib import Path

__all__ = ["packaged_file"]


def packaged_file(package: str, file: str) -> Path:
    """The path of `file` inside an installed top-level `package`, whose code is not run."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, file)).is_file():
            return path
    raise FileNotFoundError(f"package '{package}' is not installed with a file '{file}'")
