"""`python -m models NAME FOLDER`: run one model's recipe, in this process, into FOLDER.

scripts/build_models.py starts it, with the packages that the recipe reads on the path.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    importlib.import_module(f"models.{name}.recipe").build(Path(folder))
