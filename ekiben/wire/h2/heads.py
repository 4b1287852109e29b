"""Request headers: a header block → what a call is about.

    block ─► memo ───────────────────────────────► Head      (clients repeat themselves: the usual case)
          └► hpack ─► field rules of RFC 9113 §8 ─► gRPC's headers ─► Head

A block means the same as long as the dynamic table does not change, so heads are kept by their block until it does.
"""

import binascii
import re
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeAlias, TypeVar, final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from ekiben.wire.h2.codes import ErrorCode, Status
from ekiben.wire.h2.faults import ConnectionFault, GrpcError
from ekiben.wire.h2.limits import Limits

__all__ = [
    "Fields",
    "Guard",
    "Head",
    "HeadDecoder",
    "Malformed",
    "Metadata",
    "Method",
    "MethodT",
    "check_trailers",
    "timeout_seconds",
]

Fields: TypeAlias = list[tuple[bytes, bytes]]

Metadata: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""A caller's own fields, in order; values of names with -bin are decoded."""

Guard: TypeAlias = Callable[[Metadata], None]
"""Raises GrpcError to refuse a call for its metadata, before any of its message is taken in. Must be a pure function:
it is asked once for all calls with the same headers."""

_KEPT_HEADS: Final = 128
_KEPT_BLOCK_BYTES: Final = 1024
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]$")
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))
_PSEUDO: Final = _REQUIRED | {b":authority"}
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(\+proto)?[ \t]*(;.*)?", re.IGNORECASE)
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_ENCODINGS: Final = frozenset((b"gzip", b"deflate"))
_NOT_METADATA: Final = frozenset((b"te", b"content-type", b"content-length", b"user-agent"))


class Method(Protocol):
    """What the table of methods holds, for all that this package wants to know of it."""

    @property
    def streaming(self) -> bool:
        """Whether the client sends many messages, or takes many replies."""
        ...

    @property
    def guard(self) -> Guard | None:
        """Who may call it; None: everybody."""
        ...


MethodT = TypeVar("MethodT", bound=Method)


class Malformed(Exception):
    """The fields break RFC 9113 §8: the stream is reset with PROTOCOL_ERROR."""


@final
class Head(Generic[MethodT]):
    """One call's headers, read. Shared by all calls with the same headers: not to be changed."""

    __slots__ = (
        "content_length",
        "encoding",
        "http_status",
        "metadata",
        "method",
        "path",
        "refused",
        "reply_encoding",
        "streams",
        "timeout_s",
    )

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.method: MethodT | None = None
        """None: not in the table; the call is refused."""
        self.streams = False
        """Whether `method` is a streaming one."""
        self.metadata: Metadata = ()
        self.timeout_s: float | None = None
        self.encoding = b""
        """How messages with the compressed flag are packed: gzip, deflate or b"" for not at all."""
        self.reply_encoding = b""
        """The same, if the caller also reads it: replies go as requests came."""
        self.content_length = -1
        self.refused: GrpcError | None = None
        """Why the call is to be refused."""
        self.http_status = 200
        """Of the refusal."""


