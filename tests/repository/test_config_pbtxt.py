"""config.pbtxt: Triton's own schema, what it becomes, and that nothing in it is passed over in silence."""

import os
from pathlib import Path
from typing import Any

import pytest

from ekiben.errors import InvalidSettings
from ekiben.repository import config_pbtxt
from ekiben.repository.config_pbtxt import read_pbtxt
from ekiben.repository.pbtxt_schema import model_config
from ekiben.types import Batching, Instances, ModelSettings, QueuePolicy, Signature, TensorSpec

_TESTDATA = Path(os.environ.get("EKIBEN_TESTDATA", Path(__file__).parents[2].parent / "shared" / "testdata"))
_TENSORS = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "y" data_type: TYPE_STRING dims: [ -1, 2 ] }'
)


def _read(folder: Path, text: str, warnings: list[str] | None = None) -> ModelSettings:
    path = folder / "config.pbtxt"
    path.write_text(text, encoding="utf-8")
    return read_pbtxt(path, "m", (warnings if warnings is not None else []).append)


def _shape_of(message: Any) -> dict[str, Any]:
    """Every field below a message descriptor: name → number, type, repeated, and what it holds."""
    shape: dict[str, Any] = {}
    for field in message.fields:
        inner = field.message_type or field.enum_type
        holds: Any = None
        if field.message_type is not None:
            holds = _shape_of(field.message_type)
        elif field.enum_type is not None:
            holds = {value.name: value.number for value in field.enum_type.values}
        shape[field.name] = (field.number, field.type, field.is_repeated, inner and inner.full_name, holds)
    return shape


def test_the_schema_is_that_of_tritons_client() -> None:
    theirs = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient[grpc] is not installed")
    assert _shape_of(model_config().DESCRIPTOR) == _shape_of(theirs.ModelConfig.DESCRIPTOR)


def test_every_configuration_of_the_test_data_is_read_without_a_warning() -> None:
    if not _TESTDATA.is_dir():
        pytest.skip(f"the test data is not at {_TESTDATA}: set EKIBEN_TESTDATA")
    paths = sorted(_TESTDATA.glob("**/config.pbtxt"))
    assert len(paths) >= 20
    warnings: list[str] = []
    for path in paths:
        settings = read_pbtxt(path, path.parent.name, warnings.append)
        assert settings.runtime == "onnx"
        assert settings.signatures["serving_default"].inputs
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "decoupled"),
    [
        ("", None),
        ("model_transaction_policy { }", None),
        ("model_transaction_policy { decoupled: true }", True),
        ("model_transaction_policy { decoupled: false }", False),
    ],
)
def test_the_transaction_policy(text: str, decoupled: bool | None, tmp_path: Path) -> None:
    assert _read(tmp_path, f'backend: "python" {text}').decoupled is decoupled


def test_a_batch_dimension_leads_when_max_batch_size_is_above_0(tmp_path: Path) -> None:
    settings = _read(tmp_path, f"max_batch_size: 8 {_TENSORS}")
    assert settings.batching == Batching(max_batch_size=8)
    assert settings.signatures == {
        "serving_default": Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "BYTES", (-1, -1, 2)),))
    }


@pytest.mark.parametrize("size", ["", "max_batch_size: 0"])
def test_dims_are_the_whole_shape_without_one(size: str, tmp_path: Path) -> None:
    settings = _read(tmp_path, f"{size} {_TENSORS}")
    assert settings.batching.max_batch_size == 0
    assert settings.signatures["serving_default"].inputs[0].shape == (4,)


def test_without_tensors_and_size_the_model_decides(tmp_path: Path) -> None:
    settings = _read(tmp_path, 'backend: "onnxruntime"')
    assert settings == ModelSettings(runtime="onnx")
    assert settings.batching.max_batch_size is None


def test_the_batcher_and_its_queue(tmp_path: Path) -> None:
    settings = _read(
        tmp_path,
        f"""max_batch_size: 8 {_TENSORS}
        dynamic_batching {{
          preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
          default_queue_policy {{ max_queue_size: 16 default_timeout_microseconds: 5000 }}
        }}""",
    )
    assert settings.batching == Batching(
        max_batch_size=8,
        max_delay_us=100,
        preferred_sizes=(4, 8),
        max_queue_rows=16,
        timeout_us=5000,
        allow_timeout_override=False,
    )


