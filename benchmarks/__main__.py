"""`scripts/bench`: measure, print, and say whether what was promised holds."""

import argparse
import fcntl
import signal
import sys
from types import FrameType
from typing import Final

from benchmarks import grpc_calls, image, recovery, small, synthetic, tail
from benchmarks.load import LoadFailed, wrk_version
from benchmarks.models import ModelMissing
from benchmarks.paths import BENCH, RESULTS
from benchmarks.report import Target, summary
from benchmarks.servers import ServerFailed

SUITES: Final = {
    "small": (small.run, 3, 8),
    "synthetic": (synthetic.run, 3, 8),
    "image": (image.run, 3, 8),
    "tail": (tail.run, 1, 60),
    "recovery": (recovery.run, 5, 0),
    "grpc": (grpc_calls.run, 3, 8),
}
"""Name → what to run, its repeats, the seconds of each run."""


def main() -> int:
    """0: every target is met; 1: one is not; 2: nothing was measured."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, "all"], help="what to measure")
    parser.add_argument("--repeats", type=int, help="runs of each kind (3; tail 1)")
    parser.add_argument("--seconds", type=int, help="length of each run (8; tail 60)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)  # so that the servers are ended on the way out
    BENCH.mkdir(parents=True, exist_ok=True)
    with (BENCH / "lock").open("w") as lock:  # two at once would write the same folders and slow each other down
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("bench: another bench is running here", file=sys.stderr)
            return 2
        return _measure([*SUITES] if arguments.suite == "all" else [arguments.suite], arguments)


def _measure(suites: list[str], arguments: argparse.Namespace) -> int:
    targets: list[Target] = []
    try:
        wrk_version()
        for name in suites:
            run, repeats, seconds = SUITES[name]
            print(f"== {name}", flush=True)
            targets += run(arguments.repeats or repeats, arguments.seconds or seconds)
    except (LoadFailed, ModelMissing, ServerFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"{summary(targets)}\n\nWritten to {RESULTS}")
    return 0 if all(target.met for target in targets) else 1


def _leave(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(128 + signal_number)


if __name__ == "__main__":
    sys.exit(main())
