"""The Bento model store, and the models of a built Bento: versions that BentoML saved, as repositories.

BentoML is imported when a store is first read, and reads and checks what it saved.
"""

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from ekiben.errors import EkibenError, InvalidSettings, LoadFailed, Unsupported
from ekiben.repository.config import settings_from, with_model_folder
from ekiben.repository.detect import usual_file
from ekiben.repository.notes import Notes
from ekiben.repository.selection import AvailableModel, AvailableVersion, catalogue
from ekiben.repository.stored import IMPORTED_LABEL, SETTINGS_KEY, read_stored
from ekiben.repository.version_numbers import VersionNumbers, number_in
from ekiben.types import Catalogue, ModelSettings

__all__ = ["BentoModels", "BentoStore"]

_MODEL_FILE: Final = "model.yaml"
"""BentoML's own description of a stored version."""


class _Saved(msgspec.Struct, frozen=True):
    """One version as BentoML saved it."""

    word: str
    path: str
    created: float
    settings: ModelSettings
    labels: Mapping[str, str]
    error: str


class BentoStore:
    """The names in the Bento model store under `home` that are declared, or of which `ekiben import` saved a version.

    `declared` are tags, `name` or `name:version`: a version pins it. Other names are never read further than their
    labels, and never written.
    """

    def __init__(self, home: Path, numbers: VersionNumbers, declared: Sequence[str] = ()) -> None:
        self._models = home.absolute() / "models"
        self._numbers = numbers
        self._declared = _by_name(declared)
        self._notes = Notes()
        self._saved: dict[Path, tuple[tuple[int, int], _Saved]] = {}

    def describe(self) -> str:
        """Where the models come from, for people."""
        return f"the Bento model store '{self._models}'"

    def scan(self) -> Catalogue:
        """What is wanted now. Blocks. Raises LoadFailed when the store itself cannot be read."""
        return catalogue(self.models())

    def with_settings(self, model: str, settings: ModelSettings) -> AvailableModel | None:
        """Raise Unsupported."""
        raise _own_configuration(model, self.describe())

    def models(self) -> list[AvailableModel]:
        """Every model that is ours, by name. Blocks. A model that cannot be read carries the reason.

        Raises LoadFailed when the store itself cannot be read.
        """
        names = set(self._names())
        found = []
        for name in sorted(names | set(self._declared)):
            if name in self._declared or self._is_imported(name):
                found.append(self._model(name, self._versions(name) if name in names else []))
        return found

    def _names(self) -> list[str]:
        try:
            entries = sorted(os.listdir(self._models))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LoadFailed(f"{self.describe()} cannot be read: {error.strerror}") from None
        return [name for name in entries if _is_tag(name) and (self._models / name).is_dir()]

    def _is_imported(self, name: str) -> bool:
        """Whether some version carries our label; nothing else of a model is looked at before that is known."""
        return any(IMPORTED_LABEL in _labels(path).items() for path in self._paths(name))

    def _paths(self, name: str) -> list[Path]:
        try:
            words = sorted(word for word in os.listdir(self._models / name) if _is_tag(f"{name}:{word}"))
        except OSError as error:
            self._notes.warn(f"ignoring '{self._models / name}': {error.strerror}")
            return []
        return [path for word in words if (path := self._models / name / word).is_dir()]

    def _versions(self, name: str) -> list[_Saved]:
        """The versions of one name in creation order. What is half there is left out."""
        saved = [version for path in self._paths(name) if (version := self._version(path)) is not None]
        return sorted(saved, key=lambda version: (version.created, version.word))

    def _version(self, path: Path) -> _Saved | None:
        """Read again only when BentoML's file changed: what is saved does not change."""
        try:
            status = (path / _MODEL_FILE).stat()
        except OSError:
            self._notes.warn(f"ignoring '{path}': it has no {_MODEL_FILE}, so BentoML has not finished saving it")
            return None
        stamp = (status.st_mtime_ns, status.st_ino)
        known = self._saved.get(path)
        if known is None or known[0] != stamp:
            try:
                known = (stamp, _read(path))
            except LoadFailed as error:
                # Without its creation time it cannot be numbered, so it is left out until it can be read.
                self._notes.warn(f"ignoring '{path}': {error.message}")
                return None
            self._saved[path] = known
        return known[1]

    def _model(self, name: str, saved: Sequence[_Saved]) -> AvailableModel:
        if not saved:
            return AvailableModel(
                name,
                error=f"{self.describe()} has no '{name}': save it with `ekiben import PATH --name {name}`",
            )
        model = _numbered(name, saved, self._numbers, self._notes)
        pins = self._declared.get(name, [""])
        words = {version.word or str(version.number): version.number for version in model.versions}
        numbers = {str(version.number): version.number for version in model.versions}
        missing = [pin for pin in pins if pin and pin not in words and pin not in numbers]
        if missing and not model.error:
            return msgspec.structs.replace(
                model,
                error=f"{self.describe()} has no version '{missing[0]}' of '{name}'; it has {', '.join(words)}",
            )
        pinned = tuple(words.get(pin, numbers.get(pin, 0)) for pin in pins if pin) if not model.error else ()
        policy = model.policy if "" in pins else ()
        return msgspec.structs.replace(model, policy=policy, pinned=pinned)


