"""What /proc says of a server's processes: who they are, and the CPU time that each has used."""

import os
import socket
from pathlib import Path
from typing import Final

__all__ = ["accepted_by", "busy_seconds", "cpu_seconds", "tree"]

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of one process so far, in steps of a clock tick (10 ms); 0 once it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND if fields else 0.0


def busy_seconds() -> float:
    """What all cores together have spent so far on anything but idling and waiting for disks."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS_PER_SECOND


def tree(root: int) -> set[int]:
    """The process `root` and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = set[int](), [root]
    while todo:
        pid = todo.pop()
        found.add(pid)
        todo += children.get(pid, [])
    return found


def accepted_by(connection: socket.socket, pids: set[int]) -> int:
    """Which of `pids` holds the other end of a loopback TCP connection over IPv4. Raises LookupError."""
    ports = (connection.getpeername()[1], connection.getsockname()[1])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if tuple(int(address.rpartition(":")[2], 16) for address in fields[1:3]) == ports:
            for pid in pids:
                if f"socket:[{fields[9]}]" in _descriptors(pid):
                    return pid
    raise LookupError(f"none of the processes {sorted(pids)} holds the connection on port {ports[0]}")


def _stat(pid: int) -> list[str]:
    """Fields 3 and later of /proc/PID/stat: state, parent, …; the name before them may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _descriptors(pid: int) -> set[str]:
    found = set[str]()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(str(entry.readlink()))
        except OSError:  # closed meanwhile
            continue
    return found
