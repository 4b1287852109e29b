"""Inference replies over HTTP, read with mistrust: every fault in one is a Failed that says what it is."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ekiben.conformance.http_client import Reply
from ekiben.conformance.verdicts import Failed, expect, shortened
from ekiben.errors import InvalidRequest
from ekiben.types import DATATYPES, Tensor
from ekiben.wire.binary_tensor import bytes_array, shaped, tensor_from_binary

__all__ = [
    "HEADER_LENGTH",
    "answered",
    "binary_outputs",
    "content_type",
    "equal",
    "expect_equal",
    "json_of",
    "member",
    "only",
    "outputs",
    "refused",
]

HEADER_LENGTH: Final = "inference-header-content-length"
_NO_OTHERS: Final[Mapping[str, str]] = {}
_KINDS: Final[Mapping[type, str]] = {str: "text", list: "a list", dict: "an object", int: "a whole number"}


def member(document: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """A member that must be there and of that kind; `where` says whose. Raises Failed."""
    expect(key in document, f"'{key}' in {where}", f"only {', '.join(sorted(document)) or 'nothing'}")
    value = document[key]
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    expect(fits, f"{_KINDS[kind]} for '{key}' in {where}", value)
    return value


def answered(reply: Reply) -> Reply:
    """The reply, whose status must be 200. Raises Failed."""
    expect(reply.status == 200, f"200 from {reply.asked}", str(reply))
    return reply


def refused(reply: Reply, why: str, statuses: range = range(400, 600)) -> None:
    """Raise Failed unless the status is an error's. `why` says what the request has that is wrong."""
    wanted = "a status of 400 or more" if len(statuses) > 100 else f"a status from {statuses[0]} to {statuses[-1]}"
    expect(reply.status in statuses, f"{wanted} for {why}", str(reply))