class BentoModels:
    """The models of a built Bento, each at its folder: all of them are wanted, and none is added later.

    `models` are pairs of tag (`name:version`) and folder. Where the state cannot be kept, as in a read-only image, the
    numbers are given anew at each start, in creation order: the list is always the same.
    """

    def __init__(self, models: Iterable[tuple[str, Path]], numbers: VersionNumbers) -> None:
        self._paths: dict[str, list[Path]] = {}
        for tag, path in models:
            self._paths.setdefault(tag.partition(":")[0], []).append(path)
        self._numbers = numbers
        self._notes = Notes()

    def describe(self) -> str:
        """Where the models come from, for people."""
        return "the models of the Bento"

    def scan(self) -> Catalogue:
        """What is wanted. Blocks."""
        return catalogue(self.models())

    def with_settings(self, model: str, settings: ModelSettings) -> AvailableModel | None:
        """Raise Unsupported."""
        raise _own_configuration(model, self.describe())

    def models(self) -> list[AvailableModel]:
        """Every model of the Bento, by name. Blocks. A model that cannot be read carries the reason."""
        return [self._model(name, paths) for name, paths in sorted(self._paths.items())]

    def _model(self, name: str, paths: Sequence[Path]) -> AvailableModel:
        try:
            saved = sorted(map(_read, paths), key=lambda version: (version.created, version.word))
        except LoadFailed as error:
            return AvailableModel(name, error=f"the Bento's model '{name}': {error.message}")
        model = _numbered(name, saved, self._numbers, self._notes)
        if model.error:
            self._notes.warn(model.error)
            model = _numbered(name, saved, VersionNumbers(None), self._notes)
        return msgspec.structs.replace(model, policy="all")


def _own_configuration(model: str, place: str) -> Unsupported:
    return Unsupported(
        f"'{model}' is in {place}, where each version keeps the configuration that it was saved with: give the model's "
        "files with the config, or save a new version"
    )


def _by_name(tags: Iterable[str]) -> dict[str, list[str]]:
    """Name → the versions declared of it, '' where none is. Raises InvalidSettings for what is no tag."""
    declared: dict[str, list[str]] = {}
    for tag in tags:
        if not _is_tag(tag):
            raise InvalidSettings(
                f"'{tag}' is not a model tag: write name or name:version, in lower-case letters, digits, '.', '_', '-'"
            )
        name, _, version = tag.partition(":")
        declared.setdefault(name, []).append("" if version == "latest" else version)
    return declared


def _is_tag(text: str) -> bool:
    """Whether BentoML takes it as it is: its names and versions are lower-case, and at most 63 characters long."""
    name, separator, version = text.partition(":")
    return all(
        len(part) <= 63
        and part.isascii()
        and part == part.lower()
        and part[:1].isalnum()
        and part[-1:].isalnum()
        and all(letter.isalnum() or letter in "._-" for letter in part)
        for part in ([name, version] if separator else [name])
    )


def _labels(path: Path) -> Mapping[str, str]:
    """A version's labels in BentoML's own description of it."""
    try:
        return dict(yaml.safe_load((path / _MODEL_FILE).read_text(encoding="utf-8"))["labels"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}


def _read(path: Path) -> _Saved:
    """Read one saved version through BentoML. What cannot be served carries the reason.

    Raises LoadFailed when BentoML's description of it cannot be read.
    """
    name, word = path.parent.name, path.name
    models = importlib.import_module("bentoml.models")
    store = importlib.import_module("bentoml._internal.models").ModelStore(path.parent.parent)
    tag = importlib.import_module("bentoml").Tag(name, word)
    try:
        model = models.get(tag, _model_store=store)
    except Exception as error:  # BentoML reads a file that anyone may have written, and raises what its parsers raise.
        raise LoadFailed(f"'{path / _MODEL_FILE}' cannot be read: {error}") from None
    info = model.info
    labels = dict(info.labels)
    created = info.creation_time.timestamp()
    try:
        settings = settings_from(info.metadata.get(SETTINGS_KEY, {}), f"{path / _MODEL_FILE}: metadata.{SETTINGS_KEY}")
        settings = _completed(with_model_folder(settings, path), path, info)
    except EkibenError as error:
        return _Saved(word, str(path), created, ModelSettings(), labels, error.message)
    except OSError as error:
        return _Saved(word, str(path), created, ModelSettings(), labels, f"'{path}' cannot be read: {error.strerror}")
    return _Saved(word, str(path), created, settings, labels, "")


def _completed(settings: ModelSettings, path: Path, info: Any) -> ModelSettings:
    """With the runtime, the file and whether it is batched, where the settings do not say."""
    if settings.runtime:
        if settings.file and not (path / settings.file).exists():
            raise LoadFailed(f"'{path}' has no '{settings.file}'")
        return msgspec.structs.replace(settings, file=settings.file or usual_file(path, settings.runtime))
    stored = read_stored(path, info.module or "", info.signatures)
    batching = settings.batching
    if stored.batched is False and batching.max_batch_size is None:
        batching = msgspec.structs.replace(batching, max_batch_size=0)
    return msgspec.structs.replace(
        settings, runtime=stored.runtime, file=settings.file or stored.file, batching=batching
    )


def _numbered(name: str, saved: Sequence[_Saved], numbers: VersionNumbers, notes: Notes) -> AvailableModel:
    """The model with a number for each version; the newest version's settings say the policy."""
    try:
        given = numbers.assign(name, [version.word for version in saved])
    except InvalidSettings as error:
        return AvailableModel(name, error=error.message)
    for version in saved:
        if version.word not in given:
            notes.warn(
                f"ignoring version '{version.word}' of '{name}': another version has the number "
                f"{number_in(version.word)}; save it under another version"
            )
    versions = [
        AvailableVersion(
            number=given[version.word],
            path=version.path,
            created=version.created,
            settings=version.settings,
            word="" if version.word == str(given[version.word]) else version.word,
            labels=version.labels,
            error=version.error,
        )
        for version in saved
        if version.word in given
    ]
    versions.sort(key=lambda version: version.number)
    return AvailableModel(name, tuple(versions), versions[-1].settings.version_policy)
