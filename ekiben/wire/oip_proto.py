"""Open Inference Protocol over gRPC: ModelInfer's messages ↔ requests and responses.

decode:   fields but the tensors ─► Plan (kept by their bytes) ┐
          raw tensors ─────────────────────────────────────────┴► InferCall(Request, wishes)
encode:   Response, wishes ─► fields but the tensors (kept by shape) ‖ raw tensors

A client sends the same names, datatypes and shapes again and again, and protobuf writers put fields in the order of
their numbers, so what stands before the raw tensors is the same bytes but for the id. Those bytes are parsed once, by
the generated classes, and the tensors are views of the message. Messages of any other form are parsed whole.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import msgspec
import numpy as np

from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Parameter, Request, Response, Tensor, datatype_of
from ekiben.wire.binary_tensor import binary_from_tensor, shaped, tensor_from_binary
from ekiben.wire.classification import classified
from ekiben.wire.oip_json import Classes, InferCall, OutputWish
from ekiben.wire.protos.oip import OIP
from ekiben.wire.shared_memory import SharedInput, SharedPlace, check_alone, shared_place_of
from ekiben.wire.typed_contents import tensor_from_contents

__all__ = [
    "InferCodec",
    "InvalidInput",
    "encode_kserve_change",
    "encode_stream_end",
    "encode_stream_error",
    "model_name",
    "request_id",
]

Buffer: TypeAlias = bytes | memoryview
Pieces: TypeAlias = list[Buffer]
"""A message in pieces, to be sent one after the other."""

_MODEL: Final = 0x0A
_VERSION: Final = 0x12
_ID: Final = 0x1A
_OUTPUTS: Final = 0x32
_RAW: Final = 0x3A
_PLAIN: Final = frozenset(range(_MODEL, _OUTPUTS + 1, 8)) - {_ID}
"""Tags (field << 3 | 2) of model_name, model_version, parameters, inputs and outputs."""
_MOST_INPUTS: Final = 4096
_RANK: Final = 32
_KEPT: Final = 512
_KEPT_BYTES: Final = 4096
_COPIED_BYTES: Final = 4096
"""Up to here a copy of a tensor costs less than a view of it."""
_NOTHING: Final = np.empty(0, np.uint8)
_FINAL: Final = b'"\x1b\n\x15triton_final_response\x12\x02\x08\x01'
"""parameters {"triton_final_response": {bool_param: true}}: Triton says it with each answer on a stream."""
_MORE_FOLLOW: Final = _FINAL[:-1] + b"\0"


class InvalidInput(InvalidRequest):
    """An input's datatype is not one, or its data do not match what it says of itself.

    What the model expects is not known here: the door looks whether the datatype is at fault before it says this.
    """

    def __init__(self, message: str, model: str, version: str, name: str, datatype: str) -> None:
        super().__init__(message)
        self.model: Final = model
        self.version: Final = version
        self.name: Final = name
        self.datatype: Final = datatype


class _Input(msgspec.Struct, frozen=True, gc=False):
    """What a request says of one input. `size` is that of its raw tensor in bytes, -1 where that needs a look at it."""

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int


class _Plan(msgspec.Struct, frozen=True):
    """Everything a request says but its id and its tensors."""

    model: str
    version: str
    inputs: tuple[_Input, ...]
    """Those with a raw tensor, or all where they came as contents."""
    outputs: tuple[str, ...]
    wishes: dict[str, OutputWish] | None
    classifies: bool
    parameters: dict[str, Parameter]
    signature: str
    priority: int
    timeout_us: int
    typed: dict[str, Tensor] | None
    """The inputs themselves where they came as contents."""
    shared: dict[str, SharedInput] | None
    wants_end: bool
    """Both as InferCall has them."""


class _Layout(msgspec.Struct, frozen=True):
    """Where things stand in a small message with raw tensors of known sizes."""

    plan: _Plan
    start: bytes
    """Up to the id; without one, up to the tensors."""
    has_id: bool
    tensors: tuple[tuple[bytes, _Input], ...]
    """Each input's, and the bytes before it: tag and length, and before the first what follows the id."""