def test_priorities_and_the_policies_of_their_queues(tmp_path: Path) -> None:
    warnings: list[str] = []
    settings = _read(
        tmp_path,
        f"""max_batch_size: 8 {_TENSORS}
        dynamic_batching {{
          priority_levels: 3 default_priority_level: 2
          default_queue_policy {{ timeout_action: DELAY allow_timeout_override: true }}
          priority_queue_policy {{ key: 3 value {{ max_queue_size: 5 default_timeout_microseconds: 70 }} }}
          priority_queue_policy {{ key: 1 value {{ timeout_action: DELAY allow_timeout_override: true }} }}
        }}""",
        warnings,
    )
    assert settings.batching == Batching(
        max_batch_size=8,
        timeout_action="delay",
        priority_levels=3,
        default_priority=2,
        priority_policies={
            1: QueuePolicy(4096, 0, "delay", True),
            3: QueuePolicy(5, 70, "reject", False),
        },
    )
    assert warnings == []


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        ("", True),
        ("default_queue_policy { }", False),
        ("default_queue_policy { allow_timeout_override: false }", False),
        ("default_queue_policy { allow_timeout_override: true }", True),
    ],
)
def test_a_request_may_shorten_its_timeout_unless_a_policy_is_given_that_does_not_let_it(
    policy: str, allowed: bool, tmp_path: Path
) -> None:
    settings = _read(tmp_path, f"max_batch_size: 8 {_TENSORS} dynamic_batching {{ {policy} }}")
    assert settings.batching.allow_timeout_override is allowed


def test_ordering_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    settings = _read(tmp_path, f"max_batch_size: 8 {_TENSORS} dynamic_batching {{ preserve_ordering: true }}")
    assert settings.batching.preserve_ordering


def test_priorities_that_there_are_none_of_are_warned_of(tmp_path: Path) -> None:
    warnings: list[str] = []
    settings = _read(
        tmp_path,
        f"""max_batch_size: 8 {_TENSORS}
        dynamic_batching {{ default_priority_level: 2 priority_queue_policy {{ key: 1 value {{ }} }} }}""",
        warnings,
    )
    assert settings.batching == Batching(max_batch_size=8)
    assert "priority_levels is 0: default_priority_level, priority_queue_policy" in warnings[0]


@pytest.mark.parametrize(
    ("text", "instances"),
    [
        ("", (Instances(),)),
        ("instance_group { kind: KIND_CPU count: 2 }", (Instances("cpu", 2),)),
        ("instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }", (Instances("gpu:0"), Instances("gpu:2"))),
        ("instance_group [ { count: 3 }, { kind: KIND_CPU } ]", (Instances("auto", 3), Instances("cpu"))),
        ("instance_group { kind: KIND_AUTO gpus: 1 }", (Instances("gpu:1"),)),
        ("instance_group { kind: KIND_MODEL }", (Instances("auto"),)),
    ],
)
def test_instances(text: str, instances: tuple[Instances, ...], tmp_path: Path) -> None:
    warnings: list[str] = []
    assert _read(tmp_path, text, warnings).instances == instances
    assert warnings == []


def test_a_gpu_that_is_not_named_is_said_to_be_the_first(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert _read(tmp_path, "instance_group { kind: KIND_GPU }", warnings).instances == (Instances("gpu:0"),)
    assert "GPU 0 only" in warnings[0]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", "latest:1"),
        ("version_policy { latest { } }", "latest:1"),
        ("version_policy { latest { num_versions: 3 } }", "latest:3"),
        ("version_policy: { all { } }", "all"),
        ("version_policy: { specific: { versions: [1, 3] } }", (1, 3)),
    ],
)
def test_version_policy(text: str, policy: object, tmp_path: Path) -> None:
    assert _read(tmp_path, text).version_policy == policy


