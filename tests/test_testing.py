"""The public fakes behave like what they stand for."""

import asyncio

import numpy as np
import pytest

from ekiben.runner.base import Batch, Died, Executed, Outcome, Raised, TensorParts
from ekiben.testing import FakeExecutor, ManualClock, execute, outputs_of, until

BATCH = Batch("serving_default", [TensorParts("x", "FP32", [np.ones((1, 2), np.float32)] * 2)], ["y"])


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5.0)
    assert (clock.monotonic(), clock.epoch()) == (5.0, 5.0)
    clock.advance(1.5)
    assert clock.monotonic() == 6.5


def test_a_fake_executor_hands_out_its_slots_evenly() -> None:
    executor = FakeExecutor(slots=2, instances=2)
    taken = []
    while (slot := executor.idle()) is not None:
        taken.append(slot.instance)
        executor.submit(slot, BATCH, lambda _: None)
    assert sorted(taken[:2]) == sorted(taken[2:]) == [0, 1]
    assert len(executor.running) == len(executor.batches) == 4


def test_a_fake_executor_frees_the_slot_before_it_answers() -> None:
    executor = FakeExecutor(slots=1)
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        assert executor.idle() is not None

    def submit() -> None:
        slot = executor.idle()
        assert slot is not None
        executor.submit(slot, BATCH, done)

    submit()
    executor.answer(lambda inputs: {"y": inputs["x"] * 2})
    assert np.array_equal(outputs_of(outcomes[0])["y"], np.full((2, 2), 2))

    submit()
    executor.answer(lambda inputs: {"y": inputs["unknown"]})
    assert outcomes[1] == Raised("'unknown'")

    submit()
    executor.complete(Executed({}, 1, 2, 3))
    assert outcomes[2] == Executed({}, 1, 2, 3)


def test_a_fake_executor_responds_and_keeps_the_slot_until_the_stream_is_complete() -> None:
    executor = FakeExecutor(slots=1)
    outcomes: list[Outcome] = []
    slot = executor.idle()
    assert slot is not None
    executor.submit(slot, BATCH, outcomes.append)
    executor.respond({})
    executor.advance(slot, stop=True)
    assert (executor.idle(), executor.advanced) == (None, [(slot, True)])
    executor.complete(Executed({}, 1, 2, 3))
    assert [isinstance(each, Executed) and each.more for each in outcomes] == [True, False]
    assert executor.idle() is slot


def test_a_fake_executor_that_died_takes_nothing() -> None:
    executor = FakeExecutor()
    outcomes: list[Outcome] = []
    slot = executor.idle()
    assert slot is not None
    executor.submit(slot, BATCH, outcomes.append)
    executor.die("gone")
    assert outcomes == [Died("gone")]
    assert executor.idle() is None
    executor.up = True
    assert executor.idle() is not None


def test_execute_needs_a_free_slot_and_until_has_an_end() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="no slot is free"):
            await execute(FakeExecutor(slots=0), {"x": np.ones(1)}, ["y"])
        with pytest.raises(TimeoutError):
            await until(lambda: False, seconds=0.01)

    asyncio.run(main())
    with pytest.raises(AssertionError, match="not executed"):
        outputs_of(Raised("no"))
