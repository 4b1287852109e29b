"""Batches through real runner processes: what goes in comes out, and what fails harms no other."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
import uvloop

from ekiben.runner.base import Batch, Executed, Outcome, Raised, Slot, TensorParts
from ekiben.runner.supervisor import Runner
from ekiben.testing import execute, outputs_of
from ekiben.types import DATATYPES, Instances, Signature, Tensor, TensorSpec

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


def identity(*datatypes_and_shapes: tuple[str, tuple[int, ...]]) -> Signature:
    specs = [(f"t{number}", *spec) for number, spec in enumerate(datatypes_and_shapes)]
    return Signature(tuple(TensorSpec(*spec) for spec in specs), tuple(TensorSpec(*spec) for spec in specs))


def objects(*items: bytes) -> Tensor:
    array: Tensor = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array


# What goes in comes out


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_a_batch_is_joined_run_and_timed(model: Model, run_loop: Callable[[Awaitable[None]], None]) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            outcome = await execute(runner, {"x": [X, X[:1], X[1:]]}, ["y"])
            assert isinstance(outcome, Executed)
            assert np.array_equal(outcome.outputs["y"], np.concatenate([X, X[:1], X[1:]]))
            assert outcome.outputs["y"].flags.writeable
            assert min(outcome.input_ns, outcome.compute_ns, outcome.output_ns) > 0

    run_loop(main())


def test_what_a_loaded_runner_reports(model: Model) -> None:
    async def main() -> None:
        runner = model(instances=(Instances(count=2),))
        assert (runner.pid, runner.ready, runner.memory_bytes(), runner.idle()) == (0, False, 0, None)
        loaded = await runner.start()
        try:
            assert loaded.signatures["serving_default"].inputs == (TensorSpec("x", "FP32", (-1, -1)),)
            assert list(loaded.devices) == ["cpu", "cpu"]
            assert loaded.load_seconds > 0
            assert loaded.memory_bytes > 1_000_000
            assert runner.ready
            os.kill(runner.pid, 0)  # there is such a process
            assert runner.memory_bytes() > 1_000_000
        finally:
            await runner.stop()
        assert (runner.pid, runner.ready, runner.memory_bytes(), runner.idle()) == (0, False, 0, None)

    run(main())


@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"BYTES"}))
def test_every_datatype_passes(model: Model, datatype: str) -> None:
    async def main() -> None:
        dtype = DATATYPES[datatype]
        bits = np.random.default_rng(3).integers(0, 2 if datatype == "BOOL" else 256, 4 * dtype.itemsize, np.uint8)
        given = {
            "t0": bits.view(dtype).reshape(2, 2),
            "t1": np.zeros((0, 5), dtype),
            "t2": np.array(1, dtype),
        }
        signature = identity((datatype, (-1, -1)), (datatype, (-1, 5)), (datatype, ()))
        async with started(model(signature=signature)) as runner:
            outputs = outputs_of(await execute(runner, given, ["t2", "t0", "t1"]))
            assert list(outputs) == ["t2", "t0", "t1"]
            for name, array in given.items():
                assert (outputs[name].shape, outputs[name].dtype) == (array.shape, dtype)
                assert outputs[name].tobytes() == array.tobytes()

    run(main())


def test_the_two_short_floats_are_themselves(model: Model) -> None:
    async def main() -> None:
        given = {"t0": np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16), "t1": np.array([1.5, np.nan], np.float16)}
        async with started(model(signature=identity(("BF16", (-1,)), ("FP16", (-1,))))) as runner:
            outputs = outputs_of(await execute(runner, given, ["t0", "t1"]))
            assert outputs["t0"].tobytes() == given["t0"].tobytes()
            assert outputs["t1"].tobytes() == given["t1"].tobytes()

    run(main())


@pytest.mark.parametrize("text", [False, True])
def test_bytes_pass_whatever_is_in_them(model: Model, text: bool) -> None:
    async def main() -> None:
        items = [b"", "é".encode(), b"x" * 300_000]
        # numpy's own text arrays cannot end in NUL, nor hold what is not text
        items += [] if text else [b"\0", b"\0a\0", b"\xff\xfe"]
        async with started(model(signature=identity(("BYTES", (-1,))), text=text)) as runner:
            outputs = outputs_of(await execute(runner, {"t0": [objects(*items), objects(), objects(b"z")]}, ["t0"]))
            assert outputs["t0"].dtype == np.object_
            assert outputs["t0"].tolist() == [*items, b"z"]

    run(main())


def test_slots_grow_for_inputs_and_for_outputs(model: Model) -> None:
    async def main() -> None:
        async with started(model(repeat=40)) as runner:
            for columns in (1, 100_000, 7, 300_000, 3):
                given = np.random.default_rng(columns).random((1, columns), np.float32)
                outputs = outputs_of(await execute(runner, {"x": given}, ["y"]))
                assert np.array_equal(outputs["y"], np.concatenate([given] * 40, axis=1))

    run(main())


def test_messages_too_long_for_a_packet_go_through_the_arena(model: Model) -> None:
    async def main() -> None:
        names = ["n" * 500 + str(number) for number in range(600)]
        specs = tuple(TensorSpec(name, "INT8", (-1,)) for name in names)
        given = {name: np.array([number], np.int16).astype(np.int8) for number, name in enumerate(names)}
        async with started(model(signature=Signature(specs, specs))) as runner:
            for _ in range(3):
                outputs = outputs_of(await execute(runner, given, names))
                assert [outputs[name].item() for name in names] == [given[name].item() for name in names]

    run(main())


# Slots


def test_two_batches_in_flight_per_instance_spread_over_instances(model: Model) -> None:
    async def main() -> None:
        async with started(model(instances=(Instances(count=2, threads=1), Instances("cpu")), sleep_ms=50)) as runner:
            outcomes, taken = [], []
            for number in range(6):
                slot = runner.idle()
                assert slot is not None
                taken.append(slot.instance)
                outcomes.append(asyncio.ensure_future(execute(runner, {"x": X + number}, ["y"])))
                await asyncio.sleep(0)
            assert sorted(taken[:3]) == sorted(taken[3:]) == [0, 1, 2]
            assert runner.idle() is None
            for number, outcome in enumerate(await asyncio.gather(*outcomes)):
                assert np.array_equal(outputs_of(outcome)["y"], X + number)
            assert runner.idle() is not None

    run(main())


def test_the_slot_is_free_when_done_is_called(model: Model) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            loop = asyncio.get_running_loop()
            finished = loop.create_future()
            left = 50
            batch = Batch("serving_default", [TensorParts("x", "FP32", [X])], ["y"])

            def done(outcome: Outcome) -> None:
                nonlocal left
                outputs_of(outcome)
                left -= 1
                if left > 0:
                    submit()
                else:
                    finished.set_result(None)

            def submit() -> None:
                slot = runner.idle()
                assert slot is not None
                runner.submit(slot, batch, done)

            submit()
            await finished

    run(main())


def test_packets_wait_where_the_socket_is_full(model: Model) -> None:
    async def main() -> None:
        names = ["n" * 250 + str(number) for number in range(20)]
        specs = tuple(TensorSpec(name, "INT8", (-1,)) for name in names)
        given = {name: np.array([1], np.int8) for name in names}
        async with started(model(signature=Signature(specs, specs))) as runner:
            process = runner._process
            assert process is not None
            process._channels[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_000)
            os.kill(runner.pid, signal.SIGSTOP)
            outcomes = [asyncio.ensure_future(execute(runner, given, names)) for _ in range(2)]
            await asyncio.sleep(0)
            assert process._channels[0].unsent
            os.kill(runner.pid, signal.SIGCONT)
            for outcome in await asyncio.gather(*outcomes):
                assert len(outputs_of(outcome)) == 20
            assert not process._channels[0].unsent

    run(main())


def test_a_foreign_slot_is_refused(model: Model) -> None:
    class Strange:
        instance = 0

    async def main() -> None:
        async with started(model()) as runner:
            strange: Slot = Strange()
            with pytest.raises(TypeError, match="Strange is no slot"):
                runner.submit(strange, Batch("serving_default", [], []), lambda _: None)

    run(main())


# Batches that fail


def test_a_batch_that_raises_harms_no_other(model: Model) -> None:
    async def main() -> None:
        async with started(model(raise_on=13)) as runner:
            pid = runner.pid
            good, bad = await asyncio.gather(
                execute(runner, {"x": X}, ["y"]),
                execute(runner, {"x": [X, BAD]}, ["y"]),
            )
            assert np.array_equal(outputs_of(good)["y"], X)
            assert bad == Raised("poisoned by 13")
            assert np.array_equal(outputs_of(await execute(runner, {"x": X}, ["y"]))["y"], X)
            assert (runner.pid, runner.restarts) == (pid, 0)

    run(main())


@pytest.mark.parametrize(("parts", "message"), [
    ([X, np.zeros((1, 4), np.float32)], "dimension"),
    ([objects(b"a"), np.array([3], np.object_)], "of type 'int', not bytes"),
])  # fmt: skip
def test_inputs_that_cannot_be_joined_raise_and_free_the_slot(model: Model, parts: list[Tensor], message: str) -> None:
    async def main() -> None:
        async with started(model()) as runner:
            for _ in range(5):
                outcome = await execute(runner, {"x": parts}, ["y"])
                assert isinstance(outcome, Raised)
                assert message in outcome.message
            assert outputs_of(await execute(runner, {"x": X}, ["y"]))

    run(main())


def test_strange_outputs_are_told_and_outlived(model: Model, odd: str) -> None:
    async def main() -> None:
        async with started(model(runtime=odd)) as runner:

            async def call(code: int) -> Outcome:
                return await execute(runner, {"x": np.array([code], np.int32)}, ["y"])

            assert await call(0) == Raised("the model returned NoneType for output 'y', not a numpy array")
            assert await call(1) == Raised("the model returned list for output 'y', not a numpy array")
            assert await call(2) == Raised("dtype 'complex64' has no datatype in the Open Inference Protocol")
            assert await call(3) == Raised("no more")
            assert await call(4) == Raised("\\udcff" + "e" * 994)
            assert outputs_of(await call(5))["y"] == np.float32(2.5)
            assert await call(6) == Raised("an item of a BYTES tensor is of type 'int', not bytes")
            assert outputs_of(await call(7))["y"].tolist() == [[2, 5], [1, 4], [0, 3]]
            assert await call(8) == Raised("assignment destination is read-only")
            assert await call(9) == Raised("KeyError")
            assert outputs_of(await call(99))["y"].tolist() == [12]

    run(main())
