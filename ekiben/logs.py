"""How log lines look: for people, or one JSON object a line."""

import json
import logging
from typing import Any, Final

__all__ = ["configure"]

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(log_format: str) -> None:
    """Make `ekiben` and everything below it log to stderr as `text` or `json`; with `json` BentoML and uvicorn too.

    uvicorn's access logger is cut off: it costs time for lines that nobody sees, and ours know more (doors.oip_http).
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logger = logging.getLogger("ekiben")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if log_format == "json":
        for name in ("", "bentoml", "uvicorn", "uvicorn.error"):
            for other in logging.getLogger(name).handlers:
                other.setFormatter(_Json())
    access = logging.getLogger("uvicorn.access")
    access.handlers = []
    access.propagate = False


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed as `extra`: request ids and the like."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # the logging module's own name
        extras = " ".join(
            f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in _extras(record).items()
        )
        return super().formatMessage(record) + (f" [{extras}]" if extras else "")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
