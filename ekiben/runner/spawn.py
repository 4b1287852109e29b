"""Starting a runner's process."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ekiben.runner.channel import InstancePlan
from ekiben.runner.output import OutputPipe

__all__ = ["spawn"]

_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[2])


def spawn(
    control: socket.socket, output: OutputPipe, plans: Sequence[InstancePlan], title: str
) -> "subprocess.Popen[bytes]":
    """Start the child, in a process group of its own."""
    threads = str(max(plan.threads for plan in plans))
    environment = {
        **os.environ,
        "MKL_NUM_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves a traceback among the last lines
        "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
    }
    # Blocked until the child ignores them itself: a stop signal to the whole group must not end it in between.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "ekiben.runner.worker", str(control.fileno()), str(os.getpid()), title],
            stdin=subprocess.DEVNULL,
            stdout=output.writer,
            stderr=output.writer,
            env=environment,
            pass_fds=(control.fileno(),),
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
