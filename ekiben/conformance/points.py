"""What a point is, and the documents that points come from."""

from collections.abc import Callable
from typing import Final

import msgspec

from ekiben.conformance.context import Context

__all__ = [
    "GRPC_HEALTH",
    "GRPC_HTTP2",
    "KSERVE_REST",
    "OIP_GRPC",
    "OIP_REST",
    "RFC_CONTENT",
    "RFC_HTTP",
    "RFC_JSON",
    "RFC_URI",
    "TRITON_GRPC",
    "TRITON_HTTP",
    "Check",
    "Point",
    "point",
    "triton",
]

OIP_REST: Final = "OIP inference_rest.md"
OIP_GRPC: Final = "OIP inference_grpc.md"
KSERVE_REST: Final = "KServe required_api.md"
"""Of the older form of the protocol's text: JSON tensor data and parameters, which the newer one refers to."""
TRITON_HTTP: Final = "Triton http_server.cc"
TRITON_GRPC: Final = "Triton grpc_service.proto"
GRPC_HTTP2: Final = "gRPC PROTOCOL-HTTP2.md"
GRPC_HEALTH: Final = "gRPC health-checking.md"
RFC_URI: Final = "RFC 3986"
RFC_CONTENT: Final = "RFC 9110"
RFC_HTTP: Final = "RFC 9112"
RFC_JSON: Final = "RFC 8259"

Check = Callable[[Context], str | None]
"""Returns for a pass, with a remark or None; raises one of verdicts' exceptions for the rest."""


class Point(msgspec.Struct, frozen=True):
    """One thing that a server must do."""

    id: str
    """A letter for the group, a number, and a small letter where the number has several checks: J2b."""
    title: str
    """What must hold, as a sentence."""
    source: str
    """The document that says so."""
    check: Check


def point(id: str, title: str, source: str) -> Callable[[Check], Point]:
    """Make a check a point. `suite` collects those of each module in the order in which they stand there."""
    return lambda check: Point(id, title, source, check)


def triton(extension: str) -> str:
    """The document of one of Triton's extensions."""
    return f"Triton extension_{extension}.md"
