"""HTTP/1.1 as bytes: what is sent is exactly what a check says, and nothing that comes back can hurt.

A request has a connection of its own. A reply that is late or broken is a NoReply, one that is endless a Failed.
"""

import contextlib
import http.client
import io
import json
import socket
import ssl
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, final
from urllib.parse import urlsplit

import msgspec

from ekiben.conformance.deadline import Deadline
from ekiben.conformance.verdicts import Failed, NoReply, expect, shortened
from ekiben.errors import InvalidSettings, Unavailable

__all__ = ["SYSTEM_TRUST", "HttpClient", "Reply", "Tls", "unpacked"]

_MOST_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 64 << 10
_WINDOWS: Final = {"gzip": 31, "deflate": 15}


class Tls(msgspec.Struct, frozen=True):
    """How to trust an https server. Paths of PEM files; '' is the system's own authorities and no certificate."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    verified: bool = True


SYSTEM_TRUST: Final = Tls()


class Reply(msgspec.Struct, frozen=True):
    """An HTTP reply. Header names are in lower case."""

    asked: str
    """Method and path of the request, for messages."""
    status: int
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {shortened(self.body.decode('utf-8', 'backslashreplace'))}".strip()

    def json(self) -> Any:
        """The body as JSON; NaN and Infinity are taken as Python takes them. Raises Failed."""
        try:
            return json.loads(self.body.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Failed(f"expected JSON from {self.asked}; got {self} ({shortened(str(error))})") from None

    def mapping(self) -> dict[str, Any]:
        """The body as a JSON object. Raises Failed."""
        document = self.json()
        expect(isinstance(document, dict), f"a JSON object from {self.asked}", document)
        return dict(document)


@final
class HttpClient:
    """Sends requests to one server."""

    def __init__(
        self, url: str, deadline: Deadline, headers: Sequence[tuple[str, str]] = (), tls: Tls = SYSTEM_TRUST
    ) -> None:
        """Raises InvalidSettings for what is no http or https address, or files that TLS cannot use."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidSettings(f"'{url}': {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or " " in url:
            raise InvalidSettings(f"the server must be http://HOST:PORT or https://HOST:PORT, got '{url}'")
        self._deadline = deadline
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._fields = [("Host", parts.netloc.rpartition("@")[2]), *headers]
        if any(name.lower() == "host" for name, _ in headers):
            del self._fields[0]
        self._tls = _context(tls) if parts.scheme == "https" else None

    def check_reachable(self) -> None:
        """Raises Unavailable when nobody listens, or TLS cannot be agreed on."""
        try:
            self._connect().close()
        except OSError as error:
            raise Unavailable(f"{self._host} port {self._port} cannot be reached: {error}") from None

    def get(self, path: str, **headers: str) -> Reply:
        """`headers`: a name may have _ for -."""
        return self.exchange("GET", path, (), headers)

    def post(self, path: str, body: bytes = b"{}", **headers: str) -> Reply:
        """A body of JSON unless `content_type` says another."""
        length = {"content_length": str(len(body)), "content_type": "application/json"}
        return self.exchange("POST", path, (body,), {**length, **headers})

    def post_chunked(self, path: str, pieces: Iterable[bytes], **headers: str) -> Reply:
        """A body in chunks, whose length is not said beforehand."""
        chunks = [*(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece), b"0\r\n\r\n"]
        fields = {"transfer_encoding": "chunked", "content_type": "application/json", **headers}
        return self.exchange("POST", path, chunks, fields)

    def exchange(self, method: str, path: str, pieces: Iterable[bytes], headers: Mapping[str, str]) -> Reply:
        """Send a head with just these headers (and Host, Connection and the user's own), and the pieces as they are."""
        asked = f"{method} {path}"
        target = self._prefix + path
        fields = [
            *self._fields,
            ("Connection", "close"),
            *((name.replace("_", "-"), headers[name]) for name in headers),
        ]
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        message = b"".join((f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"), *pieces))
        try:
            with self._connect() as connection:
                # A server may answer, and close, before it has read everything; its answer counts.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.settimeout(self._deadline.remaining())
                    connection.sendall(message)
                return _read(connection, self._deadline, method, asked)
        except TimeoutError:
            raise NoReply(f"expected a reply to {asked}; got none in {self._deadline.seconds:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoReply(f"expected an HTTP reply to {asked}; got {shortened(repr(error))}") from None

    def _connect(self) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), self._deadline.remaining())
        if self._tls is None:
            return connection
        try:
            return self._tls.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        made = ssl.create_default_context(cafile=tls.ca or None)
        if tls.certificate:
            made.load_cert_chain(tls.certificate, tls.key or None)
    except OSError as error:
        files = ", ".join(filter(None, (tls.ca, tls.certificate, tls.key)))
        raise InvalidSettings(f"TLS cannot use {files}: {error}") from None
    if not tls.verified:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


class _Timed(io.RawIOBase):
    """What a connection sends, each read within the time left."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What HTTPResponse asks of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._deadline.remaining())
        return self._connection.recv_into(buffer)


def _read(connection: socket.socket, deadline: Deadline, method: str, asked: str) -> Reply:
    response = http.client.HTTPResponse(_Timed(connection, deadline), method=method)  # type: ignore[arg-type]
    response.begin()
    pieces: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        expect(size <= _MOST_BYTES, f"a reply to {asked} of at most {_MOST_BYTES} bytes", "more")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(asked, response.status, headers, b"".join(pieces))


def unpacked(reply: Reply) -> Reply:
    """The reply without its Content-Encoding, which must be gzip or deflate. Raises Failed."""
    encoding = reply.headers.get("content-encoding", "")
    expect(encoding in _WINDOWS, "a Content-Encoding of gzip or deflate", encoding)
    stream = zlib.decompressobj(_WINDOWS[encoding])
    try:
        body = stream.decompress(reply.body, _MOST_BYTES)
    except zlib.error as error:
        raise Failed(f"expected {encoding} data from {reply.asked}; got {error}") from None
    expect(stream.eof, f"whole {encoding} data from {reply.asked}", f"{len(reply.body)} bytes that break off")
    return msgspec.structs.replace(reply, body=body)
