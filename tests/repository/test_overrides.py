"""What loads give: a config in place of the model's own, files in place of its whole folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ekiben.errors import InvalidSettings, LoadFailed, Unsupported
from ekiben.repository.layout import open_repositories
from ekiben.repository.overrides import Overrides
from ekiben.types import LoadOverride

_FILES = {"1/model.onnx": b"onnx"}
_CONFIG = '{"backend": "onnxruntime", "max_batch_size": 3}'


@pytest.fixture
def overrides(tmp_path: Path) -> Iterator[Overrides]:
    """Over a tree with the model `m`, and an empty store."""
    for version in ("1", "2"):
        (tmp_path / "tree" / "m" / version).mkdir(parents=True)
        (tmp_path / "tree" / "m" / version / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "tree" / "m" / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 8')
    reader = open_repositories(
        [str(tmp_path / "tree"), "store"], home=tmp_path / "home", state_directory=tmp_path, declared=["stored"]
    )
    made = Overrides(tmp_path / "state" / "overrides", reader)
    yield made
    made.close()


def _left(tmp_path: Path) -> list[str]:
    """Files of loads that are there, from the model's name on."""
    root = tmp_path / "state" / "overrides"
    files = [path.relative_to(root).parts for path in root.rglob("*") if path.is_file() and path.name != "lock"]
    return sorted("/".join(parts[2:]) for parts in files)


def test_a_config_stands_in_for_the_models_own(overrides: Overrides, tmp_path: Path) -> None:
    everything = '{"name": "m", "max_batch_size": 3, "version_policy": {"all": {}}}'
    source = overrides.take("m", LoadOverride(everything))
    assert [version.version for version in source.versions] == [1, 2]
    assert [version.path for version in source.versions] == [str(tmp_path / "tree" / "m" / each) for each in ("1", "2")]
    assert {version.settings.batching.max_batch_size for version in source.versions} == {3}
    assert {version.settings.file for version in source.versions} == {"model.onnx"}
    for version in source.versions:
        overrides.drop(version)
    overrides.close()
    assert (tmp_path / "tree" / "m" / "1" / "model.onnx").is_file()
    assert not (tmp_path / "state").exists(), "nothing is made where nothing is written"


def test_a_config_that_is_wrong_in_the_repository_can_be_stood_in_for(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "tree" / "m" / "config.pbtxt").write_text("nonsense")
    assert overrides.take("m", LoadOverride("{}")).versions[0].version == 2


def test_only_the_files_that_are_given_are_seen(overrides: Overrides, tmp_path: Path) -> None:
    config = """{"max_batch_size": 3, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1], "label_filename": "names.txt"}]}"""
    files = {"3/model.onnx": b"three", "3/data/weights.bin": b"w", "names.txt": b"cat\n", "config.pbtxt": b"nonsense"}
    (version,) = overrides.take("m", LoadOverride(config, files)).versions
    assert (version.model, version.version, version.settings.runtime) == ("m", 3, "onnx")
    assert Path(version.path, "model.onnx").read_bytes() == b"three"
    assert Path(version.path, "data", "weights.bin").read_bytes() == b"w"
    assert Path(version.settings.labels["y"]).read_bytes() == b"cat\n"
    assert Path(version.path).is_relative_to(tmp_path / "state" / "overrides")
    assert os.stat(tmp_path / "state" / "overrides" / Path(version.path).parts[-4]).st_mode & 0o77 == 0


def test_files_make_a_model_that_no_repository_has(overrides: Overrides) -> None:
    assert overrides.take("new", LoadOverride(_CONFIG, _FILES)).name == "new"
    assert overrides.take("stored", LoadOverride(_CONFIG, _FILES)).name == "stored"


def test_files_go_with_the_last_version_that_uses_them(overrides: Overrides, tmp_path: Path) -> None:
    config = '{"version_policy": {"specific": {"versions": [1, 2]}}}'
    files = {f"{version}/model.onnx": b"onnx" for version in (1, 2, 3)}
    first, second = overrides.take("m", LoadOverride(config, files)).versions
    (other,) = overrides.take("m", LoadOverride("{}", {"9/model.onnx": b"onnx"})).versions
    overrides.drop(first)
    overrides.drop(first)
    assert _left(tmp_path) == ["m/1/model.onnx", "m/2/model.onnx", "m/3/model.onnx", "m/9/model.onnx"]
    overrides.drop(second)
    assert _left(tmp_path) == ["m/9/model.onnx"]
    overrides.drop(second)
    overrides.drop(other)
    assert _left(tmp_path) == []


