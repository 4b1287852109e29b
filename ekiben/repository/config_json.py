"""Triton's ModelConfig as JSON text, which a load may give instead of a `config.pbtxt` → ModelSettings."""

import re
from collections.abc import Callable
from typing import Final

from google.protobuf import json_format

from ekiben.errors import InvalidSettings
from ekiben.repository.config_pbtxt import settings_of, unknown_field
from ekiben.repository.pbtxt_schema import model_config
from ekiben.types import ModelSettings

__all__ = ["MOST_CONFIG_BYTES", "read_json"]

MOST_CONFIG_BYTES: Final = 256 << 10
"""Reading it is slow, and the largest that people write are a tenth of this."""

_WHERE: Final = "config"
_NOISE: Final = re.compile(r"Failed to (?:parse [\w.\[\]]+ field|load JSON|parse JSON): |inference\.|\.+$")


def read_json(text: str, model: str, warn: Callable[[str], None]) -> ModelSettings:
    """Settings of `model` from the JSON object; keys may be in snake_case or camelCase, as protobuf has it.

    Otherwise as `read_pbtxt`.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > MOST_CONFIG_BYTES:
        raise InvalidSettings(f"{_WHERE}: is {size} bytes long, and {MOST_CONFIG_BYTES} are the limit")
    if not text.lstrip().startswith("{"):
        raise InvalidSettings(f"{_WHERE}: must be a JSON object, got {_cut(text)}")
    try:
        config = json_format.Parse(text, model_config())
    except json_format.ParseError as error:
        reason = unknown_field(str(error)) or _NOISE.sub("", str(error))
        raise InvalidSettings(f"{_WHERE}: {reason}") from None
    return settings_of(config, _WHERE, model, warn)


def _cut(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:77]!r}..."
