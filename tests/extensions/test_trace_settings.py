"""The trace settings of a server and of its models, and whose turn it is."""

from typing import Any

import pytest

from ekiben.errors import EkibenError, InvalidRequest, Unavailable, Unsupported
from ekiben.extensions.trace_settings import TraceSettings

START = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "/t/trace.json",
    "trace_mode": "triton",
}


def settings(**server: object) -> TraceSettings:
    made = TraceSettings("/t/trace.json")
    made.update("", server)
    return made


def taken(of: TraceSettings, model: str, requests: int) -> list[int]:
    """Numbers of the requests that were traced, from 1."""
    return [number for number in range(1, requests + 1) if of.sample(model) is not None]


def test_the_start() -> None:
    assert settings().values() == START
    assert settings().values("m") == START
    assert TraceSettings().values()["trace_file"] == ""
    assert not settings().on


def test_a_model_follows_the_server_in_what_it_does_not_set_itself() -> None:
    made = settings()
    made.update("m", {"trace_rate": "12", "log_frequency": 34})
    made.update("", {"trace_rate": "56", "trace_count": ["78"], "trace_level": ["TIMESTAMPS"]})
    assert made.values() == {**START, "trace_rate": "56", "trace_count": "78", "trace_level": ["TIMESTAMPS"]}
    own = {"trace_rate": "12", "log_frequency": "34", "trace_count": "78", "trace_level": ["TIMESTAMPS"]}
    assert made.values("m") == {**START, **own}
    assert made.values("other") == made.values()


def test_null_and_an_empty_list_clear_a_setting() -> None:
    made = settings(trace_rate="56", trace_count="78", trace_level="OFF")
    made.update("m", {"trace_rate": "12", "log_frequency": "34"})
    made.update("", {"trace_rate": None, "trace_count": []})
    assert made.values() == START
    assert made.values("m") == {**START, "trace_rate": "12", "log_frequency": "34"}
    made.update("m", {"trace_rate": None, "trace_level": None})
    assert made.values("m") == {**START, "log_frequency": "34"}
    made.update("m", {"log_frequency": None})
    made.update("m", {"log_frequency": None, "trace_rate": []})
    made.update("", {"trace_rate": "5"})
    assert made.values("m") == made.values() == {**START, "trace_rate": "5"}


def test_one_of_so_many_requests_is_traced() -> None:
    made = settings(trace_level="TIMESTAMPS", trace_rate=3)
    assert made.on
    assert taken(made, "m", 10) == [3, 6, 9]


def test_models_without_settings_of_their_own_are_counted_together() -> None:
    made = settings(trace_level="TIMESTAMPS", trace_rate=2)
    made.update("own", {"trace_rate": 1})
    assert made.sample("a") is None
    assert made.sample("own") is not None
    assert made.sample("b") is not None


def test_tracing_ends_when_the_count_is_taken() -> None:
    made = settings(trace_level="TIMESTAMPS", trace_rate=1, trace_count=2)
    assert taken(made, "m", 5) == [1, 2]
    assert made.values()["trace_count"] == "0"
    assert not made.on
    made.update("", {"trace_count": "1"})
    assert taken(made, "m", 5) == [1]


def test_what_is_left_of_a_count_outlives_other_changes() -> None:
    made = settings(trace_level="TIMESTAMPS", trace_rate=1, trace_count=5)
    assert taken(made, "m", 2) == [1, 2]
    made.update("", {"log_frequency": "7"})
    made.update("m", {"log_frequency": "8"})
    assert (made.values()["trace_count"], made.values("m")["trace_count"]) == ("3", "3")


