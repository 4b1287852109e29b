"""Warnings of a reader that scans again and again: each is logged once."""

import logging

__all__ = ["Notes"]

_logger = logging.getLogger(__name__)


class Notes:
    """Logs each message the first time only."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, message: str) -> None:
        """Log `message`, unless this object did before."""
        if message not in self._said:
            self._said.add(message)
            _logger.warning("%s", message)
