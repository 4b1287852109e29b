"""What a load may give instead of what the repository says, as the engine uses it."""

from typing import NoReturn, Protocol

from ekiben.errors import Unsupported
from ekiben.types import LoadOverride, ModelSource, VersionSource

__all__ = ["NoOverrides", "Overrides"]


class Overrides(Protocol):
    """Where overrides become versions to load (repository.overrides.Overrides). Blocks: called in threads."""

    def take(self, model: str, override: LoadOverride) -> ModelSource:
        """The versions that the override wants. Raises InvalidSettings, LoadFailed and Unsupported.

        Not called while the repository is scanned, nor twice at a time.
        """
        ...

    def drop(self, source: VersionSource) -> None:
        """Forget one of the versions that `take` gave: it is not loaded any more, or never was. Any other version, and
        one that was dropped before, is passed over.
        """
        ...


class NoOverrides:
    """Refuses them."""

    def take(self, model: str, override: LoadOverride) -> NoReturn:
        """Raise Unsupported."""
        raise Unsupported(
            f"failed to load '{model}': a load with {'files' if override.files else 'a config'} of its own is not "
            "allowed; the setting allow_load_override (--allow-load-override) allows it"
        )

    def drop(self, source: VersionSource) -> None:
        """There is nothing to forget."""
