"""How versions come and go: load beside the old, switch in one step, drain the old, stop it.

`Model.reconcile` is handed the full set of versions wanted and makes it so. A version that fails to load leaves
the others as they are and says why in the index.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from ekiben.clock import Clock
from ekiben.engine.order import OrderedScheduler
from ekiben.engine.scheduler import Scheduler
from ekiben.engine.streams import StreamScheduler
from ekiben.engine.validate import SignatureCheck, check_signature
from ekiben.errors import EkibenError, InvalidSettings, LoadFailed
from ekiben.metrics import VersionStatistics
from ekiben.runner.base import Executor, Loaded
from ekiben.types import Instances, ModelSettings, Signature, VersionSource

__all__ = ["LoadedVersion", "Model", "RunnerFactory", "RunnerProcess", "VersionView"]

_LOG: Final = logging.getLogger("ekiben.engine")
_DEFAULT_MAX_BATCH_SIZE: Final = 64
_DEATHS_BEFORE_REFUSING: Final = 3
"""From this many deaths in a row on, requests are refused rather than kept waiting for the next attempt."""
_UNLOADING: Final = ("UNLOADING", "")
_UNLOADED: Final = ("UNAVAILABLE", "unloaded")
_PLATFORMS: Final = {
    "onnx": "onnxruntime_onnx",
    "tensorflow": "tensorflow_savedmodel",
    "torchscript": "pytorch_libtorch",
}


class RunnerProcess(Executor, Protocol):
    """A runner as the lifecycle uses it (runner.supervisor.Runner). All on the event loop."""

    @property
    def ready(self) -> bool: ...
    @property
    def restarts(self) -> int: ...
    @property
    def deaths_in_row(self) -> int: ...

    async def start(self) -> Loaded:
        """Spawn, load, warm up. Raises LoadFailed with the reason."""
        ...

    async def stop(self) -> None:
        """End the process; what is in flight ends as Died."""
        ...

    def memory_bytes(self) -> int:
        """Resident set of the process; 0 while it is down."""
        ...


RunnerFactory = Callable[[VersionSource, Callable[[], None]], RunnerProcess]
"""Makes the runner of a version; the callback is called on the loop whenever `ready` changes."""


class VersionView:
    """What the doors may know of a loaded version. Immutable."""

    def __init__(
        self, source: VersionSource, settings: ModelSettings, signatures: Mapping[str, Signature], loaded: Loaded
    ) -> None:
        self.model: Final = source.model
        self.version: Final = str(source.version)
        self.source: Final = source
        self.settings: Final = settings
        """As loaded: `max_batch_size` and `decoupled` are never None, the devices are those that `auto` became, label
        files are named as they lie in the model's folder.
        """
        self.signatures: Final = signatures
        """The default one first."""
        self.default: Final = next(iter(signatures.values()))
        self.platform: Final = _PLATFORMS.get(settings.runtime, settings.runtime)
        self.labels: Final = _read_labels(source)
        """Output name → class labels in order."""
        self.loaded: Final = loaded


class LoadedVersion:
    """A version that has a runner: what routes point at."""

    def __init__(self, view: VersionView, runner: RunnerProcess, clock: Clock) -> None:
        self.view = view
        self.runner = runner
        self.scheduler = _scheduler_of(view.settings)(
            view.model, view.version, view.settings, view.signatures, runner, clock
        )
        largest = view.settings.batching.max_batch_size or 0
        self._checks = {
            name: SignatureCheck(view.model, name, signature, largest) for name, signature in view.signatures.items()
        }
        self._default = self._checks[next(iter(view.signatures))]

    @property
    def ready(self) -> bool:
        """Whether its runner is up."""
        return self.runner.ready

    def check(self, signature: str) -> SignatureCheck:
        """The checks of one signature; '' is the default. Raises NotFound."""
        return check_signature(signature, self._checks, self.view.model) if signature else self._default

    def statistics(self) -> VersionStatistics:
        """Its figures since it was loaded."""
        return self.scheduler.counters.statistics(self.view.model, self.view.version)

    def runner_changed(self) -> None:
        """The runner went down or came back: hold, refuse or go on."""
        if self.runner.ready:
            self.scheduler.resume()
        elif self.runner.deaths_in_row >= _DEATHS_BEFORE_REFUSING:
            self.scheduler.suspend(f"its runner died {self.runner.deaths_in_row} times in a row")


class Model:
    """One model's versions: those that are loaded, and why the others are not."""

    def __init__(
        self,
        name: str,
        runner_factory: RunnerFactory,
        clock: Clock,
        loads: asyncio.Semaphore,
        changed: Callable[["Model"], None],
        dropped: Callable[[VersionSource], Awaitable[None]],
    ) -> None:
        """`changed` is called after every change of `loaded`; `dropped` for each version that was loaded or was to be,
        once nothing uses its files any more.
        """
        self.name = name
        self.loaded: dict[int, LoadedVersion] = {}
        self._states: dict[int, tuple[str, str]] = {}
        """State and reason of versions that are wanted and not loaded, or on their way out."""
        self._words: dict[str, int] = {}
        self._runner_factory = runner_factory
        self._clock = clock
        self._loads = loads
        self._changed = changed
        self._dropped = dropped
        self._lock = asyncio.Lock()

    def ready(self) -> bool:
        """Whether every wanted version answers."""
        return bool(self.loaded) and not self.missing() and all(version.ready for version in self.loaded.values())

    def wanted(self) -> bool:
        """Whether any version is loaded, loading or failed."""
        return bool(self.loaded or self.missing())

    def missing(self) -> dict[int, str]:
        """Versions that are wanted and not loaded as they should be, with state and reason."""
        return {
            number: ": ".join(filter(None, state))
            for number, state in self._states.items()
            if state not in (_UNLOADED, _UNLOADING)
        }

    def state(self, version: str) -> str | None:
        """State and reason of a version that is not loaded, by number or word; None: not known."""
        named = self._words.get(version, -1)
        found = (state for number, state in self._states.items() if number == named or str(number) == version)
        return next((": ".join(filter(None, state)) for state in found), None)

    def index(self) -> list[tuple[str, str, str]]:
        """(version, state, reason) of every version known, ascending.

        A loaded version whose newer files failed to load is READY, with the reason.
        """
        lines = dict(self._states)
        for number, version in self.loaded.items():
            reason = self._states.get(number, ("", ""))[1]
            lines[number] = ("READY", reason) if version.ready else ("UNAVAILABLE", "its runner is restarting")
        return [(str(number), *line) for number, line in sorted(lines.items())]

    async def reconcile(self, wanted: Sequence[VersionSource]) -> None:
        """Make `wanted` so; returns when every version of it is loaded or has failed, and the others are gone."""
        try:
            await self._make_so(wanted)
        finally:
            for source in wanted:
                if self._differs(source):
                    await self._dropped(source)

    async def _make_so(self, wanted: Sequence[VersionSource]) -> None:
        async with self._lock:
            self._words = {source.word: source.version for source in wanted if source.word}
            self._states = {}
            new = [source for source in wanted if self._differs(source)]
            for source in new:
                self._states[source.version] = ("LOADING", "")
            await asyncio.gather(*(self._load(source) for source in new))
            numbers = {source.version for source in wanted}
            if not wanted or not all(map(self._differs, wanted)):
                await asyncio.gather(*(self._unload(number) for number in list(self.loaded) if number not in numbers))

    async def stop(self) -> None:
        """End every runner without draining."""
        loaded = list(self.loaded.values())
        self.loaded.clear()
        for version in loaded:
            version.scheduler.suspend("the server is stopping")
        await asyncio.gather(*(version.runner.stop() for version in loaded))

    def _differs(self, source: VersionSource) -> bool:
        loaded = self.loaded.get(source.version)
        return loaded is None or loaded.view.source != source

    async def _load(self, source: VersionSource) -> None:
        version: list[LoadedVersion] = []
        runner = self._runner_factory(source, lambda: version[0].runner_changed() if version else None)
        try:
            async with self._loads:
                loaded = await runner.start()
            signatures = _default_first(loaded.signatures)
            settings = _resolve(source, signatures, loaded)
            version.append(LoadedVersion(VersionView(source, settings, signatures, loaded), runner, self._clock))
        except Exception as error:
            await runner.stop()
            self._states[source.version] = ("UNAVAILABLE", _reason(error))
            _LOG.error(
                "model '%s' version %d failed to load: %s",
                self.name,
                source.version,
                error,
                exc_info=not isinstance(error, EkibenError),
            )
            return
        except BaseException:
            self._states[source.version] = ("UNAVAILABLE", "its loading was cancelled")
            await runner.stop()
            raise
        old = self.loaded.get(source.version)
        self.loaded[source.version] = version[0]
        del self._states[source.version]
        self._changed(self)
        _LOG.info("model '%s' version %d is ready after %.1f s", self.name, source.version, loaded.load_seconds)
        if old is not None:
            await self._retire(old)

    async def _unload(self, number: int) -> None:
        version = self.loaded.pop(number)
        self._states[number] = _UNLOADING
        self._changed(self)
        await self._retire(version)
        self._states[number] = _UNLOADED
        _LOG.info("model '%s' version %d is unloaded", self.name, number)

    async def _retire(self, version: LoadedVersion) -> None:
        try:
            await version.scheduler.drain()
        finally:
            try:
                await version.runner.stop()
            finally:
                await self._dropped(version.view.source)


