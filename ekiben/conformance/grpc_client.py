"""The gRPC client of the suite, with grpcio. Imported only when there is an address to call."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

import grpc

from ekiben.conformance.deadline import Deadline
from ekiben.conformance.grpc_call import GrpcStatus
from ekiben.conformance.http_client import SYSTEM_TRUST, Tls
from ekiben.conformance.verdicts import NoReply
from ekiben.errors import InvalidSettings, Unavailable

__all__ = ["GrpcioClient"]

_MOST_BYTES: Final = 64 << 20
_MOST_REPLIES: Final = 1000
_OPTIONS: Final = (
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.enable_retries", 0),
)
_COMPRESSION: Final = {
    "": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}


@final
class GrpcioClient:
    """A GrpcClient. Close it at the end."""

    def __init__(
        self, address: str, deadline: Deadline, headers: Sequence[tuple[str, str]] = (), tls: Tls = SYSTEM_TRUST
    ) -> None:
        """`address` is HOST:PORT, in plain text; grpcs://HOST:PORT is over TLS. Raises InvalidSettings."""
        scheme, _, place = address.rpartition("://")
        if scheme not in ("", "grpc", "grpcs") or not place.rpartition(":")[2].isdigit():
            raise InvalidSettings(f"the gRPC address must be HOST:PORT or grpcs://HOST:PORT, got '{address}'")
        binary = [name for name, _ in headers if name.lower().endswith("-bin")]
        if binary:
            raise InvalidSettings(f"-H '{binary[0]}': gRPC keeps names that end in -bin for bytes")
        self._place = place
        self._deadline = deadline
        self._metadata = [(name.lower(), value) for name, value in headers if name.lower() != "host"]
        if scheme == "grpcs":
            self._channel = grpc.secure_channel(place, _credentials(tls), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(place, _OPTIONS)

    def check_reachable(self) -> None:
        """Raises Unavailable when no gRPC server answers there within the deadline."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=self._deadline.remaining())
        except grpc.FutureTimeoutError:
            raise Unavailable(f"no gRPC server answers at {self._place}") from None

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def call(self, path: str, message: bytes, compression: str = "") -> bytes:
        """As GrpcClient says."""
        method = self._channel.unary_unary(path)
        return bytes(
            self._guarded(path, lambda options: method(message, compression=_COMPRESSION[compression], **options))
        )

    def stream(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        """As GrpcClient says."""
        method = self._channel.stream_stream(path)

        def exchange(options: dict[str, Any]) -> list[bytes]:
            replies = method(iter(messages), **options)
            kept = list(itertools.islice(replies, _MOST_REPLIES))
            replies.cancel()
            return kept

        replies: list[bytes] = self._guarded(path, exchange)
        return replies

    def _guarded(self, path: str, call: Callable[[dict[str, Any]], Any]) -> Any:
        try:
            return call({"timeout": self._deadline.remaining(), "metadata": self._metadata})
        except grpc.RpcError as error:
            code = error.code().name
            if code == "DEADLINE_EXCEEDED":
                raise NoReply(f"expected a reply from {path}; got none in {self._deadline.seconds:g} s") from None
            raise GrpcStatus(code, error.details() or "") from None


def _credentials(tls: Tls) -> Any:
    try:
        ca, key, certificate = (
            Path(each).read_bytes() if each else None for each in (tls.ca, tls.key, tls.certificate)
        )
    except OSError as error:
        raise InvalidSettings(f"TLS cannot use its files: {error}") from None
    return grpc.ssl_channel_credentials(ca, key, certificate)
