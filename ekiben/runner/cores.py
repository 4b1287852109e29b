"""How many cores this process may really use: affinity and the cgroup's CPU quota, not the machine's count."""

import os
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), own_cgroups: Path = Path("/proc/self/cgroup")) -> int:
    """Whole cores, at least 1. A quota of 2.5 cores counts as 2: a third busy thread would only be throttled."""
    cores = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _folders(cgroup_root, own_cgroups) if (quota := _quota(folder)) is not None]
    return max(1, min([cores, *map(int, quotas)]))


def _folders(root: Path, own_cgroups: Path) -> list[Path]:
    """Every folder whose limit holds for us: our group and all above it, for cgroup v2 and for v1's `cpu`.

    In a container the path in /proc is often the host's and does not exist here; the root is then our own group.
    """
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root
        elif "cpu" in controllers.split(","):
            top = root / controllers if (root / controllers).is_dir() else root / "cpu"
        else:
            continue
        group = top / path.lstrip("/")
        folders += [folder for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return folders


def _quota(folder: Path) -> float | None:
    """Cores that the folder's limit allows; None: no limit there."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
