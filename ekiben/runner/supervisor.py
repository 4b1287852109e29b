"""Keeps one model version executing: starts its runner process, and another as soon as that one dies."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from ekiben.clock import Clock
from ekiben.errors import LoadFailed
from ekiben.runner.base import Batch, Died, Done, Loaded, Slot
from ekiben.runner.process import RunnerProcess
from ekiben.types import ModelSettings, VersionSource

__all__ = ["Runner", "respawn_delay_seconds"]

_LOG: Final = logging.getLogger(__name__)
_FREE_DEATHS: Final = 2
_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 30.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def respawn_delay_seconds(deaths_in_row: int) -> float:
    """How long to wait before a respawn: nothing for the first two deaths in a row, then 0.5, 1, 2, … at most 30."""
    excess = deaths_in_row - _FREE_DEATHS - 1
    return 0.0 if excess < 0 else min(_FIRST_DELAY_SECONDS * 2.0 ** min(excess, 16), _LONGEST_DELAY_SECONDS)


@final
class Runner:
    """An Executor (runner.base) over a child process. Everything is called on one event loop, in the main thread:
    the kernel ends a runner with the thread that started it.

    `on_change` is called when the runner went down, when a respawn failed and when it is back, not for `start` and
    `stop`.
    """

    def __init__(
        self,
        source: VersionSource,
        settings: ModelSettings,
        clock: Clock,
        on_change: "Callable[[Runner], None]",
        cores: int,
    ) -> None:
        """`settings` are the resolved ones. `cores` (usable_cores) are divided over its instances."""
        self._source = source
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._cores = cores
        self._process: RunnerProcess | None = None
        self._respawning: asyncio.Task[None] | None = None
        self._stopped = False
        self.deaths_in_row = 0
        """Deaths, and respawns that did not load, since a batch was last answered."""
        self.restarts = 0
        """How often a process was started in place of one that died, whether it then loaded or not."""

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def ready(self) -> bool:
        """Whether it can take batches (all its slots may be taken)."""
        return self._process is not None and self._process.serving

    async def start(self) -> Loaded:
        """Spawn, load and warm up. Raises LoadFailed with the reason; nothing is left then, nor when cancelled."""
        started = self._clock.monotonic()
        try:
            self._process = RunnerProcess(self._source, self._settings, self._cores, self._on_end)
        except OSError as error:
            name = f"model '{self._source.model}' version {self._source.version}"
            raise LoadFailed(f"{name}: no runner process can be started: {error}") from error
        try:
            report = await self._process.load()
        except BaseException:
            self._process = None
            raise
        seconds = self._clock.monotonic() - started
        return Loaded(report.signatures, report.devices, seconds, self.memory_bytes(), report.decoupled)

    def idle(self) -> Slot | None:
        """As Executor.idle."""
        return self._process.idle() if self._process is not None else None

    def submit(self, slot: Slot, batch: Batch, done: Done) -> None:
        """As Executor.submit. Parts that cannot be joined, or items that are not bytes, come back as Raised."""
        if self._process is not None:
            self._process.submit(slot, batch, done)
        else:
            asyncio.get_running_loop().call_soon(done, Died("the runner has ended"))

    def advance(self, slot: Slot, stop: bool) -> None:
        """As Executor.advance."""
        if self._process is not None:
            self._process.advance(slot, stop)

    async def stop(self) -> None:
        """End the process for good. Batches in flight get Died; the engine drains first."""
        self._stopped = True
        if self._respawning is not None:
            self._respawning.cancel()
            await asyncio.wait([self._respawning])
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop()

    def memory_bytes(self) -> int:
        """The process's resident set; 0 while there is none."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            return 0

    def _on_end(self, process: RunnerProcess) -> None:
        if self._stopped:
            return
        self._process = None
        self.deaths_in_row = 1 if process.answered else self.deaths_in_row + 1
        _LOG.warning("%s; starting another", process.reason)
        self._respawning = asyncio.get_running_loop().create_task(self._respawn())
        self._on_change(self)

    async def _respawn(self) -> None:
        while True:
            await asyncio.sleep(respawn_delay_seconds(self.deaths_in_row))
            self.restarts += 1
            try:
                await self.start()
            except Exception as error:  # whatever it was, the next attempt may go better, and none would be the end
                self.deaths_in_row += 1
                _LOG.error("%s", error, exc_info=not isinstance(error, LoadFailed))
                self._on_change(self)
            else:
                break
        self._on_change(self)
