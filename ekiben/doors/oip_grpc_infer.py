"""ModelInfer: a message into the engine and the answer out of it; and what ModelStreamInfer shares with it.

message ─► InferCodec ─► Engine.infer ─► Pending ─► InferCodec ─► message
"""

import asyncio
from collections.abc import Generator
from typing import Any, Final, final

from ekiben.doors import grpc_calls
from ekiben.doors.grpc_calls import field
from ekiben.doors.shared_memory import SharedInfer
from ekiben.engine.engine import Engine, Replies, VersionView
from ekiben.errors import Decoupled, InvalidRequest, Unsupported
from ekiben.extensions.recording import Recording
from ekiben.extensions.shared_memory import SharedMemory
from ekiben.extensions.traces import Traces
from ekiben.types import Response
from ekiben.wire.oip_json import Classes, InferCall
from ekiben.wire.oip_proto import InferCodec, InvalidInput, model_name

__all__ = ["INLINE_BYTES", "Inference", "Pending"]

INLINE_BYTES: Final = 1 << 20
"""Larger messages are decoded in a thread: a MiB of contents may be a million elements, and each takes its time."""
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

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.reply((yield from self.future))


@final
class Inference:
    """Requests of both methods on their way into the engine. Built once per engine; used on its loop."""

    def __init__(self, engine: Engine, regions: SharedMemory, traces: Traces) -> None:
        self.traces: Final = traces
        self.codec: Final = InferCodec()
        self._engine = engine
        self._shared = SharedInfer(engine, regions)

    def unary(self, data: memoryview, call: grpc_calls.Call) -> Pending | asyncio.Task[bytes]:
        """ModelInfer."""
        recording = self.recording(data, call) if self.traces.wanted else None
        if recording is not None:
            return asyncio.create_task(self._recorded(data, call, recording))
        if len(data) > INLINE_BYTES:
            return asyncio.create_task(self._large(data, call.deadline))
        return self._begin(self.decode(data), call.deadline)

    def recording(self, data: bytes | memoryview, call: grpc_calls.Call) -> Recording | None:
        """What is to be written down of a request; None where it is not traced. To be asked while any may be."""
        parent, state = field(call, b"traceparent"), field(call, b"tracestate")
        recording = self.traces.begin("GRPC", model_name(data), parent, state)
        if recording is not None:
            self.traces.read(recording)
        return recording

    async def _recorded(self, data: memoryview, call: grpc_calls.Call, recording: Recording) -> bytes:
        """ModelInfer of a request that is traced."""
        try:
            request = await self.decode_large(data) if len(data) > INLINE_BYTES else self.decode(data)
            self.traces.decoded(recording, request.request)
            reply = await self._begin(request, call.deadline)
        except BaseException as error:
            self.traces.end(recording, error)
            raise
        self.traces.replied(recording)
        return reply

    def decode(self, data: bytes | memoryview) -> InferCall:
        """A ModelInferRequest. Raises InvalidRequest, Unsupported, NotFound and NotReady."""
        try:
            return self.codec.decode_infer(data)
        except InvalidInput as error:
            raise self._at_fault(error) from None

    async def decode_large(self, data: bytes | memoryview) -> InferCall:
        """The same in a thread, for messages over INLINE_BYTES."""
        try:
            return await asyncio.to_thread(InferCodec().decode_infer, data)
        except InvalidInput as error:
            raise self._at_fault(error) from None

    def classes(self, call: InferCall) -> Classes | None:
        """What the codec needs for an answer with classes. Raises NotFound or NotReady.

        To be asked before the answer is waited for: the version may be unloading by the time that it is there.
        """
        if not call.classifies:
            return None
        view = self.version(call)
        return Classes(view.labels, bool(view.settings.batching.max_batch_size))

    def infer(self, call: InferCall, deadline: float | None) -> asyncio.Future[Response]:
        """As Engine.infer, with tensors in shared memory fetched and left there."""
        if deadline is not None:
            call.request.deadline = deadline
        if call.shared is not None:
            return asyncio.create_task(self._shared(call))
        return self._engine.infer(call.request)

    def version(self, call: InferCall) -> VersionView:
        """What is known of the version asked for. Raises NotFound or NotReady."""
        return self._engine.version(call.request.model, call.request.version)

    def stream(self, call: InferCall) -> Replies:
        """As Engine.stream, for a request that `infer` found to be for a decoupled model."""
        if call.shared is not None:
            raise Unsupported("a decoupled model takes and gives no tensors in shared memory")
        return self._engine.stream(call.request)

    async def _large(self, data: memoryview, deadline: float | None) -> bytes:
        return await self._begin(await self.decode_large(data), deadline)

    def _begin(self, call: InferCall, deadline: float | None) -> Pending:
        classes = self.classes(call) if call.classifies else None
        try:
            return Pending(self.codec, call, classes, self.infer(call, deadline))
        except Decoupled:
            raise Unsupported(_DECOUPLED) from None

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
