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


def test_uvicorns_access_logger_is_cut_off() -> None:
    logs.configure("text")
    assert not logging.getLogger("uvicorn.access").hasHandlers()
