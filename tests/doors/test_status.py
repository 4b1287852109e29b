"""Every error has its status."""

import pytest

from ekiben import errors
from ekiben.doors.status import HTTP, http_status
from ekiben.errors import Code, EkibenError

_STATUS = {
    "InvalidRequest": 400,
    "TooLarge": 400,
    "NotFound": 404,
    "Unavailable": 503,
    "NotReady": 503,
    "QueueFull": 503,
    "QueueTimeout": 503,
    "RunnerDied": 503,
    "Unsupported": 501,
    "Cancelled": 400,
    "InferenceFailed": 500,
    "ExecutionTimeout": 500,
    "LoadFailed": 500,
    "InvalidSettings": 400,
    "EkibenError": 500,
}


@pytest.mark.parametrize(
    "kind", [kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), EkibenError)]
)
def test_http(kind: type[EkibenError]) -> None:
    assert http_status(kind("why")) == _STATUS[kind.__name__]


def test_every_code_has_an_http_status() -> None:
    assert set(HTTP) == set(Code)
