"""Public fakes for tests, ours and those of model and runtime authors: a clock, a runtime, an executor."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from ekiben.errors import LoadFailed
from ekiben.runner.base import Batch, Died, Done, Executed, Executor, Outcome, Raised, Slot, TensorParts
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext
from ekiben.types import Signature, Tensor, TensorSpec, datatype_of

__all__ = ["FakeExecutor", "FakeRuntime", "FakeSlot", "ManualClock", "execute", "outputs_of", "until"]


class ManualClock:
    """A clock that moves only when the test says so."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds

    def monotonic(self) -> float:
        return self.seconds

    def epoch(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self.seconds += seconds


class FakeSlot(msgspec.Struct):
    """A numbered place in a FakeExecutor."""

    instance: int
    number: int


class FakeExecutor:
    """An Executor without a process: it keeps what was submitted, and the test completes it by hand."""

    def __init__(self, slots: int = 2, instances: int = 1) -> None:
        self.up = True
        """False: `idle` answers None, as while a runner is down."""
        self.running: list[tuple[Slot, Batch, Done]] = []
        """What was submitted and not completed, oldest first."""
        self.batches: list[Batch] = []
        """Everything that was ever submitted."""
        self.advanced: list[tuple[Slot, bool]] = []
        """Every `advance`: the slot, and whether its stream is to stop."""
        self._places = [FakeSlot(instance, number) for number in range(slots) for instance in range(instances)]

    def idle(self) -> Slot | None:
        if not self.up:
            return None
        taken: list[Slot] = [slot for slot, _, _ in self.running]
        free = [place for place in self._places if place not in taken]
        in_flight = [slot.instance for slot in taken]
        return min(free, key=lambda place: in_flight.count(place.instance), default=None)

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        self.running.append((slot, batch, done))
        self.batches.append(batch)

    def advance(self, slot: Slot, stop: bool) -> None:
        self.advanced.append((slot, stop))

    def respond(self, outputs: Mapping[str, Tensor], index: int = 0) -> None:
        """One response of the stream that is `running[index]`, which goes on: see `advanced`."""
        _, _, done = self.running[index]
        done(Executed(outputs, input_ns=1_000, compute_ns=1_000, output_ns=1_000, more=True))

    def complete(self, outcome: Outcome, index: int = 0) -> None:
        """Free the slot of `running[index]`, then call its done callback."""
        _, _, done = self.running.pop(index)
        done(outcome)

    def answer(self, function: Callable[[dict[str, Tensor]], Mapping[str, Tensor]], index: int = 0) -> None:
        """Complete with what the function makes of the joined inputs; what it raises becomes Raised."""
        batch = self.running[index][1]
        inputs = {
            given.name: given.parts[0] if len(given.parts) == 1 else np.concatenate(given.parts)
            for given in batch.inputs
        }
        try:
            outcome: Outcome = Executed(dict(function(inputs)), input_ns=1_000, compute_ns=1_000, output_ns=1_000)
        except Exception as error:
            outcome = Raised(str(error))
        self.complete(outcome, index)

    def die(self, reason: str = "the runner ended") -> None:
        """Every batch in flight gets Died, and `idle` answers None until `up` is set again."""
        self.up = False
        lost, self.running = self.running, []
        for _, _, done in lost:
            done(Died(reason))


async def execute(
    executor: Executor,
    inputs: Mapping[str, Tensor | Sequence[Tensor]],
    outputs: Sequence[str],
    signature: str = DEFAULT_SIGNATURE,
) -> Outcome:
    """Run one batch in a free slot, which there must be. A sequence of arrays is joined along axis 0.

    Not for decoupled models.
    """
    slot = executor.idle()
    if slot is None:
        raise ValueError("no slot is free")
    tensors = [(name, [given] if isinstance(given, np.ndarray) else list(given)) for name, given in inputs.items()]
    batch = Batch(signature, [TensorParts(name, datatype_of(parts[0]), parts) for name, parts in tensors], outputs)
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    executor.submit(slot, batch, outcome.set_result)
    return await outcome


def outputs_of(outcome: Outcome) -> dict[str, Tensor]:
    """The outputs of a batch that ran. Raises AssertionError with the outcome for one that did not."""
    if not isinstance(outcome, Executed):
        raise AssertionError(f"not executed: {outcome}")
    return dict(outcome.outputs)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something outside this process. Raises TimeoutError when it never comes."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another process sets no event of ours
            await asyncio.sleep(0.005)


_DEFAULT: Final = Signature(
    inputs=(TensorSpec("x", "FP32", (-1, -1)),),
    outputs=(TensorSpec("y", "FP32", (-1, -1)),),
)


class FakeRuntime:
    """A Session for real runner processes: `runtime: ekiben.testing:FakeRuntime`.

    Without declared signatures it has one FP32 input `x` [-1,-1] and one output `y` of the same shape. Output i is
    input i (the last input, when there are more outputs). What else it does is said by the model's `parameters`:

    sleep_ms, sleep_ms_per_row   time that one run takes
    raise_on, crash_on, hang_on  a number that, found in a numeric input, raises ValueError, kills the process with
                                 SIGKILL, or never returns
    drop_rows                    outputs have that many rows fewer than the inputs
    repeat                       outputs are that many times as wide along the last axis
    text                         BYTES outputs are returned as numpy text arrays
    load_sleep_ms                loading takes that long
    load_crash, load_error       loading writes that text and dies, or fails with it
    load_error_when              loading fails while a file of that name lies in the version's folder
    chatter_bytes                that much is written to stderr at load and on each run
    """

    def __init__(self, context: LoadContext) -> None:
        if context.device.startswith("gpu"):
            raise LoadFailed(f"model '{context.model}' asks for device '{context.device}', and there is no GPU")
        options = context.parameters
        self.device = "cpu"
        self.signatures: Mapping[str, Signature] = dict(context.signatures) or {DEFAULT_SIGNATURE: _DEFAULT}
        self._sleep_seconds = float(options.get("sleep_ms", 0)) / 1e3
        self._sleep_seconds_per_row = float(options.get("sleep_ms_per_row", 0)) / 1e3
        self._raise_on = options.get("raise_on")
        self._crash_on = options.get("crash_on")
        self._hang_on = options.get("hang_on")
        self._drop_rows = int(options.get("drop_rows", 0))
        self._repeat = int(options.get("repeat", 1))
        self._text = bool(options.get("text", False))
        self._chatter_bytes = int(options.get("chatter_bytes", 0))
        self._chatter()
        time.sleep(float(options.get("load_sleep_ms", 0)) / 1e3)
        if "load_crash" in options:
            sys.stderr.write(f"{options['load_crash']}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if "load_error_when" in options and (context.path / str(options["load_error_when"])).exists():
            raise LoadFailed(f"model '{context.model}' has a file '{options['load_error_when']}'")
        if "load_error" in options:
            raise LoadFailed(str(options["load_error"]))

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Mapping[str, Tensor]:
        given = list(inputs.values())
        self._act_on_values(given)
        self._chatter()
        seconds = self._sleep_seconds + self._sleep_seconds_per_row * (given[0].shape[0] if given[0].ndim else 1)
        if seconds:
            time.sleep(seconds)
        names = [spec.name for spec in self.signatures[signature].outputs]
        return {name: self._output(given[min(names.index(name), len(given) - 1)]) for name in outputs}

    def close(self) -> None:
        """Nothing to free."""

    def _act_on_values(self, given: Sequence[Tensor]) -> None:
        if self._raise_on is None and self._crash_on is None and self._hang_on is None:
            return
        for array in given:
            if array.dtype.kind == "O":
                continue
            if self._raise_on is not None and (array == self._raise_on).any():
                raise ValueError(f"poisoned by {self._raise_on}")
            if self._crash_on is not None and (array == self._crash_on).any():
                os.kill(os.getpid(), signal.SIGKILL)
            while self._hang_on is not None and (array == self._hang_on).any():
                time.sleep(3600)

    def _output(self, array: Tensor) -> Tensor:
        if self._drop_rows:
            array = array[: max(array.shape[0] - self._drop_rows, 0)]
        if self._repeat != 1:
            array = np.concatenate([array] * self._repeat, axis=-1)
        if self._text and array.dtype.kind == "O":
            return np.array([item.decode() for item in array.ravel()], dtype=np.str_).reshape(array.shape)
        return array

    def _chatter(self) -> None:
        if self._chatter_bytes:
            line = "x" * 79 + "\n"
            sys.stderr.write(line * (self._chatter_bytes // len(line) + 1))
            sys.stderr.flush()
