"""How log lines look: for people, or one JSON object a line."""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

__all__ = ["Verbosity", "adjust", "configure"]

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_LOGGER: Final = "ekiben"
_SILENT: Final = logging.CRITICAL + 1


class Verbosity(msgspec.Struct, frozen=True):
    """Which lines of `ekiben` are written, and how those of text say their time."""

    info: bool = True
    warning: bool = True
    error: bool = True
    """What is critical counts as an error."""
    verbose: int = 0
    """From 1 on DEBUG lines are written too."""
    iso_time: bool = False
    """`2026-11-30T20:15:00.123Z` in the place of the local time. JSON lines have ISO 8601 anyway."""

    def levels(self) -> frozenset[int]:
        """The levels of what is written, each standing for all up to the next."""
        wanted = (
            (logging.DEBUG, self.verbose > 0),
            (logging.INFO, self.info),
            (logging.WARNING, self.warning),
            (logging.ERROR, self.error),
        )
        return frozenset(level for level, on in wanted if on)


def configure(log_format: str) -> None:
    """Make `ekiben` and everything below it log to stderr as `text` or `json`; with `json` BentoML and uvicorn too.

    uvicorn's access logger is cut off: it costs time for lines that nobody sees, and ours know more (doors.oip_http).
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logger = logging.getLogger(_LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    adjust(Verbosity())
    if log_format == "json":
        for name in ("", "bentoml", "uvicorn", "uvicorn.error"):
            for other in logging.getLogger(name).handlers:
                other.setFormatter(_Json())
    access = logging.getLogger("uvicorn.access")
    access.handlers = []
    access.propagate = False


def adjust(verbosity: Verbosity) -> None:
    """Write only those lines from now on. For the loggers that `configure` has set up."""
    logger = logging.getLogger(_LOGGER)
    levels = verbosity.levels()
    logger.setLevel(min(levels, default=_SILENT))
    for handler in logger.handlers:
        handler.filters = [_Only(levels)]
        if isinstance(handler.formatter, _Text):
            handler.formatter.iso_time = verbosity.iso_time


class _Only(logging.Filter):
    """Lets the lines of some levels through."""

    def __init__(self, levels: frozenset[int]) -> None:
        super().__init__()
        self._levels = levels

    def filter(self, record: logging.LogRecord) -> bool:
        return max(logging.DEBUG, min(record.levelno // 10 * 10, logging.ERROR)) in self._levels


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed as `extra`: request ids and the like."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.iso_time = False

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # the logging module's own name
        if self.iso_time:
            return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
        return super().formatTime(record, datefmt)

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
