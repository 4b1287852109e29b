"""Loads with a configuration and files of their own, by Triton's own clients over both doors of a running server."""

import base64
import contextlib
import gzip
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException

from tests.conftest import Serve, Server

_MIB = 1 << 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(serve: Serve, testdata: Path, home: Path) -> Server:
    return serve(*_options(testdata), home=home)


def _options(testdata: Path) -> list[str]:
    models = str(testdata / "golden_triton" / "models")
    names = [option for name in ("simple", "versions") for option in ("--load-model", name)]
    return ["--repository", models, "--model-control", "explicit", *names, "--allow-load-override"]


@pytest.fixture
def onnx(testdata: Path) -> bytes:
    return (testdata / "golden_triton" / "models" / "simple" / "1" / "model.onnx").read_bytes()


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    """tritonclient, connected; afterwards the models are as the repository has them."""
    made: Any
    if request.param == "http":
        made = tritonclient.http.InferenceServerClient(server.host, network_timeout=120, connection_timeout=120)
    else:
        made = tritonclient.grpc.InferenceServerClient(server.grpc)
    yield made
    for name in ("simple", "versions"):
        made.load_model(name)
    made.unload_model("mine")
    made.close()


def _config(client: Any, model: str) -> dict[str, Any]:
    """What the server says of a model, in the form of its messages."""
    if isinstance(client, tritonclient.grpc.InferenceServerClient):
        return dict(client.get_model_config(model, as_json=True)["config"])
    return dict(client.get_model_config(model))


def _sum(client: Any, model: str, version: str = "") -> int:
    module = tritonclient.grpc if isinstance(client, tritonclient.grpc.InferenceServerClient) else tritonclient.http
    inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for given, value in zip(inputs, (30, 12), strict=True):
        given.set_data_from_numpy(np.full((1, 16), value, np.int32))
    return int(client.infer(model, inputs, version).as_numpy("OUTPUT0")[0, 15])


def _index(client: Any, model: str) -> list[tuple[str, str]]:
    entries = client.get_model_repository_index()
    if isinstance(client, tritonclient.grpc.InferenceServerClient):
        entries = json_format.MessageToDict(entries)["models"]
    return [(entry.get("version", ""), entry.get("state", "")) for entry in entries if entry["name"] == model]


