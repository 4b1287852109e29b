"""The floor: what HTTP alone costs under uvicorn."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ANSWER = (
    b'{"model_name":"mlp","model_version":"1","outputs":'
    b'[{"name":"y","datatype":"FP32","shape":[1,2],"data":[0.12345678,-0.12345678]}]}'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]


async def app(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Any request: 200 and the same bytes. The size is that of a real answer of the tiny MLP."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": ANSWER})
