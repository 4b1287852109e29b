"""Usable cores are the least of affinity and every quota above us."""

import os
from pathlib import Path

import pytest

from ekiben.runner.cores import usable_cores

ALL = len(os.sched_getaffinity(0))


def cores(tmp_path: Path, own_cgroup: str, files: dict[str, str]) -> int:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(own_cgroup)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return usable_cores(root, own)


@pytest.mark.parametrize(("files", "expected"), [
    ({}, ALL),
    ({"a/b/cpu.max": "max 100000\n"}, ALL),
    ({"a/b/cpu.max": "100000 100000\n"}, 1),
    ({"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1),
    ({"cpu.max": "150000 100000\n"}, 1),
    ({"a/b/cpu.max": "20000 100000\n"}, 1),
    ({"a/b/cpu.max": "100000000 100000\n"}, ALL),
])  # fmt: skip
def test_version_two(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert cores(tmp_path, "0::/a/b\n", files) == expected


@pytest.mark.parametrize(("own", "folder"), [
    ("4:cpu,cpuacct:/docker/1\n0::/\n", "cpu,cpuacct/docker/1"),
    ("4:cpu,cpuacct:/host/path/unseen\n0::/\n", "cpu,cpuacct"),
    ("4:cpu:/\n", "cpu"),
])  # fmt: skip
def test_version_one(tmp_path: Path, own: str, folder: str) -> None:
    limit = {f"{folder}/cpu.cfs_quota_us": "100000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert cores(tmp_path, own, limit) == 1


def test_version_one_without_limit(tmp_path: Path) -> None:
    assert cores(tmp_path, "4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}) == ALL


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == ALL
