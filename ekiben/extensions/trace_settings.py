"""The trace extension's settings: the server's, and each model's own where it differs; and whose turn it is.

Pure: no file is touched here. Names, defaults, refusals and what is counted are Triton's: one of `trace_rate` requests
is traced until `trace_count` traces are taken (-1: for ever), and a change starts the counting anew. A model without
settings of its own is counted with all others; what it does not set itself follows the server's.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, final

from ekiben.errors import InvalidRequest, Unsupported
from ekiben.extensions.recording import Series
from ekiben.extensions.shown import shown

__all__ = ["TraceSettings", "TraceValue"]

TraceValue: TypeAlias = str | list[str]

_SERVER: Final = ""
_MOST_MODELS: Final = 1024
_LARGEST: Final = (1 << 31) - 1
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_OFF: Final = "OFF"
_TIMESTAMPS: Final = "TIMESTAMPS"
_DEFAULTS: Final[Mapping[str, int]] = {"trace_level": 0, "trace_rate": 1000, "trace_count": -1, "log_frequency": 0}
"""`trace_level` is 1 for TIMESTAMPS."""
_SMALLEST: Final[Mapping[str, int]] = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}


@final
class TraceSettings:
    """Of one server. Lives on the engine's loop."""

    def __init__(self, trace_file: str = "", check: Callable[[], None] = lambda: None) -> None:
        """Traces go to `trace_file`; '': there is none, and TIMESTAMPS is refused, as it is where `check` raises."""
        self._trace_file = trace_file
        self._check = check
        self._own: dict[str, dict[str, int]] = {_SERVER: {}}
        """What was set, by model; '' is the server."""
        self._samplers = {_SERVER: _Sampler(_DEFAULTS)}

    @property
    def on(self) -> bool:
        """Whether any request may be traced."""
        return any(sampler.on for sampler in self._samplers.values())

    def values(self, model: str = _SERVER) -> dict[str, TraceValue]:
        """What holds for a model ('': the server), by the extension's names; `trace_count` is what is left of it."""
        sampler = self._samplers.get(model) or self._samplers[_SERVER]
        return {
            "trace_level": [_TIMESTAMPS if sampler.level else _OFF],
            "trace_rate": str(sampler.rate),
            "trace_count": str(sampler.count),
            "log_frequency": str(sampler.series.frequency),
            "trace_file": self._trace_file,
            "trace_mode": "triton",
        }

    def update(self, model: str, changes: Mapping[str, object]) -> None:
        """Set these of a model ('': of the server), all or none; None or [] clears a setting.

        Raises InvalidRequest; Unsupported for another trace file and for tracing tensors.
        """
        checked = {name: self._checked(name, value) for name, value in changes.items()}
        checked.pop("trace_mode", None)
        if not checked:
            return
        if model not in self._own and len(self._own) > _MOST_MODELS:
            raise InvalidRequest(
                f"{_MOST_MODELS} models have trace settings of their own already, and '{model}' would be one more: "
                "clear those of another"
            )
        self._keep_counts()
        own = {**self._own.get(model, {}), **checked}
        self._own[model] = {name: value for name, value in own.items() if value is not None}
        if model != _SERVER and not self._own[model]:
            del self._own[model]
            self._samplers.pop(model, None)
        server = {**_DEFAULTS, **self._own[_SERVER]}
        if model != _SERVER:
            if model in self._own:
                self._samplers[model] = _Sampler({**server, **self._own[model]})
        else:
            self._samplers = {name: _Sampler({**server, **values}) for name, values in self._own.items()}

    def sample(self, model: str) -> Series | None:
        """Whether this request of a model is to be traced: then where its trace belongs, else None."""
        sampler = self._samplers.get(model) or self._samplers[_SERVER]
        return sampler.series if sampler.take() else None

    def _keep_counts(self) -> None:
        for name, own in self._own.items():
            if "trace_count" in own:
                own["trace_count"] = self._samplers[name].count

    def _checked(self, name: str, value: object) -> int | None:
        """The value as a number, None for one that is cleared."""
        if name == "trace_file":
            raise Unsupported("trace file location can not be updated through network protocol")
        if name == "trace_mode":
            if value not in ("triton", ["triton"]):
                raise Unsupported(f"'trace_mode' can only be 'triton', got {shown(value)}")
            return None
        if name not in _DEFAULTS:
            known = ", ".join(_DEFAULTS)
            raise InvalidRequest(f"there is no trace setting '{name:.100}'; those that can be set are {known}")
        if value is None or value == []:
            return None
        return self._level(value) if name == "trace_level" else _number(name, value)

    def _level(self, value: object) -> int:
        levels = value if isinstance(value, list) else [value]
        for level in levels:
            if level == "TENSORS":
                raise Unsupported("trace level 'TENSORS' is not supported: use 'TIMESTAMPS', or 'OFF'")
            if level not in (_OFF, _TIMESTAMPS):
                raise InvalidRequest(f"'trace_level' must be 'OFF' or 'TIMESTAMPS', got {shown(level)}")
        if _OFF in levels:
            if len(levels) > 1:
                raise InvalidRequest(f"Expect only one trace level 'OFF' is specified, got {shown(levels)}")
            return 0
        if not self._trace_file:
            raise InvalidRequest(
                "Attempting to set invalid trace setting :trace file name is not given; "
                "the server needs its setting trace_file, as in `ekiben serve --trace-file FILE`"
            )
        self._check()
        return 1


class _Sampler:
    """Counts the requests of one scope."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.level = values["trace_level"]
        self.rate = values["trace_rate"]
        self.count = values["trace_count"]
        self.series = Series(values["log_frequency"])
        self._seen = 0

    @property
    def on(self) -> bool:
        return bool(self.level and self.count)

    def take(self) -> bool:
        if not self.on:
            return False
        self._seen += 1
        if self._seen % self.rate:
            return False
        if self.count > 0:
            self.count -= 1
        return True


def _number(name: str, value: object) -> int:
    if isinstance(value, list):
        if len(value) > 1:
            raise InvalidRequest(f"expect only 1 value for '{name}', got {shown(value)}")
        value = value[0]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise InvalidRequest(f"Unable to parse '{name}', got: {shown(value)}; it must be a whole number")
    smallest = _SMALLEST[name]
    if not smallest <= value <= _LARGEST:
        raise InvalidRequest(
            f"Unable to parse '{name}', value is out of range [ {smallest}, {_LARGEST} ], got: {shown(value)}"
        )
    return value
