"""What a server says of itself, which models it has, and how they can be asked: learnt once, before any point.

A model is used when it answers a request made from its metadata, twice the same. `echoes` are models with one input
and one output that return what they are given: with those a check knows what must come back, to the last bit.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ekiben.conformance.deadline import Deadline
from ekiben.conformance.http_client import HttpClient, Reply
from ekiben.conformance.infer_reply import HEADER_LENGTH, answered, equal, member, outputs
from ekiben.conformance.infer_request import (
    as_binary,
    as_json,
    binary_body,
    encoded,
    outputs_wanted,
    request,
    sample_tensor,
)
from ekiben.conformance.verdicts import Failed, NoReply, expect, shortened
from ekiben.errors import InvalidSettings
from ekiben.types import Tensor, TensorSpec

__all__ = ["Model", "Sample", "Survey", "extension_name", "survey"]

_MOST_MODELS: Final = 64
_MOST_ELEMENTS: Final = 1 << 18
_MOST_DIMENSIONS: Final = 32
_MOST_SILENCES: Final = 2
_TRIALS: Final = (("counting", 4), ("counting", 1), ("ones", 1), ("zeros", 1))
"""Values, and the size of a variable dimension, in the order in which they are tried."""
_BINARY_ONLY: Final = ("FP16", "BF16")


class Model(msgspec.Struct, frozen=True):
    """A model as its metadata describe it."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.name, safe='')}"

    def version_path(self, version: str) -> str:
        """The path of one version's metadata."""
        return f"{self.path}/versions/{quote(version, safe='')}"


