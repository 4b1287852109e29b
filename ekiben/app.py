"""The composition root: puts the rooms together inside a BentoML service worker.

    uvicorn ─► EngineApp ─┬─ /v2/…  ─► OipHttp ─► Engine        (a direct path)
                          └─ the rest ─► BentoML's own app      (/, /docs, /metrics, /readyz, typed APIs)

Nobody imports this file but `ekiben.EngineService` in a service.py.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from _bentoml_sdk import Service
from msgspec.structs import replace

from ekiben import __version__, logs
from ekiben.clock import SYSTEM_CLOCK
from ekiben.declare import Answering, Repository, Runner
from ekiben.doors.grpc_calls import Methods
from ekiben.doors.grpc_health import GrpcHealth
from ekiben.doors.grpc_port import GrpcPort
from ekiben.doors.grpc_reflection import GrpcReflection
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.doors.oip_grpc_settings import OipGrpcSettings
from ekiben.doors.oip_grpc_shm import OipGrpcSharedMemory
from ekiben.doors.oip_http import OipHttp
from ekiben.doors.oip_http_generate import OipGenerate
from ekiben.doors.oip_http_settings import OipHttpSettings
from ekiben.doors.oip_http_shm import OipHttpSharedMemory
from ekiben.doors.prometheus import render
from ekiben.doors.restricted import LockedApp, grpc_guards
from ekiben.engine.engine import Engine, VersionView
from ekiben.errors import InvalidSettings, Unavailable
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.shared_memory import NO_REGIONS, Regions, SharedMemory, most_regions
from ekiben.extensions.spans import Spans
from ekiben.extensions.traces import Traces
from ekiben.greeting import HttpAddress, banner, call, joined
from ekiben.preprocess import parse
from ekiben.remote import RemoteEngine, access_from
from ekiben.repository.layout import STORE, Reader, open_repositories
from ekiben.repository.overrides import OVERRIDES_FOLDER, Overrides
from ekiben.repository.selection import AvailableModel, AvailableVersion, catalogue
from ekiben.restrictions import keys_of
from ekiben.runner.cores import usable_cores
from ekiben.runner.supervisor import Runner as RunnerSupervisor
from ekiben.settings import PARENT_VARIABLE, Settings, bentoml_home
from ekiben.telemetry import flush, tracer_provider
from ekiben.tls import CIPHERS, TlsFiles, load_identity
from ekiben.types import Catalogue, VersionSource
from ekiben.wire.protos.grpc import HEALTH
from ekiben.wire.protos.oip import OIP

__all__ = ["EngineService"]

_LOG: Final = logging.getLogger("ekiben.app")
_GC_THRESHOLDS: Final = (50_000, 50, 50)
"""Full collections of a large heap take 100 ms and more, so they are made rare, and what start-up made is frozen."""

_FLUSH_SECONDS: Final = 5.0
"""What a collector of spans that does not answer may hold up the end."""
_ORPHAN_SECONDS: Final = 10.0
"""What a worker without its parent has to end by itself, before it is ended: nobody would notice that it has not."""


class EngineService(Service[Any]):  # type: ignore[misc]  # BentoML's classes are not typed
    """A BentoML service whose worker is an engine. Passed as `@bentoml.service(service_class=ekiben.EngineService)`."""

    def inject_config(self) -> None:
        """Give BentoML this service's configuration: loopback unless told otherwise, one worker."""
        self.config.setdefault("http", {}).setdefault("host", "127.0.0.1")
        workers = self.config.get("workers", 1)
        if workers != 1:
            raise InvalidSettings(
                f"service '{self.name}': workers must be 1: more are not supported yet, got {workers}"
            )
        tls = Settings.load(environ=os.environ).http_tls
        if tls is None:
            super().inject_config()
            return
        # Not for longer than this call: a Bento that is built here must not know of this machine's files.
        own = self.config.get("ssl")
        self.config["ssl"] = {**(own or {}), **_bentoml_tls(tls)}
        try:
            super().inject_config()
        finally:
            del self.config["ssl"]
            if own is not None:
                self.config["ssl"] = own

    def to_asgi(self, is_main: bool = True) -> Any:
        """BentoML's app with the engine in front of it."""
        settings = Settings.load(environ=os.environ)
        logs.configure(settings.log_format)
        certified: tuple[str, ...] = ()
        if settings.http_tls is not None:
            identity = load_identity(settings.http_tls)
            if identity.flaw:
                _LOG.warning("clients will refuse the certificate '%s': %s", settings.tls_cert, identity.flaw)
            certified = identity.hosts
        runners, repositories = self._declarations()
        remote = os.environ.get("EKIBEN_URL")
        if remote:
            client = RemoteEngine(remote, access_from(os.environ))
            for each in (*runners, *repositories):
                each.bind(lambda: client)
            return self._locked(settings, is_main)
        app = EngineApp(settings, self.reader(settings), certified)
        for each in (*runners, *repositories):
            each.bind(app.answering)
        self._answer_probes(app)
        app.bentoml = self._locked(settings, is_main)
        return app

    def _locked(self, settings: Settings, is_main: bool) -> Any:
        """BentoML's app, which runs models too, for those who may."""
        return LockedApp.around(super().to_asgi(is_main=is_main), settings, self.path_prefix or "")

    def _declarations(self) -> tuple[list[Runner], list[Repository]]:
        declared = [getattr(self.inner, name) for name in dir(self.inner)]
        return (
            [each for each in declared if isinstance(each, Runner)],
            [each for each in declared if isinstance(each, Repository)],
        )

    def reader(self, settings: Settings) -> Reader:
        """What the settings name, else what the service declares; in a built Bento its own models are the store.

        Declared runners are as the service says. Raises InvalidSettings.
        """
        runners, repositories = self._declarations()
        places = settings.repositories or tuple(each.place for each in repositories)
        if runners and STORE not in places and not settings.repositories:
            places = (*places, STORE)
        bento = None
        if self.bento is not None:
            stored = [model.to_model().resolve() for model in self.bento.info.all_models]
            bento = [(str(model.tag), Path(model.path)) for model in stored]
        reader = open_repositories(
            places,
            home=bentoml_home(os.environ),
            state_directory=Path(settings.state_dir),
            declared=[str(each.tag) for each in runners],
            bento=bento,
        )
        return _DeclaredReader(reader, runners)

    def _answer_probes(self, app: "EngineApp") -> None:
        """BentoML asks these of the service's class for /readyz and /metrics."""
        inner: Any = self.inner
        if not hasattr(inner, "__is_ready__"):
            inner.__is_ready__ = app.is_ready
        if not hasattr(inner, "__metrics__"):
            inner.__metrics__ = app.metrics


