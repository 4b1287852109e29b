"""`ekiben conformance`: options → a run → a table, a file, an exit status."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, Self

from ekiben.clock import SYSTEM_CLOCK
from ekiben.conformance.context import Context
from ekiben.conformance.deadline import Deadline
from ekiben.conformance.http_client import HttpClient, Tls
from ekiben.conformance.make_models import make_models
from ekiben.conformance.points import Point
from ekiben.conformance.report import Table, as_json, as_markdown, summary
from ekiben.conformance.suite import POINTS, chosen, run
from ekiben.conformance.survey import Survey, survey
from ekiben.conformance.verdicts import Result, Verdict, shortened
from ekiben.errors import InvalidSettings

__all__ = ["run_command"]

_FAILED: Final = 1
_MOST_SECONDS: Final = 3600
_HEADER: Final = re.compile(r"([A-Za-z0-9_.-]+):[ \t]*([\x20-\x7e]*)")


def run_command(options: argparse.Namespace) -> int:
    """0: no point failed; 1: some did. Raises InvalidSettings for wrong options, Unavailable where no server answers,
    OSError for a file that cannot be written.
    """
    if options.list:
        print(as_markdown(POINTS), end="")
        return 0
    if options.make_models:
        for name in make_models(options.make_models):
            print(options.make_models / name)
        return 0
    if not options.url:
        raise InvalidSettings("which server? as in `ekiben conformance http://127.0.0.1:3000`")
    if not 0 < options.timeout <= _MOST_SECONDS:
        raise InvalidSettings(f"--timeout must be over 0 and at most {_MOST_SECONDS} seconds, got {options.timeout:g}")
    if options.json and not options.json.absolute().parent.is_dir():
        raise InvalidSettings(f"--json: there is no folder {options.json.parent}")
    points = chosen(options.only)
    if not options.grpc:
        points = [point for point in points if not point.id.startswith("G")]
        if not points:
            raise InvalidSettings("the points of gRPC need an address: --grpc HOST:PORT")
    url = options.url if "://" in options.url else f"http://{options.url}"
    headers = [_header(text) for text in options.headers]
    tls = Tls(options.cacert, options.cert, options.key, not options.insecure)
    deadline = Deadline(SYSTEM_CLOCK, options.timeout)
    http = HttpClient(url, deadline, headers, tls)
    http.check_reachable()
    grpc = _grpc_client(options.grpc, deadline, headers, tls) if options.grpc else None
    try:
        with _Progress() as progress:
            known = _learnt(http, deadline, options.models, progress)
            results = _checked(points, Context(http, grpc, known, deadline, options.allow_load), progress)
    finally:
        if grpc is not None:
            grpc.close()
    note = "" if grpc is not None else " (gRPC is checked where --grpc names its address)"
    print(f"\n{url}: {summary(results)}{note}")
    if options.json:
        options.json.write_text(as_json(url, known.server, points, results), encoding="utf-8")
    return _FAILED if any(result.verdict is Verdict.FAIL for result in results) else 0


def _header(text: str) -> tuple[str, str]:
    form = _HEADER.fullmatch(text)
    if form is None:
        raise InvalidSettings(f"-H must be NAME:VALUE in printable ASCII, got {shortened(repr(text))}")
    return form[1], form[2]


def _grpc_client(address: str, deadline: Deadline, headers: Sequence[tuple[str, str]], tls: Tls) -> Any:
    try:
        made = importlib.import_module("ekiben.conformance.grpc_client")
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise InvalidSettings("--grpc needs grpcio: pip install 'ekiben[conformance]'") from None
    client = made.GrpcioClient(address, deadline, headers, tls)
    deadline.restart()
    client.check_reachable()
    return client


def _learnt(http: HttpClient, deadline: Deadline, models: Sequence[str], progress: "_Progress") -> Survey:
    """What the server says of itself; told in two lines, and one for each model that cannot be used."""
    known = survey(http, deadline, models, lambda name: progress.show(f"looking at the model '{name}'"))
    progress.show("")
    print(f"{known.server or 'a server without a name'}; models: {len(known.samples)} usable of {len(known.names)}\n")
    for trouble in known.troubles:
        print(f"not usable: {trouble}", file=sys.stderr)
    return known


def _checked(points: Sequence[Point], context: Context, progress: "_Progress") -> list[Result]:
    """The results, each told when it is there."""
    table = Table(points, coloured=sys.stdout.isatty())
    results: list[Result] = []
    checks = run(context, points)
    for point in points:
        progress.show(point.id)
        results.append(next(checks))
        progress.show("")
        print(table.row(point, results[-1]), flush=True)
    return results


class _Progress:
    """What is being done, on a terminal's last line, which is left empty at the end; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Put it there, in place of what was."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{shortened(text)}")
            sys.stderr.flush()
