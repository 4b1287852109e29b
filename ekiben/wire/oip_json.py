"""Open Inference Protocol over HTTP: bodies ↔ requests and responses, JSON and the binary tensor data extension.

decode:   body (JSON ‖ blobs) ─► InferCall(Request, wishes)
encode:   Response, wishes ─► Reply(JSON ‖ blobs, length of the JSON)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import msgspec
import orjson
import simdjson

from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Parameter, Request, Response, Signature, Tensor, datatype_of
from ekiben.wire.binary_tensor import binary_from_tensor, bytes_array, shaped, tensor_from_binary
from ekiben.wire.classification import classified
from ekiben.wire.json_tensor import float_tensor, json_data, tensor_from_json, with_non_finite
from ekiben.wire.json_text import JsonParser, Malformed, Repaired, repaired
from ekiben.wire.oip_header import (
    NO_DATA,
    Document,
    FloatDocument,
    GivenInput,
    GivenOutput,
    HeaderReader,
    InputParameters,
    OutputParameters,
)
from ekiben.wire.shared_memory import SharedInput, SharedPlace, check_alone, check_new, shared_place

__all__ = [
    "Classes",
    "InferCall",
    "InferDecoder",
    "OutputWish",
    "Reply",
    "encode_reply",
    "header_length",
    "take_parameters",
]


class OutputWish(msgspec.Struct, frozen=True, gc=False):
    """How the caller wants one output."""

    binary: bool
    classes: int = 0
    """Best classes instead of the scores; 0: the scores."""
    place: SharedPlace | None = None
    """Where the caller wants it in shared memory: the door writes it there, and the reply says so instead."""


class InferCall(msgspec.Struct, gc=False):
    """A decoded request and how its reply is wanted."""

    request: Request
    binary: bool = False
    """The form of outputs that `wishes` does not name."""
    wishes: Mapping[str, OutputWish] | None = None
    classifies: bool = False
    """Some output is wanted as classes: `encode_reply` needs Classes."""
    shared: Mapping[str, SharedInput] | None = None
    """Inputs in shared memory: the door has to read them into the request. None: no tensor, in or out, is there."""
    wants_end: bool = False
    """The end of a decoupled model's responses is to be said by a message of its own."""


class Classes(msgspec.Struct, frozen=True):
    """What classification needs to know of a version."""

    labels: Mapping[str, Sequence[str]]
    batched: bool


class Reply(msgspec.Struct, gc=False):
    """A reply's body. `header_length` is the JSON part's length, -1 where the body is JSON alone."""

    body: bytes
    header_length: int = -1


def header_length(value: bytes, body_length: int) -> int:
    """The Inference-Header-Content-Length header's value, checked. Raises InvalidRequest."""
    text = value.decode("latin-1").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {text[:40]}")
    if len(digits) > 10 or not -(1 << 31) <= int(text) < 1 << 31:
        raise InvalidRequest(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {text[:40]}"
        )
    length = int(text)
    if not 0 <= length <= body_length:
        raise InvalidRequest(f"inference header size should be in range (0, {body_length}), got: {length}")
    return length