@pytest.mark.parametrize(
    ("text", "runtime"),
    [
        ("", ""),
        ('platform: "onnxruntime_onnx"', "onnx"),
        ('platform: "tensorflow_savedmodel"', "tensorflow"),
        ('platform: "pytorch_libtorch"', "torchscript"),
        ('backend: "python"', "python"),
        ('backend: "pytorch" platform: "pytorch_libtorch"', "torchscript"),
    ],
)
def test_platform_and_backend(text: str, runtime: str, tmp_path: Path) -> None:
    assert _read(tmp_path, text).runtime == runtime


def test_the_rest_of_what_is_supported(tmp_path: Path) -> None:
    settings = _read(
        tmp_path,
        """name: "m" default_model_filename: "net.onnx"
        input { name: "x" data_type: TYPE_BF16 dims: 4 optional: true format: FORMAT_NCHW }
        output { name: "y" data_type: TYPE_BOOL dims: 4 label_filename: "labels.txt" }
        parameters { key: "a" value { string_value: "1" } }
        parameters { key: "b" value { string_value: "x" } }""",
    )
    assert settings.file == "net.onnx"
    assert settings.labels == {"y": "labels.txt"}
    assert settings.parameters == {"a": "1", "b": "x"}
    assert settings.signatures["serving_default"].inputs == (TensorSpec("x", "BF16", (4,), optional=True),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "n"', ["'n'", "'m'"]),
        ('nam: "m"', ["line 1", "'nam'", "ModelConfig", "did you mean 'name'"]),
        ("\n\ndynamic_batching { prefered_batch_size: 1 }", ["line 3", "did you mean 'preferred_batch_size'"]),
        ("name: 3", ["line 1", "Expected string"]),
        ("input [", ["line 1"]),
        ("max_batch_size: 8 max_batch_size: 9", ["max_batch_size"]),
        ("max_batch_size: 99999999999", ["99999999999"]),
        ("max_batch_size: -1", ["max_batch_size", "-1"]),
        ('platform: "tensorrt_plan"', ["'tensorrt_plan'", "not supported yet"]),
        ('platform: "ensemble"', ["'ensemble'", "not supported yet"]),
        ('platform: "onnxruntime_onnx" backend: "pytorch"', ["do not agree"]),
        ('input { name: "x" data_type: TYPE_FP32 dims: 1 }', ["no output"]),
        ('output { name: "x" data_type: TYPE_FP32 dims: 1 }', ["no input"]),
        (f'{_TENSORS} input {{ name: "x" data_type: TYPE_FP32 dims: 1 }}', ["'x' is declared twice"]),
        (f"{_TENSORS} input {{ data_type: TYPE_FP32 dims: 1 }}", ["no name"]),
        (f'{_TENSORS} input {{ name: "z" dims: 1 }}', ["'z'", "data_type"]),
        (f'{_TENSORS} input {{ name: "z" data_type: TYPE_FP32 dims: [ 2, 0 ] }}', ["'z'", "[2, 0]"]),
        (f'{_TENSORS} input {{ name: "z" data_type: TYPE_FP32 dims: -2 }}', ["'z'", "-2"]),
        (f'{_TENSORS} input {{ name: "z" data_type: TYPE_FP32 }}', ["'z'", "dims"]),
        (f'{_TENSORS} input {{ name: "z" data_type: TYPE_FP33 dims: 1 }}', ["TYPE_FP33"]),
        (f"max_batch_size: 4 {_TENSORS} dynamic_batching {{ preferred_batch_size: 9 }}", ["4", "[9]"]),
        ("dynamic_batching { priority_levels: 2 }", ["default_priority_level", "from 1 to priority_levels 2", "got 0"]),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 3 }", ["default_priority_level", "got 3"]),
        ("dynamic_batching { priority_levels: 9999999 default_priority_level: 1 }", ["priority_levels", "9999999"]),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 5 } }",
            ["priority_queue_policy", "from 1 to priority_levels 2", "got 5"],
        ),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }",
            ["preserve_ordering", "priority_levels is 2"],
        ),
        (
            "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
            ["preserve_ordering", "delay"],
        ),
        (
            "dynamic_batching { default_queue_policy { default_timeout_microseconds: 18446744073709551615 } }",
            ["timeout_us", "18446744073709551615"],
        ),
        ("version_policy { latest { } all { } }", ["latest and all"]),
        ("version_policy { specific { versions: -1 } }", ["-1"]),
        ("instance_group { count: 0 }", ["count", "0"]),
        ("instance_group { kind: KIND_GPU gpus: -1 }", ["gpus", "-1"]),
        ("instance_group { kind: KIND_CPU gpus: 1 }", ["KIND_CPU", "[1]"]),
        ('default_model_filename: "../x"', ["'../x'"]),
        ("sequence_batching { }", ["not supported yet", "sequence_batching"]),
        ("ensemble_scheduling { }", ["not supported yet", "ensemble_scheduling"]),
        ('input { name: "x" reshape { shape: [ ] } }', ["not supported yet", "input.reshape"]),
        ('input { name: "x" allow_ragged_batch: true }', ["not supported yet", "allow_ragged_batch"]),
        ("batch_input { kind: BATCH_ITEM_SHAPE }", ["not supported yet", "batch_input"]),
    ],
)
def test_what_is_wrong_or_would_change_answers_is_an_error(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as raised:
        _read(tmp_path, text)
    assert raised.value.message.startswith(str(tmp_path / "config.pbtxt"))
    for word in words:
        assert word in raised.value.message


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("optimization { graph { level: 1 } }", "optimization"),
        ("response_cache { enable: true }", "response_cache.enable"),
        ('model_warmup { name: "w" }', "model_warmup"),
        ('metric_tags { key: "a" value: "b" }', "metric_tags"),
        ("instance_group { rate_limiter { priority: 1 } }", "instance_group.rate_limiter"),
    ],
)
def test_what_only_changes_speed_is_warned_of_by_name(text: str, field: str, tmp_path: Path) -> None:
    warnings: list[str] = []
    _read(tmp_path, text, warnings)
    assert len(warnings) == 1
    assert f"without effect: {field}" in warnings[0]


