"""ModelStreamInfer: many requests on one stream, answered in their order, as Triton answers them.

message ─► decode ─► Engine.infer ─► a place in the order ─► its turn, and its future is done ─► message
                 └─► Engine.stream, for a decoupled model ─► each response as it comes ─────────► message

Nothing here is a task, but for a large message (decoded in a thread), a decoupled model's responses, and a client that
is behind in reading. Only the first place's future has a callback, which sends all replies that are there: what ran as
one batch is sent as one.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, final

import msgspec

from ekiben.doors.grpc_calls import Replies
from ekiben.doors.oip_grpc_infer import INLINE_BYTES, Inference
from ekiben.engine.engine import Replies as Responses
from ekiben.engine.engine import VersionView
from ekiben.errors import Decoupled, EkibenError
from ekiben.extensions.recording import Recording
from ekiben.types import Response
from ekiben.wire.oip_json import Classes, InferCall
from ekiben.wire.oip_proto import encode_stream_end, encode_stream_error, request_id

__all__ = ["InferStream"]

_LOG: Final = logging.getLogger("ekiben.doors.oip_grpc")
_IN_FLIGHT: Final = 256
_IN_FLIGHT_BYTES: Final = 64 << 20
"""Requests of one stream that may be without their reply, and what their messages may come to. Later ones wait, and are
not consumed: the client is stopped by its window."""


class _Place(msgspec.Struct, eq=False, gc=False):
    """A request's turn among the replies of its stream."""

    future: asyncio.Future[Response]
    size: int
    """Of its message, in bytes."""
    call: InferCall | None
    """None: it could not be decoded."""
    classes: Classes | None = None
    identity: str = ""
    """Of a request without `call`."""
    recording: Recording | None = None
    """What is written down of it; None: it is not traced."""


