"""Traces in Triton's form."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ekiben.errors import Unavailable
from ekiben.extensions.recording import Recording, Series
from ekiben.extensions.trace_file import TraceFile
from ekiben.types import Trace


def recording(series: Series | None, protocol: str = "HTTP", **fields: Any) -> Recording:
    trace = Trace("3", 1, 4, 1, 1.003, 1.004, 1.005, 1.006, 1.007, 1.008, 1.009, 1.01)
    values: dict[str, Any] = {"received": 1.001, "read": 1.002, "replied": 1.011, "ended": 1.012, **fields}
    return Recording(protocol, "m", values.pop("trace", trace), epoch_ns=0, series=series, **values)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def stamps(items: Any) -> dict[str, int]:
    return {stamp["name"]: stamp["ns"] for item in items if "timestamps" in item for stamp in item["timestamps"]}


def test_the_events_of_a_request(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "t"))
    file.write(recording(Series(0), request_id="r7"))
    first, *rest = read(tmp_path / "t")
    assert first == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r7"}
    assert [(item["id"], len(item["timestamps"])) for item in rest] == [(1, 1)] * len(rest)
    names = [item["timestamps"][0]["name"] for item in rest]
    assert names == [
        "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END", "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]  # fmt: skip
    times = list(stamps(rest).values())
    assert times == sorted(times)
    assert stamps(rest)["COMPUTE_START"] == int(1.006 * 1e9)


def test_grpc_has_names_of_its_own(tmp_path: Path) -> None:
    TraceFile(str(tmp_path / "t")).write(recording(Series(0), "GRPC"))
    names = stamps(read(tmp_path / "t"))
    assert {"GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"} <= set(names)
    assert not any(name.startswith("HTTP") for name in names)


def test_a_request_that_was_refused_has_only_what_it_reached(tmp_path: Path) -> None:
    TraceFile(str(tmp_path / "t")).write(recording(Series(0), trace=Trace(), replied=0.0))
    about, *rest = read(tmp_path / "t")
    assert about == {"id": 1, "model_name": "m", "model_version": -1}
    assert list(stamps(rest)) == ["HTTP_RECV_START", "HTTP_RECV_END"]


def test_without_a_log_frequency_all_series_share_one_file(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "t"))
    for series in (Series(0), Series(0), Series(0)):
        file.write(recording(series))
    assert [item["id"] for item in read(tmp_path / "t") if "model_name" in item] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_log_frequency_makes_files_with_that_many(tmp_path: Path) -> None:
    file, one, other = TraceFile(str(tmp_path / "t")), Series(2), Series(3)
    for series in (one, other, one, one, other, other, other):
        file.write(recording(series))
    found = {
        path.name: [item["id"] for item in read(path) if "model_name" in item] for path in sorted(tmp_path.iterdir())
    }
    assert found == {"t.0": [1, 3], "t.1": [2, 5, 6], "t.2": [4], "t.3": [7]}


def test_nothing_is_written_of_a_recording_for_spans_only(tmp_path: Path) -> None:
    TraceFile(str(tmp_path / "t")).write(recording(None))
    assert list(tmp_path.iterdir()) == []


def test_whether_it_can_be_written(tmp_path: Path) -> None:
    TraceFile(str(tmp_path / "t")).check()
    for wrong in (tmp_path, tmp_path / "none" / "t"):
        with pytest.raises(Unavailable, match=f"'{wrong}' must be a file in a folder that exists"):
            TraceFile(str(wrong)).check()


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Unavailable, match=r"t' cannot be written: permission denied"):
        TraceFile(str(tmp_path / "t")).check()
