"""The repositories a server was told to serve, as one reader."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from ekiben.errors import InvalidSettings
from ekiben.repository.bento_store import BentoModels, BentoStore
from ekiben.repository.selection import AvailableModel, catalogue
from ekiben.repository.tree import ModelTree
from ekiben.repository.version_numbers import VersionNumbers
from ekiben.types import Catalogue, ModelSettings

__all__ = ["NUMBERS_FILE", "STORE", "Reader", "Repositories", "open_repositories"]

STORE: Final = "store"
"""The name of the Bento model store among the repositories."""

NUMBERS_FILE: Final = "versions.json"
"""The state file, in the state directory, with the integers of versions that are words."""


class Reader(Protocol):
    """Where models come from. Everything here blocks, and may be called again and again, from one thread at a time."""

    def describe(self) -> str:
        """Where that is, for people."""
        ...

    def models(self) -> list[AvailableModel]:
        """Everything there is, by name, wanted or not. Raises LoadFailed when the place itself cannot be read."""
        ...

    def scan(self) -> Catalogue:
        """What is wanted now. Raises LoadFailed when the place itself cannot be read: the caller keeps what it has."""
        ...

    def with_settings(self, model: str, settings: ModelSettings) -> AvailableModel | None:
        """A model as if its configuration said `settings`; None where there is no such model.

        Raises LoadFailed where the place cannot be read, Unsupported where a configuration cannot be replaced.
        """
        ...


class Repositories:
    """Several repositories as one. A name that is in two of them is wanted from neither, and says so."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = tuple(readers)

    def describe(self) -> str:
        """Where the models come from, for people."""
        return ", ".join(reader.describe() for reader in self._readers) or "no repository"

    def models(self) -> list[AvailableModel]:
        """Everything there is, by name. Blocks. Raises LoadFailed when a repository cannot be read."""
        merged: dict[str, tuple[Reader, AvailableModel]] = {}
        for reader in self._readers:
            for model in reader.models():
                if model.name in merged:
                    first, _ = merged[model.name]
                    model = AvailableModel(
                        model.name,
                        error=f"two repositories have it: {first.describe()} and {reader.describe()}; rename one",
                    )
                    merged[model.name] = (first, model)
                else:
                    merged[model.name] = (reader, model)
        return [model for _, (_, model) in sorted(merged.items())]

    def scan(self) -> Catalogue:
        """What is wanted now. Blocks. Raises LoadFailed when a repository cannot be read."""
        return catalogue(self.models())

    def with_settings(self, model: str, settings: ModelSettings) -> AvailableModel | None:
        """As Reader.with_settings. A name that is in two repositories has the error that says so. Blocks."""
        having = [reader for reader in self._readers if any(each.name == model for each in reader.models())]
        if len(having) > 1:
            return next(each for each in self.models() if each.name == model)
        return having[0].with_settings(model, settings) if having else None


def open_repositories(
    repositories: Iterable[str],
    *,
    home: Path,
    state_directory: Path,
    declared: Sequence[str] = (),
    bento: Iterable[tuple[str, Path]] | None = None,
) -> Reader:
    """A reader over `repositories`: paths of trees, or 'store' for the Bento model store under `home`.

    `declared` are the tags that a service declares. `bento` are the tags and folders of the models of the built Bento
    that runs: they take the place of the store. Raises InvalidSettings for a path that is no folder or is named twice.
    """
    numbers = VersionNumbers(state_directory / NUMBERS_FILE)
    readers: list[Reader] = []
    seen: set[str] = set()
    for name in repositories:
        place = name if name == STORE else str(Path(name).resolve())
        if place in seen:
            raise InvalidSettings(f"repository '{name}' is named twice")
        seen.add(place)
        if name != STORE:
            if not Path(name).is_dir():
                raise InvalidSettings(f"repository '{name}' is not a folder; name a folder of models, or '{STORE}'")
            readers.append(ModelTree(Path(name)))
        elif bento is not None:
            readers.append(BentoModels(bento, numbers))
        else:
            readers.append(BentoStore(home, numbers, declared))
    return Repositories(readers)
