"""What loads and unloads carry beside the model's name: Triton's parameters, in JSON and in protobuf.

config                   a ModelConfig as the text of a JSON object
file:<version>/<name>    the content of a file: base64 in JSON, bytes in protobuf
unload_dependents        a flag
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from ekiben.errors import InvalidRequest
from ekiben.types import LoadOverride

__all__ = ["dependents_in_json", "dependents_in_message", "override_in_json", "override_in_message"]

_CONFIG: Final = "config"
_FILE: Final = "file:"
_DEPENDENTS: Final = "unload_dependents"
_IN_JSON: Final = {str: "text", bytes: "base64 text", bool: "true or false"}
_IN_MESSAGE: Final = {str: "string_param", bytes: "bytes_param", bool: "bool_param"}

_MOST_QUOTES: Final = 1 << 18
"""Far more than a configuration and a model's files need. A large body of many small texts would take long to parse."""

_Read: TypeAlias = Callable[[str, type[Any]], Any]
"""The value of the parameter with this name, which must have this type. Raises InvalidRequest."""


class _Body(msgspec.Struct):
    parameters: dict[str, msgspec.Raw] = {}


def override_in_json(model: str, body: bytes) -> LoadOverride | None:
    """What the body of a load gives instead of the repository; None: nothing. Raises InvalidRequest.

    Blocks for as long as decoding the files takes.
    """
    parameters = _parameters(body)
    return _override(model, parameters, _reader_of_json(f"failed to load '{model}'", parameters))


def override_in_message(model: str, parameters: Mapping[str, Any]) -> LoadOverride | None:
    """The same of RepositoryModelLoadRequest.parameters."""
    return _override(model, parameters, _reader_of_message(f"failed to load '{model}'", parameters))


def dependents_in_json(model: str, body: bytes) -> bool:
    """Whether the body of an unload wants what depends on the model unloaded too. Raises InvalidRequest."""
    parameters = _parameters(body)
    return _dependents(model, parameters, _reader_of_json(f"failed to unload '{model}'", parameters))


def dependents_in_message(model: str, parameters: Mapping[str, Any]) -> bool:
    """The same of RepositoryModelUnloadRequest.parameters."""
    return _dependents(model, parameters, _reader_of_message(f"failed to unload '{model}'", parameters))


def _override(model: str, names: Iterable[str], read: _Read) -> LoadOverride | None:
    config: str | None = None
    files: dict[str, bytes] = {}
    for name in names:
        if name == _CONFIG:
            config = read(name, str)
        elif name.startswith(_FILE):
            files[name.removeprefix(_FILE)] = read(name, bytes)
        else:
            raise InvalidRequest(
                f"failed to load '{model}': unknown parameter '{name}'; known are {_CONFIG} and {_FILE}VERSION/NAME"
            )
    if config is not None:
        return LoadOverride(config, files)
    if files:
        raise InvalidRequest(
            f"failed to load '{model}', failed to poll from model repository: '{_FILE}{min(files)}' needs '{_CONFIG}' "
            "beside it, for files take the place of the model's whole folder"
        )
    return None


def _dependents(model: str, names: Iterable[str], read: _Read) -> bool:
    for name in names:
        if name != _DEPENDENTS:
            raise InvalidRequest(f"failed to unload '{model}': unknown parameter '{name}'; known is {_DEPENDENTS}")
    return _DEPENDENTS in names and bool(read(_DEPENDENTS, bool))


def _parameters(body: bytes) -> dict[str, msgspec.Raw]:
    if body.count(b'"') > _MOST_QUOTES:
        raise InvalidRequest(f"failed to parse the request JSON: it holds over {_MOST_QUOTES} quotation marks")
    try:
        return msgspec.json.decode(body or b"{}", type=_Body).parameters
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from None


def _reader_of_json(what: str, parameters: Mapping[str, msgspec.Raw]) -> _Read:
    def read(name: str, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(parameters[name], type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{what}: parameter '{name}' must be {_IN_JSON[kind]}: {error}") from None

    return read


def _reader_of_message(what: str, parameters: Mapping[str, Any]) -> _Read:
    def read(name: str, kind: type[Any]) -> Any:
        given = parameters[name].WhichOneof("parameter_choice")
        if given != _IN_MESSAGE[kind]:
            raise InvalidRequest(f"{what}: parameter '{name}' must be a {_IN_MESSAGE[kind]}, got {given or 'none'}")
        return getattr(parameters[name], given)

    return read
