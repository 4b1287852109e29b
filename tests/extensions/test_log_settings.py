"""What clients may change of the log."""

from typing import Any

import pytest

from ekiben.errors import EkibenError, InvalidRequest, Unsupported
from ekiben.extensions.log_settings import LogSettings
from ekiben.logs import Verbosity

START = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def test_only_what_is_named_changes_and_it_acts_at_once() -> None:
    acted: list[Verbosity] = []
    settings = LogSettings(acted.append)
    assert settings.values() == START
    settings.update({"log_info": False, "log_verbose_level": 2})
    settings.update({"log_format": "ISO8601", "log_error": False})
    assert settings.values() == {
        **START,
        "log_info": False,
        "log_error": False,
        "log_verbose_level": 2,
        "log_format": "ISO8601",
    }
    assert acted == [
        Verbosity(info=False, verbose=2),
        Verbosity(info=False, error=False, verbose=2, iso_time=True),
    ]
    settings.update({})
    assert len(acted) == 2


@pytest.mark.parametrize(
    ("name", "value", "kind", "words"),
    [
        ("log_file", "", Unsupported, "log file location can not be updated through network protocol"),
        ("log_zzz", True, InvalidRequest, "'log_zzz'; those that can be set are log_info, log_warning, log_error"),
        ("log_warnings", True, InvalidRequest, "'log_warnings'"),
        ("", True, InvalidRequest, "''"),
        ("log_info", "x", InvalidRequest, "'log_info' must be true or false, got \"x\""),
        ("log_info", 1, InvalidRequest, "got 1"),
        ("log_warning", None, InvalidRequest, "'log_warning' must be true or false, got null"),
        ("log_error", [True], InvalidRequest, "got [true]"),
        ("log_verbose_level", -1, InvalidRequest, "from 0 to 4294967295, got -1"),
        ("log_verbose_level", 1 << 32, InvalidRequest, "got 4294967296"),
        ("log_verbose_level", 10**30, InvalidRequest, "'log_verbose_level'"),
        ("log_verbose_level", True, InvalidRequest, "got true"),
        ("log_verbose_level", 1.0, InvalidRequest, "got 1.0"),
        ("log_verbose_level", "1", InvalidRequest, 'got "1"'),
        ("log_format", "iso8601", InvalidRequest, "must be 'default' or 'ISO8601', got \"iso8601\""),
        ("log_format", {"a": "b" * 10_000}, InvalidRequest, "'log_format'"),
        ("log_format", None, InvalidRequest, "got null"),
    ],
)
def test_what_is_wrong_changes_nothing(name: str, value: Any, kind: type[EkibenError], words: str) -> None:
    acted: list[Verbosity] = []
    settings = LogSettings(acted.append)
    with pytest.raises(kind) as caught:
        settings.update({"log_verbose_level": 1, "log_info": False, name: value})
    assert words in caught.value.message
    assert len(caught.value.message) < 300
    assert settings.values() == START
    assert not acted
