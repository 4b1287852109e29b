"""What service.py is written with: declared runners, a repository, and the handles they become.

    @bentoml.service(service_class=ekiben.EngineService)
    class Mine:
        fraud = ekiben.runner("fraud:latest")

        @bentoml.api
        async def score(self, rows: np.ndarray) -> np.ndarray:
            return (await self.fraud.infer(rows))["score"]

A declared runner is a BentoML model: `bentoml build` pins it into the Bento. The handles answer once the service
runs: in the engine of the same worker, or in the one at EKIBEN_URL.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol, Self, overload

import attrs
import numpy as np
from bentoml.exceptions import BentoMLException
from bentoml.models import BentoModel
from msgspec.structs import replace
from PIL import Image

from ekiben.errors import Code, EkibenError, InvalidRequest, Unavailable, Unsupported
from ekiben.inputs import as_tensor
from ekiben.preprocess import Label, decode, parse, prepare, rank
from ekiben.types import (
    Batching,
    ModelSettings,
    Parameter,
    Request,
    Response,
    Signature,
    Tensor,
)

__all__ = ["Answering", "Models", "Repository", "Runner", "repository", "runner"]

_STATUS: Final = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNSUPPORTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.CANCELLED: HTTPStatus.BAD_REQUEST,
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class Served(Protocol):
    """What a handle must know of a loaded version (engine.VersionView)."""

    @property
    def default(self) -> Signature: ...
    @property
    def settings(self) -> ModelSettings: ...
    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]: ...


class Answering(Protocol):
    """Where a handle sends its requests: the engine of this worker, or a client of another one."""

    def infer(self, request: Request) -> Awaitable[Response]: ...
    async def version(self, model: str, version: str = "") -> Served: ...


class Models:
    """Every model of an engine, for typed APIs. Errors are BentoML's, with the right HTTP status."""

    def __init__(self, engine: Callable[[], Answering]) -> None:
        """`engine` is asked at each call, since a service is declared before its engine exists."""
        self._engine = engine

    async def infer(
        self,
        model: str,
        inputs: Tensor | Sequence[Any] | Mapping[str, Any],
        *,
        version: str = "",
        outputs: tuple[str, ...] = (),
        parameters: Mapping[str, Parameter] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> dict[str, Tensor]:
        """Run a model, batched with everyone else's requests.

        `inputs` by name, or one array for a model with one input. Lists and arrays of a near dtype are converted to
        the declared one where nothing is lost. The answer maps each output to its array. `priority` (1 is the best, 0
        the model's default) and `timeout_us` (how long to wait for a batch) are as OIP's parameters.
        """
        with _as_bentoml_errors():
            if priority < 0 or timeout_us < 0:
                raise InvalidRequest(f"priority and timeout_us must be 0 or more, got {priority} and {timeout_us}")
            engine = self._engine()
            signature = (await engine.version(model, version)).default
            request = Request(
                model,
                _arrays(model, signature, inputs),
                version=version,
                outputs=outputs,
                parameters=dict(parameters or {}),
                priority=priority,
                timeout_us=timeout_us,
            )
            return (await engine.infer(request)).outputs

    async def classify(self, image: Image.Image | bytes, model: str, *, version: str = "") -> list[Label]:
        """The best labels of one image, by the `preprocess` declaration beside the model. Decoding runs in a thread."""
        with _as_bentoml_errors():
            engine = self._engine()
            served = await engine.version(model, version)
            if served.settings.preprocess is None:
                raise Unsupported(f"model '{model}' has no preprocess declaration, so it cannot take an image")
            declaration = parse(served.settings.preprocess, model)
            tensor = await asyncio.to_thread(lambda: prepare(declaration, [decode(image, declaration.max_pixels)]))
            request = Request(model, {declaration.input: tensor}, version=version, outputs=(declaration.output,))
            scores = (await engine.infer(request)).outputs[declaration.output]
            return rank(declaration, scores, served.labels.get(declaration.output, ()))[0]


class RunnerHandle:
    """A declared runner in a running service."""

    def __init__(self, models: Models, model: str, version: str) -> None:
        self._models = models
        self._model = model
        self._version = version

    async def infer(
        self,
        inputs: Tensor | Sequence[Any] | Mapping[str, Any],
        *,
        outputs: tuple[str, ...] = (),
        priority: int = 0,
        timeout_us: int = 0,
    ) -> dict[str, Tensor]:
        """As Models.infer, for this model."""
        return await self._models.infer(
            self._model, inputs, version=self._version, outputs=outputs, priority=priority, timeout_us=timeout_us
        )

    async def classify(self, image: Image.Image | bytes) -> list[Label]:
        """As Models.classify, for this model."""
        return await self._models.classify(image, self._model, version=self._version)


def _nowhere() -> Answering:
    raise Unavailable("the engine is not running: declare the service with service_class=ekiben.EngineService")


class _Bound:
    """Mixed into declarations: where their handles send requests, set when the service is composed."""

    def bind(self, engine: Callable[[], Answering]) -> None:
        """Point the handles at an engine."""
        object.__setattr__(self, "_engine", engine)

    def models(self) -> Models:
        """The handle to every model of that engine."""
        return Models(getattr(self, "_engine", _nowhere))


@attrs.frozen(slots=False)
class Runner(_Bound, BentoModel):  # type: ignore[misc]  # BentoML's classes are not typed
    """A model of the Bento store with the way it is to be run. Written as `ekiben.runner(…)`."""

    runtime: str = ""
    device: str = ""
    batching: Batching | None = None

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> RunnerHandle: ...
    def __get__(self, instance: object | None, owner: type) -> Self | RunnerHandle:
        if instance is None:
            return self
        version = self.tag.version or ""
        return RunnerHandle(self.models(), self.tag.name, "" if version == "latest" else version)

    def resolve(self, base_path: str | Path | None = None) -> Any:
        """Copy the model into `base_path` for BentoML.

        While serving, a model that is missing is the engine's to report: the other models must not wait for it.
        """
        return super().resolve(base_path) if base_path is not None or self.stored is not None else None

    def configured(self, settings: ModelSettings) -> ModelSettings:
        """The model's own settings, with what service.py says instead where it says something."""
        changes: dict[str, Any] = {}
        if self.runtime:
            changes["runtime"] = self.runtime
        if self.batching is not None:
            changes["batching"] = self.batching
        if self.device:
            changes["instances"] = tuple(replace(each, device=self.device) for each in settings.instances)
        return replace(settings, **changes)


class Repository(_Bound):
    """Every other model of a place. Written as `ekiben.repository(…)`."""

    def __init__(self, place: str) -> None:
        self.place = place

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Models: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Models:
        return self if instance is None else self.models()


def runner(tag: str, *, runtime: str = "", device: str = "", batching: Batching | None = None) -> Runner:
    """Declare a model of the Bento store as a runner of this service.

    `tag` is `name`, `name:latest` or `name:version`. `runtime` ('' is what model.yaml or the files say), `device`
    (`auto`, `cpu`, `gpu:N`) and `batching` win over the model's own settings.
    """
    return Runner(  # type: ignore[call-arg]  # the base class, and its field `tag`, is not typed
        tag=tag, runtime=runtime, device=device, batching=batching
    )


def repository(place: str) -> Repository:
    """Declare where further models come from: `store` (what `ekiben import` put into the Bento store) or a folder."""
    return Repository(place)


def _arrays(model: str, signature: Signature, inputs: Tensor | Sequence[Any] | Mapping[str, Any]) -> dict[str, Tensor]:
    if not isinstance(inputs, Mapping):
        if len(signature.inputs) != 1:
            names = ", ".join(spec.name for spec in signature.inputs)
            raise InvalidRequest(f"model '{model}' has {len(signature.inputs)} inputs: name them ({names})")
        inputs = {signature.inputs[0].name: inputs}
    datatypes = {spec.name: spec.datatype for spec in signature.inputs}
    try:
        return {
            name: as_tensor(value, name, datatypes[name]) if name in datatypes else np.asarray(value)
            for name, value in inputs.items()
        }
    except InvalidRequest as error:
        raise InvalidRequest(f"model '{model}': {error.message}") from None


@contextlib.contextmanager
def _as_bentoml_errors() -> Iterator[None]:
    try:
        yield
    except EkibenError as error:
        raise BentoMLException(error.message, error_code=_STATUS[error.code]) from error
