"""The generate extension's bodies: flat JSON objects, whose keys are the model's own inputs and outputs by name.

    {"text_input": "a", "parameters": {"k": 3}} ─► Request        Response ─► {"model_name": "m", …, "text_output": "b"}

A key that names an input is a tensor, at the top or among `parameters`; any other is a request parameter.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import msgspec
import numpy as np
import orjson
import simdjson

from ekiben.errors import InvalidRequest, NotFound
from ekiben.types import Parameter, Request, Response, Signature, Tensor, TensorSpec, datatype_of
from ekiben.wire.json_tensor import JsonData, json_data, tensor_from_json, with_non_finite
from ekiben.wire.json_text import JsonParser, Malformed, Repaired, check_depth, repaired
from ekiben.wire.oip_documents import error_body
from ekiben.wire.oip_json import InferCall, take_parameters

__all__ = ["GenerateDecoder", "encode_generated", "error_event", "event"]

_MOST_KEYS: Final = 1024
_RANK: Final = 32
_PARAMETERS: Final = "parameters"

_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@final
class GenerateDecoder:
    """Request bodies → Request. For one thread; keeps only parse buffers between calls."""

    def __init__(self, max_depth: int = 100) -> None:
        self._max_depth = max_depth
        self._parser = JsonParser()

    def decode(
        self, model: str, version: str, body: bytes, signatures: Mapping[str, Signature], batched: bool
    ) -> Request:
        """The request in a body. `batched`: inputs lead with a batch dimension, 1 where the body leaves it open.

        The parameter `signature_name` chooses among `signatures`; else it is the first. Raises InvalidRequest naming
        the key, NotFound where there is no such signature.
        """
        check_depth(body, self._max_depth)
        text, mended = body, None
        try:
            members = self._members(text, None)
        except Malformed:
            mended = repaired(body)
            if mended is None:
                raise
            text = mended.text
            members = self._members(text, mended)
        return self._request(Request(model, {}, version), members, mended, signatures, batched)

    def _request(
        self,
        request: Request,
        members: Mapping[str, bytes],
        mended: Repaired | None,
        signatures: Mapping[str, Signature],
        batched: bool,
    ) -> Request:
        signature = next(iter(signatures.values()))
        inner: Mapping[str, bytes] = {}
        if _PARAMETERS in members and all(spec.name != _PARAMETERS for spec in signature.inputs):
            members = dict(members)
            text = members.pop(_PARAMETERS)
            if text[:1] != b"{":
                raise InvalidRequest(f"Expected JSON object for keyword: 'parameters', got {_shown(text)}")
            inner = self._members(text, mended)
        chosen = inner.get("signature_name", members.get("signature_name"))
        if chosen is not None:
            signature = _signature(request.model, _scalar(chosen, mended), signatures)
        specs = {spec.name: spec for spec in signature.inputs}
        parameters: dict[str, Parameter] = {}
        for name, text, where in _flat(members, inner):
            if name in specs:
                if name in request.inputs:
                    raise InvalidRequest(f"input '{name}' already exists in request")
                request.inputs[name] = self._tensor(specs[name], text, mended, batched)
            elif name == "id" and not where:
                request.id = _identity(_scalar(text, mended), text)
            else:
                if name in parameters:
                    raise InvalidRequest(f"parameter '{name}' already exists in request")
                parameters[name] = _parameter(name, _scalar(text, mended), where)
        take_parameters(InferCall(request), parameters)
        return request

    def _members(self, text: bytes, mended: Repaired | None) -> dict[str, bytes]:
        """An object's keys and the texts of their values. Raises Malformed, or InvalidRequest for a key given twice."""
        root = self._parser.parse(text)
        if not isinstance(root, simdjson.Object):
            raise InvalidRequest("the request JSON must be an object with the model's inputs by name")
        # simdjson sees a key that comes twice, but not one with U+0000; msgspec the other way round.
        keys = list(root.keys())
        del root
        if len(keys) > _MOST_KEYS:
            raise InvalidRequest(f"the request JSON has {len(keys)} keys in one object, over the limit of {_MOST_KEYS}")
        try:
            members = _decode_members(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Malformed(f"failed to parse the request JSON buffer: {error}") from None
        if len(members) != len(keys):
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise InvalidRequest(f"input '{twice}' already exists in request")
        return {key if mended is None else mended.string(key): bytes(value) for key, value in members.items()}

    def _tensor(self, spec: TensorSpec, text: bytes, mended: Repaired | None, batched: bool) -> Tensor:
        if text[:1] != b"[":
            shape = _shape(spec, (1,), batched)
            return tensor_from_json(spec.name, spec.datatype, shape, self._parser.parse(b"[%s]" % text), mended)
        array = self._parser.parse(text)
        return tensor_from_json(spec.name, spec.datatype, _shape(spec, _lengths(array), batched), array, mended)


def _flat(members: Mapping[str, bytes], inner: Mapping[str, bytes]) -> Iterator[tuple[str, bytes, str]]:
    """Key, value and where it is from, of the object itself and then of its `parameters`."""
    return itertools.chain(
        ((name, text, "") for name, text in members.items()),
        ((name, text, "Converting keyword: 'parameters': ") for name, text in inner.items()),
    )


def _scalar(text: bytes, mended: Repaired | None) -> object:
    """A value as it was sent; None where it is no scalar."""
    if text[:1] in (b"[", b"{"):
        return None
    value = msgspec.json.decode(text)
    if mended is not None:
        if isinstance(value, str):
            return mended.string(value)
        if isinstance(value, float):
            return mended.number(value)
    return value


def _parameter(name: str, value: object, where: str) -> Parameter:
    if not isinstance(value, bool | int | float | str):
        raise InvalidRequest(
            f"{where}parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    return value


def _identity(value: object, text: bytes) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"'id' must be a string, got {_shown(text)}")
    return value


def _signature(model: str, name: object, signatures: Mapping[str, Signature]) -> Signature:
    if isinstance(name, str) and name in signatures:
        return signatures[name]
    raise NotFound(f"model '{model}' has no signature '{name}'; it has {', '.join(map(repr, signatures))}")


def _lengths(array: simdjson.Array) -> tuple[int, ...]:
    """The array's shape, as far as its first elements tell."""
    lengths = [len(array)]
    while array and len(lengths) < _RANK and isinstance(array[0], simdjson.Array):
        array = array[0]
        lengths.append(len(array))
    return tuple(lengths)


def _shape(spec: TensorSpec, lengths: Sequence[int], batched: bool) -> list[int]:
    """The shape for values that came in lists of these lengths.

    Nested lists say it themselves, but for the batch dimension. A flat list, or one value, fills the declared shape:
    its last variable dimension has as many as the fixed ones leave, the others are 1.
    """
    if len(lengths) > 1:
        return [1, *lengths] if batched and len(lengths) == len(spec.shape) - 1 else list(lengths)
    shape = [max(size, 1) for size in spec.shape]
    count, unit = lengths[0], math.prod(shape)
    variable = [axis for axis, size in enumerate(spec.shape) if size == -1]
    if count == unit:
        return shape
    if not variable or count % unit:
        raise InvalidRequest(
            f"input '{spec.name}' has shape {list(spec.shape)}, which {count} values in a flat list cannot fill"
        )
    shape[variable[-1]] = count // unit
    return shape


def _shown(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return shown if len(shown) <= 40 else shown[:40] + "…"


def encode_generated(identity: str, response: Response) -> bytes:
    """A reply's body: each output flat under its name, without a list where it holds one value.

    `identity` is the request's id, '' for none. Raises InvalidRequest where JSON cannot carry an output.
    """
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if identity:
        document = {"id": identity, **document}
    values = {
        name: json_data(response.model, name, datatype_of(tensor), tensor) for name, tensor in response.outputs.items()
    }
    text = orjson.dumps(document | {name: _value(data) for name, data in values.items()}, option=_OPTIONS)
    if b"null" in text:
        # A non-finite number, or a name like that.
        spelt = {name: _spelt(data) for name, data in values.items()}
        text = orjson.dumps(document | spelt, option=_OPTIONS)
    return text


_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY


def _value(data: JsonData) -> Any:
    """The list, or what is in it where that is one value."""
    return data if isinstance(data, orjson.Fragment) or len(data) != 1 else data[0]


def _spelt(data: JsonData) -> Any:
    """The same with NaN and the infinities as Python's json spells them."""
    value = _value(data)
    if isinstance(value, np.floating):
        return orjson.Fragment(json.dumps(float(value)).encode()) if not np.isfinite(value) else value
    return value if isinstance(value, str) else with_non_finite(value)


def event(body: bytes) -> bytes:
    """A JSON document, which has no line breaks, as a server-sent event."""
    return b"data: %s\n\n" % body


def error_event(message: str) -> bytes:
    """`{"error": …}` as a server-sent event."""
    return event(error_body(message))
