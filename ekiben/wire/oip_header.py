"""The JSON part of an inference request: names, shapes, parameters, and where the data are.

Small documents are read by msgspec straight into structs, whose messages say where a document is wrong; a tensor's
`data` stays text until its datatype is known. Large ones (big JSON tensors) are parsed once, by simdjson, without
a Python object per number, and only then checked by the same structs. Both try `json_text.repaired` before they refuse.
"""

import itertools
from typing import Annotated, Any, Final, Literal, TypeAlias, final

import msgspec
import simdjson

from ekiben.errors import InvalidRequest
from ekiben.wire.json_tensor import FLOAT32_BOUND
from ekiben.wire.json_text import JsonParser, Malformed, Repaired, check_depth, repaired

__all__ = [
    "NO_DATA",
    "Document",
    "FloatDocument",
    "FloatInput",
    "GivenInput",
    "GivenOutput",
    "HeaderReader",
    "InputParameters",
    "OutputParameters",
]

_SMALL_BYTES: Final = 8 << 10
"""Where parsing once with simdjson starts to cost less than msgspec's scan and a second parse of the data."""
_TINY_BYTES: Final = 1536
_MOST_TENSORS: Final = 4096
_MOST_PARAMETERS: Final = 1024
_RANK: Final = 32

Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Shape: TypeAlias = Annotated[tuple[Size, ...], msgspec.Meta(max_length=_RANK)]


NO_DATA: Final = msgspec.Raw()


class InputParameters(msgspec.Struct, gc=False):
    """What the server itself reads of an input's parameters; others are left alone."""

    binary_data_size: Size | None = None
    shared_memory_region: str | None = None
    shared_memory_offset: Size | None = None
    shared_memory_byte_size: Size | None = None


class GivenInput(msgspec.Struct, gc=False):
    """One of `inputs`, its data apart."""

    name: str
    shape: Shape
    datatype: str
    parameters: InputParameters | None = None
    data: msgspec.Raw = NO_DATA
    """Text; or what simdjson made of it, in a document parsed whole. NO_DATA: there is none."""

    def binary_size(self) -> int | None:
        """Bytes of its blob, None where it has none: there are `data`, or else they are in shared memory.

        Raises InvalidRequest unless the data are in just one place.
        """
        has_data = self.data is not NO_DATA
        size = region = None
        if self.parameters is not None:
            size = self.parameters.binary_data_size
            region = self.parameters.shared_memory_region
        if has_data + (size is not None) + (region is not None) != 1:
            given = ["'data'"] * has_data + ["'binary_data_size'"] * (size is not None)
            given += ["'shared_memory_region'"] * (region is not None)
            raise InvalidRequest(
                "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
                "'shared_memory_region' in 'parameters'. "
                f"But {'set ' + ' '.join(given) if given else 'no field is set'} for input '{self.name}'"
            )
        return size


class OutputParameters(msgspec.Struct, gc=False):
    """What the server itself reads of an output's parameters; others are left alone."""

    binary_data: bool | None = None
    classification: Size = 0
    shared_memory_region: str | None = None
    shared_memory_offset: Size | None = None
    shared_memory_byte_size: Size | None = None


class GivenOutput(msgspec.Struct, gc=False):
    """One of `outputs`."""

    name: str
    parameters: OutputParameters | None = None


class Document(msgspec.Struct, gc=False):
    """What a request says beside its tensors' data."""

    inputs: list[GivenInput]
    id: str = ""
    parameters: dict[str, bool | int | float | str] | None = None
    outputs: list[GivenOutput] | None = None


class FloatInput(msgspec.Struct, gc=False):
    """An input of the commonest kind: a few FP32 numbers, flat, with no parameters."""

    name: str
    shape: Shape
    datatype: Literal["FP32"]
    data: list[Annotated[float, msgspec.Meta(gt=-FLOAT32_BOUND, lt=FLOAT32_BOUND)]]
    parameters: None = None


class FloatDocument(msgspec.Struct, gc=False):
    """A Document all of whose inputs are of that kind."""

    inputs: list[FloatInput]
    id: str = ""
    parameters: dict[str, bool | int | float | str] | None = None
    outputs: list[GivenOutput] | None = None


class _Parameters(msgspec.Struct):
    parameters: dict[str, msgspec.Raw]