class EngineApp:
    """The worker's ASGI app."""

    bentoml: Any

    def __init__(self, settings: Settings, reader: Reader, certified_hosts: tuple[str, ...] = ()) -> None:
        """`certified_hosts` are the names in the certificate of `tls_cert`."""
        self._settings = settings
        self._certified_hosts = certified_hosts
        self._reader = reader
        self._overrides = Overrides(Path(settings.state_dir) / OVERRIDES_FOLDER, reader)
        self._engine: Engine | None = None
        self._oip: OipHttp | None = None
        self._grpc_address = ""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            oip = self._oip
            if oip is not None and oip.owns(scope["path"]):
                await oip(scope, receive, send)
                return
        elif scope["type"] == "lifespan":
            async with self._running() as stop:

                async def send_after_stop(message: dict[str, Any]) -> None:
                    # Once uvicorn has this message it ends the process, and nothing after it would run.
                    if message["type"].startswith("lifespan.shutdown"):
                        await stop()
                    await send(message)

                await self.bentoml(scope, receive, send_after_stop)
            return
        await self.bentoml(scope, receive, send)

    def answering(self) -> Answering:
        """Where handles send their requests."""
        if self._engine is None:
            raise Unavailable("the engine is not running yet")
        return _LocalEngine(self._engine)

    async def is_ready(self) -> bool:
        """What /readyz answers."""
        return self._engine is not None and self._engine.ready()

    async def metrics(self, text: str) -> str:
        """BentoML's metrics and ours."""
        return text + (render(self._engine).decode() if self._engine is not None else "")

    @contextlib.asynccontextmanager
    async def _running(self) -> Any:
        _end_with_parent()
        clock, cores = SYSTEM_CLOCK, usable_cores()

        def make_runner(source: VersionSource, changed: Callable[[], None]) -> RunnerSupervisor:
            return RunnerSupervisor(source, source.settings, clock, lambda _: changed(), cores)

        overrides = self._overrides
        engine = self._engine = Engine(
            self._reader.scan,
            make_runner,
            clock,
            explicit=self._settings.model_control == "explicit",
            load_models=self._settings.load_models,
            strict_readiness=self._settings.strict_readiness,
            concurrent_loads=max(1, cores),
            overrides=overrides if self._settings.allow_load_override else None,
        )
        provider = tracer_provider(os.environ)
        spans = None if provider is None else Spans(provider.get_tracer("ekiben", __version__))
        traces, log_settings = Traces(clock, self._settings.trace_file, spans), LogSettings()
        regions = _regions(self._settings)
        extensions = [
            OipGenerate(engine, self._settings).handlers,
            OipHttpSettings(engine, traces, log_settings).handlers,
            OipHttpSharedMemory(regions).handlers,
        ]
        self._oip = OipHttp(engine, self._settings, clock, regions, extensions, traces)
        services = _grpc_services(engine, regions, traces, log_settings)
        paths = [path for methods in services for path in methods.paths()]
        grpc = GrpcPort(
            services,
            self._settings.body_limit_bytes,
            grpc_guards(self._settings, paths),
            max_connections=self._settings.grpc_max_connections,
            max_connection_age_s=self._settings.grpc_max_connection_age_s,
        )
        http = _http_address(self._settings, self._certified_hosts)
        if self._settings.grpc_port:
            try:
                await grpc.listen(http.host, self._settings.grpc_port, self._settings.grpc_tls)
                self._grpc_address = joined(http.host, self._settings.grpc_port)
                if http.cert and self._settings.grpc_tls is None:
                    _LOG.warning("the gRPC port has no TLS, though HTTP has: set EKIBEN_TLS_CERT and EKIBEN_TLS_KEY")
            except InvalidSettings as error:
                _LOG.error("gRPC is not served: %s", error)
        starting = asyncio.create_task(self._start(engine))

        async def stop() -> None:
            nonlocal provider
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            await grpc.close()
            await engine.stop()
            await asyncio.to_thread(overrides.close)
            await traces.close()
            if provider is not None:
                ending, provider = provider, None
                await asyncio.to_thread(flush, ending, _FLUSH_SECONDS)

        try:
            yield stop
        finally:
            await stop()

    async def _start(self, engine: Engine) -> None:
        await asyncio.to_thread(self._overrides.remove_leftovers)
        try:
            await engine.start()
        except Exception:
            _LOG.exception("the models could not be loaded")
            return
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        entries = engine.index()
        ready = [entry for entry in entries if entry.state == "READY"]
        failed = [entry for entry in entries if entry.state == "UNAVAILABLE"]
        for entry in failed:
            _LOG.error("not served: %s %s: %s", entry.name, entry.version, entry.reason)
        http = _http_address(self._settings, self._certified_hosts)
        headers = {group: key.header for group, key in keys_of("http", self._settings.http_restricted).items()}
        print(banner(http.url, self._grpc_address, len(ready), len(failed)), flush=True)
        print(call(http, engine, headers), flush=True)


