"""A folder of models, as Triton and TF Serving keep them: `<root>/<model>/<version>/files`.

Beside the versions stands `model.yaml` or `config.pbtxt`, or neither.
"""

import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ekiben.errors import EkibenError, InvalidSettings, LoadFailed
from ekiben.repository.config import SETTINGS_FILE, read_settings, with_model_folder
from ekiben.repository.config_pbtxt import PBTXT_FILE, read_pbtxt
from ekiben.repository.detect import detect, usual_file
from ekiben.repository.notes import Notes
from ekiben.repository.selection import AvailableModel, AvailableVersion, catalogue
from ekiben.repository.version_numbers import number_in
from ekiben.types import Catalogue, ModelSettings

__all__ = ["ModelTree", "is_model_name"]

_LOG: Final = logging.getLogger(__name__)
_CONFIG_FILES: Final = (SETTINGS_FILE, PBTXT_FILE)


class ModelTree:
    """Reads one tree. A folder with neither a configuration nor a version in it is no model."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._notes = Notes()

    def describe(self) -> str:
        """Where the models come from, for people."""
        return str(self._root)

    def scan(self) -> Catalogue:
        """What is wanted now. Blocks. Raises LoadFailed when the tree itself cannot be read."""
        return catalogue(self.models())

    def models(self) -> list[AvailableModel]:
        """Everything in the tree, by name. Blocks. A model that cannot be read carries the reason.

        Raises LoadFailed when the tree itself cannot be read.
        """
        try:
            names = sorted(os.listdir(self._root))
        except OSError as error:
            raise LoadFailed(f"the repository '{self._root}' cannot be read: {error.strerror}") from None
        found = [self._model(name) for name in names if self._is_name(name) and _is_folder(self._root / name)]
        models = [model for model in found if model is not None]
        if not models and any(number_in(name) is not None for name in names):
            self._notes.warn(f"'{self._root}' holds version folders: it is a model, and its parent is the repository")
        return models

    def with_settings(self, model: str, settings: ModelSettings) -> AvailableModel | None:
        """A model of the tree as if its configuration said `settings`; None where there is no such model. Blocks.

        Raises InvalidSettings for label files that are not there.
        """
        folder = self._root / model
        return self._model(model, settings) if is_model_name(model) and _is_folder(folder) else None

    def _is_name(self, name: str) -> bool:
        if name.startswith("."):
            return False
        if not name.isprintable():
            self._notes.warn(f"ignoring a folder of '{self._root}' whose name is not printable UTF-8: {name!a}")
            return False
        return True

    def _model(self, name: str, given: ModelSettings | None = None) -> AvailableModel | None:
        """`given` stands in for the configuration in its folder."""
        folder = self._root / name
        try:
            entries = sorted(os.listdir(folder))
        except OSError as error:
            return AvailableModel(name, error=f"'{folder}' cannot be read: {error.strerror}")
        configured = [file for file in _CONFIG_FILES if file in entries]
        numbered = self._numbered(folder, entries)
        if not configured and not numbered:
            return None
        try:
            settings = self._settings(name, folder, configured) if given is None else with_model_folder(given, folder)
        except InvalidSettings as error:
            return AvailableModel(name, error=error.message)
        except Exception as error:  # anyone may have written the file: one model's must not cost the others
            _LOG.exception("the configuration of '%s' cannot be read", folder)
            return AvailableModel(name, error=f"the configuration in '{folder}' cannot be read: {error}")
        if not numbered:
            return AvailableModel(name, error=f"'{folder}' holds no version: no folder whose name is a whole number")
        versions = tuple(_version(number, numbered[number], settings) for number in sorted(numbered))
        return AvailableModel(name, versions, settings.version_policy)

    def _settings(self, name: str, folder: Path, configured: Sequence[str]) -> ModelSettings:
        if len(configured) > 1:
            raise InvalidSettings(f"'{folder}' holds both {' and '.join(configured)}: keep one of them")
        if not configured:
            return ModelSettings()
        path = folder / configured[0]
        if not path.is_file():
            raise InvalidSettings(f"'{path}' is not a file")
        settings = read_settings(path) if path.name == SETTINGS_FILE else read_pbtxt(path, name, self._notes.warn)
        return with_model_folder(settings, folder)

    def _numbered(self, folder: Path, entries: list[str]) -> dict[int, Path]:
        """The version folders by number. What is half there, or no version, is left out and said."""
        numbered: dict[int, Path] = {}
        for entry in entries:
            number, path = number_in(entry), folder / entry
            if number is None or not _is_folder(path):
                if number is not None or _is_folder(path):
                    self._notes.warn(f"ignoring '{path}': a version is a folder whose name is a whole number")
            elif number in numbered:
                self._notes.warn(f"ignoring '{path}': version {number} is '{numbered[number].name}' already")
            elif _is_empty(path):
                self._notes.warn(f"ignoring '{path}': it is empty")
            else:
                numbered[number] = path
        return numbered


def _version(number: int, path: Path, settings: ModelSettings) -> AvailableVersion:
    error = ""
    try:
        created = path.stat().st_mtime
        if settings.file and not (path / settings.file).exists():
            error = f"'{path}' has no '{settings.file}'"
        elif not settings.runtime:
            detected = detect(path / settings.file)
            file = settings.file or detected.file
            settings = msgspec.structs.replace(settings, runtime=detected.runtime, file=file)
        elif not settings.file:
            settings = msgspec.structs.replace(settings, file=usual_file(path, settings.runtime))
    except EkibenError as problem:
        error = problem.message
    except OSError as problem:
        created, error = 0.0, f"'{path}' cannot be read: {problem.strerror}"
    return AvailableVersion(number, str(path), created, settings, error=error)


def is_model_name(name: str) -> bool:
    """Whether a folder of a tree may have this name and be a model."""
    return name.isprintable() and not name.startswith(".") and "/" not in name and 0 < len(name.encode()) <= 255


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, through links; a link to nowhere or to itself is none."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_empty(path: Path) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return False
