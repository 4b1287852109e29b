"""Which of the versions that a repository has are wanted. Pure: values in, values out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from ekiben.errors import InvalidSettings
from ekiben.types import Catalogue, ModelSettings, ModelSource, VersionSource

__all__ = ["AvailableModel", "AvailableVersion", "Policy", "catalogue", "check_policy", "choose"]

Policy: TypeAlias = str | tuple[int, ...]
"""'latest:N', 'all', or the versions themselves."""

_FORMS: Final = "'latest:N' with N of 1 or more, 'all', or a list of versions"


class AvailableVersion(msgspec.Struct, frozen=True):
    """One version as a repository has it, wanted or not."""

    number: int
    path: str
    created: float
    """Seconds since 1970-01-01 UTC."""
    settings: ModelSettings = ModelSettings()
    word: str = ""
    """The repository's own name for the version where that is not the integer."""
    labels: Mapping[str, str] = {}
    error: str = ""
    """Why it cannot be served; '' when it can be tried."""


class AvailableModel(msgspec.Struct, frozen=True):
    """One model as a repository has it. With `error`, nothing of it is wanted."""

    name: str
    versions: tuple[AvailableVersion, ...] = ()
    """Ascending by number."""
    policy: Policy = "latest:1"
    pinned: tuple[int, ...] = ()
    """Versions wanted whatever the policy says."""
    error: str = ""

    def wanted(self) -> tuple[int, ...]:
        """The versions chosen, ascending. Raises InvalidSettings for a policy that is wrong."""
        available = [version.number for version in self.versions]
        return tuple(sorted({*choose(self.policy, available), *choose(self.pinned, available)}))


def check_policy(policy: Policy) -> None:
    """Raise InvalidSettings unless `policy` is one of the three forms."""
    if isinstance(policy, tuple):
        if any(version < 0 for version in policy):
            raise InvalidSettings(f"version_policy must be {_FORMS}, got {list(policy)}")
    elif policy != "all":
        kind, _, count = policy.partition(":")
        if kind != "latest" or not (count.isascii() and count.isdigit() and len(count) < 10 and int(count) >= 1):
            raise InvalidSettings(f"version_policy must be {_FORMS}, got '{policy}'")


def choose(policy: Policy, available: Iterable[int]) -> tuple[int, ...]:
    """The versions of `available` that `policy` wants, ascending. Raises InvalidSettings for a wrong policy."""
    check_policy(policy)
    ascending = sorted(set(available))
    if isinstance(policy, tuple):
        return tuple(version for version in ascending if version in policy)
    if policy == "all":
        return tuple(ascending)
    return tuple(ascending[-int(policy.partition(":")[2]) :])


def catalogue(models: Iterable[AvailableModel]) -> Catalogue:
    """What is wanted of all these models. Names are unique. Of one model, versions that cannot be served are left out
    while another can; when none can, the model carries the reasons.
    """
    return {model.name: _source(model) for model in models}


def _source(model: AvailableModel) -> ModelSource:
    if model.error:
        return ModelSource(model.name, error=model.error)
    try:
        numbers = model.wanted()
    except InvalidSettings as error:
        return ModelSource(model.name, error=error.message)
    if not numbers:
        return ModelSource(model.name, error=_nothing_chosen(model))
    chosen = [version for version in model.versions if version.number in numbers]
    if all(version.error for version in chosen):
        return ModelSource(model.name, error=_reasons(chosen))
    return ModelSource(
        model.name,
        tuple(
            VersionSource(model.name, version.number, version.path, version.settings, version.word)
            for version in chosen
            if not version.error
        ),
    )


def _nothing_chosen(model: AvailableModel) -> str:
    have = ", ".join(str(version.number) for version in model.versions) or "none"
    policy = model.pinned or model.policy
    return f"no version is wanted: the version policy is {policy!r}, and the repository has {have}"


def _reasons(versions: Sequence[AvailableVersion]) -> str:
    return "; ".join(f"version {version.number}: {version.error}" for version in versions)
