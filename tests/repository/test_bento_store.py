"""The Bento model store as BentoML itself writes it, and the model list of a built Bento."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bentoml
import msgspec
import pytest
from bentoml._internal.models import ModelStore
from bentoml.models import ModelContext

from ekiben.errors import InvalidSettings, LoadFailed, Unsupported
from ekiben.repository.bento_store import BentoModels, BentoStore
from ekiben.repository.version_numbers import VersionNumbers
from ekiben.types import ModelSettings

_IMPORTED = {"ekiben": "imported"}
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Saves a version into the store under `tmp_path` with BentoML, each a second younger than the one before."""
    monkeypatch.setenv("BENTOML_DO_NOT_TRACK", "True")
    (tmp_path / "models").mkdir()
    store = ModelStore(tmp_path / "models")
    started = datetime(2026, 1, 1, tzinfo=UTC)
    count = 0

    def save(
        tag: str,
        labels: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        module: str = "",
        file: str = "model.onnx",
        signatures: dict[str, Any] | None = None,
    ) -> Path:
        nonlocal count
        count += 1
        with bentoml.models.create(
            tag,
            module=module,
            labels=labels,
            metadata={"ekiben": settings} if settings is not None else {},
            signatures=signatures or {},
            context=ModelContext(framework_name="onnx", framework_versions={}),
            _model_store=store,
        ) as model:
            Path(model.path_of(file)).write_bytes(b"onnx")
            object.__setattr__(model.info, "creation_time", started + timedelta(seconds=count))
        return tmp_path / "models" / tag.replace(":", "/")

    return save


def _store(home: Path, *declared: str) -> BentoStore:
    return BentoStore(home, VersionNumbers(home / "ekiben" / "versions.json"), declared)


def _versions(store: BentoStore, name: str) -> list[tuple[int, str]]:
    source = store.scan()[name]
    assert source.error == ""
    return [(version.version, version.word) for version in source.versions]


def test_stored_versions_keep_their_configuration(save: Save, tmp_path: Path) -> None:
    save("m:a", _IMPORTED)
    for reader in (_store(tmp_path), BentoModels([], VersionNumbers(None))):
        with pytest.raises(Unsupported, match=r"'m' is in the Bento|'m' is in the models of the Bento"):
            reader.with_settings("m", ModelSettings())


def test_only_imported_and_declared_names_are_ours(save: Save, tmp_path: Path) -> None:
    save("imported:a", _IMPORTED)
    save("imported:b")
    save("declared:a")
    save("other:a", {"ekiben": "something else"})
    assert sorted(_store(tmp_path, "declared").scan()) == ["declared", "imported"]


def test_words_are_numbered_in_creation_order_and_the_latest_is_wanted(save: Save, tmp_path: Path) -> None:
    for word in ("zebra", "7", "ape"):
        save(f"m:{word}", _IMPORTED)
    assert _versions(_store(tmp_path), "m") == [(9, "ape")]
    save("m:bee")
    assert _versions(_store(tmp_path), "m") == [(10, "bee")]
    numbers = {version.word: version.number for version in _store(tmp_path).models()[0].versions}
    assert numbers == {"": 7, "zebra": 8, "ape": 9, "bee": 10}


def test_a_number_keeps_itself(save: Save, tmp_path: Path) -> None:
    save("m:3", _IMPORTED)
    assert _versions(_store(tmp_path), "m") == [(3, "")]
    assert not (tmp_path / "ekiben").exists()


def test_a_number_that_a_word_has_is_ignored_and_said(
    save: Save, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save("m:word", _IMPORTED)
    store = _store(tmp_path)
    assert _versions(store, "m") == [(1, "word")]
    save("m:1")
    with caplog.at_level(logging.WARNING):
        assert _versions(store, "m") == [(1, "word")]
    assert "version '1' of 'm'" in caplog.text


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        (["m"], [(3, "c")]),
        (["m:latest"], [(3, "c")]),
        (["m:a"], [(1, "a")]),
        (["m:2"], [(2, "b")]),
        (["m:a", "m:b"], [(1, "a"), (2, "b")]),
        (["m", "m:a"], [(1, "a"), (3, "c")]),
        (["m:latest", "m:c"], [(3, "c")]),
    ],
)
def test_a_declared_version_is_pinned(
    declared: list[str], wanted: list[tuple[int, str]], save: Save, tmp_path: Path
) -> None:
    for word in ("a", "b", "c"):
        save(f"m:{word}", _IMPORTED)
    assert _versions(_store(tmp_path, *declared), "m") == wanted


def test_what_is_declared_and_missing_says_so(save: Save, tmp_path: Path) -> None:
    save("m:a")
    sources = _store(tmp_path, "m:b", "none", "gone:latest").scan()
    assert "no version 'b' of 'm'; it has a" in sources["m"].error
    assert "ekiben import PATH --name none" in sources["none"].error
    assert sources["gone"].versions == ()


@pytest.mark.parametrize("tag", ["M", "a b", "a:", ":a", "../x", "a:B", "", "a" * 64, "-a"])
def test_what_is_no_tag_is_refused(tag: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="not a model tag"):
        _store(tmp_path, tag)


def test_settings_stand_in_the_metadata(save: Save, tmp_path: Path) -> None:
    save("m:1", _IMPORTED, {"batching": {"max_batch_size": 4}, "version_policy": "all"})
    save("m:2", _IMPORTED, {"batching": {"max_batch_size": 8}, "version_policy": "all"})
    source = _store(tmp_path).scan()["m"]
    assert [version.settings.batching.max_batch_size for version in source.versions] == [4, 8]
    assert {version.settings.runtime for version in source.versions} == {"onnx"}
    assert source.versions[0].settings.file == "model.onnx"