def _files(home: Path) -> list[str]:
    """What loads gave and is still there, from the model's name on."""
    root = home / "ekiben" / "overrides"
    found = [path.relative_to(root).parts[2:] for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    return sorted("/".join(parts) for parts in found)


def test_both_doors_say_the_same_configuration(server: Server) -> None:
    kinds = {"max_batch_size": 8, "default_model_filename": "model.onnx", "backend": "onnxruntime"}
    with (
        contextlib.closing(tritonclient.http.InferenceServerClient(server.host)) as over_http,
        contextlib.closing(tritonclient.grpc.InferenceServerClient(server.grpc)) as over_grpc,
    ):
        said = over_http.get_model_config("simple")
        message = over_grpc.get_model_config("simple").config
    assert kinds.items() <= said.items()
    assert [(group["kind"], group["count"]) for group in said["instance_group"]] == [("KIND_CPU", 1)]
    assert json_format.ParseDict(said, type(message)()) == message


def test_what_the_server_says_can_be_changed_and_given_back(client: Any) -> None:
    config = _config(client, "simple")
    config["max_batch_size"] = 5
    config["dynamic_batching"] = {"max_queue_delay_microseconds": 7}
    client.load_model("simple", config=json.dumps(config))
    changed = _config(client, "simple")
    assert changed["max_batch_size"] == 5
    assert int(changed["dynamic_batching"]["max_queue_delay_microseconds"]) == 7
    assert _sum(client, "simple") == 42
    client.load_model("simple")
    assert _config(client, "simple")["max_batch_size"] == 8


def test_a_config_chooses_other_versions(client: Any) -> None:
    assert _index(client, "versions") == [("1", "READY"), ("3", "READY")]
    client.load_model(
        "versions", config='{"backend": "onnxruntime", "versionPolicy": {"specific": {"versions": ["2"]}}}'
    )
    assert client.is_model_ready("versions", "2")
    assert not client.is_model_ready("versions", "3")
    client.load_model("versions")
    assert not client.is_model_ready("versions", "2")
    assert client.is_model_ready("versions", "3")


def test_files_are_the_whole_model(client: Any, onnx: bytes, home: Path) -> None:
    config = '{"backend": "onnxruntime", "max_batch_size": 4}'
    files = {"file:7/model.onnx": onnx, "file:7/beside.bin": bytes(3 * _MIB)}
    client.load_model("simple", config=config, files=files)
    assert _index(client, "simple") == [("1", "UNAVAILABLE"), ("7", "READY")]
    assert _sum(client, "simple", "7") == 42
    assert _files(home) == ["simple/7/beside.bin", "simple/7/model.onnx"]
    client.load_model("simple")
    assert _index(client, "simple") == [("1", "READY"), ("7", "UNAVAILABLE")]
    assert _files(home) == []


def test_files_make_a_model_that_no_repository_has(client: Any, onnx: bytes, home: Path) -> None:
    for version in (1, 2):
        client.load_model("mine", config="{}", files={f"file:{version}/model.onnx": onnx})
        assert _sum(client, "mine") == 42
        assert _files(home) == [f"mine/{version}/model.onnx"]
    client.unload_model("mine", unload_dependents=True)
    assert not client.is_model_ready("mine")
    assert _files(home) == []
    with pytest.raises(InferenceServerException, match="failed to load 'mine', failed to poll from model repository"):
        client.load_model("mine")


@pytest.mark.parametrize(
    ("config", "files", "text"),
    [
        ("nonsense", {}, "failed to poll from model repository: config: must be a JSON object, got 'nonsense'"),
        ('{"max_batchsize": 1}', {}, "unknown field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'"),
        ('{"name": "other"}', {}, "the name is 'other', and the model is 'simple'"),
        ("{}", {"file:7/model.onnx": b"no model"}, "version 7 is UNAVAILABLE: .*cannot load 'model.onnx'"),
        ("{}", {"file:1/model.onnx": b"no model"}, "version 1 is UNAVAILABLE: .*cannot load 'model.onnx'"),
        ("{}", {"file:7/../../1/model.onnx": b""}, "'file:7/../../1/model.onnx' must name a file inside"),
        ("{}", {"file:/etc/model.onnx": b""}, "'file:/etc/model.onnx' must name a file inside"),
        (None, {"file:7/model.onnx": b""}, "failed to poll from model repository: 'file:7/model.onnx' needs 'config'"),
        ("{}", {"7/model.onnx": b""}, "unknown parameter '7/model.onnx'"),
    ],
)
def test_what_cannot_be_loaded_leaves_what_serves(
    client: Any, home: Path, config: str | None, files: dict[str, bytes], text: str
) -> None:
    with pytest.raises(InferenceServerException, match=f"failed to load 'simple'.*{text}"):
        client.load_model("simple", config=config, files=files)
    assert _sum(client, "simple", "1") == 42
    assert _index(client, "simple")[0] == ("1", "READY")
    assert _files(home) == []


def test_a_compressed_load_over_http(server: Server, onnx: bytes, home: Path) -> None:
    client = tritonclient.http.InferenceServerClient(server.host)
    model = base64.b64encode(onnx).decode()
    body = {"parameters": {"config": "{}", "file:1/model.onnx": model, "file:1/large.bin": "A" * (4 * _MIB)}}
    packed = gzip.compress(json.dumps(body).encode())
    url = f"{server.url}/v2/repository/models/mine/load"
    with urllib.request.urlopen(
        urllib.request.Request(url, packed, {"Content-Encoding": "gzip"}), timeout=120
    ) as reply:
        assert reply.status == 200
    assert _sum(client, "mine") == 42
    client.unload_model("mine")
    assert _files(home) == []
    client.close()


def test_what_a_killed_server_left_is_removed_at_the_next_start(
    serve: Serve, testdata: Path, onnx: bytes, tmp_path: Path
) -> None:
    first = serve(*_options(testdata), home=tmp_path)
    client = tritonclient.http.InferenceServerClient(first.host)
    client.load_model("mine", config="{}", files={"file:1/model.onnx": onnx})
    client.close()
    first.process.send_signal(signal.SIGKILL)
    for pid in first.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    first.wait(lambda: not first.processes(), 30)
    assert _files(tmp_path) == ["mine/1/model.onnx"]
    second = serve(*_options(testdata), home=tmp_path)
    assert _files(tmp_path) == []
    second.end()
    assert "cannot be" not in second.log
