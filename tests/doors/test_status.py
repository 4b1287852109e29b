"""Every error has its status."""

import pytest

from ekiben import errors
from ekiben.doors.status import GRPC, HTTP, grpc_status, http_status
from ekiben.errors import Code, EkibenError

_STATUS = {
    "InvalidRequest": (400, "INVALID_ARGUMENT"),
    "TooLarge": (400, "INVALID_ARGUMENT"),
    "NotFound": (404, "NOT_FOUND"),
    "AlreadyExists": (400, "ALREADY_EXISTS"),
    "CannotOpen": (500, "INTERNAL"),
    "Unavailable": (503, "UNAVAILABLE"),
    "NotReady": (503, "UNAVAILABLE"),
    "QueueFull": (503, "UNAVAILABLE"),
    "QueueTimeout": (503, "UNAVAILABLE"),
    "DeadlineExceeded": (504, "DEADLINE_EXCEEDED"),
    "RunnerDied": (503, "UNAVAILABLE"),
    "Restricted": (403, "UNAVAILABLE"),
    "Unsupported": (501, "UNIMPLEMENTED"),
    "Decoupled": (501, "UNIMPLEMENTED"),
    "Cancelled": (400, "CANCELLED"),
    "InferenceFailed": (500, "INTERNAL"),
    "ExecutionTimeout": (500, "INTERNAL"),
    "LoadFailed": (500, "INTERNAL"),
    "InvalidSettings": (400, "INVALID_ARGUMENT"),
    "EkibenError": (500, "INTERNAL"),
}


@pytest.mark.parametrize(
    "kind", [kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), EkibenError)]
)
def test_status(kind: type[EkibenError]) -> None:
    error = kind("why")
    assert (http_status(error), grpc_status(error).name) == _STATUS[kind.__name__]


@pytest.mark.parametrize("table", [HTTP, GRPC])
def test_every_code_has_a_status(table: dict[Code, int]) -> None:
    assert set(table) == set(Code)
