"""The protocol's documents beside inference."""

import json

import pytest

from ekiben.metrics import BatchStatistics, Duration, VersionStatistics
from ekiben.types import Batching, Instances, ModelSettings, QueuePolicy, Signature, TensorSpec
from ekiben.wire.oip_documents import (
    error_body,
    index_body,
    model_config_body,
    model_metadata_body,
    server_metadata_body,
    statistics_body,
)

_SIGNATURE = Signature(
    (TensorSpec("a", "FP32", (-1, 4)), TensorSpec("t", "BYTES", (-1, 1), optional=True)),
    (TensorSpec("o", "FP32", (-1, 2)),),
)


def test_errors_hold_any_text() -> None:
    assert json.loads(error_body('it\'s "é"\n\ud800')) == {"error": 'it\'s "é"\n?'}


def test_metadata() -> None:
    assert json.loads(server_metadata_body("1.2"))["version"] == "1.2"
    assert "generate" in json.loads(server_metadata_body("1.2"))["extensions"]
    assert json.loads(model_metadata_body("m", ["1", "3"], "p", _SIGNATURE)) == {
        "name": "m",
        "versions": ["1", "3"],
        "platform": "p",
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [-1, 4]},
            {"name": "t", "datatype": "BYTES", "shape": [-1, 1]},
        ],
        "outputs": [{"name": "o", "datatype": "FP32", "shape": [-1, 2]}],
    }


def test_config_with_a_batch_dimension() -> None:
    settings = ModelSettings(
        runtime="onnx",
        batching=Batching(max_batch_size=8, max_delay_us=100, preferred_sizes=(4, 8)),
        instances=(Instances("gpu:1", 2), Instances("cpu")),
        version_policy=(1, 3),
        labels={"o": "labels.txt"},
        parameters={"x": 1},
    )
    config = json.loads(model_config_body("m", "onnxruntime_onnx", settings, _SIGNATURE))
    assert config["max_batch_size"] == 8
    assert [(each["data_type"], each["dims"], each["optional"]) for each in config["input"]] == [
        ("TYPE_FP32", [4], False),
        ("TYPE_STRING", [1], True),
    ]
    assert config["output"][0]["label_filename"] == "labels.txt"
    assert config["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [4, 8],
        "max_queue_delay_microseconds": 100,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }
    assert [(each["kind"], each["count"], each["gpus"]) for each in config["instance_group"]] == [
        ("KIND_GPU", 2, [1]),
        ("KIND_CPU", 1, []),
    ]
    assert config["parameters"] == {"x": {"string_value": "1"}}


def test_config_says_how_requests_wait() -> None:
    batching = Batching(
        max_batch_size=8,
        timeout_us=5,
        timeout_action="delay",
        priority_levels=3,
        default_priority=2,
        priority_policies={3: QueuePolicy(max_queue_rows=9, timeout_action="reject"), 1: QueuePolicy()},
    )
    config = json.loads(model_config_body("m", "", ModelSettings(batching=batching), _SIGNATURE))
    common = {
        "timeout_action": "DELAY",
        "default_timeout_microseconds": 5,
        "allow_timeout_override": True,
        "max_queue_size": 4096,
    }
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": common,
        "priority_queue_policy": {"1": common, "3": {**common, "timeout_action": "REJECT", "max_queue_size": 9}},
    }


@pytest.mark.parametrize(
    "batching",
    [
        Batching(preserve_ordering=True),
        Batching(timeout_us=1),
        Batching(allow_timeout_override=False),
        Batching(max_queue_rows=1),
        Batching(timeout_action="delay"),
        Batching(priority_levels=1, default_priority=1),
    ],
)
def test_config_says_what_is_not_usual(batching: Batching) -> None:
    assert "dynamic_batching" in json.loads(model_config_body("m", "", ModelSettings(batching=batching), _SIGNATURE))


def test_config_names_the_runtime_as_triton_does() -> None:
    def named(runtime: str, platform: str) -> tuple[str, str]:
        config = json.loads(model_config_body("m", platform, ModelSettings(runtime=runtime), _SIGNATURE))
        return config["backend"], config["platform"]

    assert named("onnx", "onnxruntime_onnx") == ("onnxruntime", "onnxruntime_onnx")
    assert named("torchscript", "pytorch_libtorch") == ("pytorch", "pytorch_libtorch")
    assert named("tensorflow", "tensorflow_savedmodel") == ("tensorflow", "tensorflow_savedmodel")
    assert named("python", "python") == ("python", "")


def test_config_without_one() -> None:
    settings = ModelSettings(batching=Batching(max_batch_size=0), version_policy="latest:2")
    config = json.loads(model_config_body("m", "", settings, _SIGNATURE))
    assert config["input"][0]["dims"] == [-1, 4]
    assert config["version_policy"] == {"latest": {"num_versions": 2}}
    assert "dynamic_batching" not in config
    everything = ModelSettings(version_policy="all")
    assert json.loads(model_config_body("m", "", everything, _SIGNATURE))["version_policy"] == {"all": {}}


@pytest.mark.parametrize(("decoupled", "policy"), [(True, {"decoupled": True}), (False, None), (None, None)])
def test_config_of_a_decoupled_version(decoupled: bool | None, policy: object) -> None:
    config = json.loads(model_config_body("m", "", ModelSettings(decoupled=decoupled), _SIGNATURE))
    assert config.get("model_transaction_policy") == policy


def test_statistics() -> None:
    one = Duration(1, 2)
    version = VersionStatistics(
        "m", "1", 5, 6, 7, one, one, one, one, one, Duration(3, 4), (BatchStatistics(8, one, one, Duration(3, 4)),)
    )
    (stats,) = json.loads(statistics_body([version]))["model_stats"]
    assert (stats["last_inference"], stats["inference_count"], stats["execution_count"]) == (5, 6, 7)
    assert stats["inference_stats"]["compute_output"] == {"count": 3, "ns": 4}
    assert stats["inference_stats"]["cache_hit"] == {"count": 0, "ns": 0}
    assert stats["batch_stats"][0]["batch_size"] == 8
    assert stats["batch_stats"][0]["compute_output"] == {"count": 3, "ns": 4}


def test_the_index_leaves_out_what_is_not_known() -> None:
    lines = [{"name": "m", "version": "1", "state": "READY", "reason": ""}, {"name": "n", "version": "", "state": ""}]
    assert json.loads(index_body(lines)) == [{"name": "m", "version": "1", "state": "READY"}, {"name": "n"}]
