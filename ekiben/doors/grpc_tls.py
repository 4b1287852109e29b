"""TLS for the gRPC port: files that may change while it serves, refusals that a client can read, and HTTP/2 by ALPN.

    loop.create_server(ssl=ServedContext) ─ a client connects ─► Certificates.current() ─► handshake ─► Negotiated ─► h2

The files are looked at when a client connects: three `stat` calls beside a handshake, which takes a thousand times
longer, and no timer. Each change makes a new context, so an old one's session tickets go with it: a client whose CA is
no longer in `client_ca` cannot come back with what it was given before. Open connections keep what they have.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from typing import Any, Final, cast, final

from ekiben.clock import SYSTEM_CLOCK, Clock
from ekiben.errors import InvalidSettings
from ekiben.tls import Identity, TlsFiles, load_identity

__all__ = ["Certificates", "Negotiated", "ServedContext"]

_LOG: Final = logging.getLogger("ekiben.doors.grpc_tls")
_ALPN: Final = "h2"
_RETRY_S: Final = 1.0
"""Files that cannot be used are tried again when they change, and so long after the last time: to be written takes
time, and the clock of a file system has steps."""

_REFUSAL: Final = b"This port speaks gRPC over HTTP/2: offer 'h2' in the handshake (ALPN).\n"
_REFUSED: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
) % (len(_REFUSAL), _REFUSAL)


@final
class Certificates:
    """The port's certificate, key and client CA as they are on disk; the last good ones while those cannot be used."""

    def __init__(self, files: TlsFiles, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises InvalidSettings for files that cannot be used."""
        self._files = files
        self._now = clock.monotonic
        self._marks = _marks(files)
        self._identity = load_identity(files)
        self._failed_at: float | None = None
        self._said = ""
        self._prepare()

    def current(self) -> ssl.SSLContext:
        """The context for a client that connects now. Raises nothing."""
        marks = _marks(self._files)
        if marks != self._marks or (self._failed_at is not None and self._now() - self._failed_at >= _RETRY_S):
            self._marks = marks
            self._load()
        return self._identity.context

    def _load(self) -> None:
        try:
            self._identity = load_identity(self._files)
        except (InvalidSettings, OSError) as error:
            self._failed_at = self._now()
            if self._said != str(error):
                self._said = str(error)
                _LOG.error("the gRPC port keeps its old certificate: %s", error)
            return
        self._failed_at = None
        self._said = ""
        self._prepare()

    def _prepare(self) -> None:
        identity: Identity = self._identity
        identity.context.set_alpn_protocols([_ALPN])
        identity.context.sslobject_class = _TellingObject
        if identity.flaw:
            _LOG.warning("clients will refuse the gRPC port's certificate '%s': %s", self._files.cert, identity.flaw)
        else:
            _LOG.info("the gRPC port's certificate is number %s, until %s", identity.serial, identity.not_after)


@final
class ServedContext(ssl.SSLContext):
    """What a listener holds: every handshake is made in the context that is current then."""

    def __new__(cls, _certificates: Certificates) -> "ServedContext":
        """As the base class, which takes the protocol here."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """What asyncio and uvloop begin a handshake with."""
        return self._certificates.current().wrap_bio(*arguments, **options)


_UNCERTIFIED: Final = ("PEER_DID_NOT_RETURN_A_CERTIFICATE",)


class _TellingObject(ssl.SSLObject):
    """One connection's TLS. A client that is refused gets the alert which says why: loops would drop it unsent."""

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Fail one step later than it happened: in between, the loop sends what there is to send."""
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if not (isinstance(error, ssl.SSLCertVerificationError) or error.reason in _UNCERTIFIED):
                raise  # it may not be a TLS client at all, and then there would be no next step
            self._failure = error
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert goes first") from None


@final
class Negotiated(asyncio.Protocol):
    """Hands the connection over to its protocol if the client chose HTTP/2, else says in HTTP/1.1 what to do."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        # uvloop's are transports in all but their base class.
        connection = cast("asyncio.Transport", transport)
        if connection.get_extra_info("ssl_object").selected_alpn_protocol() == _ALPN:
            protocol = self._protocol()
            connection.set_protocol(protocol)
            protocol.connection_made(connection)
        else:
            connection.write(_REFUSED)
            connection.close()


def _marks(files: TlsFiles) -> tuple[object, ...]:
    """Changes when any file does: it is written, replaced, or a link on the way to it leads elsewhere."""
    return tuple(_mark(path) for path in (files.cert, files.key, files.client_ca) if path)


def _mark(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