@final
class InferDecoder:
    """Request bodies → InferCall. For one thread; keeps only parse buffers between calls."""

    def __init__(self, max_depth: int = 100) -> None:
        self._headers = HeaderReader(max_depth)
        self._parser = JsonParser()

    def decode(self, model: str, version: str, body: bytes, json_length: int = -1) -> InferCall:
        """A request in JSON; `json_length` is that of its JSON part, -1 when all of the body is JSON.

        Inputs in binary are views of `body`; those in shared memory are missing from the request. Raises
        InvalidRequest.
        """
        floats = self._headers.read_floats(body) if json_length < 0 else None
        if floats is not None:
            inputs: dict[str, Tensor] = {}
            for given in floats.inputs:
                if given.name in inputs:
                    raise InvalidRequest(f"input '{given.name}' already exists in request")
                inputs[given.name] = float_tensor(given.name, given.shape, given.data)
            return _call(model, version, inputs, floats)
        return self._decode(model, version, body, json_length)

    def _decode(self, model: str, version: str, body: bytes, json_length: int) -> InferCall:
        whole = json_length < 0 or json_length == len(body)
        document, mended = self._headers.read(body if whole else body[:json_length])
        offset = len(body) if whole else json_length
        inputs: dict[str, Tensor] = {}
        shared: dict[str, SharedInput] | None = None
        for given in document.inputs:
            name = given.name
            if name in inputs:
                raise InvalidRequest(f"input '{name}' already exists in request")
            if given.datatype not in DATATYPES:
                raise InvalidRequest(f"invalid datatype for input {name}: '{given.datatype[:40]}'")
            size = None if given.parameters is None and given.data is not NO_DATA else given.binary_size()
            if size is None:
                if given.data is NO_DATA and given.parameters is not None:
                    shared = _with_shared(shared, given, given.parameters)
                else:
                    inputs[name] = self._tensor(name, given.datatype, given.shape, given.data, mended)
                continue
            if json_length < 0:
                raise InvalidRequest(
                    "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when "
                    f"providing inputs in binary format: input '{name}' for model '{model}' came without that header"
                )
            if offset + size > len(body):
                raise InvalidRequest(
                    f"unexpected size for input '{name}', expecting {offset + size - len(body)} additional bytes "
                    f"for model '{model}'"
                )
            inputs[name] = tensor_from_binary(model, name, given.datatype, given.shape, body, offset, size)
            offset += size
        if offset != len(body):
            raise InvalidRequest(f"unexpected additional input data for model '{model}'")
        call = _call(model, version, inputs, document)
        if shared is not None:
            check_new(shared, inputs)
            call.shared = shared
        return call

    def decode_raw(self, model: str, version: str, body: bytes, signature: Signature, batched: bool) -> InferCall:
        """A raw binary request: the body is the only input's one tensor, and every output is wanted in binary."""
        if len(signature.inputs) != 1:
            raise InvalidRequest(
                f"Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} inputs "
                f"in '{model}' model configuration"
            )
        spec = signature.inputs[0]
        shape = [1, *spec.shape[1:]] if batched else list(spec.shape)
        variable = [axis for axis, size in enumerate(shape) if size < 0]
        if spec.datatype == "BYTES":
            shape = [1 if size < 0 else size for size in shape]
            if math.prod(shape) != 1:
                raise InvalidRequest(
                    f"For BYTE datatype raw input, the model must have input shape [1], "
                    f"got {list(spec.shape)} for 'raw_input' ('{spec.name}') of model '{model}'"
                )
            tensor = shaped(spec.name, bytes_array([body]), shape)
        else:
            if len(variable) > 1:
                raise InvalidRequest(
                    "The shape of Raw input can not be deduced because there are more than one variable-sized "
                    f"dimension: '{spec.name}' of model '{model}' is {list(spec.shape)}"
                )
            if variable:
                shape[variable[0]] = 1
                unit = math.prod(shape) * DATATYPES[spec.datatype].itemsize
                shape[variable[0]] = len(body) // unit if unit else 0
            expected = math.prod(shape) * DATATYPES[spec.datatype].itemsize
            if expected != len(body):
                raise InvalidRequest(
                    f"input byte size mismatch for input 'raw_input' for model '{model}'. "
                    f"Expected {f'a multiple of {unit}' if variable else expected}, got {len(body)}"
                )
            tensor = tensor_from_binary(model, spec.name, spec.datatype, shape, body, 0, len(body))
        return InferCall(Request(model, {spec.name: tensor}, version), binary=True)

    def _tensor(self, name: str, datatype: str, shape: Sequence[int], data: object, mended: Repaired | None) -> Tensor:
        """`data` is msgspec's text of it, or what simdjson made of it in a document parsed whole."""
        if isinstance(data, msgspec.Raw):
            text = bytes(data)
        elif isinstance(data, simdjson.Array):
            return tensor_from_json(name, datatype, shape, data, mended)
        else:
            text = _text(data)
        if text[:1] != b"[":
            text = b"[%s]" % text
        try:
            return tensor_from_json(name, datatype, shape, self._parser.parse(text), mended)
        except Malformed:
            mended = repaired(text)
            if mended is None:
                raise
            return tensor_from_json(name, datatype, shape, self._parser.parse(mended.text), mended)


def _call(model: str, version: str, inputs: dict[str, Tensor], document: Document | FloatDocument) -> InferCall:
    call = InferCall(Request(model, inputs, version, document.id))
    if document.parameters:
        take_parameters(call, document.parameters)
    if document.outputs:
        _take_outputs(call, document.outputs)
    return call


def _text(data: object) -> bytes:
    return b"{}" if isinstance(data, simdjson.Object) else orjson.dumps(data)


