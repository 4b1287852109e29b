"""What the gRPC points need of a client, without a gRPC library: that is grpc_client's."""

from collections.abc import Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from ekiben.conformance.verdicts import Failed, NotSupported, expect, shortened
from ekiben.wire.protos.oip import OIP
from ekiben.wire.protos.schema import Schema

__all__ = ["GrpcClient", "GrpcStatus", "attempted", "called", "decoded", "optional", "refused_with", "streamed"]


class GrpcStatus(Exception):
    """A call ended with another status than OK."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code} {shortened(details)}".strip())
        self.code = code
        """As NOT_FOUND."""
        self.details = details


class GrpcClient(Protocol):
    """Calls by path, messages as bytes. Both raise GrpcStatus, and NoReply when the time is up. They block."""

    def call(self, path: str, message: bytes, compression: str = "") -> bytes:
        """A unary call; `compression` is gzip, deflate or '' for none."""
        ...

    def stream(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        """Every reply to a stream of these messages."""
        ...


def decoded(schema: Schema, name: str, data: bytes) -> Any:
    """A message of that name. Raises Failed."""
    try:
        return schema.message(name).FromString(data)
    except DecodeError:
        raise Failed(f"expected a {name} message; got {shortened(repr(data))}") from None


def called(client: GrpcClient, method: str, compression: str = "", **fields: Any) -> Any:
    """The reply of a method of GRPCInferenceService. Raises Failed for every other status than OK."""
    try:
        return _call(client, method, compression, fields)
    except GrpcStatus as status:
        raise Failed(f"expected OK from {method}; got {status}") from None


def optional(client: GrpcClient, method: str, **fields: Any) -> Any:
    """The reply of a method that a server may lack. Raises NotSupported where it says so, Failed for other statuses."""
    try:
        return _call(client, method, "", fields)
    except GrpcStatus as status:
        if status.code == "UNIMPLEMENTED":
            raise NotSupported(f"{method} says {status}") from None
        raise Failed(f"expected OK from {method}; got {status}") from None


def attempted(client: GrpcClient, method: str, **fields: Any) -> tuple[str, Any]:
    """The status of a call, as OK or NOT_FOUND, and the reply, or else the status' details."""
    try:
        return "OK", _call(client, method, "", fields)
    except GrpcStatus as status:
        return status.code, status.details


def refused_with(client: GrpcClient, codes: Sequence[str], why: str, method: str, **fields: Any) -> None:
    """Raise Failed unless the method answers with one of the codes; `why` says what the request has that is wrong."""
    code, came = attempted(client, method, **fields)
    expect(code in codes, f"{' or '.join(codes)} for {why}", f"{code} {shortened(str(came))}".strip())
    expect(bool(came.strip()), f"a message for {why}", "an empty one")


def streamed(client: GrpcClient, requests: Sequence[Any]) -> list[bytes]:
    """The replies, as bytes, to a ModelStreamInfer of these messages. Raises NotSupported and Failed as `optional`."""
    try:
        return client.stream(_path("ModelStreamInfer"), [each.SerializeToString() for each in requests])
    except GrpcStatus as status:
        if status.code == "UNIMPLEMENTED":
            raise NotSupported(f"ModelStreamInfer says {status}") from None
        raise Failed(f"expected OK from ModelStreamInfer; got {status}") from None


def _path(method: str) -> str:
    return f"/{OIP.services[0]}/{method}"


def _call(client: GrpcClient, method: str, compression: str, fields: dict[str, Any]) -> Any:
    message = OIP.message(f"{method}Request")(**fields).SerializeToString()
    return decoded(OIP, f"{method}Response", client.call(_path(method), message, compression))