def content_type(reply: Reply) -> str:
    """The media type, without its parameters, in lower case; '' is none."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_of(reply: Reply) -> tuple[dict[str, Any], bytes]:
    """The JSON object of an inference reply, and the blobs that follow it. Raises Failed."""
    given = reply.headers.get(HEADER_LENGTH)
    if given is None:
        return reply.mapping(), b""
    expect(given.isascii() and given.isdigit(), f"a number of bytes in {HEADER_LENGTH}", given)
    length = int(given)
    expect(0 < length <= len(reply.body), f"{HEADER_LENGTH} within the body of {len(reply.body)} bytes", length)
    head = Reply(reply.asked, reply.status, {}, reply.body[:length])
    return head.mapping(), reply.body[length:]


def binary_outputs(document: Mapping[str, Any]) -> list[str]:
    """Names of the outputs of a reply that `outputs` has read whose data are blobs."""
    found: list[dict[str, Any]] = document["outputs"]
    return [each["name"] for each in found if "binary_data_size" in _parameters(each)]


def _parameters(output: Mapping[str, Any]) -> dict[str, Any]:
    given = output.get("parameters") or {}
    expect(isinstance(given, dict), "an object for the 'parameters' of an output", given)
    return dict(given)


def outputs(reply: Reply, also: Mapping[str, str] = _NO_OTHERS) -> dict[str, Tensor]:
    """The tensors of a reply in its order, in JSON or as blobs. Raises Failed for whatever is wrong.

    `also`: other names of datatypes that may come.
    """
    document, blobs = json_of(answered(reply))
    tensors: dict[str, Tensor] = {}
    for output in member(document, "outputs", list, "the reply"):
        expect(isinstance(output, dict), "objects in 'outputs'", output)
        name: str = member(output, "name", str, "an output")
        where = f"output '{name}'"
        datatype: str = member(output, "datatype", str, where)
        datatype = also.get(datatype, datatype)
        expect(datatype in DATATYPES, f"a datatype of the protocol for {where}", datatype)
        shape = member(output, "shape", list, where)
        expect(all(type(size) is int and size >= 0 for size in shape), f"sizes in the shape of {where}", shape)
        expect(name not in tensors, "each output once", f"{where} twice")
        size = _parameters(output).get("binary_data_size")
        if size is None:
            tensors[name] = _from_json(where, datatype, shape, member(output, "data", list, where))
            continue
        expect("data" not in output, f"either 'data' or a blob for {where}", "both")
        expect(type(size) is int and 0 <= size <= len(blobs), f"{size!r} bytes for {where}", f"{len(blobs)} bytes")
        tensors[name] = _from_blob(where, datatype, shape, blobs[:size])
        blobs = blobs[size:]
    expect(not blobs, "no bytes after the last blob", f"{len(blobs)} bytes")
    return tensors


def _from_blob(where: str, datatype: str, shape: list[int], blob: bytes) -> Tensor:
    try:
        return tensor_from_binary("", where, datatype, shape, blob, 0, len(blob))
    except InvalidRequest:
        raise Failed(
            f"expected {datatype} {shape} in the blob of {where}; got {len(blob)} bytes that are not"
        ) from None


def _from_json(where: str, datatype: str, shape: list[int], data: list[Any]) -> Tensor:
    flat = _flat(data)
    count = math.prod(shape)
    expect(len(flat) == count, f"{count} elements for shape {shape} of {where}", f"{len(flat)}")
    if datatype == "BYTES":
        expect(all(isinstance(each, str) for each in flat), f"text as the elements of {where}", flat)
        return _shaped(where, bytes_array([each.encode("utf-8", "surrogatepass") for each in flat]), shape)
    kinds: tuple[type, ...] = (int,) if DATATYPES[datatype].kind in "iu" else (int, float)
    fits = all(type(each) in ((bool,) if datatype == "BOOL" else kinds) for each in flat)
    expect(fits, f"{datatype} elements for {where}", flat)
    try:
        with np.errstate(over="ignore"):
            return _shaped(where, np.array(flat, DATATYPES[datatype]), shape)
    except OverflowError:
        raise Failed(f"expected {datatype} elements for {where}; got {shortened(repr(flat))}") from None


def _shaped(where: str, flat: Tensor, shape: list[int]) -> Tensor:
    try:
        return shaped(where, flat, shape)
    except InvalidRequest:
        raise Failed(f"expected a shape that can be for {where}; got {shortened(repr(shape))}") from None


def _flat(data: list[Any]) -> list[Any]:
    """The elements of nested lists in order; not by recursion, for the nesting is the server's choice."""
    elements: list[Any] = []
    waiting: list[Any] = [iter(data)]
    while waiting:
        for each in waiting[-1]:
            if isinstance(each, list):
                waiting.append(iter(each))
                break
            elements.append(each)
        else:
            waiting.pop()
    return elements


def only(tensors: Mapping[str, Tensor]) -> Tensor:
    """The tensor of a reply that must have just one. Raises Failed."""
    expect(len(tensors) == 1, "one output", ", ".join(tensors) or "none")
    return next(iter(tensors.values()))


def equal(left: Tensor, right: Tensor, *, exact: bool = True) -> bool:
    """Same datatype, shape and values, NaN being the same as NaN. Not `exact`: floats to four digits or so."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype == np.object_ or left.dtype.kind in "biu":
        return bool(np.array_equal(left, right))
    # By way of float64, which has each value of the narrower ones and is all that isclose knows of bfloat16.
    wide, other = left.astype(np.float64), right.astype(np.float64)
    if exact:
        return bool(np.array_equal(wide, other, equal_nan=True))
    return bool(np.allclose(wide, other, rtol=1e-4, atol=1e-6, equal_nan=True))


def expect_equal(came: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str, *, exact: bool = False) -> None:
    """Raise Failed unless the same outputs came, in whatever order. `what` says which reply they are of."""
    expect(
        set(came) == set(wanted), f"outputs {', '.join(sorted(wanted))} of {what}", ", ".join(sorted(came)) or "none"
    )
    for name, tensor in wanted.items():
        left = f"{list(tensor.shape)} {shortened(repr(tensor.reshape(-1)[:8].tolist()))} in '{name}' of {what}"
        right = f"{list(came[name].shape)} {shortened(repr(came[name].reshape(-1)[:8].tolist()))}"
        expect(equal(came[name], tensor, exact=exact), left, right)
