"""ModelInfer and ModelStreamInfer: messages into the engine and answers out of it.

message ─► InferCodec ─► Engine.infer ─► Pending ─► InferCodec ─► message
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Any, Final, final

from ekiben.doors import grpc_calls
from ekiben.doors.shared_memory import SharedInfer
from ekiben.engine.engine import Engine
from ekiben.errors import Decoupled, EkibenError, InvalidRequest, Unsupported
from ekiben.extensions.shared_memory import SharedMemory
from ekiben.types import Response
from ekiben.wire.oip_json import Classes, InferCall
from ekiben.wire.oip_proto import InferCodec, InvalidInput, encode_stream_error, request_id

__all__ = ["Inference", "Pending"]

_LOG: Final = logging.getLogger("ekiben.doors.oip_grpc")
_INLINE_BYTES: Final = 1 << 20
"""Larger messages are decoded in a thread: a MiB of contents may be a million elements, and each takes its time."""
_IN_FLIGHT: Final = 256
"""Requests of one stream that may wait for their replies; its next message is read after that."""
_DECOUPLED: Final = "ModelInfer RPC doesn't support models with decoupled transaction policy"


@final
class Pending(grpc_calls.Pending):
    """The answer to an inference that runs: await it; or wait for `future` by a callback, and then ask `reply`."""

    __slots__ = ("_classes", "_codec", "call", "future")

    def __init__(
        self, codec: InferCodec, call: InferCall, classes: Classes | None, future: asyncio.Future[Response]
    ) -> None:
        self._codec = codec
        self._classes = classes
        self.call: Final = call
        self.future = future
        """Cancelling it frees the request's place."""

    def reply(self, response: Response) -> bytes:
        """The ModelInferResponse for what came out of `future`. Raises InvalidRequest where it cannot be as asked."""
        return self._codec.encode_infer(self.call, response, self._classes)

    def stream_reply(self, response: Response) -> bytes:
        """Likewise the ModelStreamInferResponse."""
        return self._codec.encode_stream(self.call, response, self._classes)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.reply((yield from self.future))