def test_settings_that_are_wrong_hurt_their_model_only(save: Save, tmp_path: Path) -> None:
    save("bad:a", _IMPORTED, {"batchin": 1})
    save("good:a", _IMPORTED)
    sources = _store(tmp_path).scan()
    assert "did you mean 'batching'" in sources["bad"].error
    assert "bad/a/model.yaml: metadata.ekiben" in sources["bad"].error
    assert sources["good"].error == ""


def test_what_bentoml_saved_is_read_without_its_loader(save: Save, tmp_path: Path) -> None:
    batched = {"run": {"batchable": True, "batch_dim": (0, 0)}}
    odd = {"run": {"batchable": True, "batch_dim": (1, 1)}}
    save("plain:a", module="bentoml.onnx", file="saved_model.onnx")
    save("batched:a", module="bentoml.onnx", file="saved_model.onnx", signatures=batched)
    save("odd:a", module="bentoml.onnx", file="saved_model.onnx", signatures=odd)
    save("torch:a", module="bentoml.torchscript", file="saved_model.pt")
    save("trees:a", module="bentoml.xgboost", file="saved_model.ubj")
    sources = _store(tmp_path, "plain", "batched", "odd", "torch", "trees").scan()
    settings = {name: source.versions[0].settings for name, source in sources.items() if source.versions}
    assert (settings["plain"].runtime, settings["plain"].file) == ("onnx", "saved_model.onnx")
    assert settings["plain"].batching.max_batch_size is None
    assert settings["batched"].batching.max_batch_size is None
    assert settings["odd"].batching.max_batch_size == 0
    assert settings["torch"].runtime == "torchscript"
    assert "bentoml.xgboost" in sources["trees"].error


def test_a_damaged_version_is_ignored_and_said(save: Save, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save("m:a", _IMPORTED)
    save("m:b", _IMPORTED)
    save("n:a", _IMPORTED)
    (path / "model.yaml").write_text("name: [")
    store = _store(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert _versions(store, "m") == [(1, "b")]
        assert _versions(store, "n") == [(1, "a")]
    assert "m/a/model.yaml' cannot be read" in caplog.text


def test_what_is_half_saved_is_ignored(save: Save, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save("m:a", _IMPORTED)
    (tmp_path / "models" / "m" / "b").mkdir()
    (tmp_path / "models" / "m" / "Odd Name").mkdir()
    (tmp_path / "models" / "Odd Name").mkdir()
    (tmp_path / "models" / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert _versions(_store(tmp_path), "m") == [(1, "a")]
    assert "has not finished saving" in caplog.text


def test_a_version_is_read_again_when_it_was_written_again(save: Save, tmp_path: Path) -> None:
    path = save("m:a", _IMPORTED, {"batching": {"max_batch_size": 4}})
    store = _store(tmp_path)
    assert store.scan()["m"].versions[0].settings.batching.max_batch_size == 4
    text = (path / "model.yaml").read_text()
    (path / "model.yaml").unlink()
    (path / "model.yaml").write_text(text.replace("max_batch_size: 4", "max_batch_size: 16"))
    assert store.scan()["m"].versions[0].settings.batching.max_batch_size == 16


def test_a_label_file_lies_in_the_stored_folder(save: Save, tmp_path: Path) -> None:
    path = save("m:a", _IMPORTED, {"labels": {"y": "labels.txt"}})
    (path / "labels.txt").write_text("cat\n")
    assert _store(tmp_path).scan()["m"].versions[0].settings.labels == {"y": str(path / "labels.txt")}


def test_no_store_yet_is_an_empty_one(tmp_path: Path) -> None:
    assert dict(_store(tmp_path / "none").scan()) == {}


def test_a_store_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(LoadFailed, match="cannot be read"):
        _store(tmp_path).scan()


def test_a_damaged_state_file_hurts_only_models_with_words(save: Save, tmp_path: Path) -> None:
    save("words:a", _IMPORTED)
    save("numbers:1", _IMPORTED)
    (tmp_path / "ekiben").mkdir()
    (tmp_path / "ekiben" / "versions.json").write_text("{")
    sources = _store(tmp_path).scan()
    assert "damaged" in sources["words"].error
    assert [version.version for version in sources["numbers"].versions] == [1]


def test_the_models_of_a_bento_are_all_wanted(save: Save, tmp_path: Path) -> None:
    first, second, other = save("m:a"), save("m:b"), save("n:5")
    state = VersionNumbers(tmp_path / "ekiben" / "versions.json")
    sources = BentoModels([("m:b", second), ("m:a", first), ("n:5", other)], state).scan()
    assert [(version.version, version.word) for version in sources["m"].versions] == [(1, "a"), (2, "b")]
    assert [(version.version, version.word) for version in sources["n"].versions] == [(5, "")]


def test_a_bento_needs_no_state_that_can_be_written(
    save: Save, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = [("m:a", save("m:a"))]
    state = VersionNumbers(Path("/proc/no-such-folder/versions.json"))
    with caplog.at_level(logging.WARNING):
        sources = BentoModels(models, state).scan()
    assert sources["m"].versions[0].version == 1
    assert "cannot be written" in caplog.text


def test_a_model_that_the_bento_lacks_says_so(tmp_path: Path) -> None:
    sources = BentoModels([("m:a", tmp_path / "m" / "a")], VersionNumbers(None)).scan()
    assert "m/a/model.yaml' cannot be read" in sources["m"].error


def test_sources_can_be_compared(save: Save, tmp_path: Path) -> None:
    save("m:a", _IMPORTED)
    store = _store(tmp_path)
    assert store.scan() == store.scan()
    assert msgspec.structs.asdict(store.models()[0])["policy"] == "latest:1"
