"""The HTTP door over the real engine, whose runners compute with numpy in this process."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.oip_http import OipHttp
from ekiben.doors.oip_http_generate import OipGenerate
from ekiben.doors.oip_http_settings import OipHttpSettings
from ekiben.doors.oip_http_shm import OipHttpSharedMemory
from ekiben.engine.engine import Engine
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.shared_memory import NO_REGIONS, Regions, SharedMemory
from ekiben.extensions.traces import Traces
from ekiben.runner.base import Batch, Done, Executed, Loaded, Raised, Slot
from ekiben.settings import Settings
from ekiben.testing import FakeExecutor
from ekiben.types import (
    Batching,
    Catalogue,
    ModelSettings,
    ModelSource,
    Signature,
    Tensor,
    TensorSpec,
    VersionSource,
)


def identity(datatype: str, *trailing: int) -> Signature:
    return Signature((TensorSpec("i", datatype, (-1, *trailing)),), (TensorSpec("o", datatype, (-1, *trailing)),))


ADD = Signature(
    (TensorSpec("a", "INT32", (-1, 2)), TensorSpec("b", "INT32", (-1, 2))),
    (TensorSpec("sum", "INT32", (-1, 2)), TensorSpec("difference", "INT32", (-1, 2))),
)
TALK = Signature(
    (
        TensorSpec("text_input", "BYTES", (-1, 1)),
        TensorSpec("count", "INT32", (-1, 1), optional=True),
        TensorSpec("fail", "BOOL", (-1, 1), optional=True),
    ),
    (TensorSpec("text_output", "BYTES", (-1, 1)),),
)
SIGNATURES = {
    "fp32": identity("FP32", -1),
    "fp16": identity("FP16", -1),
    "text": identity("BYTES", -1),
    "a/b": identity("INT8", 1),
    "add": ADD,
    "held": identity("INT8", 1),
    "ranked": identity("INT8", 1),
    "broken": identity("INT8", 1),
    "talk": TALK,
}


HELD = ("held", "ranked")
BATCHINGS = {"ranked": Batching(max_batch_size=1, max_queue_rows=3, priority_levels=2, default_priority=2)}
USUAL = Batching(max_batch_size=8)


class NumpyRunner(FakeExecutor):
    """Answers at the next turn of the loop; the models in HELD when the test says so, `broken` with a bug."""

    ready = True
    restarts = 0
    deaths_in_a_row = deaths_in_row = 0

    def __init__(self, source: VersionSource) -> None:
        super().__init__()
        self.model = source.model

    async def start(self) -> Loaded:
        return Loaded({"serving_default": SIGNATURES[self.model]}, ["cpu"], 0.1, 1)

    async def stop(self) -> None:
        self.ready = False

    def memory_bytes(self) -> int:
        return 1

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        super().submit(slot, batch, done)
        if self.model not in HELD:
            asyncio.get_running_loop().call_soon(self.compute)

    def compute(self) -> None:
        inputs = [np.concatenate([*each.parts]) for each in self.running[0][1].inputs]
        outputs: dict[str, Tensor] = {"o": inputs[0]}
        if self.model == "add":
            outputs = {"sum": inputs[0] + inputs[1], "difference": inputs[0] - inputs[1]}
        self.complete(Executed(outputs, 1, 1, 1))


class Talker(NumpyRunner):
    """The decoupled model `talk`: gives the text back `count` times (once, if that is not given); `fail` comes last."""

    def __init__(self, source: VersionSource) -> None:
        super().__init__(source)
        self.given = 0
        """Responses of the stream that runs."""
        self.stopped = 0
        """Streams that were ended before their end."""

    async def start(self) -> Loaded:
        return Loaded({"serving_default": TALK}, ["cpu"], 0.1, 1, decoupled=True)

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        self.given = 0
        super().submit(slot, batch, done)

    def advance(self, slot: Slot, stop: bool) -> None:
        super().advance(slot, stop)
        self.stopped += stop
        asyncio.get_running_loop().call_soon(self.end if stop else self.compute)

    def compute(self) -> None:
        inputs = {each.name: each.parts[0] for each in self.running[0][1].inputs}
        count = int(inputs["count"][0, 0]) if "count" in inputs else 1
        if self.given < count:
            self.given += 1
            self.respond({"text_output": inputs["text_input"]})
        elif "fail" in inputs and inputs["fail"][0, 0]:
            self.complete(Raised("no more of this"))
        else:
            self.end()

    def end(self) -> None:
        self.complete(Executed({}, 1, 1, 1))


class House:
    """The door, its engine and runners."""

    def __init__(self, **limits: Any) -> None:
        self.runners: dict[str, NumpyRunner] = {}
        self.engine = Engine(self._scan, self.make_runner, SYSTEM_CLOCK, explicit=True, load_models=tuple(SIGNATURES))
        settings = Settings(**limits)
        self.regions: SharedMemory = Regions(settings.body_limit_bytes, 16) if settings.allow_client_shm else NO_REGIONS
        handlers = [
            OipGenerate(self.engine, settings).handlers,
            OipHttpSettings(self.engine, Traces(), LogSettings(lambda _: None)).handlers,
            OipHttpSharedMemory(self.regions).handlers,
        ]
        self.door = OipHttp(self.engine, settings, regions=self.regions, extensions=handlers)

    def _scan(self) -> Catalogue:
        settings = {name: ModelSettings(runtime="python", batching=BATCHINGS.get(name, USUAL)) for name in SIGNATURES}
        return {name: ModelSource(name, (VersionSource(name, 1, "", each),)) for name, each in settings.items()}

    def make_runner(self, source: VersionSource, changed: Callable[[], None]) -> NumpyRunner:
        made = self.runners[source.model] = Talker(source) if source.model == "talk" else NumpyRunner(source)
        return made

    @property
    def talker(self) -> Talker:
        made = self.runners["talk"]
        assert isinstance(made, Talker)
        return made

    async def send(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """One exchange with the ASGI app; a header's name may have _ for -."""
        return await exchange(self.door, method, path, [body], **headers)

    async def infer(self, model: str, document: object, **headers: str) -> tuple[int, Any]:
        status, _, body = await self.send("POST", f"/v2/models/{model}/infer", json.dumps(document).encode(), **headers)
        return status, json.loads(body)


async def exchange(
    app: Any, method: str, path: str, pieces: list[bytes], **headers: str
) -> tuple[int, dict[str, str], bytes]:
    fields = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": fields}
    waiting = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    body = b"".join(message["body"] for message in rest)
    replied = {name.decode(): value.decode() for name, value in start["headers"]}
    assert replied["content-length"] == str(len(body))
    return start["status"], replied, body


def run(test: Callable[[House], Coroutine[Any, Any, None]], **limits: Any) -> None:
    async def run() -> None:
        house = House(**limits)
        await house.engine.start()
        await test(house)
        await house.engine.stop()

    asyncio.run(run())


def ints(*values: int, name: str = "i", **more: object) -> dict[str, object]:
    return {"inputs": [{"name": name, "datatype": "INT8", "shape": [len(values), 1], "data": values}], **more}


def floats(values: list[float], **more: object) -> dict[str, object]:
    return {"inputs": [{"name": "i", "datatype": "FP32", "shape": [1, len(values)], "data": values}], **more}


async def until(holds: Callable[[], bool]) -> None:
    """Give the loop its turns until something holds."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
