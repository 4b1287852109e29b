"""The suite over the little server, in this process."""

from collections.abc import Sequence

from ekiben.clock import SYSTEM_CLOCK
from ekiben.conformance.context import Context
from ekiben.conformance.deadline import Deadline
from ekiben.conformance.grpc_call import GrpcClient
from ekiben.conformance.http_client import HttpClient
from ekiben.conformance.points import Point
from ekiben.conformance.suite import POINTS, run
from ekiben.conformance.survey import Survey, survey
from ekiben.conformance.verdicts import Result, Verdict
from tests.conformance import little_grpc, little_http
from tests.conformance.little_grpc import GrpcFault, LittleGrpcClient
from tests.conformance.little_http import Fault, serving
from tests.conformance.little_models import EXTENSIONS, State

HTTP_POINTS: Sequence[Point] = [point for point in POINTS if not point.id.startswith("G")]
GRPC_POINTS: Sequence[Point] = [point for point in POINTS if point.id.startswith("G")]
_SECONDS = 60.0


def checked(
    fault: Fault = little_http.honest,
    grpc_fault: GrpcFault = little_grpc.honest,
    *,
    points: Sequence[Point] = POINTS,
    extensions: tuple[str, ...] = EXTENSIONS,
    seconds: float = _SECONDS,
) -> dict[str, Result]:
    """Results by id, of a little server with these faults."""
    state = State()
    with serving(state, fault, extensions=extensions) as url:
        return checked_at(url, LittleGrpcClient(state, grpc_fault), points=points, seconds=seconds)


def known_little() -> Survey:
    """What is learnt of a little server without faults."""
    with serving(State()) as url:
        deadline = Deadline(SYSTEM_CLOCK, _SECONDS)
        return survey(HttpClient(url, deadline), deadline, (), lambda _: None)


def checked_grpc(known: Survey, fault: GrpcFault, seconds: float = _SECONDS) -> dict[str, Result]:
    """Results by id of the gRPC points, of a little server with this fault, of which the rest is known."""
    deadline = Deadline(SYSTEM_CLOCK, seconds)
    nowhere = HttpClient("http://127.0.0.1:1", deadline)
    context = Context(nowhere, LittleGrpcClient(State(), fault), known, deadline, "asleep")
    return {result.id: result for result in run(context, GRPC_POINTS)}


def checked_at(
    url: str, grpc: GrpcClient | None = None, *, points: Sequence[Point] = HTTP_POINTS, seconds: float = _SECONDS
) -> dict[str, Result]:
    """Results by id, of whatever is at an address."""
    deadline = Deadline(SYSTEM_CLOCK, seconds)
    http = HttpClient(url, deadline)
    known = survey(http, deadline, (), lambda _: None)
    context = Context(http, grpc, known, deadline, "asleep")
    return {result.id: result for result in run(context, points)}


def failed(results: dict[str, Result]) -> dict[str, str]:
    """What failed, and why."""
    return {result.id: result.detail for result in results.values() if result.verdict is Verdict.FAIL}