@final
class InferCodec:
    """ModelInferRequest → InferCall, Response → ModelInferResponse. For one thread; keeps plans between calls."""

    def __init__(self) -> None:
        self._plans: dict[bytes, _Plan] = {}
        self._heads: dict[tuple[object, ...], tuple[bytes, tuple[bytes, ...]]] = {}
        self._layout: _Layout | None = None
        """Of the last message: most are like the one before."""

    def decode_infer(self, data: Buffer) -> InferCall:
        """Raw tensors are views of `data`, but for BYTES; those in shared memory are missing. Raises InvalidRequest."""
        end = len(data)
        if end <= _KEPT_BYTES:
            if type(data) is not bytes:
                data = bytes(data)
            layout = self._layout
            if layout is not None and data.startswith(layout.start):
                inputs_and_id = _inputs_like(layout, data, end)
                if inputs_and_id is not None:
                    return _call(layout.plan, *inputs_and_id)
        position = id_start = id_end = 0
        id_text = ""
        try:
            while position < end:
                tag = data[position]
                if tag == _RAW:
                    break
                length = data[position + 1]
                start = position + 2
                if length > 127:
                    length, start = _long(data, position + 1)
                if tag == _ID:
                    if id_end:
                        return self._decode_whole(data)
                    id_start = position
                    id_end = start + length
                    id_text = str(data[start:id_end], "utf-8")
                elif tag not in _PLAIN:
                    return self._decode_whole(data)
                position = start + length
            head_end = position
            tensors: list[tuple[int, int]] = []
            while position < end:
                if data[position] != _RAW:
                    return self._decode_whole(data)
                length = data[position + 1]
                start = position + 2
                if length > 127:
                    length, start = _long(data, position + 1)
                tensors.append((start, length))
                position = start + length
        except (IndexError, UnicodeDecodeError):
            return self._decode_whole(data)
        if position != end:
            return self._decode_whole(data)
        head = bytes(data[:head_end])
        if id_end:
            head = head[:id_start] + head[id_end:]
        plan = self._plans.get(head)
        if plan is None:
            plan = _plan(OIP.parse("ModelInferRequest", head), bool(tensors))
            if plan.typed is None and head_end <= _KEPT_BYTES:
                if len(self._plans) >= _KEPT:
                    self._plans.clear()
                self._plans[head] = plan
        if end <= _KEPT_BYTES:
            self._layout = _layout(plan, head, id_start if id_end else -1)
        return _call(plan, _inputs(plan, data, tensors), id_text)

    def _decode_whole(self, data: Buffer) -> InferCall:
        """A message whose fields stand in another order, or that has fields unknown here."""
        message = OIP.parse("ModelInferRequest", data)
        raw = message.raw_input_contents
        plan = _plan(message, bool(raw))
        tensors: list[tuple[int, int]] = []
        offset = 0
        for tensor in raw:
            tensors.append((offset, len(tensor)))
            offset += len(tensor)
        return _call(plan, _inputs(plan, b"".join(raw), tensors), message.id)

    def encode_infer(self, call: InferCall, response: Response, classes: Classes | None = None) -> bytes:
        """A ModelInferResponse, outputs in the response's order, all of them raw.

        `classes` is needed where `call.classifies`. Raises InvalidRequest where the form asked for cannot be.
        """
        return b"".join(self.encode_pieces(call, response, classes))

    def encode_pieces(self, call: InferCall, response: Response, classes: Classes | None = None) -> Pieces:
        """The same, with large tensors as views of the response's."""
        outputs = response.outputs
        if call.classifies and classes is not None:
            outputs = _classified(call, response, classes)
        if call.shared is not None:
            places = {name: wish.place for name, wish in (call.wishes or {}).items() if wish.place is not None}
            head = _response_head(response, outputs, places)
            # Clients find a raw tensor by counting outputs: what was written elsewhere has an empty one here.
            outputs = {name: _NOTHING if name in places else tensor for name, tensor in outputs.items()}
            before: tuple[bytes, ...] = (b"",) * len(outputs)
        else:
            key: list[object] = [response.model, response.version]
            for name, tensor in outputs.items():
                key += (name, tensor.dtype.num, tensor.shape)
            kept = tuple(key)
            head, before = self._heads.get(kept) or self._keep_head(kept, response, outputs)
        pieces: Pieces = [head]
        if call.request.id:
            pieces.append(_text(b"\x1a", call.request.id))
        for start, tensor in zip(before, outputs.values(), strict=True):
            if start:
                pieces += (start, tensor.tobytes())
            else:
                blob = binary_from_tensor(tensor)
                pieces += (b"2" + _varint(len(blob)), blob)
        return pieces

    def _keep_head(
        self, key: tuple[object, ...], response: Response, outputs: dict[str, Tensor]
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """What `_heads` holds: a reply up to its tensors, and what stands before each; b"" where that needs a look."""
        head = _response_head(response, outputs)
        before = tuple(
            b"2" + _varint(tensor.nbytes) if tensor.nbytes <= _COPIED_BYTES and tensor.dtype.kind not in "OSU" else b""
            for tensor in outputs.values()
        )
        if len(self._heads) >= _KEPT:
            self._heads.clear()
        if len(head) <= _KEPT_BYTES:
            self._heads[key] = head, before
        return head, before

    def encode_stream(
        self, call: InferCall, response: Response, classes: Classes | None = None, *, final: bool = True
    ) -> bytes:
        """A ModelStreamInferResponse with an answer to one request, `final`: the last or only one."""
        body = b"".join(self.encode_pieces(call, response, classes))
        size = len(body) + len(_FINAL)
        return b"\x12%b%b%b" % (_varint(size), _FINAL if final else _MORE_FOLLOW, body)


def encode_stream_end(model: str, version: str, identity: str) -> bytes:
    """A ModelStreamInferResponse without outputs, which says that a request has all of its responses."""
    body = b"".join((_text(b"\n", model), _text(b"\x12", version), _text(b"\x1a", identity) if identity else b""))
    return b"\x12%b%b%b" % (_varint(len(body) + len(_FINAL)), _FINAL, body)


def encode_stream_error(message: str, identity: str) -> bytes:
    """A ModelStreamInferResponse that says what was wrong with the request of that id."""
    inner = _text(b"\x1a", identity) if identity else b""
    return b"".join((_text(b"\n", message), b"\x12", _varint(len(inner)), inner))


def request_id(data: Buffer) -> str:
    """The id of a ModelInferRequest, '' where there is none to be read. For answers to what could not be decoded."""
    try:
        return str(OIP.parse("ModelInferRequest", data).id)
    except InvalidRequest:
        return ""


def model_name(data: Buffer) -> str:
    """The model that a ModelInferRequest is for, '' where there is none to be read. Cheap where it stands first."""
    try:
        if data[0] == _MODEL and data[1] < 128:
            return str(data[2 : 2 + data[1]], "utf-8")
        return str(OIP.parse("ModelInferRequest", data).model_name)
    except (InvalidRequest, IndexError, UnicodeDecodeError):
        return ""


def encode_kserve_change(model: str) -> bytes:
    """The reply to KServe's form of RepositoryModelLoad and Unload: {model_name = 1, isLoaded or isUnloaded = 2}."""
    return _text(b"\n", model) + b"\x10\x01"


def _long(data: Buffer, position: int) -> tuple[int, int]:
    """The length at `position`, and where what follows it begins. Raises IndexError for one that does not end."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 28:
            # A message is under 2 GiB: left to the generated class to refuse.
            raise IndexError


def _call(plan: _Plan, inputs: dict[str, Tensor], identity: str) -> InferCall:
    parameters: dict[str, Parameter] = {}
    request = Request(plan.model, inputs, plan.version, identity, plan.outputs, parameters, plan.signature)
    if plan.parameters:
        request.parameters = plan.parameters.copy()
        request.priority = plan.priority
        request.timeout_us = plan.timeout_us
    return InferCall(request, True, plan.wishes, plan.classifies, plan.shared, plan.wants_end)


def _inputs(plan: _Plan, data: Buffer, tensors: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    if plan.typed is not None:
        return plan.typed
    if len(tensors) != len(plan.inputs):
        raise _count_error(plan, len(tensors))
    inputs: dict[str, Tensor] = {}
    for given, (start, size) in zip(plan.inputs, tensors, strict=True):
        if size == given.size:
            inputs[given.name] = np.ndarray(given.shape, given.dtype, data, start)
        else:
            inputs[given.name] = _checked(plan, given, bytes(data[start : start + size]))
    return inputs


def _layout(plan: _Plan, head: bytes, id_position: int) -> _Layout | None:
    """How a message with this head lies, its id at `id_position` (-1: it has none); None where tensors need a look."""
    if plan.typed is not None or not plan.inputs or any(given.size < 0 for given in plan.inputs):
        return None
    before = [b":" + _varint(given.size) for given in plan.inputs]
    if id_position >= 0:
        before[0] = head[id_position:] + before[0]
        head = head[:id_position]
    return _Layout(plan, head, id_position >= 0, tuple(zip(before, plan.inputs, strict=True)))


def _inputs_like(layout: _Layout, data: bytes, end: int) -> tuple[dict[str, Tensor], str] | None:
    """The inputs and the id of a message that begins with `layout.start`; None if it does not go on like it."""
    position = len(layout.start)
    identity = ""
    if layout.has_id:
        if end < position + 2 or data[position] != _ID or data[position + 1] > 127:
            return None
        start = position + 2
        position = start + data[position + 1]
        try:
            identity = str(data[start:position], "utf-8")
        except UnicodeDecodeError:
            return None
    inputs: dict[str, Tensor] = {}
    for before, given in layout.tensors:
        if not data.startswith(before, position):
            return None
        position += len(before)
        if position + given.size > end:
            return None
        inputs[given.name] = np.ndarray(given.shape, given.dtype, data, position)
        position += given.size
    return (inputs, identity) if position == end else None


def _count_error(plan: _Plan, found: int) -> InvalidRequest:
    if found < len(plan.inputs):
        return InvalidRequest(
            f"unable to find data for input tensor '{plan.inputs[found].name}' for model '{plan.model}' in request."
        )
    return InvalidRequest(
        f"expected as many raw_input_contents as inputs for model '{plan.model}', "
        f"got {found} for {len(plan.inputs)} inputs"
    )


def _checked(plan: _Plan, given: _Input, blob: bytes) -> Tensor:
    """A raw tensor that cannot be taken as it is: BYTES, BOOL, of no elements, or wrong."""
    try:
        return tensor_from_binary(plan.model, given.name, given.datatype, given.shape, blob, 0, len(blob))
    except InvalidRequest as error:
        raise InvalidInput(error.message, plan.model, plan.version, given.name, given.datatype) from None


def _plan(message: Any, raw: bool) -> _Plan:
    """What a ModelInferRequest says; `raw`: it has tensors in raw_input_contents."""
    model: str = message.model_name
    version: str = message.model_version
    parameters = _parameters(message.parameters)
    signature = str(parameters.pop("signature_name", ""))
    if len(message.inputs) > _MOST_INPUTS:
        raise InvalidRequest(f"the request for model '{model}' has {len(message.inputs)} inputs, over {_MOST_INPUTS}")
    inputs: dict[str, _Input] = {}
    typed: dict[str, Tensor] | None = None
    shared: dict[str, SharedInput] = {}
    for tensor in message.inputs:
        name: str = tensor.name
        if name in inputs or name in shared:
            raise InvalidRequest(f"input '{name}' already exists in request")
        contents = tensor.HasField("contents")
        place = shared_place_of(name, tensor.parameters) if tensor.parameters else None
        if place is not None:
            if contents:
                raise InvalidRequest(
                    f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                    f"for model '{model}'"
                )
            given = _input(model, version, tensor)
            shared[name] = SharedInput(given.datatype, given.shape, place)
            continue
        if contents and raw:
            raise InvalidRequest(
                f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )
        if not contents and not raw:
            raise InvalidRequest(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        inputs[name] = given = _input(model, version, tensor)
        if contents:
            try:
                typed = typed or {}
                typed[name] = tensor_from_contents(model, name, given.datatype, given.shape, tensor.contents)
            except InvalidRequest as error:
                raise InvalidInput(error.message, model, version, name, given.datatype) from None
    wishes = _wishes(message.outputs)
    return _Plan(
        model,
        version,
        tuple(inputs.values()),
        tuple(wishes),
        wishes or None,
        any(wish.classes for wish in wishes.values()),
        parameters,
        signature,
        int(parameters.get("priority", 0)),
        int(parameters.get("timeout", 0)),
        typed,
        shared if shared or any(wish.place is not None for wish in wishes.values()) else None,
        _EMPTY_FINAL in message.parameters and message.parameters[_EMPTY_FINAL].bool_param,
    )


def _input(model: str, version: str, tensor: Any) -> _Input:
    name: str = tensor.name
    datatype: str = tensor.datatype
    shape = tuple(tensor.shape)
    dtype = DATATYPES.get(datatype)
    if dtype is None:
        raise InvalidInput(f"input '{name}' has no such datatype: '{datatype:.40}'", model, version, name, "<invalid>")
    if len(shape) > _RANK or any(size < 0 for size in shape):
        raise InvalidRequest(
            f"invalid shape for input '{name}' for model '{model}': {list(shape[: _RANK + 1])}; it has at most {_RANK} "
            "dimensions, each 0 or more"
        )
    size = math.prod(shape) * dtype.itemsize
    if not size:
        # numpy cannot address all shapes without elements: find out here, once.
        shaped(name, np.empty(0, dtype), shape)
    if datatype in ("BYTES", "BOOL") or not size:
        size = -1
    return _Input(name, datatype, dtype, shape, size)


_KINDS: Final = {
    "sequence_id": ("int64_param", "string_param", "uint64_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    "signature_name": ("string_param",),
}
"""Request parameters with a meaning of their own, and the forms they may have. `signature_name` is ours."""
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"


def _parameters(given: Any) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for key, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if key == _EMPTY_FINAL:
            _check_kind(key, kind, ("bool_param",))
            continue
        if key.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {_EMPTY_FINAL}, got '{key}'"
            )
        if key in _KINDS:
            _check_kind(key, kind, _KINDS[key])
        elif kind is None:
            raise InvalidRequest(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
            )
        value: Parameter = getattr(parameter, kind)
        if key in _KINDS and isinstance(value, int) and value < 0:
            raise InvalidRequest(f"invalid value for '{key}', expected value >= 0, got {value}")
        parameters[key] = value
    return parameters


def _check_kind(key: str, kind: str | None, kinds: tuple[str, ...]) -> None:
    if kind not in kinds:
        raise InvalidRequest(
            f"invalid value type for '{key}' parameter, expected {' or '.join(kinds)}, got {kind or 'nothing'}"
        )


def _wishes(outputs: Any) -> dict[str, OutputWish]:
    wishes: dict[str, OutputWish] = {}
    for output in outputs:
        wish = _ALL
        if output.parameters:
            classes = 0
            if "classification" in output.parameters:
                classes = _classes(output.name, output.parameters["classification"])
            place = shared_place_of(output.name, output.parameters)
            if place is not None:
                check_alone(output.name, classes)
            wish = OutputWish(True, classes, place)
        wishes.setdefault(output.name, wish)
    return wishes


def _classes(output: str, parameter: Any) -> int:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise InvalidRequest(
            "invalid value type for 'classification' parameter, expected int64_param, "
            f"got {kind or 'nothing'} for output '{output}'"
        )
    count = int(getattr(parameter, kind))
    if count < 0:
        raise InvalidRequest(
            f"invalid value for 'classification' parameter, expected >= 0, got {count} for output '{output}'"
        )
    return count


_ALL: Final = OutputWish(True)


def _classified(call: InferCall, response: Response, classes: Classes) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    for name, tensor in response.outputs.items():
        count = call.wishes[name].classes if call.wishes is not None else 0
        if count:
            labels = classes.labels.get(name, ())
            tensor = classified(response.model, name, datatype_of(tensor), tensor, count, labels, classes.batched)
        outputs[name] = tensor
    return outputs


def _response_head(
    response: Response, outputs: dict[str, Tensor], places: Mapping[str, SharedPlace] | None = None
) -> bytes:
    """A ModelInferResponse's model_name, model_version and outputs, some of which may be in shared memory."""
    message = OIP.message("ModelInferResponse")(model_name=response.model, model_version=response.version)
    for name, tensor in outputs.items():
        output = message.outputs.add(name=name, datatype=datatype_of(tensor), shape=tensor.shape)
        if places and name in places:
            places[name].tell(output)
    return bytes(message.SerializeToString())


def _text(tag: bytes, text: str) -> bytes:
    encoded = text.encode() if text.isascii() else text.encode("utf-8", "replace")
    return tag + _varint(len(encoded)) + encoded


_BYTES: Final = tuple(bytes((value,)) for value in range(128))


def _varint(value: int) -> bytes:
    if value < 128:
        return _BYTES[value]
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
