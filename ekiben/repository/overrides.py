"""What loads give instead of what the repository says, made into versions to load.

A config alone stands in for the model's own. Files stand in for its whole folder, and are written to a private one:

    <root>/<process>/lock                        held for as long as the process lives
    <root>/<process>/<load>/<model>/<version>/…  there for as long as one of its versions is loaded

A process that starts removes what those left behind that ended too suddenly to do it.
"""

import contextlib
import fcntl
import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from ekiben.errors import InvalidSettings, LoadFailed, Unsupported
from ekiben.repository.config_json import read_json
from ekiben.repository.layout import Reader
from ekiben.repository.selection import AvailableModel, catalogue
from ekiben.repository.tree import ModelTree, is_model_name
from ekiben.repository.version_numbers import number_in
from ekiben.types import LoadOverride, ModelSource, VersionSource

__all__ = ["OVERRIDES_FOLDER", "Overrides"]

OVERRIDES_FOLDER: Final = "overrides"
"""The folder's name in the state directory."""

_LOG: Final = logging.getLogger(__name__)
_LOCK: Final = "lock"
_MOST_FILES: Final = 1024
_MOST_PATH_BYTES: Final = 1024
_MOST_NAME_BYTES: Final = 255


class Overrides:
    """The overrides of one process, as the engine uses them (engine.overrides.Overrides). Blocks."""

    def __init__(self, root: Path, reader: Reader) -> None:
        """`root` is made when the first files come; other processes may use it too."""
        self._root = root
        self._reader = reader
        self._own: tuple[Path, IO[str]] | None = None
        """This process's folder, and the lock in it."""
        self._held: dict[Path, set[int]] = {}
        """The folder of a load → those of its versions that are loaded or to be loaded."""

    def take(self, model: str, override: LoadOverride) -> ModelSource:
        """The versions that an override wants. Raises InvalidSettings, LoadFailed and Unsupported."""
        try:
            return self._source(model, override)
        except Unsupported as error:
            raise Unsupported(f"failed to load '{model}': {error.message}") from None
        except LoadFailed as error:
            raise type(error)(
                f"failed to load '{model}', failed to poll from model repository: {error.message}"
            ) from None

    def drop(self, source: VersionSource) -> None:
        """Remove a load's files with the last of its versions. A version from elsewhere is passed over."""
        folder = Path(source.path).parent.parent
        versions = self._held.get(folder)
        if versions is not None:
            versions.discard(source.version)
            if not versions:
                self._held.pop(folder, None)
                _remove(folder)

    def close(self) -> None:
        """Remove every file: nothing is loaded any more."""
        self._held.clear()
        if self._own is not None:
            folder, lock = self._own
            self._own = None
            _remove(folder)
            lock.close()

    def remove_leftovers(self) -> None:
        """Remove what processes left that are no more. What cannot be removed is logged."""
        if not self._root.is_dir():
            return
        try:
            with self._guarded():
                for folder in self._root.iterdir():
                    if folder.is_dir() and not _is_held(folder / _LOCK):
                        _remove(folder)
        except OSError as error:
            _LOG.warning("'%s' cannot be cleared: %s", self._root, error)

    def _source(self, model: str, override: LoadOverride) -> ModelSource:
        if not is_model_name(model):
            raise InvalidSettings("a model's name must be printable, without '/', and not start with '.'")
        settings = read_json(override.config, model, lambda text: _LOG.warning("load of '%s': %s", model, text))
        if not override.files:
            found = self._reader.with_settings(model, settings)
            if found is None:
                raise LoadFailed("no such model there")
            return _wanted(found)
        _check(override.files)
        folder = self._write(model, override.files)
        try:
            found = ModelTree(folder).with_settings(model, settings)
            source = _wanted(found or AvailableModel(model, error="the files are no model"))
        except LoadFailed as error:
            _remove(folder)
            raise type(error)(error.message.replace(f"{folder}/", "")) from None
        except BaseException:
            _remove(folder)
            raise
        self._held[folder] = {version.version for version in source.versions}
        return source

    def _write(self, model: str, files: Mapping[str, bytes]) -> Path:
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(dir=self._process_folder()))
            for path, content in files.items():
                file = folder / model / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        except OSError as error:
            if folder is not None:
                _remove(folder)
            raise LoadFailed(
                f"the files cannot be written to '{self._root}' (in the state directory): {error.strerror}"
            ) from None
        return folder

    def _process_folder(self) -> Path:
        if self._own is None:
            self._root.mkdir(parents=True, exist_ok=True)
            with self._guarded():
                folder = Path(tempfile.mkdtemp(dir=self._root))
                lock = (folder / _LOCK).open("w")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._own = folder, lock
        return self._own[0]

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """A folder has its lock before anybody looks whether it has."""
        with (self._root / _LOCK).open("a") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield


def _wanted(model: AvailableModel) -> ModelSource:
    source = catalogue([model])[model.name]
    if source.error:
        raise InvalidSettings(source.error)
    return source


def _check(files: Mapping[str, bytes]) -> None:
    """Raise InvalidSettings for files that do not make a folder with a version in it."""
    if len(files) > _MOST_FILES:
        raise InvalidSettings(f"{len(files)} files are given, and {_MOST_FILES} are the limit")
    for path in files:
        parts = path.split("/")
        if not path.isprintable() or any(part in ("", ".", "..") for part in parts):
            raise InvalidSettings(
                f"'file:{path}' must name a file inside the model's folder, as file:VERSION/NAME does"
            )
        if len(path.encode()) > _MOST_PATH_BYTES or any(len(part.encode()) > _MOST_NAME_BYTES for part in parts):
            raise InvalidSettings(f"'file:{path[:80]}…' has too long a name")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in files:
                raise InvalidSettings(f"'file:{'/'.join(parts[:end])}' is a file, and the folder of 'file:{path}'")
    if not any("/" in path and number_in(path.partition("/")[0]) is not None for path in files):
        raise InvalidSettings(f"'file:{min(files)}' is not in a version's folder, as file:VERSION/NAME is")


def _is_held(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # another drop of the same load was first
    except OSError as error:
        _LOG.warning("'%s' cannot be removed: %s", folder, error)
