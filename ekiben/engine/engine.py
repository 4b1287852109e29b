"""The engine: loaded versions, and the way of a request to one of them.

    infer ─► route (model, version) ─► SignatureCheck.admit ─► Scheduler.offer ─► Response
    stream ─► the same ──────────────────────────────────────► Scheduler.stream ─► Replies

Doors, typed APIs and runners' handles all call `infer`. What should be loaded is the repository's word
(a Catalogue); how it comes to be loaded is lifecycle's work.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from ekiben.clock import Clock
from ekiben.engine.lifecycle import LoadedVersion, Model, RunnerFactory, VersionView
from ekiben.engine.overrides import NoOverrides, Overrides
from ekiben.engine.replies import Replies
from ekiben.errors import EkibenError, InvalidRequest, LoadFailed, NotFound, NotReady, Unavailable
from ekiben.metrics import VersionStatistics
from ekiben.types import Catalogue, LoadOverride, ModelSource, Request, Response, VersionSource

__all__ = ["Engine", "IndexEntry", "Replies", "VersionView"]

_LOG: Final = logging.getLogger("ekiben.engine")
_EVERY_MODEL: Final = "*"
"""Among `load_models`: all that the repository has, as Triton has it."""


class IndexEntry(msgspec.Struct, frozen=True):
    """One line of the repository index. `version` and `state` are '' for a model that was never loaded."""

    name: str
    version: str = ""
    state: str = ""
    """READY, LOADING, UNAVAILABLE or UNLOADING."""
    reason: str = ""


class Engine:
    """All loaded models of one process. Lives on one event loop; nothing in it blocks."""

    def __init__(
        self,
        scan: Callable[[], Catalogue],
        runner_factory: RunnerFactory,
        clock: Clock,
        *,
        explicit: bool = False,
        load_models: tuple[str, ...] = (),
        strict_readiness: bool = False,
        concurrent_loads: int = 2,
        overrides: Overrides | None = None,
    ) -> None:
        """`scan` may block and is called in a thread. `explicit`: only what `load_models` or `load` names. Without
        `overrides` a load takes what the repository says and nothing else.
        """
        self.unrouted: Counter[str] = Counter()
        """Requests that reached no version, by reason."""
        self._scan = scan
        self._runner_factory = runner_factory
        self._clock = clock
        self._explicit = explicit
        self._load_models = load_models
        self._strict = strict_readiness
        self._overrides: Overrides = overrides or NoOverrides()
        self._models: dict[str, Model] = {}
        self._routes: dict[tuple[str, str], LoadedVersion] = {}
        self._known: dict[str, ModelSource] = {}
        self._loads = asyncio.Semaphore(concurrent_loads)
        self._scanning = asyncio.Lock()
        self._scanned = False
        self._started = False
        self._missing: dict[str, str] = {}
        """Models named to be loaded that the repository does not have or cannot read, with the reason."""

    async def start(self) -> None:
        """Load everything wanted; returns when each version is ready or has failed."""
        catalogue = await self._read()
        wanted = {name: catalogue[name] for name in self._load_models if name in catalogue}
        if not self._explicit or _EVERY_MODEL in self._load_models:
            wanted = dict(catalogue)
        for name in self._load_models:
            if name not in catalogue and name != _EVERY_MODEL:
                self._missing[name] = "the repository has no such model"
        for source in wanted.values():
            self._model(source.name)
        self._scanned = True
        await asyncio.gather(*(self._reconcile(source) for source in wanted.values()))
        self._started = True
        for name, reason in self._missing.items():
            _LOG.error("model '%s' cannot be loaded: %s", name, reason)

    async def stop(self) -> None:
        """Stop every runner; what is in flight is answered as died."""
        models = list(self._models.values())
        self._models.clear()
        self._routes.clear()
        await asyncio.gather(*(model.stop() for model in models))

    def infer(self, request: Request) -> asyncio.Future[Response]:
        """Queue a request. Await the result for the response; cancelling it frees the request's place.

        Raises (here or from the future): NotFound, NotReady, InvalidRequest, QueueFull, QueueTimeout, InferenceFailed,
        ExecutionTimeout, RunnerDied, Cancelled; Decoupled where the model answers with a stream.
        """
        version = self._routes.get((request.model, request.version))
        if version is None:
            raise self._unrouted(request)
        try:
            rows, key = version.check(request.signature).admit(request)
        except EkibenError as error:
            version.scheduler.counters.failed[error.reason] += 1
            raise
        return version.scheduler.offer(request, rows, key)

    def stream(self, request: Request) -> Replies:
        """Queue a request to any model; its responses as they come, which is one unless the model is decoupled.

        Raises (here or from the iterator) as `infer`. The caller must close it.
        """
        version = self._routes.get((request.model, request.version))
        if version is None:
            raise self._unrouted(request)
        try:
            rows, key = version.check(request.signature).admit(request)
        except EkibenError as error:
            version.scheduler.counters.failed[error.reason] += 1
            raise
        return version.scheduler.stream(request, rows, key)

    def ready(self) -> bool:
        """Whether the server may get traffic: everything wanted is settled, and enough of it is ready.

        Strict: all of it. Otherwise one version is enough. No model at all is not ready, except in explicit mode with
        none named.
        """
        if not self._started:
            return False
        models = [model for model in self._models.values() if model.wanted()]
        if not models and not self._missing:
            return self._explicit and not self._load_models
        if self._strict:
            return not self._missing and all(model.ready() for model in models)
        return any(version.ready for version in self.versions())

    def model_ready(self, model: str, version: str = "") -> bool:
        """Whether an inference would be accepted and run now; False for what is not known."""
        loaded = self._routes.get((model, version))
        return loaded is not None and loaded.ready

    def version(self, model: str, version: str = "") -> VersionView:
        """What is known of a loaded version. Raises NotFound or NotReady."""
        return self._loaded(model, version).view

    def ready_versions(self, model: str) -> list[str]:
        """Integers of the versions that answer, as text, ascending."""
        known = self._models.get(model)
        return [str(number) for number in sorted(known.loaded)] if known is not None else []

    def models(self) -> list[str]:
        """Names of all models that have a version loaded, sorted."""
        return sorted(name for name, model in self._models.items() if model.loaded)

    def versions(self) -> Iterator[LoadedVersion]:
        """Every loaded version, for metrics."""
        for name in sorted(self._models):
            yield from self._models[name].loaded.values()

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        """Every model the repository or the engine knows, a line a version."""
        entries: list[IndexEntry] = []
        for name in sorted({*self._known, *self._models, *self._missing}):
            model = self._models.get(name)
            lines = model.index() if model is not None else []
            if lines:
                entries += [IndexEntry(name, *line) for line in lines]
            else:
                reason = self._missing.get(name) or (self._known[name].error if name in self._known else "")
                entries.append(IndexEntry(name, state="UNAVAILABLE" if reason else "", reason=reason))
        return [entry for entry in entries if entry.state == "READY"] if only_ready else entries

    def statistics(self, model: str = "", version: str = "") -> list[VersionStatistics]:
        """Figures of one version, of a model's loaded versions, or of all. Raises InvalidRequest for one not there."""
        if not model:
            return [loaded.statistics() for loaded in self.versions()]
        try:
            found = self._loaded(model, version)
        except (NotFound, NotReady) as error:
            what = "requested model version is not available for model '{}'"
            if not version:
                what = "requested model '{}' is not available"
            raise InvalidRequest(f"{what.format(model)}: {error.message}") from None
        loaded = [found] if version else self._models[model].loaded.values()
        return [each.statistics() for each in loaded]

    async def load(self, model: str, override: LoadOverride | None = None) -> None:
        """Load the versions that the repository wants of a model now, or those of `override`; returns when they answer.

        What `override` gives lasts until the next load or unload of the model; where none of it can be loaded, what was
        loaded before stays. Raises Unavailable unless in explicit mode, Unsupported where overrides are not allowed,
        LoadFailed when no version can be loaded, InvalidSettings for a wrong override.
        """
        self._require_explicit()
        source = await (self._wanted(model) if override is None else self._taken(model, override))
        del override  # its files may be large, and loading takes long
        await self._reconcile(source)
        self._missing.pop(model, None)
        missing = self._models[model].missing()
        if missing:
            reasons = "; ".join(f"version {number} is {state}" for number, state in sorted(missing.items()))
            what = "" if self._models[model].loaded else "no version is available: "
            raise LoadFailed(f"failed to load '{model}', {what}{reasons}")

    async def unload(self, model: str, *, dependents: bool = False) -> None:
        """Stop answering for a model, finish what it accepted, end its runners. Unknown names are fine.

        `dependents`: and for the models that are built on it; none is. Raises Unavailable unless in explicit mode.
        """
        self._require_explicit()
        self._missing.pop(model, None)
        if model in self._models:
            await self._reconcile(ModelSource(model))

    async def _read(self) -> Catalogue:
        async with self._scanning:
            catalogue = await asyncio.to_thread(self._scan)
            self._known = dict(catalogue)
            return catalogue

    async def _wanted(self, model: str) -> ModelSource:
        source = (await self._read()).get(model)
        if source is None:
            raise LoadFailed(f"failed to load '{model}', failed to poll from model repository: no such model there")
        if source.error:
            raise LoadFailed(f"failed to load '{model}', failed to poll from model repository: {source.error}")
        return source

    async def _taken(self, model: str, override: LoadOverride) -> ModelSource:
        async with self._scanning:
            taking = asyncio.ensure_future(asyncio.to_thread(self._overrides.take, model, override))
            try:
                return await asyncio.shield(taking)
            except asyncio.CancelledError:
                # The thread goes on; what comes of it is nobody's.
                (source,) = await asyncio.gather(taking, return_exceptions=True)
                if isinstance(source, ModelSource):
                    await asyncio.gather(*map(self._drop, source.versions))
                raise

    async def _drop(self, source: VersionSource) -> None:
        await asyncio.to_thread(self._overrides.drop, source)

    async def _reconcile(self, source: ModelSource) -> None:
        if source.error:
            self._missing[source.name] = source.error
            return
        await self._model(source.name).reconcile(source.versions)

    def _model(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = Model(
                name, self._runner_factory, self._clock, self._loads, self._route, self._drop
            )
        return model

    def _route(self, model: Model) -> None:
        """Point every address of a model at its loaded versions; in one step, so no request sees half of it."""
        for address in [address for address in self._routes if address[0] == model.name]:
            del self._routes[address]
        if model.name not in self._models:
            return
        for number, loaded in sorted(model.loaded.items()):
            self._routes[model.name, str(number)] = loaded
            if loaded.view.source.word:
                self._routes[model.name, loaded.view.source.word] = loaded
            self._routes[model.name, ""] = loaded

    def _loaded(self, model: str, version: str) -> LoadedVersion:
        loaded = self._routes.get((model, version))
        if loaded is None:
            raise self._unroutable(model, version)
        return loaded

    def _unrouted(self, request: Request) -> EkibenError:
        error = self._unroutable(request.model, request.version)
        self.unrouted[error.reason] += 1
        return error

    def _unroutable(self, model: str, version: str) -> EkibenError:
        known = self._models.get(model)
        if known is None and not self._scanned:
            return NotReady(f"Request for unknown model: '{model}' has no available versions: the server is starting")
        if known is None or not known.wanted():
            return NotFound(f"Request for unknown model: '{model}' is not found")
        if known.loaded and version:
            state = known.state(version)
            if state is None:
                return NotFound(f"Request for unknown model: '{model}' version {version} is not found")
            return NotReady(f"Request for unknown model: '{model}' version {version} is not at ready state: {state}")
        why = "; ".join(f"version {line[0]} is {line[1]}{': ' + line[2] if line[2] else ''}" for line in known.index())
        return NotReady(f"Request for unknown model: '{model}' has no available versions: {why}")

    def _require_explicit(self) -> None:
        if not self._explicit:
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled: "
                "start the server with --model-control explicit"
            )