def test_one_model_alone_can_be_traced() -> None:
    made = settings()
    made.update("m", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    assert made.on
    assert (taken(made, "other", 2), taken(made, "m", 2)) == ([], [1, 2])
    made.update("m", {"trace_level": None})
    assert not made.on


def test_a_change_starts_another_series() -> None:
    made = settings(trace_level="TIMESTAMPS", trace_rate=1, log_frequency=4)
    first = made.sample("m")
    assert first is not None
    assert first.frequency == 4
    assert made.sample("m") is first
    made.update("", {"log_frequency": 9})
    second = made.sample("m")
    assert second is not None
    assert second.frequency == 9


@pytest.mark.parametrize(
    ("name", "value", "kind", "words"),
    [
        ("trace_file", "x", Unsupported, "trace file location can not be updated through network protocol"),
        ("trace_file", None, Unsupported, "trace file location"),
        ("trace_mode", "opentelemetry", Unsupported, "'trace_mode' can only be 'triton', got \"opentelemetry\""),
        ("zzz", "1", InvalidRequest, "'zzz'; those that can be set are trace_level, trace_rate"),
        ("trace_level", "TENSORS", Unsupported, "'TENSORS' is not supported"),
        ("trace_level", ["TIMESTAMPS", "TENSORS"], Unsupported, "'TENSORS' is not supported"),
        ("trace_level", ["TIMESTAMPS", "OFF"], InvalidRequest, "Expect only one trace level 'OFF' is specified"),
        ("trace_level", "timestamps", InvalidRequest, 'got "timestamps"'),
        ("trace_level", [["OFF"]], InvalidRequest, 'got ["OFF"]'),
        ("trace_level", 1, InvalidRequest, "'trace_level'"),
        ("trace_level", {"OFF": 1}, InvalidRequest, "'trace_level'"),
        ("trace_rate", "0", InvalidRequest, "'trace_rate', value is out of range [ 1, 2147483647 ], got: 0"),
        ("trace_rate", "-1", InvalidRequest, "out of range"),
        ("trace_rate", "2147483648", InvalidRequest, "out of range"),
        ("trace_rate", "9" * 5000, InvalidRequest, "Unable to parse 'trace_rate'"),
        ("trace_rate", 10**25, InvalidRequest, "out of range"),
        ("trace_rate", "", InvalidRequest, "Unable to parse 'trace_rate', got: \"\""),
        ("trace_rate", " 1", InvalidRequest, "Unable to parse"),
        ("trace_rate", "1_0", InvalidRequest, "Unable to parse"),
        ("trace_rate", "\u0661", InvalidRequest, "Unable to parse"),
        ("trace_rate", True, InvalidRequest, "got: true"),
        ("trace_rate", 1.5, InvalidRequest, "got: 1.5"),
        ("trace_rate", ["1", "2"], InvalidRequest, "expect only 1 value for 'trace_rate'"),
        ("trace_rate", [None], InvalidRequest, "got: null"),
        ("trace_rate", {}, InvalidRequest, "got: {}"),
        ("trace_count", "-2", InvalidRequest, "'trace_count', value is out of range [ -1,"),
        ("log_frequency", "-1", InvalidRequest, "'log_frequency', value is out of range [ 0,"),
    ],
)
def test_what_is_wrong_changes_nothing(name: str, value: Any, kind: type[EkibenError], words: str) -> None:
    made = settings()
    for model in ("", "m"):
        with pytest.raises(kind) as caught:
            made.update(model, {"trace_count": "3", name: value})
        assert words in caught.value.message
        assert len(caught.value.message) < 300
        assert made.values(model) == START


def test_the_mode_that_there_is_may_be_named() -> None:
    made = settings(trace_mode="triton")
    made.update("m", {"trace_mode": ["triton"]})
    assert made.values() == START


def test_without_a_file_there_is_no_tracing() -> None:
    made = TraceSettings()
    with pytest.raises(InvalidRequest, match=r"trace file name is not given.*--trace-file FILE"):
        made.update("", {"trace_level": ["TIMESTAMPS"]})
    made.update("", {"trace_level": ["OFF"], "trace_rate": "7"})
    assert made.values()["trace_rate"] == "7"


def test_a_file_that_cannot_be_written_is_said_when_tracing_is_switched_on() -> None:
    def check() -> None:
        raise Unavailable("trace_file '/t/trace.json' cannot be written")

    made = TraceSettings("/t/trace.json", check)
    made.update("m", {"trace_level": "OFF"})
    with pytest.raises(Unavailable, match="cannot be written"):
        made.update("m", {"trace_level": "TIMESTAMPS"})
    assert not made.on


def test_the_table_of_models_is_bounded() -> None:
    made = settings()
    for number in range(1024):
        made.update(f"m{number}", {"trace_rate": "2"})
    with pytest.raises(InvalidRequest, match=r"1024 models .*'one more' would be one more"):
        made.update("one more", {"trace_rate": "2"})
    made.update("m7", {"trace_rate": "3"})
    made.update("m8", {"trace_rate": None})
    made.update("one more", {"trace_rate": "2"})
