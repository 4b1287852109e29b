"""Build the demo models: `python scripts/build_models.py [--models NAME …] [--into FOLDER] [--import]`.

The folder `models/` says how: per model a `recipe.py`, a `packages.txt` with what its weights are in, a `model.yaml`.
Packages are unpacked into FOLDER/packages without their dependencies, whose pins are stale; the environment is left as
it is. Each recipe runs in a process of its own and leaves FOLDER/models/NAME: the model, its labels, its `model.yaml`.
What is built from the same recipe already is left alone.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["BUILD", "BuildFailed", "Report", "build", "built_path", "exclusive", "names", "recipe_digest", "reporting"]

ROOT: Final = Path(__file__).resolve().parent.parent
RECIPES: Final = ROOT / "models"
BUILD: Final = ROOT / "build"

Report = Callable[[str, bool], None]
"""Called with a line of text, and whether it says that one more model is done."""


class BuildFailed(Exception):
    """A package or a recipe failed; the message ends with what it said."""


def names() -> list[str]:
    """The demo models, sorted."""
    return sorted(recipe.parent.name for recipe in RECIPES.glob("*/recipe.py"))


def built_path(name: str, into: Path = BUILD) -> Path:
    """Where the model is once it is built."""
    return into / "models" / name


def recipe_digest(name: str) -> str:
    """Changes when anything does that the built model depends on: recipe, shared modules, packages, model.yaml."""
    files = [*RECIPES.glob("*.py"), *(path for path in (RECIPES / name).iterdir() if path.is_file())]
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(RECIPES)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def build(wanted: Sequence[str], into: Path, report: Report) -> None:
    """Build those of `wanted` that are not built from their present recipe; another build in `into` is waited for.

    Raises BuildFailed.
    """
    with exclusive(into):
        for name in wanted:
            if _is_built(name, into):
                report(f"{name}: built already", True)
            else:
                report(f"{name}: building", False)
                started = time.monotonic()
                remarks = "".join(f"; {line}" for line in _build_one(name, into))
                report(f"{name}: built in {time.monotonic() - started:.1f} s{remarks}", True)


@contextlib.contextmanager
def exclusive(into: Path) -> Iterator[None]:
    """While it is held, no other process builds in `into` or imports from there."""
    into.mkdir(parents=True, exist_ok=True)
    with (into / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def reporting(title: str, total: int) -> Iterator[Report]:
    """A bar on a terminal, a line a step elsewhere."""
    console = Console()
    if not console.is_terminal:
        yield lambda text, _done: print(text, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)

        def report(text: str, done: bool) -> None:
            progress.update(task, description=title if done else text, advance=1 if done else 0)
            if done:
                console.print(text, markup=False, highlight=False)

        yield report


def _is_built(name: str, into: Path) -> bool:
    stamp = into / "stamps" / name
    return built_path(name, into).is_dir() and stamp.is_file() and stamp.read_text() == recipe_digest(name)


def _build_one(name: str, into: Path) -> list[str]:
    """Build one model; the lines that its recipe printed."""
    digest = recipe_digest(name)
    packages = [_package(requirement, into) for requirement in (RECIPES / name / "packages.txt").read_text().split()]
    partial = _emptied(into / "partial" / name)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "CUDA_VISIBLE_DEVICES": "",  # converting needs no GPU, and must not take memory of one that serves
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    output = _run(f"the recipe of {name}", [sys.executable, "-m", "models", name, str(partial)], environment)
    shutil.copyfile(RECIPES / name / "model.yaml", partial / "model.yaml")
    stamp, target = into / "stamps" / name, built_path(name, into)
    stamp.parent.mkdir(exist_ok=True)
    target.parent.mkdir(exist_ok=True)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    stamp.write_text(digest)
    return output.splitlines()


def _package(requirement: str, into: Path) -> Path:
    """The folder with one package unpacked in it, which pip does the first time."""
    target = into / "packages" / requirement
    if not target.is_dir():
        partial = _emptied(into / "partial" / requirement)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(partial)]
        _run(f"pip, for {requirement},", [*install, *options, requirement])
        target.parent.mkdir(exist_ok=True)
        partial.rename(target)
    return target


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _run(what: str, command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What the command wrote to its standard output."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{what} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def _parsed() -> argparse.Namespace:
    known = names()
    parser = argparse.ArgumentParser(description="Build the demo models from the weights that packages carry.")
    parser.add_argument("--models", nargs="+", metavar="NAME", choices=known, default=known, help="default: all")
    parser.add_argument("--into", type=Path, metavar="FOLDER", default=BUILD, help="default: build")
    parser.add_argument("--import", action="store_true", dest="store", help="then import them into the model store")
    return parser.parse_args()


def main() -> int:
    """Run the command line; the exit status."""
    arguments = _parsed()
    into = arguments.into.resolve()
    try:
        with reporting("building the demo models", len(arguments.models)) as report:
            build(arguments.models, into, report)
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    if not arguments.store:
        return 0
    # In a process of its own, because only there the package ekiben is needed.
    command = [sys.executable, "-m", "scripts.import_models", "--into", str(into), "--models", *arguments.models]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
