"""The engine over fake runners: routing, states, readiness, explicit control, checks of requests."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekiben.engine.engine import Engine, IndexEntry
from ekiben.errors import Decoupled, InvalidRequest, LoadFailed, NotFound, NotReady, RunnerDied, Unavailable
from ekiben.runner.base import Batch, Done, Executed, Loaded, Slot
from ekiben.testing import FakeExecutor, ManualClock
from ekiben.types import (
    Batching,
    Catalogue,
    Instances,
    ModelSettings,
    ModelSource,
    Request,
    Signature,
    TensorSpec,
    VersionSource,
)

ADD = Signature(
    inputs=(TensorSpec("a", "FP32", (-1, 4)), TensorSpec("b", "FP32", (-1, 4), optional=True)),
    outputs=(TensorSpec("sum", "FP32", (-1, 4)),),
)


class FakeRunner(FakeExecutor):
    """A runner that answers a + version at once."""

    def __init__(
        self, source: VersionSource, changed: Callable[[], None], signature: Signature, devices: list[str]
    ) -> None:
        super().__init__()
        self.devices = devices
        self.source = source
        self.changed = changed
        self.signature = signature
        self.ready = False
        self.restarts = 0
        self.deaths_in_row = 0
        self.stopped = False

    async def start(self) -> Loaded:
        await asyncio.sleep(0)
        if self.source.path == "broken":
            raise LoadFailed("the file is damaged")
        self.ready = True
        signatures = {"other": self.signature, "serving_default": self.signature}
        return Loaded(signatures, self.devices, 0.1, 1, decoupled=self.source.path == "decoupled")

    async def stop(self) -> None:
        self.stopped = True
        self.ready = False
        self.die("it was stopped")

    def memory_bytes(self) -> int:
        return 1

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        super().submit(slot, batch, done)
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        batch = self.running[0][1]
        outputs = dict.fromkeys(batch.outputs, np.concatenate([*batch.inputs[0].parts]) + self.source.version)
        if self.source.path == "decoupled":
            self.respond(outputs)
        else:
            self.complete(Executed(outputs, 1, 1, 1))

    def advance(self, slot: Slot, stop: bool) -> None:
        """A stream has one response only; a model named `endless` waits for ever after it."""
        if self.source.model != "endless":
            asyncio.get_running_loop().call_soon(self.complete, Executed({}, 1, 1, 1))

    def fall(self, deaths: int) -> None:
        self.ready, self.up, self.deaths_in_row = False, False, deaths
        self.changed()

    def rise(self) -> None:
        self.ready = self.up = True
        self.changed()


class House:
    """An engine whose repository is a dict that the test may change."""

    def __init__(self, **options: Any) -> None:
        self.repository: dict[str, ModelSource] = {}
        self.runners: dict[tuple[str, int], FakeRunner] = {}
        self.signature = ADD
        self.devices = ["cpu"]
        self.engine = Engine(self.scan, self.runner, ManualClock(), **options)

    def scan(self) -> Catalogue:
        return dict(self.repository)

    def runner(self, source: VersionSource, changed: Callable[[], None]) -> FakeRunner:
        made = FakeRunner(source, changed, self.signature, self.devices)
        self.runners[source.model, source.version] = made
        return made

    def put(self, model: str, *versions: int, path: str = "", **settings: Any) -> None:
        self.repository[model] = ModelSource(
            model, tuple(VersionSource(model, version, path, ModelSettings(**settings)) for version in versions)
        )

    async def ask(self, model: str, version: str = "", value: float = 0, **request: Any) -> Any:
        inputs = request.pop("inputs", {"a": np.full((1, 4), value, np.float32)})
        response = await self.engine.infer(Request(model, inputs, version=version, **request))
        return response.version, float(response.outputs["sum"][0, 0])


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]  # a coroutine function, seen as an Awaitable


def test_a_request_goes_to_the_version_it_names_or_to_the_highest() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 2, 10)
        house.repository["w"] = ModelSource("w", (VersionSource("w", 1, "", ModelSettings(), word="kbnv"),))
        await house.engine.start()
        assert await house.ask("m") == ("10", 10)
        assert await house.ask("m", "2") == ("2", 2)
        assert await house.ask("w", "kbnv") == ("1", 1)
        assert await house.ask("m", signature="other") == ("10", 10)
        assert house.engine.ready_versions("m") == ["2", "10"]
        assert house.engine.models() == ["m", "w"]
        for arguments, words in [
            (("zzz", ""), "Request for unknown model: 'zzz' is not found"),
            (("m", "3"), "Request for unknown model: 'm' version 3 is not found"),
        ]:
            with pytest.raises(NotFound, match=words):
                await house.ask(arguments[0], arguments[1])
        with pytest.raises(NotFound, match="no signature 'zzz'; it has"):
            await house.ask("m", signature="zzz")
        assert house.engine.unrouted == {"not_found": 2}

    run(test)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, r"expected 2 inputs but got 0 .* 'm'. Got input\(s\) \[\], but missing required input\(s\) \['a'\]"),
        ({"a": np.zeros((1, 4)), "z": np.zeros((1, 4))}, "unexpected inference input 'z' for model 'm'"),
        ({"a": np.zeros((1, 4))}, "inference input 'a' data-type is 'FP64', but model 'm' expects 'FP32'"),
        ({"a": np.zeros((1, 5), np.float32)}, r"unexpected shape for input 'a' .* Expected \[-1,4\], got \[1,5\]"),
        ({"a": np.zeros((4,), np.float32)}, r"unexpected shape for input 'a' .* got \[4\]"),
        ({"a": np.zeros((1, 4, 1), np.float32)}, r"unexpected shape for input 'a' .* got \[1,4,1\]"),
        ({"a": np.zeros((9, 4), np.float32)}, "inference request batch-size must be <= 8 for 'm'"),
        (
            {"a": np.zeros((1, 4), np.float32), "b": np.zeros((2, 4), np.float32)},
            "input 'b' batch size does not match other inputs for 'm'",
        ),
    ],
)
def test_a_request_is_checked_against_the_signature(inputs: dict[str, Any], words: str) -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1, batching=Batching(max_batch_size=8))
        await house.engine.start()
        with pytest.raises(InvalidRequest, match=words):
            await house.ask("m", inputs=inputs)
        with pytest.raises(InvalidRequest, match="unexpected inference output 'zzz' for model 'm'"):
            await house.ask("m", outputs=("zzz",))
        assert await house.ask("m") == ("1", 1)
        assert house.engine.statistics("m")[0].fail.count == 2

    run(test)


def test_requests_with_and_without_an_optional_input_do_not_ride_together() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1)
        await house.engine.start()
        a = np.zeros((1, 4), np.float32)
        await asyncio.gather(*(house.ask("m", inputs=each) for each in ({"a": a}, {"a": a, "b": a}, {"a": a})))
        assert [len(batch.inputs[0].parts) for batch in house.runners["m", 1].batches] == [2, 1]

    run(test)


@pytest.mark.parametrize(
    ("shape", "declared", "resolved"),
    [
        ((-1, 4), None, 64),
        ((-1, 4), 16, 16),
        ((-1, 4), 0, 0),
        ((2, 4), None, 0),
        ((), None, 0),
        ((2, 4), 8, "max_batch_size is 8, but input 'a' has shape"),
    ],
)
def test_the_batch_size_is_resolved_from_the_signature(
    shape: tuple[int, ...], declared: int | None, resolved: int | str
) -> None:
    async def test() -> None:
        house = House()
        house.signature = Signature((TensorSpec("a", "FP32", shape),), (TensorSpec("sum", "FP32", shape),))
        house.put("m", 1, batching=Batching(max_batch_size=declared))
        await house.engine.start()
        if isinstance(resolved, str):
            assert resolved in house.engine.index()[0].reason
            assert not house.engine.ready()
            assert house.runners["m", 1].stopped
        else:
            assert house.engine.version("m").settings.batching.max_batch_size == resolved

    run(test)


def test_a_model_that_fails_says_why_and_hurts_no_other() -> None:
    async def test() -> None:
        house = House()
        house.put("good", 1)
        house.put("bad", 1, path="broken")
        house.repository["unreadable"] = ModelSource("unreadable", error="config.pbtxt: no such key")
        assert not house.engine.ready()
        await house.engine.start()
        assert house.engine.index() == [
            IndexEntry("bad", "1", "UNAVAILABLE", "the file is damaged"),
            IndexEntry("good", "1", "READY"),
            IndexEntry("unreadable", "", "UNAVAILABLE", "config.pbtxt: no such key"),
        ]
        assert house.engine.index(only_ready=True) == [IndexEntry("good", "1", "READY")]
        assert house.engine.ready()
        assert house.engine.model_ready("good")
        assert not house.engine.model_ready("bad")
        with pytest.raises(NotReady, match="'bad' has no available versions: version 1 is UNAVAILABLE: the file is"):
            await house.ask("bad")

    run(test)


def test_readiness() -> None:
    async def test() -> None:
        empty, strict = House(), House(strict_readiness=True)
        strict.put("good", 1)
        strict.put("bad", 1, path="broken")
        nothing_named, named = House(explicit=True), House(explicit=True, load_models=("m",))
        for house in (empty, strict, nothing_named, named):
            assert not house.engine.ready()
            await house.engine.start()
        assert not empty.engine.ready()
        assert not strict.engine.ready()
        assert nothing_named.engine.ready()
        assert not named.engine.ready()
        assert named.engine.index() == [IndexEntry("m", "", "UNAVAILABLE", "the repository has no such model")]

    run(test)


def test_explicit_control() -> None:
    async def test() -> None:
        house = House(explicit=True, load_models=("a",))
        house.put("a", 1)
        house.put("b", 1)
        await house.engine.start()
        assert house.engine.index() == [IndexEntry("a", "1", "READY"), IndexEntry("b")]
        with pytest.raises(NotFound, match="unknown model: 'b' is not found"):
            await house.ask("b")
        await house.engine.load("b")
        await house.engine.load("b")
        assert await house.ask("b") == ("1", 1)
        house.put("b", 2)
        await house.engine.load("b")
        assert await house.ask("b") == ("2", 2)
        assert house.engine.ready_versions("b") == ["2"]
        assert house.runners["b", 1].stopped
        await house.engine.unload("b")
        await house.engine.unload("never heard of")
        with pytest.raises(NotFound, match="unknown model: 'b' is not found"):
            await house.ask("b")
        assert house.runners["b", 2].stopped
        with pytest.raises(LoadFailed, match="failed to load 'zzz', failed to poll from model repository"):
            await house.engine.load("zzz")
        house.put("b", 3, path="broken")
        with pytest.raises(LoadFailed, match="failed to load 'b', no version is available: version 3 is UNAVAILABLE"):
            await house.engine.load("b")

    run(test)


def test_a_load_that_fails_leaves_what_serves_and_says_so() -> None:
    async def test() -> None:
        house = House(explicit=True, load_models=("m",))
        house.put("m", 1)
        await house.engine.start()
        house.put("m", 1, path="broken")
        with pytest.raises(LoadFailed, match="failed to load 'm', version 1 is UNAVAILABLE: the file is damaged"):
            await house.engine.load("m")
        assert await house.ask("m") == ("1", 1)
        assert house.engine.index() == [IndexEntry("m", "1", "READY", "the file is damaged")]
        house.put("m", 2, path="broken")
        with pytest.raises(LoadFailed, match="version 2 is UNAVAILABLE"):
            await house.engine.load("m")
        assert await house.ask("m") == ("1", 1), "the old version stays until a new one answers"
        assert house.engine.ready()
        house.put("m", 2)
        await house.engine.load("m")
        assert await house.ask("m") == ("2", 2)
        assert house.engine.ready_versions("m") == ["2"]
        assert house.engine.ready()

    run(test)


def test_strict_readiness_counts_what_is_wanted_and_not_what_was_unloaded() -> None:
    async def test() -> None:
        house = House(explicit=True, load_models=("a", "b"), strict_readiness=True)
        house.put("a", 1)
        house.put("b", 1)
        await house.engine.start()
        house.put("a", 2)
        await house.engine.load("a")
        await house.engine.unload("b")
        assert house.engine.ready()
        house.runners["a", 2].fall(deaths=1)
        assert not house.engine.ready()

    run(test)


def test_an_unexpected_error_while_loading_fails_that_version_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        house = House()
        house.put("good", 1)
        house.put("odd", 1)
        make = house.engine._runner_factory

        def factory(source: VersionSource, changed: Callable[[], None]) -> Any:
            runner = make(source, changed)
            if source.model == "odd":
                runner.start = lambda: (_ for _ in ()).throw(OverflowError("a secret"))  # type: ignore[method-assign]
            return runner

        house.engine._runner_factory = factory
        await house.engine.start()
        assert house.engine.ready()
        assert house.engine.index()[1] == IndexEntry("odd", "1", "UNAVAILABLE", "unexpected error: see the log")
        assert house.runners["odd", 1].stopped
        assert "a secret" in caplog.text

    run(test)


def test_a_load_or_unload_that_is_cancelled_leaves_no_runner() -> None:
    async def test() -> None:
        house = House(explicit=True)
        house.put("m", 1)
        await house.engine.start()
        loading = asyncio.ensure_future(house.engine.load("m"))
        while ("m", 1) not in house.runners:  # noqa: ASYNC110  # the scan runs in a thread
            await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert house.runners["m", 1].stopped
        assert house.engine.index() == [IndexEntry("m", "1", "UNAVAILABLE", "its loading was cancelled")]
        await house.engine.load("m")
        house.runners["m", 1].up = False
        waiting = asyncio.ensure_future(house.ask("m"))
        await asyncio.sleep(0)
        unloading = asyncio.ensure_future(house.engine.unload("m"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        unloading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unloading
        assert house.runners["m", 1].stopped
        waiting.cancel()

    run(test)


def test_a_star_loads_every_model() -> None:
    async def test() -> None:
        house = House(explicit=True, load_models=("*",))
        house.put("a", 1)
        house.put("b", 1)
        await house.engine.start()
        assert house.engine.models() == ["a", "b"]
        assert house.engine.ready()

    run(test)


def test_an_absurd_version_is_an_answer_and_not_an_accident() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1)
        await house.engine.start()
        with pytest.raises(NotFound, match="is not found"):
            await house.ask("m", "9" * 5000)

    run(test)


def test_load_and_unload_are_refused_outside_explicit_mode() -> None:
    async def test() -> None:
        house = House()
        for refused in (house.engine.load("m"), house.engine.unload("m")):
            with pytest.raises(Unavailable, match="explicit model load / unload is not allowed"):
                await refused

    run(test)


def test_a_runner_that_keeps_dying_makes_requests_fail_and_not_hang() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1)
        await house.engine.start()
        runner = house.runners["m", 1]
        runner.fall(deaths=1)
        assert not house.engine.model_ready("m")
        assert house.engine.index() == [IndexEntry("m", "1", "UNAVAILABLE", "its runner is restarting")]
        waiting = asyncio.ensure_future(house.ask("m"))
        await asyncio.sleep(0)
        runner.rise()
        assert await waiting == ("1", 1)
        runner.fall(deaths=3)
        refused = []
        for _ in range(3):
            with pytest.raises(NotReady, match="died 3 times in a row") as caught:
                await house.ask("m")
            refused.append(caught.value)
        assert len(set(map(id, refused))) == 3, "one error for each, or its traceback would grow for ever"
        assert house.engine.statistics("m")[0].fail.count == 3
        runner.rise()
        assert await house.ask("m") == ("1", 1)

    run(test)


def test_class_labels_are_read_from_beside_the_model(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "1").mkdir()
        names = tmp_path / "names.txt"
        names.write_text("cat\ndog\n")
        (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
        house = House()
        house.put("m", 1, path=str(tmp_path / "1"), labels={"sum": str(names)})
        house.put("latin", 1, path=str(tmp_path), labels={"sum": "latin.txt"})
        house.put("lost", 1, path=str(tmp_path / "1"), labels={"sum": "zzz.txt"})
        await house.engine.start()
        assert house.engine.version("m").labels == {"sum": ("cat", "dog")}
        assert "label file 'latin.txt' of output 'sum' cannot be read" in house.engine.index()[0].reason
        assert "label file 'zzz.txt'" in house.engine.index()[1].reason

    run(test)


def test_the_settings_shown_are_those_that_loading_chose(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "m" / "1").mkdir(parents=True)
        names = tmp_path / "m" / "names.txt"
        names.write_text("cat\n")
        house = House()
        groups = (Instances(count=3, threads=2), Instances("cpu"))
        house.devices = ["gpu:0", "gpu:1", "gpu:0", "cpu"]
        house.put("m", 1, path=str(tmp_path / "m" / "1"), labels={"sum": str(names)}, instances=groups)
        await house.engine.start()
        view = house.engine.version("m")
        assert view.settings.instances == (Instances("gpu:0", 2, 2), Instances("gpu:1", 1, 2), Instances("cpu"))
        assert view.settings.labels == {"sum": "names.txt"}
        assert view.settings.batching.max_batch_size == 64

    run(test)


def test_figures_of_what_is_not_there_are_refused_in_tritons_words() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1)
        await house.engine.start()
        with pytest.raises(InvalidRequest, match=r"requested model 'zzz' is not available: .* is not found"):
            house.engine.statistics("zzz")
        with pytest.raises(InvalidRequest, match=r"version is not available for model 'm': .* 9 is not"):
            house.engine.statistics("m", "9")

    run(test)


def test_stop_ends_every_runner() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1, 2)
        await house.engine.start()
        await house.engine.stop()
        assert all(runner.stopped for runner in house.runners.values())
        assert not house.engine.ready()

    run(test)


def test_a_stream_is_what_any_model_has() -> None:
    async def test() -> None:
        house = House()
        house.put("plain", 2)
        house.put("talk", 3, path="decoupled")
        await house.engine.start()
        for model, value in (("plain", 2), ("talk", 3)):
            replies = house.engine.stream(Request(model, {"a": np.zeros((1, 4), np.float32)}))
            assert [float(each.outputs["sum"][0, 0]) async for each in replies] == [value]
        assert [house.engine.version(model).settings.decoupled for model in ("plain", "talk")] == [False, True]
        with pytest.raises(Decoupled, match="model 'talk' version 3 is decoupled"):
            await house.ask("talk")
        with pytest.raises(NotFound):
            house.engine.stream(Request("zzz", {}))
        with pytest.raises(InvalidRequest):
            house.engine.stream(Request("talk", {"a": np.zeros((1, 4), np.int32)}))
        assert house.engine.unrouted == {"not_found": 1}
        (statistics,) = house.engine.statistics("talk")
        assert (statistics.success.count, statistics.fail.count) == (1, 2)

    run(test)


def test_a_consumer_may_close_the_stream_of_a_plain_model() -> None:
    async def test() -> None:
        house = House()
        house.put("m", 1)
        await house.engine.start()
        replies = house.engine.stream(Request("m", {"a": np.zeros((1, 4), np.float32)}))
        replies.close()
        assert [each async for each in replies] == []
        assert await house.ask("m") == ("1", 1)

    run(test)


def test_stop_ends_what_streams_and_what_waits_to() -> None:
    async def test() -> None:
        house = House()
        house.put("endless", 1, path="decoupled")
        await house.engine.start()
        request = Request("endless", {"a": np.zeros((1, 4), np.float32)})
        runs, waits = house.engine.stream(request), house.engine.stream(request)
        await anext(runs)
        await house.engine.stop()
        with pytest.raises(RunnerDied, match="mid-stream"):
            await anext(runs)
        with pytest.raises(NotReady, match="stopping"):
            await anext(waits)

    run(test)


def test_unloading_waits_for_a_stream() -> None:
    async def test() -> None:
        house = House(explicit=True, load_models=("endless",))
        house.put("endless", 1, path="decoupled")
        await house.engine.start()
        request = Request("endless", {"a": np.zeros((1, 4), np.float32)})
        replies = house.engine.stream(request)
        await anext(replies)
        unloading = asyncio.create_task(house.engine.unload("endless"))
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(NotFound):
            house.engine.stream(request)
        assert not unloading.done()
        house.runners["endless", 1].complete(Executed({}, 1, 1, 1))
        await unloading
        assert [each async for each in replies] == []

    run(test)
