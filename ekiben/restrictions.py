"""Which callers may use which endpoints: groups of them, as in Triton, each with a header that a caller must send.

A restriction is a text `inference,model-repository:admin-key=SECRET`. No error here shows what may be a secret.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ekiben.errors import InvalidSettings

__all__ = ["GROUPS", "HIDDEN", "Key", "keys_of"]

GROUPS: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""What endpoints are grouped by, the same on both ports."""

HIDDEN: Final = "(what is there is not shown: it may hold the secret)"

_FORM: Final = "GROUP,…:HEADER=VALUE, as in 'inference,model-repository:admin-key=SECRET'"
_GROUP: Final = re.compile(r"[a-z_-]{1,40}", re.IGNORECASE)
_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class Key(msgspec.Struct, frozen=True):
    """What a caller must send: a header, by its name as it was given, with this value."""

    header: str
    value: str

    def __repr__(self) -> str:
        return f"Key({self.header!r}, …)"


def keys_of(setting: str, texts: Sequence[str]) -> Mapping[str, Key]:
    """Group → its key, of the groups that the texts restrict. Raises InvalidSettings that names `setting`."""
    keys: dict[str, Key] = {}
    for number, text in enumerate(texts):
        where = f"{setting}[{number}]"
        groups, colon, pair = text.partition(":")
        header, equals, value = pair.partition("=")
        names = [name.strip() for name in groups.split(",")]
        if not (colon and equals and all(map(_GROUP.fullmatch, names))):
            raise InvalidSettings(f"{where} must be {_FORM} {HIDDEN}")
        if not _HEADER.fullmatch(header):
            raise InvalidSettings(f"{where}: the name of a header is letters, digits and '-', got '{header}'")
        if not _VALUE.fullmatch(value):
            raise InvalidSettings(
                f"{where}: the value for '{header}' must be printable ASCII, without spaces around it, and not empty"
            )
        for name in names:
            if name not in GROUPS:
                raise InvalidSettings(f"{where}: unknown group '{name}'; the groups are {', '.join(GROUPS)}")
            if name in keys:
                raise InvalidSettings(f"{where}: group '{name}' is restricted already: each group takes one header")
            keys[name] = Key(header, value)
    return keys
