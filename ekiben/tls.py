"""TLS for a port: PEM files → a context to serve with, and errors that name the file and what to do.

What a certificate says is read through TLS itself: a handshake in memory, whose client trusts that certificate alone.
"""

import os
import ssl
import stat
from typing import Any, Final

import msgspec

from ekiben.errors import InvalidSettings

__all__ = ["CIPHERS", "Identity", "TlsFiles", "load_authorities", "load_identity", "load_pair"]

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2, those that HTTP/2 allows (RFC 9113 §9.2.2): forward secrecy and nothing broken. TLS 1.3 has its own."""

_FLIGHTS: Final = 4
"""How often each side of a handshake has something to say, at most."""


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files; cert and key may be one file. With `client_ca` only its clients are let in."""

    cert: str
    key: str
    client_ca: str = ""


class Identity(msgspec.Struct, frozen=True):
    """What a port shows to its clients, loaded."""

    context: ssl.SSLContext
    flaw: str = ""
    """Why clients will refuse the certificate, as far as it says so itself: that it has expired, for one."""
    serial: str = ""
    """The certificate's number, in hexadecimal. Like what follows, '' or () where it has a flaw."""
    not_after: str = ""
    """When it expires, as OpenSSL writes it."""
    hosts: tuple[str, ...] = ()
    """The names and addresses that it is for."""


def load_identity(files: TlsFiles) -> Identity:
    """A context for TLS 1.2 and later that has read these files. Blocks for some milliseconds.

    Raises InvalidSettings for a file that cannot be read or used.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, whoever issued it
    load_authorities(client, "certificate", files.cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    load_pair(context, files.cert, files.key)
    identity = _introduced(context, client)
    if files.client_ca:
        load_authorities(context, "client CA", files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return identity


def load_authorities(context: ssl.SSLContext, what: str, path: str) -> None:
    """Make the context trust the certificates in a file. Raises InvalidSettings that begins with `TLS what`."""
    _check_readable(what, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise InvalidSettings(f"TLS {what} '{path}' holds no certificate in PEM form") from None


def load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Make the context show a certificate. Raises InvalidSettings for files that cannot be read or used."""
    _check_readable("certificate", cert)
    _check_readable("key", key)
    try:
        context.load_cert_chain(cert, key, _Encrypted.ask)
    except _Encrypted:
        raise InvalidSettings(
            f"TLS key '{key}' is encrypted, which is not supported: "
            "store it as `openssl pkey -in FILE` writes it, in a file that only its user may read"
        ) from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            raise InvalidSettings(f"TLS key '{key}' does not belong to the certificate '{cert}'") from None
        if reason.startswith(("EE_", "CA_")):  # OpenSSL's security level: EE_KEY_TOO_SMALL, CA_MD_TOO_WEAK
            raise InvalidSettings(f"TLS certificate '{cert}' cannot be used: {reason}") from None
        raise InvalidSettings(
            f"TLS key '{key}' holds no private key in PEM form, or the certificate '{cert}' none of its own"
        ) from None


class _Encrypted(Exception):
    @classmethod
    def ask(cls) -> str:
        """Called for a password; without this, OpenSSL would ask the terminal."""
        raise cls


def _check_readable(what: str, path: str) -> None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InvalidSettings(f"TLS {what} '{path}' is not a file")
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InvalidSettings(f"TLS {what} '{path}' cannot be read: {error.strerror}") from None


def _introduced(context: ssl.SSLContext, client: ssl.SSLContext) -> Identity:
    """What a client thinks of the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True))
    for end in ends * _FLIGHTS:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return Identity(context, flaw=error.verify_message)
        except ssl.SSLError as error:
            return Identity(context, flaw=error.reason or str(error))
    about: dict[str, Any] = ends[0].getpeercert() or {}
    hosts = tuple(value for kind, value in about["subjectAltName"]) if "subjectAltName" in about else ()
    return Identity(context, "", about["serialNumber"], about["notAfter"], hosts)
