"""model.yaml: what is read, what is refused and how, and that what is written is read back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

from ekiben.errors import InvalidSettings
from ekiben.repository.config import full_yaml, read_settings, settings_from, to_yaml, with_model_folder
from ekiben.types import Batching, Instances, ModelSettings, QueuePolicy, Signature, TensorSpec

_FULL = ModelSettings(
    runtime="onnx",
    file="net.onnx",
    batching=Batching(
        max_batch_size=8,
        max_delay_us=100,
        preferred_sizes=(4, 8),
        target_latency_ms=5.0,
        timeout_action="delay",
        allow_timeout_override=False,
        priority_levels=3,
        default_priority=2,
        priority_policies={1: QueuePolicy(timeout_us=0), 3: QueuePolicy(max_queue_rows=7, timeout_action="reject")},
    ),
    instances=(Instances("gpu:1", 2, 3), Instances()),
    signatures={
        "serving_default": Signature(
            (TensorSpec("x:0", "FP32", (-1, 3)), TensorSpec("größe", "BYTES", (-1,), optional=True)),
            (TensorSpec("y", "BF16", ()),),
        )
    },
    labels={"y": "labels.txt"},
    preprocess={"kind": "image", "size": [224, 224], "scale": 0.5},
    version_policy=(1, 3),
    execution_timeout_ms=0.0,
    parameters={"flag": True, "count": 3, "share": 0.5, "text": "yes", "number_text": "12"},
)


def _write(folder: Path, text: str) -> Path:
    path = folder / "model.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("settings", [_FULL, ModelSettings(), ModelSettings(version_policy="latest:" + "1")])
def test_what_is_written_is_read_back(settings: ModelSettings, tmp_path: Path) -> None:
    assert read_settings(_write(tmp_path, to_yaml(settings))) == settings
    assert read_settings(_write(tmp_path, full_yaml(settings))) == settings


@trying(deadline=None)
@given(
    batch=st.none() | st.integers(0, 2**31 - 1),
    delay=st.integers(0, 10**9),
    name=st.text(min_size=1),
    shape=st.lists(st.integers(-1, 2**40), max_size=5),
    parameters=st.dictionaries(
        st.text(), st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
    ),
)
def test_any_settings_survive_the_round_trip(
    batch: int | None,
    delay: int,
    name: str,
    shape: list[int],
    parameters: dict[str, bool | int | float | str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tensor = TensorSpec(name, "FP32", tuple(shape))
    settings = ModelSettings(
        batching=Batching(max_batch_size=batch, max_delay_us=delay),
        signatures={name: Signature((tensor,), ())},
        parameters=parameters,
    )
    path = _write(tmp_path_factory.getbasetemp(), to_yaml(settings))
    assert read_settings(path) == settings


def test_defaults_are_left_out_unless_all_is_asked_for() -> None:
    assert to_yaml(ModelSettings(runtime="onnx")) == "{runtime: onnx}\n"
    assert "max_queue_rows: 4096" in full_yaml(ModelSettings())


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert read_settings(_write(tmp_path, "# nothing yet\n")) == ModelSettings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batchin: {}", ["'batchin'", "did you mean 'batching'"]),
        ("batching: {max_delay: 3}", ["'max_delay'", "in 'batching'", "did you mean 'max_delay_us'"]),
        ("signatures: {a: {inputs: [{nme: x}]}}", ["'nme'", "signatures.a.inputs[0]", "did you mean 'name'"]),
        ("instances: [{devise: cpu}]", ["'devise'", "instances[0]", "did you mean 'device'"]),
        ("zzz: 1", ["'zzz'", "known are runtime, file, batching"]),
        ("runtime: a\nruntime: b", ["line 2", "'runtime' is given twice"]),
        ("- a", ["must hold keys and values"]),
        ("runtime: [", ["line 1"]),
        ("runtime: 2024-99-99", ["not valid YAML"]),
        ("runtime: 3", ["runtime must be str, got 3"]),
        ("instances: {device: cpu}", ["instances must be array", "'device': 'cpu'"]),
        ("batching: {max_batch_size: '8'}", ["batching.max_batch_size must be int", "'8'"]),
        ("batching: {max_batch_size: -2}", ["max_batch_size", "-2"]),
        ("batching: {timeout_action: wait}", ["batching.timeout_action", "'reject' or 'delay'", "'wait'"]),
        ("batching: {timeout_us: -1}", ["batching.timeout_us", "-1"]),
        ("batching: {max_queue_rows: 0}", ["batching.max_queue_rows", "got 0"]),
        ("batching: {priority_levels: 257, default_priority: 1}", ["batching.priority_levels", "256", "257"]),
        ("batching: {priority_levels: 2}", ["batching.default_priority must be from 1 to priority_levels 2", "got 0"]),
        ("batching: {default_priority: 2}", ["batching.default_priority", "priority_levels, which is 0"]),
        ("batching: {priority_policies: {1: {}}}", ["priority_policies", "priority_levels, which is 0"]),
        (
            "batching: {priority_levels: 2, default_priority: 1, priority_policies: {0: {}}}",
            ["priority_policies", "from 1 to priority_levels 2", "got 0"],
        ),
        (
            "batching: {priority_levels: 2, default_priority: 1, priority_policies: {2: {timeout: 3}}}",
            ["'timeout'", "batching.priority_policies.2", "did you mean 'timeout_us'"],
        ),
        (
            "batching: {priority_levels: 2, default_priority: 1, priority_policies: {2: {timeout_us: -3}}}",
            ["batching.priority_policies", "timeout_us", "-3"],
        ),
        (
            "batching: {priority_levels: 2, default_priority: 1, priority_policies: {two: {}}}",
            ["the keys of batching.priority_policies must be int, got str"],
        ),
        (
            "batching: {priority_levels: 2, default_priority: 1, preserve_ordering: true}",
            ["batching.preserve_ordering", "priority_levels is 2"],
        ),
        ("batching: {timeout_action: delay, preserve_ordering: true}", ["batching.preserve_ordering", "'delay'"]),
        ("version_policy: latest", ["'latest'", "version_policy"]),
        ("version_policy: 3", ["version_policy", "3"]),
        ("file: ../../etc/passwd", ["'../../etc/passwd'"]),
        ("file: /etc/passwd", ["'/etc/passwd'"]),
        ("labels: {y: ../l.txt}", ["'../l.txt'"]),
        ("execution_timeout_ms: .nan", ["execution_timeout_ms", "nan"]),
        ("load_timeout_ms: -1", ["load_timeout_ms", "-1"]),
        ("signatures: {a: {inputs: [{name: x, datatype: FP31, shape: []}], outputs: []}}", ["'x'", "'FP31'"]),
        ("a: &a [*a]", ["'a'"]),
        ("? [1, 2]\n: 3", ["line 1"]),
        ("[" * 5000, ["model.yaml"]),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(text: str, words: list[str], tmp_path: Path) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(InvalidSettings) as raised:
        read_settings(path)
    assert raised.value.message.startswith(str(path))
    for word in words:
        assert word in raised.value.message


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_bytes(b"runtime: \xff")
    with pytest.raises(InvalidSettings, match="not UTF-8"):
        read_settings(tmp_path / "model.yaml")
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_settings(tmp_path / "none.yaml")


def test_plain_data_is_named_by_where_it_came_from() -> None:
    assert settings_from({"runtime": "onnx"}, "metadata").runtime == "onnx"
    with pytest.raises(InvalidSettings, match="metadata: unknown key 'x'"):
        settings_from({"x": 1}, "metadata")


def test_label_files_are_found_in_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\n")
    settings = with_model_folder(ModelSettings(labels={"y": "labels.txt"}), tmp_path)
    assert settings.labels == {"y": str(tmp_path / "labels.txt")}
    with pytest.raises(InvalidSettings, match=r"'none.txt' of output 'y'"):
        with_model_folder(ModelSettings(labels={"y": "none.txt"}), tmp_path)
