import os
import socket
import subprocess
import sys

import pytest

from benchmarks.processes import accepted_by, busy_seconds, cpu_seconds, tree


def test_a_child_is_in_the_tree_and_gone_after_its_end() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= tree(os.getpid())
        assert tree(child.pid) == {child.pid}
        child.communicate(b"\n")
    assert child.pid not in tree(os.getpid())
    assert cpu_seconds(child.pid) == 0


def test_cpu_time_grows_with_work() -> None:
    own, machine = cpu_seconds(os.getpid()), busy_seconds()
    while cpu_seconds(os.getpid()) == own or busy_seconds() == machine:
        sum(range(10_000))


def test_the_process_that_accepted_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            assert accepted_by(client, {os.getpid()}) == os.getpid()
            with pytest.raises(LookupError, match="none of the processes"):
                accepted_by(client, set())