def _scheduler_of(settings: ModelSettings) -> type[Scheduler]:
    if settings.decoupled:
        return StreamScheduler
    return OrderedScheduler if settings.batching.preserve_ordering else Scheduler


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, EkibenError) else "unexpected error: see the log"


def _default_first(signatures: Mapping[str, Signature]) -> dict[str, Signature]:
    default = "serving_default" if "serving_default" in signatures else next(iter(signatures))
    return {default: signatures[default], **signatures}


def _resolve(source: VersionSource, signatures: Mapping[str, Signature], loaded: Loaded) -> ModelSettings:
    """Settings with what loading decided. Raises InvalidSettings where max_batch_size contradicts the signature."""
    settings = source.settings
    specs = [
        (kind, spec)
        for signature in signatures.values()
        for kind, spec in [
            *(("input", spec) for spec in signature.inputs),
            *(("output", spec) for spec in signature.outputs),
        ]
    ]
    size = settings.batching.max_batch_size
    fixed = [(kind, spec) for kind, spec in specs if not spec.shape or spec.shape[0] != -1]
    if size is None:
        size = 0 if fixed else _DEFAULT_MAX_BATCH_SIZE
    elif size and fixed:
        kind, spec = fixed[0]
        raise InvalidSettings(
            f"model '{source.model}' version {source.version}: max_batch_size is {size}, but {kind} '{spec.name}' has "
            f"shape {list(spec.shape)}, which does not lead with a variable batch dimension; set max_batch_size to 0"
        )
    return replace(
        settings,
        batching=replace(settings.batching, max_batch_size=size),
        instances=_placed(settings.instances, loaded.devices),
        labels={output: _inside(source, name) for output, name in settings.labels.items()},
        decoupled=loaded.decoupled,
    )


def _placed(groups: Sequence[Instances], devices: Sequence[str]) -> tuple[Instances, ...]:
    """The groups of instances on the devices that they got; `devices` has one for each instance, in order."""
    placed: list[Instances] = []
    rest = iter(devices)
    for group in groups:
        given = Counter(itertools.islice(rest, group.count))
        placed += [replace(group, device=device, count=count) for device, count in given.items()]
    return tuple(placed)


def _inside(source: VersionSource, name: str) -> str:
    """A label file's name in the model's folder, which is the version's own or the one around it."""
    file, version = Path(name), Path(source.path)
    around = (folder for folder in (version, version.parent) if file.is_relative_to(folder))
    return next((str(file.relative_to(folder)) for folder in around), name)


def _read_labels(source: VersionSource) -> dict[str, tuple[str, ...]]:
    labels: dict[str, tuple[str, ...]] = {}
    for output, name in source.settings.labels.items():
        try:
            text = (Path(source.path) / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LoadFailed(
                f"model '{source.model}': the label file '{name}' of output '{output}' cannot be read: {error}"
            ) from None
        labels[output] = tuple(text.splitlines())
    return labels
