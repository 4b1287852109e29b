"""The logging extension: what a client may read and change of the server's log while it runs.

Keys, types and the two refusals are Triton's. A change acts on the lines that follow.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, final

import msgspec

from ekiben.errors import InvalidRequest, Unsupported
from ekiben.extensions.shown import shown
from ekiben.logs import Verbosity, adjust

__all__ = ["LogSettings", "LogValue"]

LogValue: TypeAlias = bool | int | str

_LARGEST: Final = (1 << 32) - 1
_FORMATS: Final = ("default", "ISO8601")
_FIELDS: Final[Mapping[str, str]] = {
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
    "log_verbose_level": "verbose",
    "log_format": "iso_time",
}
"""Setting → field of Verbosity."""


@final
class LogSettings:
    """The settings of one server. Lives on the engine's loop."""

    def __init__(self, act: Callable[[Verbosity], None] = adjust) -> None:
        """`act` is called with each change."""
        self._act = act
        self._verbosity = Verbosity()

    def values(self) -> dict[str, LogValue]:
        """What is set now, by the extension's names. The log goes to stderr, so `log_file` is ''."""
        now = self._verbosity
        return {
            "log_file": "",
            "log_info": now.info,
            "log_warning": now.warning,
            "log_error": now.error,
            "log_verbose_level": now.verbose,
            "log_format": _FORMATS[now.iso_time],
        }

    def update(self, changes: Mapping[str, object]) -> None:
        """Set these, all or none. Raises InvalidRequest, and Unsupported for `log_file`."""
        fields = {_field(name): _checked(name, value) for name, value in changes.items()}
        if fields:
            self._verbosity = msgspec.structs.replace(self._verbosity, **fields)
            self._act(self._verbosity)


def _field(name: str) -> str:
    if name == "log_file":
        raise Unsupported("log file location can not be updated through network protocol")
    if name not in _FIELDS:
        raise InvalidRequest(f"there is no log setting '{name:.100}'; those that can be set are {', '.join(_FIELDS)}")
    return _FIELDS[name]


def _checked(name: str, value: object) -> bool | int:
    if name == "log_format":
        if value not in _FORMATS:
            raise InvalidRequest(f"'log_format' must be 'default' or 'ISO8601', got {shown(value)}")
        return value == "ISO8601"
    if name == "log_verbose_level":
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise InvalidRequest(f"'log_verbose_level' must be a whole number from 0 to {_LARGEST}, got {shown(value)}")
        return value
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{name}' must be true or false, got {shown(value)}")
    return value