@final
class InferStream:
    """One stream: a grpc_calls.Receiver."""

    __slots__ = (
        "_behind", "_bytes", "_decoding", "_ended", "_inference", "_places", "_replies", "_talks", "_waiting"
    )  # fmt: skip

    def __init__(self, inference: Inference, replies: Replies) -> None:
        self._inference = inference
        self._replies = replies
        self._places: deque[_Place] = deque()
        """Requests whose reply has not been sent, in order."""
        self._bytes = 0  # of their messages
        self._talks: set[asyncio.Task[None]] = set()  # decoupled models' answers, which keep no order among the others
        self._waiting: deque[bytes | memoryview] = deque()  # messages for which there is no place yet
        self._decoding: asyncio.Task[None] | None = None
        self._behind: asyncio.Task[None] | None = None  # until the client has read what it got
        self._ended = False

    def messages(self, messages: list[bytes | memoryview]) -> int:
        """Requests. An error in one is its reply, and the stream goes on."""
        started = 0 if self._waiting else self._start(messages)
        self._waiting.extend(messages[started:])
        return started

    def ended(self) -> None:
        """Every request is here."""
        self._ended = True
        self._go_on()

    def cancelled(self) -> None:
        """Give up all that is running."""
        self._waiting.clear()
        for task in (self._decoding, self._behind, *self._talks):
            if task is not None:
                task.cancel()
        while self._places:
            place = self._places.popleft()
            if not place.future.cancel() and not place.future.cancelled():
                place.future.exception()  # nobody else looks at it
            if place.recording is not None:
                self._inference.traces.end(place.recording, asyncio.CancelledError())

    def _start(self, messages: Iterable[bytes | memoryview]) -> int:
        """Hand requests to the engine as far as there are places; how many."""
        if self._decoding is not None or self._behind is not None:
            return 0
        inference = self._inference
        started = 0
        for message in itertools.islice(messages, max(_IN_FLIGHT - len(self._places) - len(self._talks), 0)):
            if self._bytes >= _IN_FLIGHT_BYTES:
                break
            started += 1
            recording = inference.recording(message, self._replies) if inference.traces.wanted else None
            if len(message) > INLINE_BYTES:
                self._decoding = asyncio.create_task(self._decode(message, recording))
                break
            try:
                call = inference.decode(message)
            except Exception as error:
                self._place(_Place(_failed(error), 0, None, identity=request_id(message), recording=recording))
            else:
                self._begin(call, len(message), recording)
        return started

    async def _decode(self, message: bytes | memoryview, recording: Recording | None) -> None:
        """Start a large request."""
        try:
            call = await self._inference.decode_large(message)
        except Exception as error:
            identity = await asyncio.to_thread(request_id, message)
            self._place(_Place(_failed(error), 0, None, identity=identity, recording=recording))
        except asyncio.CancelledError as error:
            if recording is not None:
                self._inference.traces.end(recording, error)
            raise
        else:
            self._begin(call, len(message), recording)
        self._decoding = None
        self._go_on()

    def _begin(self, call: InferCall, size: int, recording: Recording | None) -> None:
        """Hand one request to the engine."""
        if recording is not None:
            self._inference.traces.decoded(recording, call.request)
        classes = None
        try:
            if call.classifies:
                classes = self._inference.classes(call)
            future = self._inference.infer(call, self._replies.deadline)
        except Decoupled:
            self._begin_talk(call, size, classes, recording)
            return
        except Exception as error:
            future = _failed(error)
        self._place(_Place(future, size, call, classes, recording=recording))

    def _begin_talk(self, call: InferCall, size: int, classes: Classes | None, recording: Recording | None) -> None:
        """Likewise for a decoupled model, whose responses keep no order among the replies to other requests."""
        try:
            view, responses = self._inference.version(call), self._inference.stream(call)
        except Exception as error:
            self._place(_Place(_failed(error), size, call, classes, recording=recording))
            return
        talk = asyncio.create_task(self._talk(call, classes, responses, view, recording))
        self._talks.add(talk)
        talk.add_done_callback(self._talked)

    async def _talk(
        self,
        call: InferCall,
        classes: Classes | None,
        responses: Responses,
        view: VersionView,
        recording: Recording | None,
    ) -> None:
        """Send each response of a decoupled model as it comes. Which is the last is not known before the end."""
        codec = self._inference.codec
        try:
            async for response in responses:
                if not self._replies.send_all([codec.encode_stream(call, response, classes, final=False)]):
                    await self._replies.drained()
        except BaseException as error:
            if recording is not None:
                self._inference.traces.end(recording, error)
            if not isinstance(error, Exception):
                raise
            self._replies.send_all([encode_stream_error(_told(error), call.request.id)])
        else:
            if recording is not None:
                self._inference.traces.replied(recording)
            if call.wants_end:
                self._replies.send_all([encode_stream_end(view.model, view.version, call.request.id)])
        finally:
            responses.close()

    def _talked(self, talk: "asyncio.Task[None]") -> None:
        self._talks.discard(talk)
        if not talk.cancelled():
            talk.result()
            self._go_on()

    def _place(self, place: _Place) -> None:
        self._places.append(place)
        self._bytes += place.size
        if len(self._places) == 1:
            place.future.add_done_callback(self._answered)

    def _answered(self, _future: "asyncio.Future[Response]") -> None:
        """The first place's reply is there: send it, and those behind it that are there too."""
        places = self._places
        encode = self._inference.codec.encode_stream
        replies = []
        while places and (future := places[0].future).done():
            place = places.popleft()
            self._bytes -= place.size
            call = place.call
            try:
                response = future.result()
                assert call is not None
                replies.append(encode(call, response, place.classes))
                if place.recording is not None:
                    self._inference.traces.replied(place.recording)
            except (Exception, asyncio.CancelledError) as error:
                if place.recording is not None:
                    self._inference.traces.end(place.recording, error)
                identity = place.identity if call is None else call.request.id
                replies.append(encode_stream_error(_told(error), identity))
        if not replies:
            return  # the stream was cancelled
        if places:
            places[0].future.add_done_callback(self._answered)
        if not self._replies.send_all(replies) and self._behind is None:
            self._behind = asyncio.create_task(self._replies.drained())
            self._behind.add_done_callback(self._caught_up)
        if self._waiting or self._ended:
            self._go_on()

    def _caught_up(self, behind: "asyncio.Task[None]") -> None:
        if not behind.cancelled():
            self._behind = None
            self._go_on()

    def _go_on(self) -> None:
        """Start what waits as far as there are places, and end the stream after the last reply."""
        if self._waiting:
            started = self._start(self._waiting)
            for _ in range(started):
                self._waiting.popleft()
            self._replies.consumed(started)
        if self._ended and not (self._places or self._waiting or self._talks) and self._decoding is None:
            self._replies.finish()


def _failed(error: Exception) -> "asyncio.Future[Response]":
    """An error that takes its turn as answers do."""
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _told(error: BaseException) -> str:
    """What the caller may read of an error."""
    if isinstance(error, EkibenError):
        return error.message
    if isinstance(error, asyncio.CancelledError):
        return "the request was cancelled"
    _LOG.error("unexpected error in ModelStreamInfer", exc_info=error)
    return "internal error"
