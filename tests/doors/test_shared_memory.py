"""Inference in shared memory, where callers leave and threads are slow."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ekiben.doors.shared_memory import SharedInfer
from ekiben.errors import Cancelled
from ekiben.extensions.shared_memory import Region, SharedMemory, Window
from ekiben.types import Request
from ekiben.wire.oip_json import InferCall, OutputWish
from ekiben.wire.shared_memory import SharedInput, SharedPlace
from tests.doors.house import House, run, until
from tests.shm_object import ShmObject, descriptors

LARGE = 2 << 20


class SlowWindow:
    """A window whose thread waits for the test."""

    def __init__(self, window: Window, slow: "SlowRegions") -> None:
        self.size = window.size
        self._window = window
        self._slow = slow

    def read(self) -> memoryview:
        """As Window has it, late."""
        self._slow.entered.set()
        assert self._slow.go_on.wait(60)
        data = self._window.read()
        self._slow.got.append(bytes(data))
        return data

    def write(self, data: bytes | memoryview) -> None:
        """As Window has it, late."""
        self._slow.entered.set()
        assert self._slow.go_on.wait(60)
        self._window.write(data)
        self._slow.got.append(bytes(data))


class SlowRegions:
    """Regions with slow windows."""

    extensions: Sequence[str] = ()

    def __init__(self, regions: SharedMemory) -> None:
        self._regions = regions
        self.read_limit_bytes = regions.read_limit_bytes
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.got: list[bytes] = []

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Not slow."""
        self._regions.register(name, key, offset, byte_size)

    def unregister(self, name: str = "") -> None:
        """Not slow."""
        self._regions.unregister(name)

    def status(self, name: str = "") -> list[Region]:
        """Not slow."""
        return self._regions.status(name)

    def window(self, name: str, offset: int, size: int) -> Any:
        """A slow one."""
        return SlowWindow(self._regions.window(name, offset, size), self)


def asked(model: str, datatype: str, shape: tuple[int, ...], size: int, out: int) -> InferCall:
    place = SharedPlace("r", 0, size)
    wishes = {"o": OutputWish(True, place=SharedPlace("r", size, out))}
    return InferCall(
        Request(model, {}, outputs=("o",)), True, wishes, shared={"i": SharedInput(datatype, shape, place)}
    )


def test_a_read_that_is_given_up_ends_on_the_object_it_began_with() -> None:
    async def test(house: House) -> None:
        before = descriptors()
        slow = SlowRegions(house.regions)
        with ShmObject(2 * LARGE) as memory, ShmObject(2 * LARGE) as other:
            memory.put(b"m" * LARGE)
            other.put(b"o" * LARGE)
            house.regions.register("r", memory.key, 0, 2 * LARGE)
            running = asyncio.create_task(
                SharedInfer(house.engine, slow)(asked("fp32", "FP32", (1, LARGE // 4), LARGE, LARGE))
            )
            await until(slow.entered.is_set)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            house.regions.unregister()
            # Takes the lowest number that is free: the old object's, had that been closed under its reader.
            house.regions.register("r", other.key, 0, 2 * LARGE)
            slow.go_on.set()
            await until(lambda: bool(slow.got))
            assert slow.got == [b"m" * LARGE]
            assert house.runners["fp32"].batches == []
            house.regions.unregister()
            del running
        await until(lambda: descriptors() <= before)

    run(test, allow_client_shm=True, body_limit_bytes=2 * LARGE)


def test_a_write_that_is_given_up_ends_on_the_object_it_began_with() -> None:
    async def test(house: House) -> None:
        slow = SlowRegions(house.regions)
        with ShmObject(2 * LARGE) as memory, ShmObject(2 * LARGE) as other:
            house.regions.register("r", memory.key, 0, 2 * LARGE)
            call = asked("fp32", "FP32", (1, 1), 4, LARGE)
            call.request.inputs = {"i": np.ones((1, LARGE // 4), np.float32)}
            call.shared = {}
            running = asyncio.create_task(SharedInfer(house.engine, slow)(call))
            await until(slow.entered.is_set)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            house.regions.unregister()
            house.regions.register("r", other.key, 0, 2 * LARGE)
            slow.go_on.set()
            await until(lambda: bool(slow.got))
            assert memory.get(LARGE, 4) == np.ones(LARGE // 4, np.float32).tobytes()
            assert other.get(LARGE, 4) == bytes(LARGE)

    run(test, allow_client_shm=True, body_limit_bytes=2 * LARGE)


def test_cancelling_frees_the_place_in_the_queue() -> None:
    async def test(house: House) -> None:
        with ShmObject(8) as memory:
            house.regions.register("r", memory.key, 0, 8)
            infer = SharedInfer(house.engine, house.regions)
            held = house.runners["held"]
            scheduler = next(each for each in house.engine.versions() if each.view.model == "held").scheduler
            ahead = []
            for number in (1, 2):
                ahead.append(asyncio.create_task(infer(asked("held", "INT8", (1, 1), 1, 1))))
                await until(lambda: len(held.batches) == number)  # noqa: B023 - asked at once
            waiting = asyncio.create_task(infer(asked("held", "INT8", (1, 1), 1, 1)))
            await until(lambda: scheduler.queue_rows == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while held.running:
                held.compute()
            await asyncio.gather(*ahead)
            assert (len(held.batches), scheduler.queue_rows) == (2, 0)

    run(test, allow_client_shm=True)


def test_nothing_is_written_for_a_caller_that_has_gone() -> None:
    async def test(house: House) -> None:
        with ShmObject(8) as memory:
            memory.put(b"\x07")
            house.regions.register("r", memory.key, 0, 8)
            here = True
            call = asked("held", "INT8", (1, 1), 1, 1)
            call.request.alive = lambda: here
            running = asyncio.create_task(SharedInfer(house.engine, house.regions)(call))
            held = house.runners["held"]
            await until(lambda: bool(held.running))
            here = False
            held.compute()
            with pytest.raises(Cancelled):
                await running
            assert memory.get(2) == b"\x07\x00"

    run(test, allow_client_shm=True)