class _DeclaredReader:
    """Models with what service.py says of declared runners, and with every declaration for `preprocess` checked."""

    def __init__(self, reader: Reader, runners: list[Runner]) -> None:
        self._reader = reader
        self._declared = {(runner.tag.name, _version_of(runner)): runner for runner in runners}
        self.describe = reader.describe
        self.with_settings = reader.with_settings

    def models(self) -> list[AvailableModel]:
        return [
            replace(model, versions=tuple(self._configured(model.name, version) for version in model.versions))
            for model in self._reader.models()
        ]

    def scan(self) -> Catalogue:
        return catalogue(self.models())

    def _configured(self, model: str, version: AvailableVersion) -> AvailableVersion:
        if version.error:
            return version
        names = (version.word, str(version.number), "")
        runner = next((found for name in names if (found := self._declared.get((model, name)))), None)
        try:
            settings = version.settings if runner is None else runner.configured(version.settings)
            if settings.preprocess is not None:
                parse(settings.preprocess, model)
        except InvalidSettings as error:
            return replace(version, error=error.message)
        return replace(version, settings=settings)


class _LocalEngine:
    """The engine of this worker as handles see it."""

    def __init__(self, engine: Engine) -> None:
        self.infer = engine.infer
        self._engine = engine

    async def version(self, model: str, version: str = "") -> VersionView:
        return self._engine.version(model, version)


