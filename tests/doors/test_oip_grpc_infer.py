"""How long a gRPC call waits, and in which order, handed to its method as a transport does it."""

import asyncio
from collections.abc import Awaitable

import pytest
from tritonclient.grpc import service_pb2

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.errors import DeadlineExceeded, QueueTimeout
from tests.doors.grpc_house import ENDLESS, SERVICE, Called
from tests.doors.house import House, run, until


def message(model: str, *values: int, **parameters: int) -> memoryview:
    made = service_pb2.ModelInferRequest(model_name=model, id=str(values[0]))
    made.inputs.add(name="i", datatype="INT8", shape=[len(values), 1])
    made.raw_input_contents.append(bytes(values))
    for name, value in parameters.items():
        made.parameters[name].uint64_param = value
    return memoryview(made.SerializeToString())


def failures(house: House, model: str) -> dict[str, int]:
    (version,) = [version for version in house.engine.versions() if version.view.model == model]
    return dict(version.scheduler.counters.failed)


async def error_of(answer: Awaitable[object]) -> BaseException:
    with pytest.raises(QueueTimeout) as caught:
        await answer
    return caught.value


def test_priority_and_timeout_reach_the_queue() -> None:
    async def test(house: House) -> None:
        runner = house.runners["ranked"]
        infer = OipGrpc(house.engine).methods.unary[SERVICE + "ModelInfer"]
        answers = [infer(message("ranked", number), ENDLESS) for number in range(2)]
        await until(lambda: len(runner.running) == 2)
        wishes: list[dict[str, int]] = [{}, {"priority": 1}, {"priority": 7}]
        answers += [infer(message("ranked", number, **wish), ENDLESS) for number, wish in enumerate(wishes, 2)]
        late = infer(message("ranked", 9, timeout=1, priority=1), ENDLESS)
        assert isinstance(late, Awaitable)
        error = await error_of(late)
        assert "Request timeout expired: it waited over 1 µs" in str(error)
        while runner.running:
            runner.compute()
            await asyncio.sleep(0.01)
        assert [int(batch.inputs[0].parts[0][0, 0]) for batch in runner.batches] == [0, 1, 3, 2, 4]
        for answer in answers:
            assert isinstance(answer, Awaitable)
            assert await answer

    run(test)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("large", [False, True])
def test_a_call_that_waits_until_its_deadline_never_runs(
    rows: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("ekiben.doors.oip_grpc_infer.INLINE_BYTES", 0)

    async def test(house: House) -> None:
        runner = house.runners["held"]
        infer = OipGrpc(house.engine).methods.unary[SERVICE + "ModelInfer"]
        running = [asyncio.ensure_future(house.infer("held", {"inputs": [whole()]})) for _ in range(2)]
        await until(lambda: len(runner.running) == 2)
        late = infer(message("held", *range(rows)), Called(deadline=SYSTEM_CLOCK.monotonic() + 0.02))
        assert isinstance(late, Awaitable)
        assert type(await error_of(late)) is DeadlineExceeded
        while runner.running:
            runner.compute()
            await asyncio.sleep(0.01)
        assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]
        assert len(runner.batches) == 2
        assert failures(house, "held") == {"deadline": 1}

    run(test)


def whole() -> dict[str, object]:
    """A tensor that fills a batch."""
    return {"name": "i", "datatype": "INT8", "shape": [8, 1], "data": [0] * 8}