@final
class HeadDecoder(Generic[MethodT]):
    """The reading side of one connection's HPACK state. Every header block must pass through it, in order."""

    def __init__(self, methods: Mapping[bytes, MethodT], limits: Limits) -> None:
        self.kept: dict[bytes, Head[MethodT]] = {}
        """Heads by block; what is in here holds."""
        self._methods = methods
        self._changed = False  # by the last block: the dynamic table
        self._decoder = Decoder(max_header_list_size=limits.header_bytes)

    def fields(self, block: bytes) -> Fields:
        """All fields of a block. Raises ConnectionFault: after a bad block the table is lost for all streams."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = (len(entries), id(entries[0]) if entries else 0, table.maxsize)
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except (HPACKError, IndexError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from None
        if before != (len(entries), id(entries[0]) if entries else 0, table.maxsize):
            self.kept.clear()
            self._changed = True
        else:
            self._changed = False
        return fields  # type: ignore[return-value]  # HeaderTuple is a tuple of two bytes when raw

    def head(self, block: bytes) -> Head[MethodT]:
        """What a request's block asks for. Raises ConnectionFault, or Malformed for the fields of this stream."""
        kept = self.kept.get(block)
        if kept is not None:
            return kept
        head = self._read(self.fields(block))
        if not self._changed and len(block) <= _KEPT_BLOCK_BYTES:
            if len(self.kept) >= _KEPT_HEADS:
                self.kept.clear()
            self.kept[block] = head
        return head

    def _read(self, fields: Fields) -> Head[MethodT]:
        pseudo: dict[bytes, bytes] = {}
        regular: dict[bytes, bytes] = {}
        own: list[tuple[bytes, bytes]] = []
        content_length = -1
        for name, value in fields:
            if name[:1] == b":":
                if name not in _PSEUDO or name in pseudo or regular:
                    raise Malformed(f"pseudo-header {_shown(name)} is unknown, repeated or after other fields")
                pseudo[name] = value
                continue
            _check_field(name, value)
            if name == b"content-length":
                if not value.isdigit() or len(value) > 19 or content_length not in (-1, int(value)):
                    raise Malformed(f"content-length {_shown(value)}")
                content_length = int(value)
            regular[name] = value
            if name not in _NOT_METADATA and not name.startswith(b"grpc-"):
                own.append((name, value))
        if not pseudo.keys() >= _REQUIRED:
            raise Malformed(f"missing {_shown(b', '.join(sorted(_REQUIRED - pseudo.keys())))}")
        path = pseudo[b":path"]
        if not path.startswith(b"/") and (path != b"*" or pseudo[b":method"] != b"OPTIONS"):
            raise Malformed(f":path {_shown(path)}")
        head: Head[MethodT] = Head(path)
        head.content_length = content_length
        head.method = self._methods.get(path)
        head.streams = head.method is not None and head.method.streaming
        try:
            self._grpc(head, pseudo[b":method"], regular, own)
        except GrpcError as error:
            head.refused = error
        return head

    def _grpc(
        self, head: Head[MethodT], http_method: bytes, regular: dict[bytes, bytes], own: list[tuple[bytes, bytes]]
    ) -> None:
        if http_method != b"POST":
            head.http_status = 405
            raise GrpcError(Status.INTERNAL, f"HTTP method {_shown(http_method)}: gRPC calls are POST")
        content_type = regular.get(b"content-type", b"")
        if not _CONTENT_TYPE.fullmatch(content_type):
            head.http_status = 415
            raise GrpcError(Status.INTERNAL, f"content-type {_shown(content_type)}: expected application/grpc")
        if head.method is None:
            raise GrpcError(Status.UNIMPLEMENTED, f"Method not found: {_shown(head.path)}")
        encoding = regular.get(b"grpc-encoding", b"identity")
        if encoding != b"identity":
            if encoding not in _ENCODINGS:
                raise GrpcError(
                    Status.UNIMPLEMENTED, f"grpc-encoding {_shown(encoding)}: send identity, gzip or deflate"
                )
            head.encoding = encoding
            if encoding in regular.get(b"grpc-accept-encoding", b"").replace(b" ", b"").split(b","):
                head.reply_encoding = encoding
        timeout = regular.get(b"grpc-timeout")
        if timeout is not None:
            head.timeout_s = timeout_seconds(timeout)
        head.metadata = tuple((name, _binary(name, value) if name.endswith(b"-bin") else value) for name, value in own)
        if head.method.guard is not None:
            head.method.guard(head.metadata)


def check_trailers(fields: Fields) -> None:
    """Raise Malformed for what may not stand in a client's trailers; nothing in them is used."""
    for name, value in fields:
        if name.startswith(b":"):
            raise Malformed(f"pseudo-header {_shown(name)} in trailers")
        _check_field(name, value)


def timeout_seconds(value: bytes) -> float:
    """A grpc-timeout (`1S`, `250m`) in seconds. Raises GrpcError INTERNAL, as grpc-go does, for anything else."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise GrpcError(Status.INTERNAL, f"malformed grpc-timeout {_shown(value)}")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _binary(name: bytes, value: bytes) -> bytes:
    """A -bin value, its base64 with or without padding; of several, joined by commas, the pieces are joined again."""
    try:
        return b",".join(
            binascii.a2b_base64(piece.rstrip(b"=") + b"=" * (-len(piece.rstrip(b"=")) % 4), strict_mode=True)
            for piece in value.split(b",")
        )
    except binascii.Error:
        raise GrpcError(Status.INTERNAL, f"metadata {_shown(name)} is not base64") from None


def _check_field(name: bytes, value: bytes) -> None:
    """RFC 9113 §8.2: names are lower-case tokens, values have no line ends, connections are not talked about."""
    if not _NAME.fullmatch(name):
        raise Malformed(f"field name {_shown(name)}")
    if _BAD_VALUE.search(value):
        raise Malformed(f"value of field {_shown(name)}")
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value.lower() != b"trailers"):
        raise Malformed(f"connection-specific field {_shown(name)}")


def _shown(raw: bytes) -> str:
    return repr(raw[:200].decode("latin-1"))
