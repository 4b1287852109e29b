"""A model that streams what it is told to, in a real runner, and calls whose outcomes are taken one by one."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from ekiben.runner.base import Batch, Executed, Outcome, Slot, TensorParts
from ekiben.runner.supervisor import Runner
from ekiben.types import Signature, Tensor, TensorSpec
from tests.runner.conftest import make_runner

MODEL = """
import os, pathlib, signal, sys, time
import numpy as np

FOLDER = pathlib.Path(__file__).parent

def note(text):
    with (FOLDER / "notes").open("a") as file:
        file.write(text + " ")

class Model:
    def infer(self, inputs):
        what = inputs["what"].tolist()
        note(f"begin{len(what)}")
        try:
            for word in what:
                yield self.respond(word.decode())
        finally:
            note("end")
        note("whole")

    def respond(self, word):
        if word == "raise":
            raise ValueError("no more of this")
        if word == "exit":
            sys.exit("gone")
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "hang":
            time.sleep(1000)
        if word == "float":
            return {"said": np.zeros(1)}
        if word == "flat":
            return {"said": np.array(b"x", object)}
        if word == "nothing":
            return {}
        if word == "list":
            return ["said"]
        if word == "rows":
            return {"said": ["a", "b", "c"]}
        if word == "none":
            return {"said": np.empty(0, object)}
        if word == "big":
            return {"said": ["x" * 5_000_000, "y"]}
        if word == "many":
            return {"said": ["z"] * 20_000}
        if word == "file":
            return {"said": [(FOLDER / "file").read_text()]}
        return {"said": [word]}

    def close(self):
        note("closed")
"""
TALK = Signature((TensorSpec("what", "BYTES", (-1,)),), (TensorSpec("said", "BYTES", (-1,)),))


def run(main: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(main, 100))


@asynccontextmanager
async def started(path: Path, code: str = MODEL, **settings: Any) -> AsyncIterator[Runner]:
    (path / "model.py").write_text(code)
    runner = make_runner(**{"path": path, "signature": TALK, "runtime": "python", **settings})
    await runner.start()
    (path / "notes").unlink(missing_ok=True)  # of the warm-up
    try:
        yield runner
    finally:
        await runner.stop()


class Call:
    """A call whose outcomes the test takes one by one."""

    def __init__(self, runner: Runner, *words: str, slot: Slot | None = None) -> None:
        self.runner = runner
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        free = slot or runner.idle()
        assert free is not None
        self.slot = free
        what: Tensor = np.array([word.encode() for word in words], np.object_)
        batch = Batch("serving_default", [TensorParts("what", "BYTES", [what])], ["said"])
        runner.submit(self.slot, batch, self.outcomes.put_nowait)

    async def next(self) -> Outcome:
        return await self.outcomes.get()

    async def said(self) -> list[str]:
        """The next response."""
        outcome = await self.next()
        assert isinstance(outcome, Executed)
        assert outcome.more
        return [item.decode() for item in outcome.outputs["said"].tolist()]

    async def ended(self) -> None:
        outcome = await self.next()
        assert isinstance(outcome, Executed)
        assert not outcome.more
        assert not outcome.outputs

    def go_on(self) -> None:
        self.runner.advance(self.slot, stop=False)

    def stop(self) -> None:
        self.runner.advance(self.slot, stop=True)


async def whole(runner: Runner, *words: str) -> list[list[str]]:
    """Everything that a call answers, which must end well."""
    call = Call(runner, *words)
    said: list[list[str]] = []
    while True:
        outcome = await call.next()
        assert isinstance(outcome, Executed)
        if not outcome.more:
            return said
        said.append([item.decode() for item in outcome.outputs["said"].tolist()])
        call.go_on()


def notes(path: Path) -> list[str]:
    return (path / "notes").read_text().split() if (path / "notes").exists() else []
