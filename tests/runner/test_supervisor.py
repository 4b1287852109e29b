"""A runner's lives: every way to load, to die, to come back and to stop is seen, told and cleaned up."""

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import termios
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import uvloop

from ekiben.errors import LoadFailed
from ekiben.runner import process
from ekiben.runner.base import Batch, Died, TensorParts
from ekiben.runner.channel import InstancePlan
from ekiben.runner.process import plan_instances
from ekiben.runner.supervisor import Runner, respawn_delay_seconds
from ekiben.testing import execute, outputs_of, until
from ekiben.types import Instances, ModelSettings

Model: TypeAlias = Callable[..., Runner]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
BAD = np.full((1, 3), 13, dtype=np.float32)


def run(main: Coroutine[Any, Any, None]) -> None:
    """On the loop that production uses; no step of these tests takes long."""
    uvloop.run(asyncio.wait_for(main, 60))


@contextlib.asynccontextmanager
async def started(runner: Runner) -> AsyncIterator[Runner]:
    await runner.start()
    try:
        yield runner
    finally:
        await runner.stop()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def waiting_bytes(answers: socket.socket) -> int:
    """In all packets that lie in the socket."""
    return int.from_bytes(fcntl.ioctl(answers, termios.FIONREAD, bytes(4)), sys.byteorder)


async def back_from(runner: Runner, pid: int) -> None:
    """Wait until another process serves."""
    await until(lambda: runner.ready and runner.pid != pid)


# Death


def test_killed_in_flight_both_batches_are_told_and_it_is_back(model: Model) -> None:
    async def main() -> None:
        changes: list[bool] = []
        async with started(model(on_change=lambda runner: changes.append(runner.ready), sleep_ms=200)) as runner:
            pid = runner.pid
            outcomes = [asyncio.ensure_future(execute(runner, {"x": X}, ["y"])) for _ in range(2)]
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            for outcome in await asyncio.gather(*outcomes):
                assert outcome == Died("the runner of model 'fake' version 7 was killed by SIGKILL")
            assert runner.idle() is None
            await until(lambda: len(changes) == 2)
            assert changes == [False, True]
            assert runner.restarts == 1
            assert runner.pid != pid
            assert outputs_of(await execute(runner, {"x": X}, ["y"]))

    run(main())


def test_what_was_answered_before_the_death_counts(model: Model) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            pid, life = runner.pid, runner._process
            assert life is not None
            outcomes = [asyncio.ensure_future(execute(runner, {"x": X}, ["y"])) for _ in range(2)]
            await asyncio.sleep(0)
            # From here the loop sees nothing: both answers come, then the death.
            answers = life._channels[0].socket
            select.select([answers], [], [])
            length = len(answers.recv(10_000, socket.MSG_PEEK))
            while waiting_bytes(answers) <= length:
                os.sched_yield()
            os.kill(pid, signal.SIGKILL)
            select.select([life._pidfd], [], [])
            for outcome in outcomes:
                assert np.array_equal(outputs_of(await outcome)["y"], X)
            await back_from(runner, pid)

    run(main())


def test_killed_again_and_again_it_comes_back(model: Model) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            for deaths in range(1, 5):
                pid = runner.pid
                os.kill(pid, signal.SIGKILL)
                await back_from(runner, pid)
                assert outputs_of(await execute(runner, {"x": X}, ["y"]))
                assert (runner.restarts, runner.deaths_in_row) == (deaths, 1)

    run(main())


