"""Trees as Triton and TF Serving keep them, with everything that people leave lying in them."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from ekiben.errors import LoadFailed
from ekiben.repository.tree import ModelTree

_TESTDATA = Path(os.environ.get("EKIBEN_TESTDATA", Path(__file__).parents[2].parent / "shared" / "testdata"))
_NEEDS_TESTDATA = pytest.mark.skipif(
    not _TESTDATA.is_dir() and "CI" not in os.environ, reason=f"no test data at {_TESTDATA}: set EKIBEN_TESTDATA"
)


def _add(root: Path, model: str, *versions: str, file: str = "model.onnx", config: str = "", pbtxt: str = "") -> Path:
    """A model whose files have the right names; nothing here looks into an ONNX file."""
    for version in versions:
        path = root / model / version / file
        path.parent.mkdir(parents=True)
        path.write_bytes(b"onnx")
    (root / model).mkdir(exist_ok=True)
    if config:
        (root / model / "model.yaml").write_text(config)
    if pbtxt:
        (root / model / "config.pbtxt").write_text(pbtxt)
    return root / model


@_NEEDS_TESTDATA
def test_a_triton_repository() -> None:
    sources = ModelTree(_TESTDATA / "golden_triton" / "models").scan()
    assert len(sources) == 19
    assert all(source.error == "" for source in sources.values())
    assert [version.version for version in sources["versions"].versions] == [1, 3]
    simple = sources["simple"].versions[0]
    assert simple.settings.runtime == "onnx"
    assert simple.settings.batching.max_batch_size == 8
    assert simple.path.endswith("simple/1")
    assert Path(sources["scores"].versions[0].settings.labels["OUTPUT0"]).is_file()


@_NEEDS_TESTDATA
def test_tf_serving_models_with_leading_zeros_and_a_bad_one() -> None:
    sources = ModelTree(_TESTDATA / "tfserving").scan()
    good = sources["saved_model_half_plus_two_cpu"].versions[0]
    assert (good.version, good.settings.runtime, Path(good.path).name) == (123, "tensorflow", "00000123")
    assert [each.version for each in sources["saved_model_half_plus_two_2_versions"].versions] == [124]
    assert sources["bad_half_plus_two"].versions == ()
    assert "version 123" in sources["bad_half_plus_two"].error


def test_a_model_yaml_is_read(tmp_path: Path) -> None:
    _add(tmp_path, "m", "1", "2", config="version_policy: all\n")
    assert [each.version for each in ModelTree(tmp_path).scan()["m"].versions] == [1, 2]


def test_a_configuration_that_is_wrong_hurts_its_model_only(tmp_path: Path) -> None:
    _add(tmp_path, "bad", "1", config="batchin: 3\n")
    _add(tmp_path, "worse", "1", pbtxt='name: "other"')
    _add(tmp_path, "good", "1")
    sources = ModelTree(tmp_path).scan()
    assert "did you mean 'batching'" in sources["bad"].error
    assert "'other'" in sources["worse"].error
    assert sources["good"].versions[0].settings.file == "model.onnx"


def test_the_file_is_said_where_only_the_runtime_was(tmp_path: Path) -> None:
    _add(tmp_path, "m", "1", pbtxt='platform: "onnxruntime_onnx"')
    _add(tmp_path, "other", "1", file="net.onnx", pbtxt='platform: "onnxruntime_onnx"')
    sources = ModelTree(tmp_path).scan()
    assert sources["m"].versions[0].settings.file == "model.onnx"
    assert sources["other"].versions[0].settings.file == ""


def test_two_configurations_are_one_too_many(tmp_path: Path) -> None:
    _add(tmp_path, "m", "1", config="runtime: onnx\n", pbtxt='name: "m"')
    assert "both model.yaml and config.pbtxt" in ModelTree(tmp_path).scan()["m"].error


def test_folders_that_are_no_models_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "empty").mkdir()
    _add(tmp_path, ".git", "1")
    assert dict(ModelTree(tmp_path).scan()) == {}


def test_a_configured_model_without_versions_says_so(tmp_path: Path) -> None:
    _add(tmp_path, "m", config="runtime: onnx\n")
    assert "holds no version" in ModelTree(tmp_path).scan()["m"].error


def test_what_is_no_version_is_ignored_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = _add(tmp_path, "m", "1", "01", "-3", "2.tmp", "²", "9" * 40)
    (folder / "4").mkdir()
    (folder / "5").write_text("a file")
    (folder / "labels.txt").write_text("cat\n")
    tree = ModelTree(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = tree.models()[0]
        first = len(caplog.records)
        tree.models()
    assert [version.number for version in model.versions] == [1]
    assert first == len(caplog.records) == 7
    assert "'4'" not in caplog.text
    assert f"'{folder / '4'}': it is empty" in caplog.text
    assert "version 1 is '01' already" in caplog.text


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    _add(tmp_path, "m", "1", file="net.onnx", config="file: other.onnx\n")
    assert "has no 'other.onnx'" in ModelTree(tmp_path).scan()["m"].error
    (tmp_path / "m" / "model.yaml").write_text("file: net.onnx\n")
    assert ModelTree(tmp_path).scan()["m"].versions[0].settings.runtime == "onnx"


def test_a_version_that_holds_no_model_is_an_error_only_when_it_is_wanted(tmp_path: Path) -> None:
    _add(tmp_path, "m", "2")
    _add(tmp_path, "m", "1", file="notes.txt")
    assert [each.version for each in ModelTree(tmp_path).scan()["m"].versions] == [2]
    _add(tmp_path, "m", "3", file="weights.pkl")
    assert "pickle" in ModelTree(tmp_path).scan()["m"].error


def test_a_label_file_that_is_missing_is_named(tmp_path: Path) -> None:
    _add(tmp_path, "m", "1", config="labels: {y: labels.txt}\n")
    assert "'labels.txt'" in ModelTree(tmp_path).scan()["m"].error


def test_links(tmp_path: Path) -> None:
    outside = _add(tmp_path / "outside", "real", "1")
    root = tmp_path / "root"
    _add(root, "m", "1")
    (root / "linked").symlink_to(outside)
    (root / "loop").symlink_to("loop")
    (root / "nowhere").symlink_to("no such place")
    (root / "itself").symlink_to(".")
    (root / "m" / "2").symlink_to("2")
    (root / "m" / "3").symlink_to("..")
    sources = ModelTree(root).scan()
    assert sources["linked"].versions[0].version == 1
    assert sorted(sources) == ["linked", "m"]
    assert "version 3" in sources["m"].error


def test_names_that_are_odd(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = "n" * 250
    for name in (long, "with space", "größe", "a:b", "..."):
        _add(tmp_path, name, "1")
    bad = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.makedirs(os.path.join(bad, b"1"))
    _add(tmp_path, "line\nfeed", "1")
    with caplog.at_level(logging.WARNING):
        sources = ModelTree(tmp_path).scan()
    assert sorted(sources) == sorted([long, "with space", "größe", "a:b"])
    assert caplog.text.count("not printable UTF-8") == 2


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    _add(tmp_path, "good", "1")
    locked = _add(tmp_path, "locked", "1")
    locked.chmod(0)
    if os.access(locked, os.R_OK):
        locked.chmod(0o755)
        pytest.skip("this user may read every folder")
    try:
        sources = ModelTree(tmp_path).scan()
    finally:
        locked.chmod(0o755)
    assert "cannot be read" in sources["locked"].error
    assert sources["good"].error == ""


def test_a_tree_that_went_away_is_not_an_empty_tree(tmp_path: Path) -> None:
    root = tmp_path / "root"
    _add(root, "m", "1")
    tree = ModelTree(root)
    assert list(tree.scan()) == ["m"]
    shutil.rmtree(root)
    with pytest.raises(LoadFailed, match="cannot be read"):
        tree.scan()


def test_a_model_in_place_of_a_repository_is_hinted_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = _add(tmp_path, "m", "1")
    with caplog.at_level(logging.WARNING):
        assert dict(ModelTree(folder).scan()) == {}
    assert "its parent is the repository" in caplog.text