def _regions(settings: Settings) -> SharedMemory:
    """What clients may do with shared memory, which both doors have in common."""
    if not settings.allow_client_shm:
        return NO_REGIONS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Regions(settings.body_limit_bytes, most_regions(descriptors))


def _grpc_services(
    engine: Engine, regions: SharedMemory, traces: Traces, log_settings: LogSettings
) -> tuple[Methods, ...]:
    return (
        OipGrpc(engine, regions, traces).methods,
        OipGrpcSettings(engine, traces, log_settings).methods,
        OipGrpcSharedMemory(regions).methods,
        GrpcHealth(engine.ready, OIP.services).methods,
        GrpcReflection([OIP, HEALTH]).methods,
    )


def _version_of(runner: Runner) -> str:
    return "" if runner.tag.version in (None, "latest") else str(runner.tag.version)


def _http_address(settings: Settings, certified_hosts: tuple[str, ...]) -> HttpAddress:
    """Where uvicorn listens, and how: what BentoML told this worker, whatever option or variable chose it."""
    host, port = settings.host, settings.port
    if listener := _argument("--fd"):
        with socket.socket(fileno=os.dup(int(listener))) as listening:
            host, port = listening.getsockname()[:2]
    cert = _argument("--ssl-certfile")
    hosts = certified_hosts if cert == settings.tls_cert else ()
    return HttpAddress(host, port, cert, hosts, bool(_argument("--ssl-cert-reqs")))


def _argument(option: str) -> str:
    """What this worker was started with; '' where it was not."""
    return sys.argv[sys.argv.index(option) + 1] if option in sys.argv else ""


def _bentoml_tls(files: TlsFiles) -> dict[str, object]:
    """Our files in BentoML's words. Its own choice of ciphers has none with forward secrecy for TLS 1.2."""
    own = {"enabled": True, "certfile": files.cert, "keyfile": files.key, "ciphers": CIPHERS}
    return {**own, "ca_certs": files.client_ca, "cert_reqs": int(ssl.CERT_REQUIRED)} if files.client_ca else own


def _end_with_parent() -> None:
    """End when the process that started us does, however it ends; a worker without its parent holds the port."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        _LOG.error("the parent process is gone: ending")
        os.kill(os.getpid(), signal.SIGTERM)
        loop.call_later(_ORPHAN_SECONDS, os._exit, 1)

    started_by = os.environ.get(PARENT_VARIABLE)
    try:
        parent = os.pidfd_open(os.getppid())
    except OSError:
        parent = -1
    if parent < 0 or (started_by and started_by != str(os.getppid())):
        end()
        return

    def gone() -> None:
        loop.remove_reader(parent)
        end()

    loop.add_reader(parent, gone)
