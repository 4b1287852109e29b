"""Several repositories as one."""

from pathlib import Path

import pytest

from ekiben.errors import InvalidSettings, LoadFailed
from ekiben.repository.layout import Reader, open_repositories
from ekiben.types import Batching, ModelSettings


def _model(root: Path, name: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.onnx").write_bytes(b"onnx")


def _open(tmp_path: Path, *repositories: str) -> Reader:
    return open_repositories(repositories, home=tmp_path / "home", state_directory=tmp_path / "state")


def test_the_models_of_all_are_there(tmp_path: Path) -> None:
    _model(tmp_path / "a", "one")
    _model(tmp_path / "b", "two")
    reader = _open(tmp_path, str(tmp_path / "a"), "store", str(tmp_path / "b"))
    assert list(reader.scan()) == ["one", "two"]
    for place in (tmp_path / "a", tmp_path / "b", tmp_path / "home" / "models"):
        assert str(place) in reader.describe()


def test_a_name_in_two_is_wanted_from_neither(tmp_path: Path) -> None:
    for root in ("a", "b", "c"):
        _model(tmp_path / root, "same")
    _model(tmp_path / "a", "other")
    sources = _open(tmp_path, *(str(tmp_path / root) for root in ("a", "b", "c"))).scan()
    assert sources["same"].versions == ()
    assert str(tmp_path / "a") in sources["same"].error
    assert str(tmp_path / "c") in sources["same"].error
    assert sources["other"].error == ""


def test_a_model_with_other_settings(tmp_path: Path) -> None:
    for root, name in (("a", "one"), ("b", "two"), ("a", "same"), ("b", "same")):
        _model(tmp_path / root, name)
    reader = _open(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    settings = ModelSettings(batching=Batching(max_batch_size=3))
    two = reader.with_settings("two", settings)
    assert two is not None
    assert two.versions[0].settings == ModelSettings("onnx", "model.onnx", Batching(max_batch_size=3))
    assert two.versions[0].path == str(tmp_path / "b" / "two" / "1")
    assert reader.with_settings("three", settings) is None
    same = reader.with_settings("same", settings)
    assert same is not None
    assert "two repositories have it" in same.error
    lost = reader.with_settings("two", ModelSettings(labels={"o": "names.txt"}))
    assert lost is not None
    assert "label file 'names.txt'" in lost.error


def test_none_is_no_repository(tmp_path: Path) -> None:
    assert dict(_open(tmp_path).scan()) == {}
    assert _open(tmp_path).describe() == "no repository"


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        with pytest.raises(InvalidSettings, match=f"{name}' is not a folder"):
            _open(tmp_path, str(tmp_path / name))


def test_one_place_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(InvalidSettings, match="named twice"):
        _open(tmp_path, str(tmp_path / "a"), str(tmp_path / "link"))
    with pytest.raises(InvalidSettings, match="'store' is named twice"):
        _open(tmp_path, "store", "store")


def test_one_that_went_away_fails_the_whole_scan(tmp_path: Path) -> None:
    _model(tmp_path / "a", "one")
    (tmp_path / "b").mkdir()
    reader = _open(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    reader.scan()
    (tmp_path / "b").rmdir()
    with pytest.raises(LoadFailed, match="cannot be read"):
        reader.scan()


def test_the_models_of_a_bento_take_the_place_of_the_store(tmp_path: Path) -> None:
    reader = open_repositories(
        ["store"], home=tmp_path / "home", state_directory=tmp_path / "state", bento=[("m:a", tmp_path / "none")]
    )
    assert list(reader.scan()) == ["m"]
    assert reader.describe() == "the models of the Bento"
