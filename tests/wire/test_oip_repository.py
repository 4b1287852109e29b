"""The parameters of loads and unloads, in JSON and in protobuf."""

import base64
import json
from typing import Any

import pytest

from ekiben.errors import InvalidRequest
from ekiben.types import LoadOverride
from ekiben.wire.oip_repository import (
    dependents_in_json,
    dependents_in_message,
    override_in_json,
    override_in_message,
)
from ekiben.wire.protos.oip import OIP


def _json(**parameters: Any) -> bytes:
    return json.dumps({"parameters": parameters}).encode()


def _message(**parameters: dict[str, Any]) -> Any:
    message = OIP.message("RepositoryModelLoadRequest")()
    for name, value in parameters.items():
        for field, content in value.items():
            setattr(message.parameters[name], field, content)
        if not value:
            message.parameters[name].SetInParent()
    return OIP.parse("RepositoryModelLoadRequest", message.SerializeToString()).parameters


def test_a_load_without_parameters_takes_what_the_repository_says() -> None:
    for body in (b"", b"{}", b'{"parameters":{}}', b'{"other":[1,{}]}'):
        assert override_in_json("m", body) is None
        assert not dependents_in_json("m", body)
    assert override_in_message("m", _message()) is None
    assert not dependents_in_message("m", _message())


def test_a_config_and_files() -> None:
    files = {"1/model.onnx": bytes(range(256)), "labels.txt": b"", "1/ä b.txt": b"x"}
    in_json = {f"file:{path}": base64.b64encode(content).decode() for path, content in files.items()}
    in_message = {f"file:{path}": {"bytes_param": content} for path, content in files.items()}
    config = '{"name": "é"}'
    assert override_in_json("m", _json(config=config, **in_json)) == LoadOverride(config, files)
    assert override_in_message("m", _message(config={"string_param": config}, **in_message)) == LoadOverride(
        config, files
    )
    assert override_in_json("m", _json(config="")) == LoadOverride("")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ["failed to parse the request JSON"]),
        (b"[]", ["failed to parse the request JSON", "array"]),
        (b"\xff", ["failed to parse the request JSON"]),
        (b'{"parameters":null}', ["null"]),
        (b'{"parameters":{"\\ud800":1}}', ["failed to parse the request JSON"]),
        (b'{"parameters":{"a":' + b"[" * 100_000 + b"}}", ["failed to parse the request JSON"]),
        (b'{"parameters":{' + b'"a":"",' * 100_000 + b'"b":""}}', ["quotation marks"]),
        (_json(config={}), ["failed to load 'm'", "'config' must be text", "object"]),
        (_json(config=None), ["'config' must be text", "null"]),
        (b'{"parameters":{"config":"\xff"}}', ["'config' must be text"]),
        (_json(config="{}", **{"file:1/a": "YW I="}), ["'file:1/a' must be base64 text"]),
        (_json(config="{}", **{"file:1/a": "YWI"}), ["'file:1/a' must be base64 text"]),
        (_json(config="{}", **{"file:1/a": 5}), ["'file:1/a' must be base64 text", "int"]),
        (_json(**{"file:1/a": "YWI="}), ["failed to load 'm', failed to poll from model repository", "needs 'config'"]),
        (_json(config="{}", files=[]), ["unknown parameter 'files'", "file:VERSION/NAME"]),
    ],
)
def test_wrong_loads_in_json(body: bytes, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        override_in_json("m", body)
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"config": {"bytes_param": b"{}"}}, ["'config' must be a string_param", "bytes_param"]),
        ({"config": {}}, ["'config' must be a string_param", "none"]),
        (
            {"config": {"string_param": "{}"}, "file:1/a": {"string_param": "YWI="}},
            ["'file:1/a' must be a bytes_param", "string_param"],
        ),
        ({"file:1/a": {"bytes_param": b"x"}}, ["failed to load 'm'", "'file:1/a' needs 'config'"]),
        ({"": {"bool_param": True}}, ["unknown parameter ''"]),
    ],
)
def test_wrong_loads_in_messages(parameters: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        override_in_message("m", _message(**parameters))
    for word in words:
        assert word in caught.value.message


def test_unloads() -> None:
    for value in (True, False):
        assert dependents_in_json("m", _json(unload_dependents=value)) is value
        assert dependents_in_message("m", _message(unload_dependents={"bool_param": value})) is value
    for body in (_json(unload_dependents=1), _json(unload_dependents="true"), _json(unload_dependents=None)):
        with pytest.raises(InvalidRequest, match="failed to unload 'm': parameter 'unload_dependents' must be true or"):
            dependents_in_json("m", body)
    with pytest.raises(InvalidRequest, match="must be a bool_param, got int64_param"):
        dependents_in_message("m", _message(unload_dependents={"int64_param": 1}))
    with pytest.raises(InvalidRequest, match="unknown parameter 'config'; known is unload_dependents"):
        dependents_in_json("m", _json(config="{}"))
    with pytest.raises(InvalidRequest, match="unknown parameter 'config'"):
        dependents_in_message("m", _message(config={"string_param": "{}"}))
