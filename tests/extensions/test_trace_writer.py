"""The thread that writes recordings."""

import logging
import threading

import pytest

from ekiben.extensions.recording import Recording
from ekiben.extensions.trace_writer import TraceWriter
from ekiben.types import Trace

SECONDS = 60.0


def recording(name: str) -> Recording:
    return Recording("HTTP", name, Trace(), 1.0, 0)


def test_each_writer_gets_each_recording_in_order() -> None:
    one: list[str] = []
    other: list[str] = []
    writer = TraceWriter([lambda each: one.append(each.model), lambda each: other.append(each.model)])
    for name in "abc":
        writer.put(recording(name))
    writer.close(SECONDS)
    assert one == other == ["a", "b", "c"]


def test_closing_one_that_has_written_nothing() -> None:
    TraceWriter([]).close(SECONDS)


def test_what_is_over_the_bound_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    at_work, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def write(each: Recording) -> None:
        at_work.set()
        assert go_on.wait(SECONDS)
        written.append(each.model)

    writer = TraceWriter([write], most_waiting=2)
    writer.put(recording("a"))
    assert at_work.wait(SECONDS)
    for name in "bcdef":
        writer.put(recording(name))
    go_on.set()
    with caplog.at_level(logging.WARNING, "ekiben.traces"):
        writer.close(SECONDS)
    assert written == ["a", "b", "c"]
    assert [record.getMessage() for record in caplog.records] == [
        "3 traces were dropped: they came faster than they can be written"
    ]


def test_a_failure_is_told_once_and_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    written: list[str] = []

    def write(each: Recording) -> None:
        if each.model != "good":
            raise OSError(28, "No space left on device")
        written.append(each.model)

    writer = TraceWriter([write, lambda each: written.append(each.model.upper())])
    with caplog.at_level(logging.ERROR, "ekiben.traces"):
        for name in ("bad", "bad", "good", "bad"):
            writer.put(recording(name))
        writer.close(SECONDS)
    assert written == ["BAD", "BAD", "good", "GOOD", "BAD"]
    assert [record.getMessage() for record in caplog.records] == [
        "traces cannot be written, and are lost: [Errno 28] No space left on device"
    ] * 2
