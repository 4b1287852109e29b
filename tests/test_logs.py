"""Log lines for people and for machines."""

import json
import logging
from collections.abc import Iterator

import pytest

from ekiben import logs


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Put the loggers back as they were."""
    kept = [
        (logger, logger.handlers, logger.level, logger.propagate)
        for logger in map(logging.getLogger, ("ekiben", "uvicorn.access"))
    ]
    yield
    for logger, handlers, level, propagate in kept:
        logger.handlers, logger.level, logger.propagate = handlers, level, propagate


def test_json_lines_hold_the_request_id_and_the_exception(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("ekiben.x").exception("it \n failed", extra={"request_id": "7", "trace_id": "ab"})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"], record["message"]) == ("ERROR", "ekiben.x", "it \n failed")
    assert (record["request_id"], record["trace_id"]) == ("7", "ab")
    assert "ValueError: boom" in record["exception"]


def test_text_lines_end_with_what_belongs_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    logging.getLogger("ekiben.x").warning("slow", extra={"request_id": "7"})
    assert capsys.readouterr().err.endswith("WARNING ekiben.x: slow [request_id='7']\n")


@pytest.mark.parametrize(
    ("verbosity", "written"),
    [
        (logs.Verbosity(), "IWEC"),
        (logs.Verbosity(info=False), "WEC"),
        (logs.Verbosity(warning=False), "IEC"),
        (logs.Verbosity(error=False), "IW"),
        (logs.Verbosity(verbose=1), "DIWEC"),
        (logs.Verbosity(info=False, verbose=3), "DWEC"),
        (logs.Verbosity(info=False, warning=False, error=False), ""),
    ],
)
def test_each_level_can_be_switched_off_and_debug_on(
    capsys: pytest.CaptureFixture[str], verbosity: logs.Verbosity, written: str
) -> None:
    logs.configure("text")
    logs.adjust(verbosity)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logging.getLogger("ekiben.x").log(level, "line")
    lines = capsys.readouterr().err.splitlines()
    assert "".join(line.split()[2][0] for line in lines) == written


def test_what_is_switched_off_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logs.adjust(logs.Verbosity(info=False, warning=False))
    logs.adjust(logs.Verbosity())
    logging.getLogger("ekiben.access").info("line")
    assert json.loads(capsys.readouterr().err)["message"] == "line"


def test_the_time_of_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    record = logging.makeLogRecord({"created": 1_700_000_000.0625, "msecs": 62.5, "levelname": "INFO", "msg": "line"})
    (handler,) = logging.getLogger("ekiben").handlers
    local = handler.format(record)
    logs.adjust(logs.Verbosity(iso_time=True))
    assert handler.format(record).startswith("2023-11-14T22:13:20.062Z INFO ")
    logs.adjust(logs.Verbosity())
    assert handler.format(record) == local


def test_uvicorns_access_logger_is_cut_off() -> None:
    logs.configure("text")
    assert not logging.getLogger("uvicorn.access").hasHandlers()
