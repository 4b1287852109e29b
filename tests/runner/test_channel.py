"""Messages of any size pass, and what ended or was cut is an error."""

import os
import socket
from collections.abc import Iterator

import pytest

from ekiben.runner.arena import Arena, Placed
from ekiben.runner.channel import (
    PACKET_BYTES,
    Call,
    LoadReport,
    Pointer,
    Reply,
    pack,
    receive_descriptors,
    receive_document,
    resolve,
    send_descriptors,
    send_document,
    unpack,
)
from ekiben.types import Signature, TensorSpec


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_a_document_may_be_larger_than_any_packet(pair: tuple[socket.socket, socket.socket]) -> None:
    specs = tuple(TensorSpec(f"input_{number}", "FP32", (-1, 3)) for number in range(50_000))
    report = LoadReport({"serving_default": Signature(specs, specs)}, ("cpu",))
    send_document(pair[0], report)
    assert receive_document(pair[1], LoadReport) == report


def test_the_end_of_the_other_side_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(EOFError):
        receive_document(pair[1], LoadReport)


def test_missing_descriptors_are_an_error_and_none_is_left(pair: tuple[socket.socket, socket.socket]) -> None:
    send_descriptors(pair[0], [0, 1])
    before = os.listdir("/proc/self/fd")
    with pytest.raises(EOFError, match="2 descriptors came where 3"):
        receive_descriptors(pair[1], 3)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("count", [1, 10_000])
def test_a_message_is_a_packet_or_a_pointer_to_the_arena(count: int) -> None:
    ours = Arena.create()
    theirs = Arena(os.dup(ours.descriptor))
    places = [Placed(f"input_{number}", "FP32", (2, -3), 64 * number, 24) for number in range(count)]
    for message in (
        Call(1, ours.size_bytes, "serving_default", places, ["y"], end=100),
        Reply(0, ours.size_bytes, places, 1, 2, 3, None, end=100),
    ):
        packet = pack(message, ours)
        assert len(packet) <= PACKET_BYTES
        received = unpack(memoryview(packet))
        assert isinstance(received, Pointer) == (count > 1)
        assert received.slot == message.slot
        assert resolve(received, theirs) == message
    ours.close()
    theirs.close()


def test_a_pointer_to_nowhere_is_an_error() -> None:
    arena = Arena.create()
    with pytest.raises(ValueError, match="outside the arena"):
        resolve(Pointer(0, arena.size_bytes, arena.size_bytes - 4, 8), arena)
    arena.close()