@final
class HeaderReader:
    """Texts → Document. For one thread; keeps only parse buffers between calls."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._decoder: msgspec.json.Decoder[Document] = msgspec.json.Decoder(Document)
        self._float_decoder: msgspec.json.Decoder[FloatDocument] = msgspec.json.Decoder(FloatDocument)
        self._parser = JsonParser()

    def read_floats(self, text: bytes) -> FloatDocument | None:
        """The document where it is of the commonest kind, in one step; None: `read` has to look at it.

        Making an object per number costs less than a second parse as long as they are few.
        """
        if len(text) > _TINY_BYTES or b'"FP32"' not in text or text.count(b"[") + text.count(b"{") > self._max_depth:
            return None
        try:
            return self._float_decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def read(self, text: bytes) -> tuple[Document, Repaired | None]:
        """Also what must be done to the data, where the text had to be repaired.

        Raises InvalidRequest saying where the document is wrong. Drop the document before the next `read`.
        """
        if text.count(b"[") + text.count(b"{") > self._max_depth:
            check_depth(text, self._max_depth)
        try:
            if len(text) <= _SMALL_BYTES:
                return self._decoder.decode(text), None
            return self._large(text, None), None
        except msgspec.ValidationError as error:
            raise _invalid(error, _parameters(text)) from None
        except (Malformed, msgspec.DecodeError, UnicodeDecodeError) as error:
            mended = repaired(text)
            if mended is None:
                if isinstance(error, Malformed):
                    raise
                raise Malformed(f"failed to parse the request JSON buffer: {error}") from None
        return self._large(mended.text, mended), mended

    def _large(self, text: bytes, mended: Repaired | None) -> Document:
        root = self._parser.parse(text)
        if not isinstance(root, simdjson.Object):
            raise InvalidRequest("the request JSON must be an object with 'inputs'")
        tree: dict[str, object] = {}
        data: list[Any] = []
        if "id" in root:
            tree["id"] = _plain(root["id"], mended)
        if "parameters" in root:
            tree["parameters"] = _mapping(root["parameters"], mended)
        if "inputs" in root:
            tree["inputs"] = _tensors(root["inputs"], "inputs", _INPUT_FIELDS, mended, data)
        if "outputs" in root:
            tree["outputs"] = _tensors(root["outputs"], "outputs", _OUTPUT_FIELDS, mended, [])
        try:
            document = msgspec.convert(tree, Document)
        except msgspec.ValidationError as error:
            raise _invalid(error, tree.get("parameters")) from None
        for given, found in zip(document.inputs, data, strict=True):
            given.data = found
        return document


_INPUT_FIELDS: Final = ("name", "shape", "datatype", "parameters")
_OUTPUT_FIELDS: Final = ("name", "parameters")


def _tensors(array: object, key: str, fields: tuple[str, ...], mended: Repaired | None, data: list[Any]) -> object:
    """The entries as plain data, but for their `data`, which is added to the list `data`."""
    if not isinstance(array, simdjson.Array):
        return _plain(array, mended)
    if len(array) > _MOST_TENSORS:
        raise InvalidRequest(f"'{key}' has {len(array)} entries, over the limit of {_MOST_TENSORS}")
    plain: list[object] = []
    for tensor in array:
        if isinstance(tensor, simdjson.Object):
            plain.append({field: _field(tensor[field], mended) for field in fields if field in tensor})
            data.append(tensor.get("data", NO_DATA))
        else:
            plain.append(_plain(tensor, mended))
    return plain


def _field(value: object, mended: Repaired | None) -> object:
    if not isinstance(value, simdjson.Array):
        return _mapping(value, mended)
    # A few more than a shape may have are enough to be refused.
    return [_plain(element, mended) for element in itertools.islice(value, _RANK + 1)]


def _mapping(value: object, mended: Repaired | None) -> object:
    if not isinstance(value, simdjson.Object):
        return _plain(value, mended)
    if len(value) > _MOST_PARAMETERS:
        raise InvalidRequest(f"'parameters' has {len(value)} entries, over the limit of {_MOST_PARAMETERS}")
    # By way of text: simdjson does not find a key that holds U+0000, and its `items` would build whatever is nested.
    return {
        _plain(key, mended): [] if text[:1] in (b"[", b"{") else _plain(msgspec.json.decode(text), mended)
        for key, raw in msgspec.json.decode(value.mini, type=dict[str, msgspec.Raw]).items()
        for text in (bytes(raw),)
    }


def _plain(value: object, mended: Repaired | None) -> object:
    """A scalar as it is; an empty object or array for one that has no place here, so that its type is refused."""
    if isinstance(value, simdjson.Object):
        return {}
    if isinstance(value, simdjson.Array):
        return []
    if mended is not None:
        if isinstance(value, str):
            return mended.string(value)
        if isinstance(value, float):
            return mended.number(value)
    return value


def _invalid(error: msgspec.ValidationError, parameters: object) -> InvalidRequest:
    """The error for a document of the wrong form. `parameters` is the request's own, in any form."""
    where = str(error).rpartition(" - at `")[2]
    if where.startswith("$.parameters[") and isinstance(parameters, dict):
        for key, value in parameters.items():
            if not isinstance(value, bool | int | float | str):
                return InvalidRequest(
                    f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
                )
    return InvalidRequest(f"failed to parse the request JSON: {error}")


def _parameters(text: bytes) -> object:
    """A small document's request parameters with objects and arrays left as None."""
    try:
        raw = msgspec.json.decode(text, type=_Parameters).parameters
        return {key: None if bytes(value)[:1] in b"[{" else msgspec.json.decode(value) for key, value in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
