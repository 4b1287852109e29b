"""What the engine sees of a runner: places for batches, and outcomes.

Everything here is called, and calls back, on the engine's event loop; nothing blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from ekiben.types import Signature, Tensor

__all__ = ["Batch", "Died", "Done", "Executed", "Executor", "Loaded", "Outcome", "Raised", "Slot", "TensorParts"]


class TensorParts(msgspec.Struct, gc=False):
    """One input of a batch: the callers' arrays, to be joined along axis 0 (one part: taken as it is)."""

    name: str
    datatype: str
    parts: Sequence[Tensor]


class Batch(msgspec.Struct, gc=False):
    """What one execution runs."""

    signature: str
    inputs: Sequence[TensorParts]
    outputs: Sequence[str]
    lone: bool = False
    """One request with nobody waiting behind it: its caller may come again at once."""


class Executed(msgspec.Struct, gc=False):
    """The batch ran. The arrays are copies: the slot is free again, unless there is more to come."""

    outputs: Mapping[str, Tensor]
    """Of a stream: those of its next response; none when it has ended."""
    input_ns: int
    """Taking the inputs out of shared memory, in the runner."""
    compute_ns: int
    output_ns: int
    """Writing the outputs to shared memory, in the runner."""
    more: bool = False
    """One response of a stream: the runner waits for Executor.advance."""


class Raised(msgspec.Struct, gc=False):
    """The model raised; the message is the exception's own text, cut to 1,000 characters."""

    message: str


class Died(msgspec.Struct, gc=False):
    """The runner ended, or was ended at its execution limit, before it answered."""

    reason: str
    timed_out: bool = False


Outcome: TypeAlias = Executed | Raised | Died
Done: TypeAlias = Callable[[Outcome], None]


class Slot(Protocol):
    """A place for one batch in one instance's shared memory."""

    instance: int


class Loaded(msgspec.Struct, frozen=True):
    """What a runner reports once it can answer."""

    signatures: Mapping[str, Signature]
    devices: Sequence[str]
    """One per instance."""
    load_seconds: float
    """From spawn to the end of warm-up."""
    memory_bytes: int
    """The process's resident set after warm-up."""
    decoupled: bool = False
    """Each request gets a stream of responses."""


class Executor(Protocol):
    """A runner as the scheduler uses it (runner.supervisor.Runner; testing.FakeExecutor)."""

    def idle(self) -> Slot | None:
        """A free slot of the instance with the fewest batches in flight, or None while all are taken or it is down."""
        ...

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        """Copy the inputs into the slot and start. `done` is called once, later, from the event loop, never from inside
        this call; the slot is idle again just before it.

        Of a decoupled model it is called for each response, with Executed.more, and once more at the end.
        """
        ...

    def advance(self, slot: Slot, stop: bool) -> None:
        """Have the slot's stream go on to its next response, or end it there. Called once after each Executed.more.

        The runner computes nothing, and its execution limit does not run, until then. Nothing happens when the runner
        has died meanwhile: `done` gets Died.
        """
        ...
