"""`model.yaml` ↔ ModelSettings."""

import math
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import yaml

from ekiben.errors import InvalidSettings
from ekiben.plain import convert, load_yaml
from ekiben.repository.selection import check_policy
from ekiben.types import ModelSettings

__all__ = [
    "SETTINGS_FILE",
    "check_settings",
    "full_yaml",
    "read_settings",
    "settings_from",
    "to_yaml",
    "with_model_folder",
]

SETTINGS_FILE: Final = "model.yaml"


class _Dumper(yaml.SafeDumper):
    """Lists are indented under their key, as people write them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Text with control characters is quoted and escaped: YAML folds some of them into spaces otherwise."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def read_settings(path: Path) -> ModelSettings:
    """Read a `model.yaml`. Raises InvalidSettings, naming the file and the key."""
    return settings_from(load_yaml(path), str(path))


def settings_from(data: Any, where: str) -> ModelSettings:
    """Settings from plain data. Raises InvalidSettings that starts with `where` and names the key."""
    settings = convert(data, ModelSettings, where)
    try:
        check_settings(settings)
    except InvalidSettings as error:
        raise InvalidSettings(f"{where}: {error.message}") from None
    return settings


def check_settings(settings: ModelSettings) -> None:
    """Raise InvalidSettings for a value that its type alone allows."""
    check_policy(settings.version_policy)
    for name in ("execution_timeout_ms", "load_timeout_ms"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value >= 0):
            raise InvalidSettings(f"{name} must be 0 or more, got {value}")
    for file in (settings.file, *settings.labels.values()):
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\0" in file:
            raise InvalidSettings(f"a file must lie inside the model's folder, got '{file}'")


def with_model_folder(settings: ModelSettings, folder: Path) -> ModelSettings:
    """The settings with the label files as absolute paths. Raises InvalidSettings for one that is not in `folder`."""
    for output, name in settings.labels.items():
        if not (folder / name).is_file():
            raise InvalidSettings(f"the label file '{name}' of output '{output}' is not in '{folder}'")
    return msgspec.structs.replace(
        settings, labels={output: str((folder / name).absolute()) for output, name in settings.labels.items()}
    )


def to_yaml(settings: ModelSettings) -> str:
    """The settings as the text of a `model.yaml`; what is at its default is left out."""
    return _dump(_plain(settings, full=False))


def full_yaml(settings: ModelSettings) -> str:
    """The same with every default written out, for people."""
    return _dump(_plain(settings, full=True))


def _dump(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)


def _plain(value: Any, *, full: bool) -> Any:
    """As mappings, lists and scalars; unless `full`, without the struct fields that are at their defaults."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        values = [(field, getattr(value, field.name)) for field in fields]
        return {field.encode_name: _plain(item, full=full) for field, item in values if full or item != _default(field)}
    if isinstance(value, dict):
        return {key: _plain(item, full=full) for key, item in value.items()}
    return [_plain(item, full=full) for item in value] if isinstance(value, tuple | list) else value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
