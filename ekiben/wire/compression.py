"""gzip and deflate bodies, both ways, within a size limit."""

import functools
import zlib
from typing import Final

from ekiben.errors import InvalidRequest, TooLarge, Unsupported

__all__ = ["ENCODINGS", "chosen_encoding", "compressed", "decompressed"]

ENCODINGS: Final = b"gzip, deflate"
"""What the server takes and gives, as an Accept-Encoding value."""

_WINDOW: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
"""zlib's name for each format; `deflate` means the zlib wrapper (RFC 9110 §8.4.1.2)."""
_LEVEL: Final = 1
"""The fastest: replies are compressed while others wait for the processor."""


def decompressed(body: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    """The body without its Content-Encoding. Blocks, without the GIL, for as long as up to `limit_bytes` take.

    Raises Unsupported for other encodings, TooLarge over the limit (before more than that is in memory) and
    InvalidRequest for data that is broken, cut short or followed by something.
    """
    encoding = encoding.strip().lower()
    if encoding in (b"", b"identity"):
        return body
    window = _WINDOW.get(encoding)
    if window is None:
        raise Unsupported(f"Unsupported compression type '{encoding.decode('latin-1')}': send gzip, deflate or neither")
    stream = zlib.decompressobj(window)
    try:
        result = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"failed to decompress the {encoding.decode()} request body: {error}") from None
    if len(result) > limit_bytes:
        raise TooLarge(f"request body unpacks to more than {limit_bytes} bytes (setting decompressed_limit_bytes)")
    if not stream.eof:
        raise InvalidRequest(f"failed to decompress the {encoding.decode()} request body: it ends too early")
    if stream.unused_data:
        raise InvalidRequest(f"failed to decompress the {encoding.decode()} request body: something follows its end")
    return result


def compressed(body: bytes, encoding: bytes) -> bytes:
    """The body in one of ENCODINGS. Blocks, without the GIL."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[encoding])
    return stream.compress(body) + stream.flush()


@functools.lru_cache(maxsize=64)
def chosen_encoding(accepted: bytes) -> bytes:
    """`gzip` or `deflate` by an Accept-Encoding value with its q-values (RFC 9110 §12.5.3), or b'' for none."""
    weights: dict[bytes, float] = {}
    for item in accepted.lower().split(b","):
        coding, _, parameters = item.partition(b";")
        weights[coding.strip()] = _weight(parameters)
    other = weights.get(b"*", 0.0)
    best = max((b"gzip", b"deflate"), key=lambda coding: weights.get(coding, other))
    weight = weights.get(best, other)
    return best if weight > 0 and weight >= weights.get(b"identity", 0.0) else b""


def _weight(parameters: bytes) -> float:
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
