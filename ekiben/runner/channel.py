"""What the engine and a runner say to each other, over SOCK_SEQPACKET sockets.

The control socket carries a Load, as a document (a memfd, for it may be larger than a packet may be), then each
instance's descriptors, and back a LoadReport, as a document. After that it carries nothing: its end is what tells the
runner that the engine is gone.

Each instance's socket carries one small packet a batch each way: a Call, and a Reply to it, in the order of the calls.
A message too long for a packet lies in the arena itself, and the packet is a Pointer to it.

A decoupled model answers a Call with any number of Replies, each but the last with `more`. After such a Reply the
runner waits for a Next, while the arena is the engine's; another Call may come before it.
"""

import os
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from ekiben.runner.arena import Arena, Placed, create_memory
from ekiben.types import ModelSettings, Signature

__all__ = [
    "PACKET_BYTES",
    "Call",
    "InstancePlan",
    "Load",
    "LoadReport",
    "Message",
    "Next",
    "Pointer",
    "Reply",
    "pack",
    "pack_next",
    "receive_descriptors",
    "receive_document",
    "resolve",
    "send_descriptors",
    "send_document",
    "unpack",
    "unpack_step",
]

PACKET_BYTES: Final = 32 * 1024
"""A longer message goes through the arena. The kernel's limit is near 200 KB, and two are under way at most."""


class InstancePlan(msgspec.Struct, frozen=True):
    """One instance to make."""

    device: str
    """As in model.yaml: `auto`, `cpu` or `gpu:N`."""
    threads: int


class Load(msgspec.Struct, frozen=True):
    """Engine → runner: what to load."""

    model: str
    version: int
    path: str
    settings: ModelSettings
    instances: tuple[InstancePlan, ...]


class LoadReport(msgspec.Struct, frozen=True):
    """Runner → engine: all instances are loaded and warm, or `error` says why not."""

    signatures: dict[str, Signature]
    devices: tuple[str, ...]
    error: str = ""
    decoupled: bool = False
    """Each Call gets a stream of Replies."""


class Call(msgspec.Struct, array_like=True, tag=0, gc=False):
    """Engine → runner: run what lies in this slot's arena."""

    slot: int
    arena_bytes: int
    signature: str
    inputs: list[Placed]
    outputs: Sequence[str]
    end: int
    """The first free byte after the inputs."""
    lone: bool = False
    """As Batch.lone."""


class Reply(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Runner → engine: the outputs lie in this slot's arena, or `error` is what the model raised."""

    slot: int
    arena_bytes: int
    outputs: list[Placed]
    input_ns: int
    compute_ns: int
    output_ns: int
    error: str | None
    end: int
    """The first free byte after the outputs."""
    more: bool = False
    """One response of a stream, and not its end."""


class Next(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Engine → runner: what the last Reply put into this slot's arena is taken; go on to the next response, or stop."""

    slot: int
    stop: bool


class Pointer(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Either way: the message itself lies in this slot's arena."""

    slot: int
    arena_bytes: int
    offset: int
    length: int


Message: TypeAlias = Call | Reply | Pointer

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Message).decode
_Step: TypeAlias = Call | Pointer | Next
_decode_step: Final = msgspec.msgpack.Decoder(_Step).decode
_Document = TypeVar("_Document")


def pack(message: Call | Reply, arena: Arena) -> bytes:
    """The packet for a message about this arena."""
    body = _encode(message)
    if len(body) <= PACKET_BYTES:
        return body
    offset = arena.write_bytes(body, message.end)
    return _encode(Pointer(message.slot, arena.size_bytes, offset, len(body)))


def unpack(packet: memoryview) -> Message:
    """The packet's message; a Pointer is to be resolved with its slot's arena. Raises msgspec.DecodeError."""
    return _decode(packet)


def unpack_step(packet: memoryview) -> Call | Pointer | Next:
    """As `unpack`, for a packet to an instance that answers with streams."""
    return _decode_step(packet)


def pack_next(message: Next) -> bytes:
    """The packet for it."""
    return _encode(message)


def resolve(message: Message, arena: Arena) -> Message:
    """Map what the sender has grown the arena to, and follow a Pointer. Raises ValueError if it points nowhere."""
    arena.follow(message.arena_bytes)
    return _decode(arena.read_bytes(message.offset, message.length)) if isinstance(message, Pointer) else message


def send_document(control: socket.socket, document: Load | LoadReport) -> None:
    """Send a document of any size."""
    body = _encode(document)
    memory = create_memory("ekiben-document", 0)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(body)
        send_descriptors(control, [memory])
    finally:
        os.close(memory)


def receive_document(control: socket.socket, kind: type[_Document]) -> _Document:
    """Receive a document. Raises EOFError when the other side has ended, BlockingIOError when nothing is there."""
    (memory,) = receive_descriptors(control, 1)
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        return msgspec.msgpack.decode(file.read(), type=kind)


def send_descriptors(control: socket.socket, descriptors: Sequence[int]) -> None:
    """Send descriptors; they stay the sender's too."""
    socket.send_fds(control, [b"\0"], list(descriptors))


def receive_descriptors(control: socket.socket, count: int) -> list[int]:
    """Receive as many descriptors as were sent together; they are the caller's to close. Raises as receive_document."""
    content, descriptors, _, _ = socket.recv_fds(control, 1, count, socket.MSG_CMSG_CLOEXEC)
    if not content:
        raise EOFError("the other side closed the control channel")
    if len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EOFError(f"{len(descriptors)} descriptors came where {count} were sent: too many are open")
    return descriptors
