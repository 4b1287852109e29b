"""How things go wrong: for a connection, for a stream, for a call.

ConnectionFault   the peer broke the protocol or a limit: GOAWAY with its code, and the end of the connection
StreamFault       one stream is broken: RST_STREAM with its code, the others go on
GrpcError         a call ends with a gRPC status: trailers, and nothing is wrong with the stream
"""

from ekiben.wire.h2.codes import ErrorCode, Status

__all__ = ["ConnectionFault", "GrpcError", "StreamFault"]


class ConnectionFault(Exception):
    """Ends the connection with GOAWAY; the text goes into its debug data."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """Ends one stream with RST_STREAM."""

    def __init__(self, code: ErrorCode, stream_id: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.stream_id = stream_id
        self.text = text


class GrpcError(Exception):
    """Ends a call with a status and a message for the caller. Raised by handlers, or given to `Call`s."""

    def __init__(self, status: int, message: str = "") -> None:
        if not Status.OK < status <= Status.UNAUTHENTICATED:
            raise ValueError(f"gRPC status {status} is not an error status (1 to 16)")
        super().__init__(message)
        self.status = Status(status)
        self.message = message