@pytest.mark.parametrize("text", ["model_transaction_policy { decoupled: false }", "response_cache { enable: false }"])
def test_what_is_switched_off_is_not_spoken_of(text: str, tmp_path: Path) -> None:
    warnings: list[str] = []
    _read(tmp_path, text, warnings)
    assert warnings == []


def test_a_batcher_without_a_batch_dimension_has_no_effect(tmp_path: Path) -> None:
    warnings: list[str] = []
    settings = _read(tmp_path, f"{_TENSORS} dynamic_batching {{ preferred_batch_size: 4 }}", warnings)
    assert settings.batching == Batching(max_batch_size=0)
    assert "max_batch_size is 0" in warnings[0]


def test_priorities_hold_without_a_batch_dimension(tmp_path: Path) -> None:
    warnings: list[str] = []
    text = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    settings = _read(tmp_path, f"{_TENSORS} {text}", warnings)
    assert settings.batching == Batching(max_batch_size=0, priority_levels=2, default_priority=2)
    assert warnings == []


_USED = {
    "": "name platform backend version_policy max_batch_size input output default_model_filename parameters "
    "dynamic_batching instance_group response_cache model_transaction_policy",
    "input": "name data_type format dims optional",
    "output": "name data_type dims label_filename",
    "instance_group": "name kind count gpus",
    "dynamic_batching": "preferred_batch_size max_queue_delay_microseconds preserve_ordering priority_levels "
    "default_priority_level default_queue_policy priority_queue_policy",
}


@pytest.mark.parametrize("place", _USED)
def test_every_field_of_the_schema_is_used_refused_or_warned_of(place: str) -> None:
    top = model_config().DESCRIPTOR
    message = top.fields_by_name[place].message_type if place else top
    assert message is not None
    prefix = f"{place}." if place else ""
    spoken_of = {*config_pbtxt._REFUSED, *config_pbtxt._WITHOUT_EFFECT}
    fields = {field.name for field in message.fields} - set(_USED[place].split())
    assert {field for field in fields if f"{prefix}{field}" not in spoken_of} == set()
