"""Loads that give something of their own: what they replace, and when the engine lets go of it."""

import asyncio
import threading
from typing import Any

import pytest

from ekiben.engine.engine import IndexEntry
from ekiben.errors import InvalidSettings, LoadFailed, Unsupported
from ekiben.types import LoadOverride, ModelSettings, ModelSource, VersionSource
from tests.engine.test_engine import House, run


class FakeOverrides:
    """The versions that a config names, each time in a folder of its own; `kept` are those not dropped yet."""

    def __init__(self) -> None:
        self.loads = 0
        self.kept: list[str] = []
        self.writing = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def take(self, model: str, override: LoadOverride) -> ModelSource:
        if override.config == "wrong":
            raise InvalidSettings("config: wrong")
        self.loads += 1
        versions = [self._version(model, text) for text in override.config.split()]
        self.kept += [version.path for version in versions]
        self.writing.set()
        assert self.may_end.wait(20)
        return ModelSource(model, tuple(versions))

    def _version(self, model: str, text: str) -> VersionSource:
        number = int(text.removesuffix("!"))
        path = "broken" if text.endswith("!") else f"{self.loads}/{model}/{number}"
        return VersionSource(model, number, path, ModelSettings())

    def drop(self, source: VersionSource) -> None:
        if source.path in self.kept:
            self.kept.remove(source.path)


def _house(**options: Any) -> tuple[House, FakeOverrides]:
    overrides = FakeOverrides()
    return House(explicit=True, overrides=overrides, **options), overrides


def test_what_a_load_gives_lasts_until_the_next() -> None:
    async def test() -> None:
        house, overrides = _house(load_models=("m",))
        house.put("m", 1, 3)
        await house.engine.start()
        await house.engine.load("m", LoadOverride("2 5"))
        assert house.engine.ready_versions("m") == ["2", "5"]
        assert overrides.kept == ["1/m/2", "1/m/5"]
        await house.engine.load("m", LoadOverride("5"))
        assert await house.ask("m") == ("5", 5)
        assert house.engine.version("m").source.path == "2/m/5"
        assert overrides.kept == ["2/m/5"]
        assert house.engine.index() == [IndexEntry("m", "2", "UNAVAILABLE", "unloaded"), IndexEntry("m", "5", "READY")]
        await house.engine.load("m")
        assert house.engine.ready_versions("m") == ["1", "3"]
        assert overrides.kept == []

    run(test)


def test_a_model_that_no_repository_has_comes_and_goes() -> None:
    async def test() -> None:
        house, overrides = _house()
        await house.engine.start()
        await house.engine.load("new", LoadOverride("4"))
        assert await house.ask("new") == ("4", 4)
        with pytest.raises(LoadFailed, match="no such model there"):
            await house.engine.load("new")
        assert await house.ask("new") == ("4", 4)
        await house.engine.unload("new", dependents=True)
        assert overrides.kept == []
        assert not house.engine.model_ready("new")

    run(test)


def test_what_cannot_be_loaded_leaves_what_serves() -> None:
    async def test() -> None:
        house, overrides = _house(load_models=("m",))
        house.put("m", 1, 3)
        await house.engine.start()
        for config in ("wrong", "1!", "7!", "1! 7!"):
            with pytest.raises(LoadFailed):
                await house.engine.load("m", LoadOverride(config))
            assert house.engine.ready_versions("m") == ["1", "3"], config
            assert overrides.kept == []
        await house.engine.load("m")
        assert house.engine.ready_versions("m") == ["1", "3"]
        with pytest.raises(LoadFailed, match="version 7 is UNAVAILABLE: the file is damaged"):
            await house.engine.load("m", LoadOverride("2 7!"))
        assert house.engine.ready_versions("m") == ["2"]
        assert overrides.kept == [f"{overrides.loads}/m/2"]

    run(test)


def test_without_overrides_a_load_that_gives_something_is_refused() -> None:
    async def test() -> None:
        house = House(explicit=True)
        house.put("m", 1)
        await house.engine.start()
        with pytest.raises(Unsupported, match=r"failed to load 'm': a load with a config .* allow_load_override"):
            await house.engine.load("m", LoadOverride("{}"))
        with pytest.raises(Unsupported, match=r"a load with files .* \(--allow-load-override\)"):
            await house.engine.load("m", LoadOverride("{}", {"1/model.onnx": b""}))
        await house.engine.load("m")

    run(test)


def test_a_caller_that_leaves_while_the_files_are_written_leaves_nothing() -> None:
    async def test() -> None:
        house, overrides = _house()
        await house.engine.start()
        overrides.may_end.clear()
        loading = asyncio.ensure_future(house.engine.load("m", LoadOverride("1")))
        await asyncio.to_thread(overrides.writing.wait, 20)
        loading.cancel()
        overrides.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert overrides.kept == []
        assert house.engine.index() == []
        overrides.writing.clear()
        overrides.may_end.clear()
        loading = asyncio.ensure_future(house.engine.load("m", LoadOverride("wrong")))
        await asyncio.sleep(0)
        loading.cancel()
        overrides.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await loading

    run(test)


def test_a_caller_that_leaves_while_its_model_loads_leaves_nothing() -> None:
    async def test() -> None:
        house, overrides = _house()
        await house.engine.start()
        loading = asyncio.ensure_future(house.engine.load("m", LoadOverride("1 2")))
        while ("m", 2) not in house.runners:  # noqa: ASYNC110  # the files are written in a thread
            await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert overrides.kept == []
        assert all(runner.stopped for runner in house.runners.values())

    run(test)


def test_a_caller_that_leaves_while_another_load_runs_leaves_nothing() -> None:
    async def test() -> None:
        house, overrides = _house()
        await house.engine.start()
        await house.engine.load("m", LoadOverride("1"))
        old = house.runners["m", 1]
        old.up = False
        waiting = asyncio.ensure_future(house.ask("m"))
        await asyncio.sleep(0)
        first = asyncio.ensure_future(house.engine.load("m", LoadOverride("1")))
        while len(overrides.kept) < 2 or house.runners["m", 1].source.path != "2/m/1":  # noqa: ASYNC110
            await asyncio.sleep(0)
        second = asyncio.ensure_future(house.engine.load("m", LoadOverride("1")))
        while len(overrides.kept) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert overrides.kept == ["1/m/1", "2/m/1"], "the first load waits for the version before it to drain"
        old.rise()
        assert await waiting == ("1", 1)
        await first
        assert overrides.kept == ["2/m/1"]

    run(test)


def test_many_loads_at_once_leave_what_serves() -> None:
    async def test() -> None:
        house, overrides = _house()
        await house.engine.start()
        await asyncio.gather(*(house.engine.load("m", LoadOverride("1 2")) for _ in range(5)))
        assert sorted(overrides.kept) == sorted(house.engine.version("m", each).source.path for each in ("1", "2"))
        await asyncio.gather(house.engine.unload("m"), house.engine.unload("m"))
        assert overrides.kept == []

    run(test)
