"""ModelStreamInfer's order, limits and ends, without a transport."""

import asyncio
import gc
import random
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from ekiben.clock import SYSTEM_CLOCK
from ekiben.doors.grpc_calls import Receiver
from ekiben.doors.grpc_port import GrpcPort
from ekiben.doors.oip_grpc import OipGrpc
from ekiben.wire.h2.codes import DATA, PING, SETTINGS, WINDOW_UPDATE, Setting
from ekiben.wire.h2.replies import frame, ping
from tests.doors.grpc_house import OPTIONS, SERVICE, Called
from tests.doors.house import House, run, until
from tests.doors.test_oip_grpc import request
from tests.wire.h2.peer import HELLO, Frame, Peer, frames, message, request_fields, settings

MIB = 1 << 20


class Replies:
    """What a stream sends, in groups as they were sent, and how far it has read."""

    deadline: float | None = None
    head = Called()

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.read = 0
        self.ended = False
        self.taken = asyncio.Event()
        self.taken.set()

    def send_all(self, messages: Sequence[bytes]) -> bool:
        assert not self.ended
        self.groups.append([service_pb2.ModelStreamInferResponse.FromString(message) for message in messages])
        return self.taken.is_set()

    async def drained(self) -> None:
        await self.taken.wait()

    def consumed(self, count: int = 1) -> None:
        self.read += count

    def finish(self) -> None:
        assert not self.ended
        self.ended = True

    def give(self, stream: Receiver, *messages: bytes | memoryview) -> None:
        """Hand messages to a stream, as the transport does."""
        self.read += stream.messages([*messages])

    @property
    def sent(self) -> list[Any]:
        return [reply for group in self.groups for reply in group]

    @property
    def ids(self) -> list[str]:
        return [reply.infer_response.id for reply in self.sent]


Test = Callable[[House, Receiver, Replies], Coroutine[Any, Any, None]]


def with_stream(test: Test) -> None:
    async def inside(house: House) -> None:
        replies = Replies()
        await test(house, OipGrpc(house.engine).methods.receiving[SERVICE + "ModelStreamInfer"](replies), replies)

    run(inside)


def asked(model: str, *values: int, identity: str = "") -> memoryview:
    return memoryview(request(model, *values, identity=identity).SerializeToString())


def floats(count: int, identity: str, shape: int = 0, model: str = "fp32") -> memoryview:
    made = service_pb2.ModelInferRequest(model_name=model, id=identity)
    made.inputs.add(name="i", datatype="FP32", shape=[1, shape or count])
    made.raw_input_contents.append(np.zeros(count, np.float32).tobytes())
    return memoryview(made.SerializeToString())


async def answered(house: House, holds: Callable[[], bool]) -> None:
    """Let the model that is held run until something holds."""
    runner = house.runners["held"]

    def step() -> bool:
        if runner.running:
            runner.compute()
        return holds()

    await until(step)


def test_many_requests_are_in_flight_and_later_ones_are_not_read() -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        for number in range(100):
            replies.give(stream, asked("held", number, identity=str(number)))
        replies.give(stream, *(asked("held", number % 100, identity=str(number)) for number in range(100, 1000)))
        assert replies.read == 256
        await until(lambda: bool(house.runners["held"].running))
        assert replies.read == 256
        stream.ended()
        await answered(house, lambda: replies.ended)
        assert replies.ids == [str(number) for number in range(1000)]
        assert replies.read == 1000
        assert len(replies.groups) < 500  # what ran together is sent together

    with_stream(test)


def test_what_is_answered_out_of_turn_waits_for_its_turn() -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        runner = house.runners["held"]
        replies.give(stream, asked("a/b", 1, identity="0"))
        replies.give(stream, asked("held", 1, identity="1"))
        replies.give(stream, asked("a/b", 1, identity="2"))
        replies.give(stream, asked("nope", 1, identity="3"))
        replies.give(stream, asked("held", 1, identity="4"))
        await until(lambda: bool(replies.groups and runner.running))
        assert replies.ids == ["0"]
        runner.compute()
        await until(lambda: len(replies.groups) > 1)
        assert [len(group) for group in replies.groups][:2] in ([1, 3], [1, 4])
        await answered(house, lambda: len(replies.ids) == 5)
        assert replies.ids == ["0", "1", "2", "3", "4"]
        assert [reply.error_message[:25] for reply in replies.sent] == ["", "", "", "Request for unknown model", ""]

    with_stream(test)


