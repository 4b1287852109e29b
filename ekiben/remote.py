"""An engine somewhere else, for the handles of a service that has none itself (EKIBEN_URL)."""

from collections.abc import Mapping
from typing import Final

import httpx
import msgspec

from ekiben.errors import InvalidSettings, Unavailable
from ekiben.types import ModelSettings, Request, Response, Signature
from ekiben.wire.oip_client import decode_metadata, decode_reply, encode_request, error_of, model_path

__all__ = ["RemoteEngine"]

_TIMEOUT_SECONDS: Final = 60.0


class RemoteVersion(msgspec.Struct, frozen=True):
    """What the protocol tells of a version; declarations beside the model stay with its engine."""

    default: Signature
    settings: ModelSettings = ModelSettings()
    labels: Mapping[str, tuple[str, ...]] = {}


class RemoteEngine:
    """A client with the two verbs that handles need. Used on one event loop."""

    def __init__(self, url: str) -> None:
        """Raises InvalidSettings for what is no http or https address."""
        if not url.startswith(("http://", "https://")):
            raise InvalidSettings(f"EKIBEN_URL must start with http:// or https://, got '{url}'")
        self._url = url.rstrip("/")
        self._versions: dict[tuple[str, str], RemoteVersion] = {}
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS)

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
