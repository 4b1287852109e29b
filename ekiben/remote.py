"""An engine somewhere else, for the handles of a service that has none itself (EKIBEN_URL)."""

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

import httpx
import msgspec

from ekiben.errors import InvalidSettings, Unavailable
from ekiben.restrictions import HIDDEN
from ekiben.tls import load_authorities, load_pair
from ekiben.types import ModelSettings, Request, Response, Signature
from ekiben.wire.oip_client import decode_metadata, decode_reply, encode_request, error_of, model_path

__all__ = ["Access", "RemoteEngine", "access_from"]

_TIMEOUT_SECONDS: Final = 60.0
_HEADER: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)=([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")


class Access(msgspec.Struct, frozen=True):
    """Whom a client trusts, and what it shows of itself. '' in `cacert`: the machine's CAs, or SSL_CERT_FILE."""

    cacert: str = ""
    cert: str = ""
    key: str = ""
    headers: tuple[str, ...] = ()
    """`NAME=VALUE`, for what the engine has restricted."""


class RemoteVersion(msgspec.Struct, frozen=True):
    """What the protocol tells of a version; declarations beside the model stay with its engine."""

    default: Signature
    settings: ModelSettings = ModelSettings()
    labels: Mapping[str, tuple[str, ...]] = {}


class RemoteEngine:
    """A client with the two verbs that handles need. Used on one event loop."""

    def __init__(self, url: str, access: Access | None = None) -> None:
        """Raises InvalidSettings for what is no http or https address, and for files and headers that are none."""
        if not url.startswith(("http://", "https://")):
            raise InvalidSettings(f"EKIBEN_URL must start with http:// or https://, got '{url}'")
        access = access or Access()
        self._url = url.rstrip("/")
        self._versions: dict[tuple[str, str], RemoteVersion] = {}
        self._client = httpx.AsyncClient(
            timeout=_TIMEOUT_SECONDS,
            verify=_context(access) if url.startswith("https://") else True,
            headers=_headers(access.headers),
        )

    async def version(self, model: str, version: str = "") -> RemoteVersion:
        """The signature of a model there, asked for once until a request fails. Raises NotFound or Unavailable."""
        known = self._versions.get((model, version))
        if known is None:
            reply = await self._send("GET", model_path(model, version), b"", {})
            known = self._versions[model, version] = RemoteVersion(decode_metadata(reply.content))
        return known

    async def infer(self, request: Request) -> Response:
        """Run there. Raises what the engine there raised, or Unavailable when it cannot be reached."""
        body, headers = encode_request(request)
        reply = await self._send("POST", f"{model_path(request.model, request.version)}/infer", body, headers)
        return decode_reply(reply.content, int(reply.headers["inference-header-content-length"]))

    async def _send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        try:
            reply = await self._client.request(method, self._url + path, content=body, headers=headers)
        except httpx.TransportError as error:
            raise Unavailable(f"the engine at {self._url} cannot be reached: {error or type(error).__name__}") from None
        if reply.status_code != 200:
            self._versions.clear()
            raise error_of(reply.status_code, reply.content)
        return reply


def access_from(environ: Mapping[str, str]) -> Access:
    """What the variables say beside EKIBEN_URL: EKIBEN_URL_CACERT, _CERT, _KEY, and _HEADER, one or a JSON list."""
    header = environ.get("EKIBEN_URL_HEADER", "")
    headers = [header] if header else []
    if header.lstrip().startswith("["):
        try:
            headers = msgspec.json.decode(header, type=list[str])
        except msgspec.MsgspecError:
            raise InvalidSettings(f"EKIBEN_URL_HEADER must be NAME=VALUE or a JSON list of them {HIDDEN}") from None
    cacert, cert, key = (environ.get(f"EKIBEN_URL_{name}", "") for name in ("CACERT", "CERT", "KEY"))
    return Access(cacert, cert, key, tuple(headers))


def _context(access: Access) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    if access.cacert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, "CA", access.cacert)
    if access.cert or access.key:
        load_pair(context, access.cert or access.key, access.key or access.cert)
    return context


def _headers(texts: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in texts:
        match = _HEADER.fullmatch(text)
        if match is None:
            raise InvalidSettings(f"a header for the engine must be NAME=VALUE in printable ASCII {HIDDEN}")
        headers[match[1]] = match[2]
    return headers
