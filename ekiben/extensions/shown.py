"""A value that a client sent, as an error shows it."""

import msgspec

__all__ = ["shown"]

_MOST_BYTES = 100


def shown(value: object) -> str:
    """The value as JSON, cut to 100 bytes."""
    return msgspec.json.encode(value)[:_MOST_BYTES].decode("utf-8", "replace")