class Sample(msgspec.Struct, frozen=True):
    """Inputs that a model takes, and what it answered to them."""

    model: Model
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def path(self) -> str:
        return f"{self.model.path}/infer"

    @property
    def json_inputs(self) -> list[dict[str, Any]]:
        return [as_json(name, tensor) for name, tensor in self.inputs.items()]

    @property
    def binary_inputs(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The inputs with binary data, and their blobs."""
        pairs = [as_binary(name, tensor) for name, tensor in self.inputs.items()]
        return [given for given, _ in pairs], [blob for _, blob in pairs]


class Survey(msgspec.Struct, frozen=True):
    """What was learnt."""

    server: str
    """Name and version, for the report; '' where it does not say."""
    extensions: frozenset[str]
    """Those that the metadata list, by `extension_name`."""
    names: tuple[str, ...]
    """Models that should be ready, whether they can be used or not."""
    not_ready: str
    """A model that the index lists as not ready; '' is none."""
    models: tuple[Model, ...]
    """Those whose metadata can be read, the smallest inputs first."""
    samples: tuple[Sample, ...]
    """Models that can be asked in JSON, those with the fewest elements first."""
    echoes: Mapping[str, Sample]
    """Datatype → a model that returns its only input; of several, the one with most variable dimensions."""
    troubles: tuple[str, ...]
    """Why other models cannot be used."""
    binary: bool
    """Takes and gives tensors in binary."""


def extension_name(listed: str) -> str:
    """One spelling for `model_repository`, `model_repository(unload_dependents)` and `model_repository_extension`."""
    return listed.partition("(")[0].strip().removesuffix("_extension")


def survey(http: HttpClient, deadline: Deadline, named: Sequence[str], look: Callable[[str], None]) -> Survey:
    """Ask the server. `named` are the user's own models; () lets the server list them.

    `look` is told the name of each model before it is tried. Raises nothing for a server that answers wrongly: what is
    not understood is not used. One that leaves two requests without a reply is asked no more.
    """
    asking = _Asking(http, deadline, look)
    server, extensions = asking.about()
    listed, not_ready = asking.index()
    names = tuple(named) or listed
    models = asking.models(names)
    samples = asking.samples([model for model in models if not _binary_only(model)], _json_trial)
    binary = bool(samples) and asking.takes_binary(samples[0])
    halves = asking.samples([model for model in models if _binary_only(model)], _binary_trial) if binary else []
    return Survey(
        server=server,
        extensions=extensions,
        names=names,
        not_ready=not_ready,
        models=tuple(models),
        samples=tuple(samples),
        echoes=_echoes([*samples, *halves]),
        troubles=tuple(asking.troubles),
        binary=binary,
    )


class _Asking:
    """The requests of a survey, with the troubles met."""

    def __init__(self, http: HttpClient, deadline: Deadline, look: Callable[[str], None]) -> None:
        self.troubles: list[str] = []
        self._http = http
        self._deadline = deadline
        self._look = look
        self._silences = 0

    def about(self) -> tuple[str, frozenset[str]]:
        """What the server calls itself, and its extensions."""
        document = self._document(lambda: self._http.get("/v2"))
        if not isinstance(document, dict):
            return "", frozenset()
        words = [document[key] for key in ("name", "version") if isinstance(document.get(key), str)]
        listed = document.get("extensions")
        names = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
        return shortened(" ".join(words)), frozenset(map(extension_name, names))

    def index(self) -> tuple[tuple[str, ...], str]:
        """Names of the models that are ready, and one that is not, by the repository's index or KServe's list."""
        lines = self._document(lambda: self._http.post("/v2/repository/index"))
        if isinstance(lines, list):
            named = [line for line in lines if isinstance(line, dict) and _usable_name(line.get("name"))]
            ready = dict.fromkeys(line["name"] for line in named if line.get("state") == "READY")
            known = dict.fromkeys(line["name"] for line in named)
            others = [name for name in known if name not in ready]
            return (tuple(ready), others[0] if others else "") if ready else (tuple(known), "")
        document = self._document(lambda: self._http.get("/v2/models"))
        models = document.get("models") if isinstance(document, dict) else None
        return tuple(filter(_usable_name, models)) if isinstance(models, list) else (), ""

    def _document(self, ask: Callable[[], Reply]) -> Any:
        """The JSON of the reply; None for none."""
        try:
            with self._turn():
                return answered(ask()).json()
        except Failed:
            return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One request, with its time."""
        if self._silences >= _MOST_SILENCES:
            raise Failed("expected a server that replies; got no reply before")
        self._deadline.restart()
        try:
            yield
        except NoReply:
            self._silences += 1
            raise

    def models(self, names: Sequence[str]) -> list[Model]:
        """Those whose metadata can be read, the smallest inputs first."""
        found: list[Model] = []
        if len(names) > _MOST_MODELS:
            self.troubles.append(f"{len(names) - _MOST_MODELS} more models are not looked at; name some with --model")
        for name in names[:_MOST_MODELS]:
            self._look(name)
            try:
                with self._turn():
                    found.append(_model(name, self._http.get(f"/v2/models/{quote(name, safe='')}")))
            except Failed as error:
                self.troubles.append(f"'{name}': {error}")
        return sorted(found, key=lambda model: (_elements(model), model.name))

    def samples(self, models: Sequence[Model], trial: "Trial") -> list[Sample]:
        """Those of the models that answer."""
        found: list[Sample] = []
        for model in models:
            self._look(model.name)
            try:
                found.append(self._sample(model, trial))
            except Failed as error:
                self.troubles.append(f"'{model.name}': {error}")
        return found

    def _sample(self, model: Model, trial: "Trial") -> Sample:
        expect(bool(model.inputs), "inputs in the metadata", "none")
        refusal = f"inputs of more than {_MOST_ELEMENTS} elements, which are not tried"
        for kind, variable in _TRIALS:
            if _elements(model, variable) > _MOST_ELEMENTS:
                continue
            inputs = {spec.name: sample_tensor(spec, kind, variable) for spec in model.inputs}
            expect(all(tensor.size for tensor in inputs.values()), "elements in each input", "an input of none")
            sample = Sample(model, inputs, {})
            body, headers = trial(sample)
            with self._turn():
                reply = self._http.post(sample.path, body, **headers)
            if reply.status == 200:
                first = outputs(reply)
                with self._turn():
                    second = outputs(self._http.post(sample.path, body, **headers))
                same = set(first) == set(second) and all(equal(first[key], second[key]) for key in first)
                expect(same, "the same answer twice", "two answers")
                return msgspec.structs.replace(sample, outputs=first)
            refusal = str(reply)
        raise Failed(f"expected 200 from POST {model.path}/infer; got {refusal}")

    def takes_binary(self, sample: Sample) -> bool:
        """Whether inputs and outputs may be in binary."""
        body, headers = _binary_trial(sample)
        try:
            with self._turn():
                reply = self._http.post(sample.path, body, **headers)
        except Failed:
            return False
        return reply.status == 200 and HEADER_LENGTH in reply.headers


Trial = Callable[[Sample], tuple[bytes, dict[str, str]]]
"""The body and headers that ask for a sample's inputs."""


def _json_trial(sample: Sample) -> tuple[bytes, dict[str, str]]:
    return encoded(request(sample.json_inputs)), {}


def _binary_trial(sample: Sample) -> tuple[bytes, dict[str, str]]:
    inputs, blobs = sample.binary_inputs
    wanted = outputs_wanted((spec.name for spec in sample.model.outputs), binary_data=True)
    body = binary_body(request(inputs, outputs=wanted), blobs)
    return body.body, body.headers()


def _model(name: str, reply: Reply) -> Model:
    document = answered(reply).mapping()
    versions = document.get("versions")
    named = filter(_usable_name, versions) if isinstance(versions, list) else ()
    inputs, outputs = (_specs(document, kind) for kind in ("inputs", "outputs"))
    return Model(name, tuple(named), inputs, outputs)


def _specs(document: Mapping[str, Any], kind: str) -> tuple[TensorSpec, ...]:
    try:
        specs = msgspec.convert(member(document, kind, list, "the metadata"), tuple[TensorSpec, ...])
    except (msgspec.ValidationError, InvalidSettings) as error:
        raise Failed(f"expected tensors as {kind} in the metadata; got {shortened(str(error))}") from None
    for spec in specs:
        expect(_usable_name(spec.name), f"a readable name in {kind}", spec.name)
        expect(len(spec.shape) <= _MOST_DIMENSIONS, f"at most {_MOST_DIMENSIONS} dimensions in {kind}", len(spec.shape))
    return specs


def _usable_name(value: object) -> bool:
    """Text that can be put into a path and shown to people."""
    return isinstance(value, str) and bool(value) and value.isprintable()


def _elements(model: Model, variable: int = 1) -> int:
    return sum(math.prod(variable if size < 0 else size for size in spec.shape) for spec in model.inputs)


def _binary_only(model: Model) -> bool:
    return any(spec.datatype in _BINARY_ONLY for spec in (*model.inputs, *model.outputs))


def _echoes(samples: Sequence[Sample]) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for sample in sorted(samples, key=lambda each: [spec.shape.count(-1) for spec in each.model.inputs]):
        if len(sample.inputs) == len(sample.outputs) == 1:
            (given,), (came,) = sample.inputs.values(), sample.outputs.values()
            if equal(given, came):
                found[sample.model.inputs[0].datatype] = sample
    return found