@final
class Inference:
    """Built once per engine; used on its loop."""

    def __init__(self, engine: Engine, regions: SharedMemory) -> None:
        self._engine = engine
        self._codec = InferCodec()
        self._shared = SharedInfer(engine, regions)

    def unary(self, data: memoryview, call: grpc_calls.Call) -> Pending | asyncio.Task[bytes]:
        """ModelInfer."""
        if len(data) > _INLINE_BYTES:
            return asyncio.create_task(self._large(data, call.deadline))
        try:
            return self._start(data, call.deadline)
        except Decoupled:
            raise Unsupported(_DECOUPLED) from None

    async def stream(self, messages: AsyncIterator[memoryview], call: grpc_calls.Call) -> AsyncIterator[bytes]:
        """ModelStreamInfer: replies in the order of the requests, as Triton gives them; an error is one of them.

        The stream's deadline is that of each of its requests.
        """
        free = asyncio.Semaphore(_IN_FLIGHT)
        replies: asyncio.Queue[bytes | None] = asyncio.Queue()
        waiting = _Replies(replies.put_nowait)
        reader = asyncio.create_task(self._read(messages, waiting, free, call.deadline))
        try:
            while (reply := await replies.get()) is not None:
                yield reply
                free.release()
            await reader
        finally:
            reader.cancel()
            waiting.cancel()

    async def _read(
        self,
        messages: AsyncIterator[memoryview],
        waiting: "_Replies",
        free: asyncio.Semaphore,
        deadline: float | None,
    ) -> None:
        try:
            async for data in messages:
                await free.acquire()
                try:
                    if len(data) > _INLINE_BYTES:
                        waiting.add(await self._start_large(data, deadline))
                    else:
                        waiting.add(self._start(data, deadline))
                except Exception as error:
                    waiting.refuse(error, request_id(data))
        finally:
            waiting.end()

    async def _large(self, data: memoryview, deadline: float | None) -> bytes:
        try:
            return await (await self._start_large(data, deadline))
        except Decoupled:
            raise Unsupported(_DECOUPLED) from None

    async def _start_large(self, data: memoryview, deadline: float | None) -> Pending:
        try:
            call = await asyncio.to_thread(InferCodec().decode_infer, data)
        except InvalidInput as error:
            raise self._at_fault(error) from None
        return self._infer(call, deadline)

    def _start(self, data: memoryview, deadline: float | None) -> Pending:
        try:
            call = self._codec.decode_infer(data)
        except InvalidInput as error:
            raise self._at_fault(error) from None
        return self._infer(call, deadline)

    def _infer(self, call: InferCall, deadline: float | None) -> Pending:
        if deadline is not None:
            call.request.deadline = deadline
        classes = None
        if call.classifies:
            # Before the wait: the version may be unloading by the time that its answer is there.
            view = self._engine.version(call.request.model, call.request.version)
            classes = Classes(view.labels, bool(view.settings.batching.max_batch_size))
        if call.shared is not None:
            return Pending(self._codec, call, classes, asyncio.create_task(self._shared(call)))
        return Pending(self._codec, call, classes, self._engine.infer(call.request))

    def _at_fault(self, error: InvalidInput) -> InvalidRequest:
        """The error for an input whose data are wrong for its datatype: it may be the datatype that is wrong.

        Raises NotFound or NotReady where there is no such model to begin with.
        """
        view = self._engine.version(error.model, error.version)
        for spec in view.default.inputs:
            if spec.name == error.name and spec.datatype != error.datatype:
                return InvalidRequest(
                    f"inference input '{error.name}' data-type is '{error.datatype}', "
                    f"but model '{error.model}' expects '{spec.datatype}' ({error.message})"
                )
        return error


class _Reply:
    """One place in a stream's order. `message` is None until it is there."""

    __slots__ = ("message", "pending")

    def __init__(self, pending: Pending | None = None, message: bytes | None = None) -> None:
        self.pending = pending
        self.message = message


@final
class _Replies:
    """Sends a stream's replies in the order of its requests, and None after the last."""

    def __init__(self, send: Callable[[bytes | None], None]) -> None:
        self._send = send
        self._replies: deque[_Reply] = deque()
        self._ended = False

    def add(self, pending: Pending) -> None:
        """The next reply is what comes out of this."""
        reply = _Reply(pending)
        self._replies.append(reply)
        pending.future.add_done_callback(partial(self._done, reply, pending))

    def refuse(self, error: BaseException, identity: str) -> None:
        """The next reply is this error."""
        self._replies.append(_Reply(message=encode_stream_error(_told(error), identity)))
        self._flush()

    def end(self) -> None:
        """No more requests follow."""
        self._ended = True
        self._flush()

    def cancel(self) -> None:
        """Give up what is still running."""
        while self._replies:
            pending = self._replies.popleft().pending
            if pending is not None:
                pending.future.cancel()

    def _done(self, reply: _Reply, pending: Pending, future: asyncio.Future[Response]) -> None:
        try:
            reply.message = pending.stream_reply(future.result())
        except (Exception, asyncio.CancelledError) as error:
            reply.message = encode_stream_error(_told(error), pending.call.request.id)
        self._flush()

    def _flush(self) -> None:
        while self._replies and self._replies[0].message is not None:
            self._send(self._replies.popleft().message)
        if self._ended and not self._replies:
            self._send(None)


def _told(error: BaseException) -> str:
    """What the caller may read of an error."""
    if isinstance(error, EkibenError):
        return error.message
    if isinstance(error, asyncio.CancelledError):
        return "the request was cancelled"
    _LOG.error("unexpected error in ModelStreamInfer", exc_info=error)
    return "internal error"