def test_a_respawn_that_cannot_load_is_tried_again(
    model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with started(model(path=tmp_path, load_error_when="broken")) as runner:
            (tmp_path / "broken").touch()
            os.kill(runner.pid, signal.SIGKILL)
            await until(lambda: runner.restarts >= 2)
            assert not runner.ready
            (tmp_path / "broken").unlink()
            await until(lambda: runner.ready)
            assert outputs_of(await execute(runner, {"x": X}, ["y"]))

    run(main())
    assert "model 'fake' has a file 'broken'" in caplog.text


def test_the_back_off_begins_with_the_third_death_in_a_row() -> None:
    assert [respawn_delay_seconds(deaths) for deaths in range(1, 11)] == [0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert respawn_delay_seconds(1_000_000) == 30


def test_a_hung_batch_is_ended_at_its_limit(model: Model) -> None:
    async def main() -> None:
        async with started(model(hang_on=13, execution_timeout_ms=300)) as runner:
            pid = runner.pid
            hung = asyncio.ensure_future(execute(runner, {"x": BAD}, ["y"]))
            waiting = asyncio.ensure_future(execute(runner, {"x": X}, ["y"]))
            first, second = await asyncio.gather(hung, waiting)
            reason = "the runner of model 'fake' version 7 ran a batch longer than execution_timeout_ms (300)"
            assert first == Died(reason, timed_out=True)
            assert second == Died(reason)
            await until(lambda: runner.ready)
            assert not alive(pid)
            assert outputs_of(await execute(runner, {"x": X}, ["y"]))

    run(main())


def test_the_limit_counts_from_when_a_batch_is_the_one_that_runs(model: Model) -> None:
    async def main() -> None:
        async with started(model(sleep_ms=300, execution_timeout_ms=500)) as runner:
            # the second takes 600 ms from its submission, and so does each that follows
            outcomes = [asyncio.ensure_future(execute(runner, {"x": X}, ["y"])) for _ in range(2)]
            for _ in range(4):
                assert outputs_of(await outcomes.pop(0))
                outcomes.append(asyncio.ensure_future(execute(runner, {"x": X}, ["y"])))
                await asyncio.sleep(0)
            for outcome in await asyncio.gather(*outcomes):
                assert outputs_of(outcome)
            assert runner.restarts == 0

    run(main())


def test_a_slot_of_a_runner_that_died_is_answered_not_lost(model: Model) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            slot, pid = runner.idle(), runner.pid
            assert slot is not None
            os.kill(pid, signal.SIGKILL)
            await back_from(runner, pid)
            outcome = asyncio.get_running_loop().create_future()
            runner.submit(slot, Batch("serving_default", [TensorParts("x", "FP32", [X])], ["y"]), outcome.set_result)
            assert isinstance(await outcome, Died)

    run(main())


def test_a_runner_that_answers_nonsense_is_replaced(model: Model, odd: str) -> None:
    async def main() -> None:
        async with started(model(runtime=odd)) as runner:
            pid = runner.pid
            assert isinstance(await execute(runner, {"x": np.array([11], np.int32)}, ["y"]), Died)
            await back_from(runner, pid)
            assert outputs_of(await execute(runner, {"x": np.array([99], np.int32)}, ["y"]))["y"].tolist() == [2]

    run(main())


def test_a_runner_ends_with_its_control_channel_even_while_a_batch_hangs(model: Model) -> None:
    async def main() -> None:
        async with started(model(hang_on=13)) as runner:
            pid, life = runner.pid, runner._process
            assert life is not None
            outcome = asyncio.ensure_future(execute(runner, {"x": BAD}, ["y"]))
            await asyncio.sleep(0)
            life._control.shutdown(socket.SHUT_RDWR)
            assert await outcome == Died("the runner of model 'fake' version 7 ended with status 0")
            await back_from(runner, pid)

    run(main())


def test_signals_meant_for_the_server_do_not_end_a_runner(model: Model) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(runner.pid, number)
                assert outputs_of(await execute(runner, {"x": X}, ["y"]))
            assert runner.restarts == 0

    run(main())


def test_what_a_model_started_ends_with_its_runner(model: Model, odd: str) -> None:
    async def main() -> None:
        async with started(model(runtime=odd)) as runner:
            outputs = outputs_of(await execute(runner, {"x": np.array([10], np.int32)}, ["y"]))
            child = int(outputs["y"][0])
            assert alive(child)
            os.kill(runner.pid, signal.SIGKILL)
            await until(lambda: not alive(child))

    run(main())


# Loading


def test_a_warm_up_that_raises_is_said_and_not_fatal(model: Model, odd: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with started(model(runtime=odd)) as runner:
            assert runner.ready

    run(main())
    printed = capfd.readouterr().err
    assert "model 'fake' version 7: the warm-up inference on zeros raised RuntimeError: not on zeros" in printed
    assert "closed in good order" in printed


@pytest.mark.parametrize(("options", "words"), [
    ({"load_error": "model 'fake' has no weights"}, ["model 'fake' has no weights"]),
    ({"load_crash": "out of luck"}, ["'fake' version 7 was killed by SIGKILL while it loaded", "out of luck"]),
    ({"load_sleep_ms": 60_000, "load_timeout_ms": 300}, ["'fake' version 7 was not loaded", "load_timeout_ms (300)"]),
    ({"crash_on": 0}, ["'fake' version 7 was killed by SIGKILL while it loaded"]),
    ({"hang_on": 0, "load_timeout_ms": 1000}, ["'fake' version 7 was not loaded within load_timeout_ms (1000)"]),
    ({"instances": (Instances("gpu:3"),)}, ["'fake'", "gpu:3"]),
    ({"runtime": "unheard_of"}, ["unheard_of"]),
    ({"runtime": "no.such.module:Class"}, ["no.such.module"]),
    ({"sleep_ms": "long"}, ["model 'fake' version 7 could not be loaded: ValueError", "long"]),
])  # fmt: skip
def test_a_load_that_fails_says_why_and_leaves_nothing(model: Model, options: dict[str, Any], words: list[str]) -> None:
    async def main() -> None:
        before = descriptors()
        runner = model(**options)
        with pytest.raises(LoadFailed) as failure:
            await runner.start()
        for word in words:
            assert word in failure.value.message
        assert (runner.pid, runner.ready, runner.restarts) == (0, False, 0)
        assert descriptors() == before

    run(main())


def test_a_cancelled_start_leaves_nothing(model: Model) -> None:
    async def main() -> None:
        before = descriptors()
        runner = model(load_sleep_ms=60_000)
        start = asyncio.ensure_future(runner.start())
        await until(lambda: runner.pid != 0)
        pid = runner.pid
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not alive(pid)
        assert descriptors() == before

    run(main())


def test_stopped_while_it_loads(model: Model) -> None:
    async def main() -> None:
        before = descriptors()
        runner = model(load_sleep_ms=60_000)
        start = asyncio.ensure_future(runner.start())
        await until(lambda: runner.pid != 0)
        pid = runner.pid
        await runner.stop()
        with pytest.raises(LoadFailed, match="killed by SIGKILL while it loaded"):
            await start
        assert not alive(pid)
        assert descriptors() == before

    run(main())


def test_a_report_that_makes_no_sense_fails_the_load(model: Model, odd: str) -> None:
    async def main() -> None:
        with pytest.raises(LoadFailed, match="'fake' version 7 loaded as something that cannot be served"):
            await model(runtime=odd, device=3).start()

    run(main())


def test_a_model_that_prints_much_is_not_stuck(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with started(model(chatter_bytes=1_000_000)) as runner:
            for _ in range(3):
                assert outputs_of(await execute(runner, {"x": X}, ["y"]))

    run(main())
    assert len(capfd.readouterr().err) > 1_000_000


def test_threads_are_the_cores_divided_over_the_instances() -> None:
    def plan(*instances: Instances, cores: int) -> list[InstancePlan]:
        return list(plan_instances(ModelSettings(instances=instances), cores))

    assert plan(Instances(), cores=8) == [InstancePlan("auto", 8)]
    assert plan(Instances("cpu", count=3), cores=8) == [InstancePlan("cpu", 2)] * 3
    assert plan(Instances(count=4), cores=2) == [InstancePlan("auto", 1)] * 4
    assert plan(Instances("gpu:0", threads=5), Instances("cpu"), cores=4) == [
        InstancePlan("gpu:0", 5),
        InstancePlan("cpu", 2),
    ]


# Stopping


def test_stopped_while_busy_every_batch_is_told(model: Model) -> None:
    async def main() -> None:
        before = descriptors()
        runner = model(sleep_ms=300)
        await runner.start()
        pid = runner.pid
        outcomes = [asyncio.ensure_future(execute(runner, {"x": X}, ["y"])) for _ in range(2)]
        await asyncio.sleep(0)
        await runner.stop()
        for outcome in await asyncio.gather(*outcomes):
            assert outcome == Died("the runner of model 'fake' version 7 was stopped")
        assert not alive(pid)
        assert (runner.restarts, descriptors()) == (0, before)

    run(main())


def test_a_hung_runner_is_killed_at_stop(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)

    async def main() -> None:
        runner = model(hang_on=13)
        await runner.start()
        pid = runner.pid
        outcome = asyncio.ensure_future(execute(runner, {"x": BAD}, ["y"]))
        await asyncio.sleep(0)
        await runner.stop()
        assert isinstance(await outcome, Died)
        assert not alive(pid)

    run(main())


def test_stopped_while_it_comes_back(model: Model, tmp_path: Path) -> None:
    async def main() -> None:
        before = descriptors()
        runner = model(path=tmp_path, load_error_when="broken")
        await runner.start()
        (tmp_path / "broken").touch()
        os.kill(runner.pid, signal.SIGKILL)
        await until(lambda: runner.restarts >= 1)
        await runner.stop()
        assert (runner.pid, runner.ready) == (0, False)
        assert descriptors() == before

    run(main())


def test_no_descriptor_is_left_after_many_lives(model: Model) -> None:
    async def main() -> None:
        before = descriptors()
        for number in range(20):
            runner = model(instances=(Instances(count=1 + number % 2),))
            await runner.start()
            assert outputs_of(await execute(runner, {"x": X}, ["y"]))
            if number % 4 == 0:
                pid = runner.pid
                os.kill(pid, signal.SIGKILL)
                await back_from(runner, pid)
            await runner.stop()
            assert descriptors() == before

    run(main())
