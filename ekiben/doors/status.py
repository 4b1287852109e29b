"""Our error codes → what each protocol calls them. The only place that knows."""

from collections.abc import Mapping
from typing import Final

from ekiben.errors import Code, EkibenError

__all__ = ["HTTP", "http_status"]

HTTP: Final[Mapping[Code, int]] = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.CANCELLED: 400,
    Code.INTERNAL: 500,
}
"""As Triton answers on HTTP (protocols: error behaviour)."""


def http_status(error: EkibenError) -> int:
    """The HTTP status of an error."""
    return HTTP[error.code]