def test_closing_removes_what_is_left(overrides: Overrides, tmp_path: Path) -> None:
    (version,) = overrides.take("m", LoadOverride("{}", _FILES)).versions
    overrides.close()
    assert [path.name for path in (tmp_path / "state" / "overrides").iterdir()] == ["lock"]
    overrides.drop(version)
    overrides.close()
    assert overrides.take("m", LoadOverride("{}", _FILES)).versions


@pytest.mark.parametrize(
    "path",
    [
        "../m/1/model.onnx",
        "1/../../model.onnx",
        "/etc/passwd",
        "",
        ".",
        "1/",
        "1//model.onnx",
        "1/./model.onnx",
        "1/mod\0el",
        "1/mod\nel",
        "1/\ud800",
        "1/" + "x" * 256,
        "1/" + "x/" * 600 + "x",
        "1/model.onnx/x",
    ],
)
def test_a_file_lies_in_the_models_folder(path: str, overrides: Overrides, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="failed to load 'm', failed to poll from model repository: 'file:"):
        overrides.take("m", LoadOverride("{}", {**_FILES, path: b"x"}))
    assert _left(tmp_path) == []


@pytest.mark.parametrize(
    ("model", "config", "files", "words"),
    [
        ("m", "{}", {"model.onnx": b""}, ["'file:model.onnx' is not in a version's folder"]),
        ("m", "{}", {"1": b""}, ["'file:1' is not in a version's folder"]),
        ("m", "{}", {"one/model.onnx": b""}, ["not in a version's folder"]),
        ("m", "{}", {f"1/{number}": b"" for number in range(1025)}, ["1025 files", "1024"]),
        ("m", "{}", {"1/readme.txt": b""}, ["version 1: 'm/1' holds no model that can be served"]),
        ("m", '{"default_model_filename": "a.onnx"}', _FILES, ["'m/1' has no 'a.onnx'"]),
        ("m", '{"version_policy": {"specific": {"versions": [2]}}}', _FILES, ["no version is wanted", "has 1"]),
        ("m", '{"version_policy": {"specific": {"versions": [9]}}}', {}, ["no version is wanted", "has 1, 2"]),
        ("m", '{"name": "other"}', _FILES, ["'other'", "'m'"]),
        ("m", "nonsense", {}, ["must be a JSON object", "'nonsense'"]),
        ("", "{}", _FILES, ["failed to load ''", "name must be printable"]),
        ("a/b", "{}", _FILES, ["failed to load 'a/b'", "without '/'"]),
        ("..", "{}", {}, ["failed to load '..'", "not start with '.'"]),
        ("a\0b", "{}", _FILES, ["printable"]),
        ("n" * 256, "{}", _FILES, ["name must be"]),
    ],
)
def test_what_cannot_be_loaded_says_why_and_leaves_nothing(
    model: str, config: str, files: dict[str, bytes], words: list[str], overrides: Overrides, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        overrides.take(model, LoadOverride(config, files))
    for word in words:
        assert word in caught.value.message
    assert str(tmp_path / "state") not in caught.value.message
    assert _left(tmp_path) == []


def test_a_config_alone_needs_a_model_whose_config_it_replaces(overrides: Overrides) -> None:
    with pytest.raises(LoadFailed, match="failed to load 'zzz', failed to poll from model repository: no such model"):
        overrides.take("zzz", LoadOverride("{}"))
    with pytest.raises(Unsupported, match="failed to load 'stored': 'stored' is in the Bento model store"):
        overrides.take("stored", LoadOverride("{}"))


def test_a_state_directory_that_cannot_be_written_is_said(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(LoadFailed, match=r"cannot be written to .*overrides.*: Not a directory"):
        overrides.take("m", LoadOverride("{}", _FILES))


_OTHER = """
import sys
from pathlib import Path
from ekiben.repository.layout import open_repositories
from ekiben.repository.overrides import Overrides
from ekiben.types import LoadOverride
root = Path(sys.argv[1])
overrides = Overrides(root / "state" / "overrides", open_repositories([], home=root, state_directory=root))
overrides.take("theirs", LoadOverride("{}", {"1/model.onnx": b"onnx"}))
print("taken", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(
    overrides: Overrides, tmp_path: Path
) -> None:
    overrides.remove_leftovers()
    overrides.take("m", LoadOverride("{}", _FILES))
    with subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        overrides.remove_leftovers()
        assert _left(tmp_path) == ["m/1/model.onnx", "theirs/1/model.onnx"]
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert _left(tmp_path) == ["m/1/model.onnx", "theirs/1/model.onnx"]
    overrides.remove_leftovers()
    assert _left(tmp_path) == ["m/1/model.onnx"]


def test_leftovers_that_cannot_be_removed_are_said_and_no_accident(
    overrides: Overrides, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state" / "overrides" / "lock").mkdir(parents=True)
    overrides.remove_leftovers()
    assert "overrides' cannot be cleared" in caplog.text
