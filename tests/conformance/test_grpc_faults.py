"""The gRPC points can fail: each row is a server with one fault, and the points that must find it, and no other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ekiben.conformance.survey import Survey
from ekiben.conformance.verdicts import Verdict
from ekiben.wire.protos.oip import OIP
from tests.conformance.little import GRPC_POINTS, checked_grpc, failed, known_little
from tests.conformance.little_grpc import GrpcAnswerer, GrpcAsked, GrpcFault
from tests.conformance.little_models import Refused

_TARGET = "echo_bool"
_UNKNOWN = "conformance-no-such-model"
_LARGE = 1 << 20


def _method(name: str, model: str = "") -> Callable[[GrpcAsked], bool]:
    def concerned(asked: GrpcAsked) -> bool:
        of = getattr(asked.message, "model_name", "") or getattr(asked.message, "name", "")
        return asked.method == name and model in ("", of)

    return concerned


def _raw(asked: GrpcAsked) -> bool:
    return asked.method == "ModelInfer" and bool(asked.message.raw_input_contents)


def _typed(asked: GrpcAsked) -> bool:
    return asked.method == "ModelInfer" and not asked.message.raw_input_contents


def _of(datatype: str) -> Callable[[GrpcAsked], bool]:
    return lambda asked: any(each.datatype == datatype for each in asked.message.inputs)


def _wants(name: str) -> Callable[[GrpcAsked], bool]:
    return lambda asked: any(each.name == name for each in (*asked.message.inputs, *asked.message.outputs))


def reply(change: Callable[[Any], Any], *when: Callable[[GrpcAsked], bool]) -> GrpcFault:
    """Change replies in place, or return another."""

    def fault(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
        honest = answer(asked)
        if all(each(asked) for each in when):
            other = change(honest)
            return honest if other is None else other
        return honest

    return fault


def refusal(code: str, *when: Callable[[GrpcAsked], bool]) -> GrpcFault:
    """Refuse what should be answered, or refuse it with another code."""

    def fault(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
        if all(each(asked) for each in when):
            raise Refused("a fault", code)
        return answer(asked)

    return fault


def forgives(text: str) -> GrpcFault:
    """Answer what is honestly refused with that in the message."""

    def fault(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
        try:
            return answer(asked)
        except Refused as error:
            if text in str(error):
                return OIP.message(f"{asked.method}Response")()
            raise

    return fault


def silent(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    """Refuse with the right code and no message."""
    try:
        return answer(asked)
    except Refused as error:
        if "no model" in str(error) and asked.method == "ModelMetadata":
            raise Refused("", error.code) from None
        raise


def once(fault: GrpcFault, *when: Callable[[GrpcAsked], bool]) -> GrpcFault:
    """Only the first call that is concerned meets the fault."""
    met: list[GrpcAsked] = []

    def first(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
        if not met and all(each(asked) for each in when):
            met.append(asked)
            return fault(asked, answer)
        return answer(asked)

    return first


def _put(**fields: Any) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return change


def _through_float(message: Any) -> None:
    values = np.frombuffer(message.raw_output_contents[0], np.int64).astype(np.float64)
    message.raw_output_contents[0] = np.clip(values, -(2.0**63), 2.0**62).astype(np.int64).tobytes()


def _until_nul(message: Any) -> None:
    message.raw_output_contents[0] = message.raw_output_contents[0].replace(b"a\x00b", b"a\x00\x00")


def _all_outputs(asked: GrpcAsked, answer: GrpcAnswerer) -> Any:
    if asked.method == "ModelInfer" and not _wants("conformance-no-such-output")(asked):
        del asked.message.outputs[:]
    return answer(asked)


def _both_forms(message: Any) -> None:
    message.outputs[0].contents.bool_contents.append(True)


def _drop_model(message: Any) -> None:
    kept = [each for each in message.models if each.name != _TARGET]
    del message.models[:]
    message.models.extend(kept)


def _no_ids(message: Any) -> None:
    message.infer_response.id = "one" if message.infer_response.id else ""


def _no_success(message: Any) -> None:
    message.model_stats[0].inference_stats.success.count = 5


FAULTS: list[tuple[str, str, GrpcFault]] = [
    ("G1", "not live", reply(_put(live=False), _method("ServerLive"))),
    ("G1", "not ready", reply(_put(ready=False), _method("ServerReady"))),
    ("G2", "no version", reply(_put(version=""), _method("ServerMetadata"))),
    ("G3a", "a model is never ready", reply(_put(ready=False), _method("ModelReady", _TARGET))),
    ("G3b", "every name is ready", reply(_put(ready=True), _method("ModelReady", _UNKNOWN))),
    ("G3b", "no name of a code", refusal("UNKNOWN", _method("ModelReady", _UNKNOWN))),
    ("G3c", "what is not loaded is ready", once(reply(_put(ready=True)), _method("ModelReady", "asleep"))),
    (
        "G4",
        "another shape",
        reply(lambda message: message.inputs[0].shape.append(1), _method("ModelMetadata", _TARGET)),
    ),
    ("G5a", "a raw scalar is too much", refusal("INTERNAL", _raw, _method("ModelInfer", "scalar"))),
    ("G5b", "a typed scalar is too much", refusal("INTERNAL", _typed, _method("ModelInfer", "scalar"))),
    ("G5b", "raw and typed at once", reply(_both_forms, _typed, _method("ModelInfer", "versions"))),
    ("G5c", "outputs of the request are not looked at", _all_outputs),
    ("G6a", "both forms are taken", forgives("both raw and typed")),
    ("G6b", "too few are taken", forgives("few raw")),
    ("G6c", "too many are taken", forgives("many raw")),
    ("G6d", "sizes are not compared", forgives("size of the data")),
    ("G7a", "INT64 goes through a float", reply(_through_float, _raw, _of("INT64"))),
    ("G7b", "typed INT64 goes through a float", reply(_through_float, _typed, _of("INT64"))),
    ("G7c", "BYTES end at NUL", reply(_until_nul, _raw, _of("BYTES"))),
    ("G8", "the id is lost", reply(_put(id=""), _method("ModelInfer"))),
    ("G8", "another model answers", reply(_put(model_name="other"), _method("ModelInfer"))),
    ("G9a", "an unknown model is the server's fault", refusal("INTERNAL", _method("ModelInfer", _UNKNOWN))),
    ("G9a", "no message", silent),
    ("G9b", "what is not loaded is the server's fault", refusal("INTERNAL", _method("ModelInfer", "asleep"))),
    ("G9c", "any input is taken", forgives("unknown input")),
    ("G9c", "any output is wanted", forgives("unknown output")),
    ("G9d", "datatypes are not compared", forgives("datatype of")),
    ("G10", "another version answers", reply(_put(model_version="7"), _method("ModelInfer"))),
    ("G11", "large messages are cut", refusal("INTERNAL", lambda asked: asked.message.ByteSize() > _LARGE)),
    ("G12", "gzip is not known", refusal("INTERNAL", lambda asked: asked.compression == "gzip")),
    ("G13a", "ids get lost in a stream", reply(_no_ids, _method("ModelStreamInfer"))),
    ("G13b", "an error ends the stream", refusal("NOT_FOUND", _method("ModelStreamInfer", _UNKNOWN))),
    ("G13b", "an error has no message", reply(_put(error_message=""), _method("ModelStreamInfer", _UNKNOWN))),
    ("G14", "not serving", reply(_put(status=2), _method("Check"))),
    ("G15", "a model is not listed", reply(_drop_model, _method("RepositoryIndex"))),
    ("G16", "another batch", reply(lambda message: _put(max_batch_size=0)(message.config), _method("ModelConfig"))),
    ("G17", "nothing is counted", reply(_no_success, _method("ModelStatistics"))),
    ("G18", "no settings", reply(lambda message: message.settings.clear(), _method("TraceSetting"))),
    ("G19", "no settings", reply(lambda message: message.settings.clear(), _method("LogSettings"))),
    (
        "G20",
        "a region of another name",
        reply(lambda message: _put(name="x")(message.regions["r"]), _method("SystemSharedMemoryStatus")),
    ),
    ("G21", "regions are a mystery", refusal("INTERNAL", _method("CudaSharedMemoryStatus"))),
    ("G22", "unloading fails", refusal("INTERNAL", _method("RepositoryModelUnload"))),
]


@pytest.fixture(scope="module")
def known() -> Survey:
    """Of a server without faults."""
    return known_little()


@pytest.mark.parametrize(
    ("points", "fault"), [row[::2] for row in FAULTS], ids=[f"{row[0]}: {row[1]}" for row in FAULTS]
)
def test_a_fault_fails_its_points_and_no_other(points: str, fault: GrpcFault, known: Survey) -> None:
    results = checked_grpc(known, fault)
    assert sorted(failed(results)) == sorted(points.split()), failed(results)
    for reason in failed(results).values():
        assert "cannot be understood" not in reason


def test_every_point_over_grpc_has_a_fault() -> None:
    assert {id for points, _, _ in FAULTS for id in points.split()} == {point.id for point in GRPC_POINTS}


@pytest.mark.parametrize("garbage", [b"", b"\xff\xff", b"\x0a\x03abc", b"\x00" * 100])
def test_garbage_fails_and_does_not_end_the_run(garbage: bytes, known: Survey) -> None:
    results = checked_grpc(known, lambda *_: garbage, seconds=1)
    assert len(results) == len(GRPC_POINTS)
    assert results["G8"].verdict is Verdict.FAIL
    assert [result for result in results.values() if "cannot be understood" in result.detail] == []