def test_large_messages_keep_the_order_and_hold_up_later_ones() -> None:
    async def test(_: House, stream: Receiver, replies: Replies) -> None:
        replies.give(stream, asked("a/b", 1, identity="0"))
        replies.give(stream, floats(400_000, "1"))
        replies.give(stream, asked("a/b", 1, identity="2"))
        replies.give(stream, floats(400_000, "3", shape=3))
        replies.give(stream, b"\x0a" * 2_000_000)
        replies.give(stream, floats(400_000, "5", model="nope"))
        stream.ended()
        assert replies.read == 2
        await until(lambda: replies.ended)
        assert replies.ids == ["0", "1", "2", "3", "", "5"]
        assert [reply.error_message.split(" for ")[0] for reply in replies.sent] == [
            "",
            "",
            "",
            "input byte size mismatch",
            "the request is not a well-formed inference.ModelInferRequest message",
            "Request",
        ]

    with_stream(test)


def test_the_size_of_what_is_in_flight_is_limited() -> None:
    async def test(_: House, stream: Receiver, replies: Replies) -> None:
        message = floats(MIB // 4 - 20, "")
        for _number in range(70):
            replies.give(stream, message)
        assert replies.read == 65
        stream.ended()
        await until(lambda: replies.ended)
        assert len(replies.sent) == 70

    with_stream(test)


def test_a_client_that_does_not_read_is_not_worked_for() -> None:
    async def test(_: House, stream: Receiver, replies: Replies) -> None:
        replies.taken.clear()
        replies.give(stream, asked("a/b", 1, identity="0"))
        await until(lambda: bool(replies.groups))
        for number in range(1, 500):
            replies.give(stream, asked("a/b", 1, identity=str(number)))
        stream.ended()
        for _turn in range(20):
            await asyncio.sleep(0)
        assert (replies.ids, replies.read) == (["0"], 1)
        replies.taken.set()
        await until(lambda: replies.ended)
        assert replies.ids == [str(number) for number in range(500)]

    with_stream(test)


def test_a_stream_may_say_nothing() -> None:
    async def test(_: House, stream: Receiver, replies: Replies) -> None:
        stream.ended()
        assert (replies.groups, replies.ended) == ([], True)

    with_stream(test)


def test_a_cancelled_stream_frees_its_places(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        runner = house.runners["held"]
        for number in range(300):
            replies.give(stream, asked("held", number % 100))
        replies.give(stream, asked("nope", 1))
        await until(lambda: bool(runner.running))
        stream.cancelled()
        while runner.running:
            runner.compute()
            await asyncio.sleep(0.01)
        assert sum(len(batch.inputs[0].parts) for batch in runner.batches) < 30
        assert replies.groups == []

    with_stream(test)
    gc.collect()  # futures that nobody looked at would be told of
    assert caplog.text == ""


@pytest.mark.parametrize("answered_before", [False, True])
def test_errors_that_a_cancelled_stream_leaves_are_not_logged(
    caplog: pytest.LogCaptureFixture, answered_before: bool
) -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        runner = house.runners["held"]
        replies.give(stream, asked("held", 1))
        replies.give(stream, asked("nope", 1))
        replies.give(stream, asked("broken", 1))
        replies.give(stream, b"\x0a")
        if answered_before:
            await until(lambda: bool(runner.running))
            runner.compute()
        stream.cancelled()
        for _turn in range(20):
            await asyncio.sleep(0)
        assert replies.groups == []

    with_stream(test)
    gc.collect()
    assert caplog.text == ""


@pytest.mark.parametrize("last", ["large", "small"])
def test_a_stream_cancelled_while_it_decodes_or_waits_stays_quiet(last: str) -> None:
    async def test(_: House, stream: Receiver, replies: Replies) -> None:
        replies.taken.clear()
        replies.give(stream, asked("a/b", 1))
        if last == "large":
            replies.give(stream, floats(1_000_000, ""))
        await until(lambda: last == "large" or bool(replies.groups))
        replies.give(stream, asked("a/b", 1))
        before = len(replies.groups)
        stream.cancelled()
        replies.taken.set()
        for _turn in range(50):
            await asyncio.sleep(0.001)
        assert len(replies.groups) == before
        assert not replies.ended
        assert len(asyncio.all_tasks()) == 1

    with_stream(test)


def test_a_request_that_is_cancelled_elsewhere_is_answered_and_the_stream_goes_on() -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        futures: list[asyncio.Future[Any]] = []
        infer = house.engine.infer

        def keep(what: Any) -> asyncio.Future[Any]:
            futures.append(infer(what))
            return futures[-1]

        house.engine.infer = keep  # type: ignore[assignment,method-assign]
        stream = OipGrpc(house.engine).methods.receiving[SERVICE + "ModelStreamInfer"](replies)
        replies.give(stream, asked("held", 1, identity="x"))
        replies.give(stream, asked("a/b", 1, identity="y"))
        futures[0].cancel()
        stream.ended()
        await until(lambda: replies.ended)
        assert [(reply.error_message, reply.infer_response.id) for reply in replies.sent] == [
            ("the request was cancelled", "x"),
            ("", "y"),
        ]

    with_stream(test)


def test_a_bug_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        def bug(_: object) -> None:
            raise RuntimeError("secret")

        house.engine.infer = bug  # type: ignore[assignment,method-assign]
        stream = OipGrpc(house.engine).methods.receiving[SERVICE + "ModelStreamInfer"](replies)
        replies.give(stream, asked("a/b", 1, identity="x"))
        stream.ended()
        await until(lambda: replies.ended)
        (reply,) = replies.sent
        assert (reply.error_message, reply.infer_response.id) == ("internal error", "x")
        assert "secret" in caplog.text

    with_stream(test)


# --- over the port


async def next_frame(reader: asyncio.StreamReader) -> Frame:
    head = await reader.readexactly(9)
    return frames(head + await reader.readexactly(int.from_bytes(head[:3], "big")))[0]


def test_a_client_that_never_reads_is_stopped_by_its_window() -> None:
    async def test(house: House) -> None:
        port = GrpcPort([OipGrpc(house.engine).methods], 1 << 20)
        reader, writer = await asyncio.open_connection("127.0.0.1", await port.listen("127.0.0.1", 0))
        hello = await next_frame(reader)
        assert hello.kind == SETTINGS
        room = dict(struct.iter_unpack(">HI", hello.payload))[Setting.INITIAL_WINDOW_SIZE]
        opening = Peer().headers(1, request_fields(SERVICE.encode() + b"ModelStreamInfer"))
        writer.write(HELLO + settings((Setting.INITIAL_WINDOW_SIZE, 0)) + opening)
        body = message(bytes(floats(100_000, "")))
        sent = quiet = 0
        async with asyncio.timeout(60):
            while quiet < 50:  # so many PINGs in a row were answered without more room
                while len(body) <= room:
                    writer.write(frame(DATA, 0, 1, body))
                    room -= len(body)
                    sent += 1
                    quiet = 0
                writer.write(ping(b"12345678", ack=False))
                quiet += 1
                while (got := await next_frame(reader)).kind != PING:
                    if (got.kind, got.stream_id) == (WINDOW_UPDATE, 1):
                        room += int.from_bytes(got.payload, "big")
        assert 10 <= sent < 100
        writer.close()
        await port.close()

    run(test)


def talk(count: int, identity: str, *, fail: bool = False, end: bool = False) -> memoryview:
    """A request to the decoupled model."""
    made = service_pb2.ModelInferRequest(model_name="talk", id=identity)
    for name, datatype in (("text_input", "BYTES"), ("count", "INT32"), ("fail", "BOOL")):
        made.inputs.add(name=name, datatype=datatype, shape=[1, 1])
    made.raw_input_contents.extend([b"\2\0\0\0hi", count.to_bytes(4, "little"), bytes([fail])])
    if end:
        made.parameters["triton_enable_empty_final_response"].bool_param = True
    return memoryview(made.SerializeToString())


def test_a_decoupled_model_answers_with_as_many_messages_as_it_gives() -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        stream.messages([talk(3, "a", end=True)])
        stream.messages([asked("add", 1, 2)])  # an error of its own
        stream.messages([talk(0, "b")])
        stream.messages([talk(1, "c")])
        stream.ended()
        await until(lambda: replies.ended)
        of_a = [reply.infer_response for reply in replies.sent if reply.infer_response.id == "a"]
        assert [bytes(reply.raw_output_contents[0]) for reply in of_a[:3]] == [b"\2\0\0\0hi"] * 3
        assert [reply.parameters["triton_final_response"].bool_param for reply in of_a] == [False] * 3 + [True]
        assert (of_a[3].model_name, of_a[3].model_version, len(of_a[3].outputs)) == ("talk", "1", 0)
        assert replies.ids.count("b") == 0
        assert replies.ids.count("c") == 1
        assert sum(bool(reply.error_message) for reply in replies.sent) == 1

    with_stream(test)


def test_a_decoupled_model_that_fails_after_some_responses_says_so_and_the_stream_goes_on() -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        stream.messages([talk(2, "a", fail=True, end=True)])
        await until(lambda: len(replies.sent) == 3)
        assert "no more of this" in replies.sent[2].error_message
        assert replies.ids == ["a"] * 3
        stream.messages([talk(1, "b")])
        stream.ended()
        await until(lambda: replies.ended)
        assert replies.ids[3:] == ["b"]

    with_stream(test)


def test_a_client_that_does_not_read_stops_the_model_and_one_that_leaves_ends_it() -> None:
    async def test(house: House, stream: Receiver, replies: Replies) -> None:
        replies.taken.clear()
        stream.messages([talk(10_000, "a")])
        await until(lambda: house.talker.given >= 60)
        before = -1
        while house.talker.given != before:
            before = house.talker.given
            for _ in range(50):
                await asyncio.sleep(0)
        assert house.talker.given < 100
        assert not house.talker.stopped
        stream.cancelled()
        await until(lambda: house.talker.stopped == 1)
        assert not house.talker.running

    with_stream(test)


def test_a_stream_s_deadline_is_that_of_its_requests() -> None:
    async def test(house: House) -> None:
        replies = Replies()
        replies.deadline = SYSTEM_CLOCK.monotonic() - 1
        stream = OipGrpc(house.engine).methods.receiving[SERVICE + "ModelStreamInfer"](replies)
        stream.messages([asked("add", 1, 2, identity="late")])
        stream.messages([asked("a/b", 1, identity="late")])
        stream.ended()
        await until(lambda: replies.ended)
        assert "deadline" in replies.sent[1].error_message
        assert not house.runners["a/b"].batches

    run(test)


def test_streams_that_end_in_every_way_leave_nothing_behind() -> None:
    """Good, wrong, large and packed requests; readers that stop; calls that are cancelled or end with their channel."""

    async def test(house: House) -> None:
        port = GrpcPort([OipGrpc(house.engine).methods], 8 << 20)
        address = f"127.0.0.1:{await port.listen('127.0.0.1', 0)}"
        pick = random.Random(1)
        kinds: list[Callable[[], bytes]] = [
            lambda: bytes(asked("a/b", 1, identity="x")),
            lambda: bytes(asked("nope", 1)),
            lambda: b"\x0a",
            lambda: bytes(floats(pick.choice((10, 20_000, 300_000)), "y")),
        ]

        async def talk(number: int) -> int:
            got = 0
            options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(address, options) as channel:
                messages = [pick.choice(kinds)() for _ in range(pick.randrange(1, 60))]
                packing = pick.choice((grpc.Compression.NoCompression, grpc.Compression.Gzip))
                call = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(messages), compression=packing)
                enough = pick.randrange(len(messages) + 1) if number % 3 else len(messages)
                while got < enough and await call.read() is not grpc.aio.EOF:
                    got += 1
                if number % 3 == 1:
                    call.cancel()
                elif number % 3 == 0:
                    assert await call.read() is grpc.aio.EOF
            return got

        got = await asyncio.gather(*(talk(number) for number in range(60)))
        assert sum(got) > 500
        server = port._server
        await until(lambda: not server.protocols)
        assert server.memory.used_bytes == 0
        assert not any(version.scheduler.queue_rows for version in house.engine.versions())
        await port.close()
        assert len(asyncio.all_tasks()) == 1

    run(test)