_RESERVED: Final[Mapping[str, tuple[tuple[type, ...], str, str]]] = {
    "sequence_id": ((int, str), "an unsigned integer or a string", ""),
    "sequence_start": ((bool,), "a boolean", ""),
    "sequence_end": ((bool,), "a boolean", ""),
    "priority": ((int,), "an unsigned integer", "priority"),
    "timeout": ((int,), "an unsigned integer", "timeout_us"),
    "binary_data_output": ((bool,), "a boolean", ""),
    "signature_name": ((str,), "a string", ""),
}
"""Request parameters with a meaning of their own, what they must be, and the field of Request that has them too.

`signature_name` is ours.
"""


def take_parameters(call: InferCall, parameters: dict[str, Parameter]) -> None:
    for key, value in parameters.items():
        if key in _RESERVED:
            kinds, wanted, field = _RESERVED[key]
            if type(value) not in kinds or (type(value) is int and not 0 <= value < 1 << 64):
                raise InvalidRequest(f"Unable to parse '{key}': parameter '{key}' must be {wanted}, got {value!r:.40}")
            if field:
                setattr(call.request, field, value)
        elif key.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified, "
                f"got '{key}'"
            )
    call.binary = bool(parameters.pop("binary_data_output", False))
    call.request.signature = str(parameters.pop("signature_name", ""))
    call.request.parameters = parameters


def _take_outputs(call: InferCall, outputs: Sequence[GivenOutput]) -> None:
    wishes: dict[str, OutputWish] = {}
    plain = _BINARY if call.binary else _JSON
    for given in outputs:
        wish = plain
        if given.parameters is not None:
            if given.parameters.shared_memory_region is not None:
                wish = OutputWish(True, place=_place(given.name, given.parameters))
                check_alone(given.name, given.parameters.classification)
                call.shared = {}
            else:
                binary = given.parameters.binary_data
                wish = OutputWish(call.binary if binary is None else binary, given.parameters.classification)
                call.classifies |= wish.classes > 0
        wishes.setdefault(given.name, wish)
    call.wishes = wishes
    call.request.outputs = tuple(wishes)


def _with_shared(
    shared: dict[str, SharedInput] | None, given: GivenInput, parameters: InputParameters
) -> dict[str, SharedInput]:
    """These inputs in shared memory, and one more."""
    one = {given.name: SharedInput(given.datatype, given.shape, _place(given.name, parameters))}
    if shared is None:
        return one
    check_new(one, shared)
    shared |= one
    return shared


def _place(tensor: str, given: InputParameters | OutputParameters) -> SharedPlace:
    region = given.shared_memory_region or ""
    return shared_place(tensor, region, given.shared_memory_offset, given.shared_memory_byte_size)


_NATIVE: Final = {dtype.num: name for name, dtype in DATATYPES.items()}
"""numpy's type number → datatype: cheaper to look up than a dtype. Runners answer in native byte order."""
_JSON: Final = OutputWish(False)
_BINARY: Final = OutputWish(True)


def encode_reply(call: InferCall, response: Response, classes: Classes | None = None) -> Reply:
    """The reply's body, outputs in the response's order. Raises InvalidRequest where the form asked for cannot be.

    `classes` is needed where `call.classifies`.
    """
    wishes = call.wishes
    plain = _BINARY if call.binary else _JSON
    blobs: list[memoryview | bytes] = []
    outputs: list[dict[str, Any]] = []
    for name, tensor in response.outputs.items():
        datatype = _NATIVE.get(tensor.dtype.num) or datatype_of(tensor)
        wish = plain if wishes is None else wishes[name]
        if wish.classes and classes is not None:
            labels = classes.labels.get(name, ())
            tensor = classified(response.model, name, datatype, tensor, wish.classes, labels, classes.batched)
            datatype = "BYTES"
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": tensor.shape}
        if wish.binary:
            if wish.place is not None:
                entry["parameters"] = wish.place.parameters()
            else:
                blob = binary_from_tensor(tensor)
                blobs.append(blob)
                entry["parameters"] = {"binary_data_size": len(blob)}
        else:
            entry["data"] = json_data(response.model, name, datatype, tensor)
        outputs.append(entry)
    document: dict[str, object] = {"model_name": response.model, "model_version": response.version, "outputs": outputs}
    if call.request.id:
        # First, as in Triton's replies.
        document = {"id": call.request.id, **document}
    text = orjson.dumps(document, option=_OPTIONS)
    if b"null" in text:
        # A non-finite number, or a name like that; never on the usual way.
        for entry in outputs:
            if "data" in entry:
                entry["data"] = with_non_finite(entry["data"])
        text = orjson.dumps(document, option=_OPTIONS)
    if not blobs:
        return Reply(text)
    return Reply(b"".join((text, *blobs)), len(text))


_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY
