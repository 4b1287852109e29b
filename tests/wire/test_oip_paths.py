"""Paths under /v2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiben.wire.oip_paths import METHODS, Target, target_of


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"/v2", Target("server_metadata")),
        (b"/v2/health/live", Target("server_live")),
        (b"/v2/health/ready", Target("server_ready")),
        (b"/v2/models/m", Target("model_metadata", "m")),
        (b"/v2/models/m/versions/7", Target("model_metadata", "m", "7")),
        (b"/v2/models/m/ready", Target("model_ready", "m")),
        (b"/v2/models/m/versions/7/ready", Target("model_ready", "m", "7")),
        (b"/v2/models/m/infer", Target("infer", "m")),
        (b"/v2/models/m/versions/abc/infer", Target("infer", "m", "abc")),
        (b"/v2/models/m/config", Target("model_config", "m")),
        (b"/v2/models/m/generate", Target("generate", "m")),
        (b"/v2/models/m/versions/7/generate_stream", Target("generate_stream", "m", "7")),
        (b"/v2/models/stats", Target("statistics")),
        (b"/v2/models/m/versions/7/stats", Target("statistics", "m", "7")),
        (b"/v2/repository/index", Target("index")),
        (b"/v2/repository/models/m/load", Target("load", "m")),
        (b"/v2/repository/r/models/m/unload", Target("unload", "m")),
        (b"/v2/models/versions/versions/2", Target("model_metadata", "versions", "2")),
        (b"/v2/models/a%2Fb/infer", Target("infer", "a/b")),
        (b"/v2/models/%C3%A9%20x/infer", Target("infer", "é x")),
        (b"/v2/models/../infer", Target("infer", "..")),
        (b"/v2/models/%2e%2e%2f%2e%2e%2fetc/ready", Target("model_ready", "../../etc")),
        (b"/%762/models/m", Target("model_metadata", "m")),
        (b"/v2/systemsharedmemory/status", Target("shared_memory_status")),
        (b"/v2/systemsharedmemory/region/r/status", Target("shared_memory_status", region="r")),
        (b"/v2/systemsharedmemory/region/a%2Fb/register", Target("shared_memory_register", region="a/b")),
        (b"/v2/systemsharedmemory/region/r/unregister", Target("shared_memory_unregister", region="r")),
        (b"/v2/systemsharedmemory/unregister", Target("shared_memory_unregister")),
        (b"/v2/cudasharedmemory/status", Target("cuda_shared_memory_status")),
        (b"/v2/cudasharedmemory/region/r/register", Target("cuda_shared_memory_register", region="r")),
        (b"/v2/cudasharedmemory/unregister", Target("cuda_shared_memory_unregister")),
        (b"/v2/trace/setting", Target("trace_settings")),
        (b"/v2/models/m/trace/setting", Target("trace_settings", "m")),
        (b"/v2/logging", Target("log_settings")),
    ],
)
def test_paths_of_the_protocol(path: bytes, target: Target) -> None:
    assert target_of(path) == target


@pytest.mark.parametrize(
    "path",
    [
        b"", b"/", b"/v2/", b"/v3", b"/v2/nope", b"/v2/health", b"/v2/health/zzz", b"/v2/models", b"/v2/models/",
        b"/v2/models//infer", b"/v2/models/m/", b"/v2/models/m/infer/", b"/v2/models/m/versions", b"/v2//models/m",
        b"/v2/models/m/versions//infer", b"/v2/models/m/versions/1/versions/2", b"/v2/models/\xff/infer",
        b"/v2/models/%ff/infer", b"/v2/models/m/zzz", b"/v2/models/a/b/infer", b"/v2/../v2",
        b"/v2/repository/models//load", b"v2", b"/V2", b"/v2/systemsharedmemory", b"/v2/systemsharedmemory/register",
        b"/v2/systemsharedmemory/region//register", b"/v2/systemsharedmemory/region/r",
        b"/v2/systemsharedmemory/region/r/x/status",
    ],
)  # fmt: skip
def test_other_paths(path: bytes) -> None:
    assert target_of(path) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_a_path_or_not(tail: bytes) -> None:
    target = target_of(b"/v2/models/" + tail)
    assert target is None or target.verb in METHODS
