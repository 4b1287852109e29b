"""Our error codes → what each protocol calls them. The only place that knows."""

from collections.abc import Mapping
from typing import Final

from ekiben.errors import Code, EkibenError
from ekiben.wire.h2.codes import Status

__all__ = ["GRPC", "HTTP", "grpc_status", "http_status"]

HTTP: Final[Mapping[Code, int]] = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 400,
    Code.UNAVAILABLE: 503,
    Code.RESTRICTED: 403,
    Code.UNSUPPORTED: 501,
    Code.DEADLINE_EXCEEDED: 504,
    Code.CANCELLED: 400,
    Code.INTERNAL: 500,
}
"""As Triton answers on HTTP (protocols: error behaviour)."""

GRPC: Final[Mapping[Code, Status]] = {
    Code.INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.RESTRICTED: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.DEADLINE_EXCEEDED: Status.DEADLINE_EXCEEDED,
    Code.CANCELLED: Status.CANCELLED,
    Code.INTERNAL: Status.INTERNAL,
}
"""As Triton answers on gRPC."""


def http_status(error: EkibenError) -> int:
    """The HTTP status of an error."""
    return HTTP[error.code]


def grpc_status(error: EkibenError) -> Status:
    """The gRPC status of an error."""
    return GRPC[error.code]
