"""From YAML files and other plain data to structs, with errors that name the place, the key and the value."""

import difflib
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from ekiben.errors import InvalidSettings

__all__ = ["convert", "load_yaml", "nearest"]

T = TypeVar("T")

_WRONG_TYPE: Final = re.compile(r"Expected `(?P<wanted>.+)`, got `(?P<got>.+)`")
_STEP: Final = re.compile(r"\.(?P<key>\w+)|\[(?P<index>\d+)\]")


class _Loader(yaml.SafeLoader):
    """YAML's safe types only; a key given twice is an error, where YAML itself would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key '{key_node.value}' is given twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises InvalidSettings, naming the file and the line, for anything else.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidSettings(f"{path}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidSettings(f"{path}: is not valid YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidSettings(f"{path}: must hold keys and values, got {type(data).__name__}")
    return data


def convert(data: Any, kind: type[T], where: str) -> T:
    """Plain data as a `kind`. Raises InvalidSettings that starts with `where` and names the key and its value.

    Keys that no struct in it has are refused, with the nearest one that exists.
    """
    try:
        _refuse_unknown_keys(data, msgspec.inspect.type_info(kind), "")
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{where}: {_readable(str(error), data)}") from None
    except InvalidSettings as error:
        raise InvalidSettings(f"{where}: {error.message}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known key nearest to `name`, or all of them when none is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"


def _readable(message: str, data: Any) -> str:
    """msgspec's text, with the place first and the value last: `batching.max_delay_us must be int, got '5'`."""
    text, in_key, place = message.partition(" - at `key` in `$")
    if in_key:
        wrong = _WRONG_TYPE.fullmatch(text)
        rule = f"must be {wrong['wanted']}, got {wrong['got']}" if wrong else text
        return f"the keys of {place.strip('.`') or 'it'} {rule}"
    text, _, place = message.partition(" - at `$")
    place = place.removesuffix("`")
    wrong = _WRONG_TYPE.fullmatch(text)
    key = place.removeprefix(".") or "it"
    if wrong is None:
        return f"{key}: {text[0].lower()}{text[1:]}"
    return f"{key} must be {wrong['wanted'].replace(' | ', ' or ')}, got {_value_at(data, place, wrong['got'])}"


def _value_at(data: Any, place: str, otherwise: str) -> str:
    """The value at msgspec's place, cut to a line; `otherwise` where the place names no single value."""
    if "[...]" in place:
        return otherwise
    for step in _STEP.finditer(place):
        data = data[step["key"] if step["key"] else int(step["index"])]
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse_unknown_keys(data: Any, info: msgspec.inspect.Type, place: str) -> None:
    """Walk `data` along the declared type, for the structs in it. Wrong types are left to the conversion."""
    if isinstance(info, msgspec.inspect.StructType) and isinstance(data, Mapping):
        fields = {field.encode_name: field.type for field in info.fields}
        for key, value in data.items():
            if key not in fields:
                at = f" in '{place}'" if place else ""
                raise InvalidSettings(f"unknown key '{key}'{at}; {nearest(str(key), fields)}")
            _refuse_unknown_keys(value, fields[key], f"{place}.{key}".lstrip("."))
    elif isinstance(info, msgspec.inspect.DictType) and isinstance(data, Mapping):
        for key, value in data.items():
            _refuse_unknown_keys(value, info.value_type, f"{place}.{key}".lstrip("."))
    elif isinstance(info, msgspec.inspect.VarTupleType) and isinstance(data, list | tuple):
        for index, value in enumerate(data):
            _refuse_unknown_keys(value, info.item_type, f"{place}[{index}]")
