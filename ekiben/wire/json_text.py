"""JSON documents as text: how deep they nest, and the number tokens that strict parsers refuse.

simdjson parses at memory speed and makes no object per number, but it refuses two things that callers do send:
the tokens NaN, Infinity and -Infinity (Python's json writes them), and integers over 64 bits (JavaScript writes 1e20
as one). `repaired` rewrites such a document into one that parses; `Repaired` undoes it in what was parsed.
"""

import math
import re
from typing import Any, Final, final

import numpy as np
import simdjson

from ekiben.errors import InvalidRequest
from ekiben.types import Tensor

__all__ = ["JsonParser", "Malformed", "Repaired", "check_depth", "repaired"]

_KEPT_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 1 << 20
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


class Malformed(InvalidRequest):
    """The text is not JSON, or has numbers that no 64-bit type holds."""


@final
class JsonParser:
    """simdjson with a buffer that is kept between small documents. For one thread.

    What it returns for an object or array is a proxy into the buffer: drop it before the next `parse`.
    """

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def parse(self, text: bytes) -> Any:
        """Raises Malformed saying what is wrong."""
        try:
            if len(text) <= _KEPT_BYTES:
                return self._parser.parse(text)
        except RuntimeError:
            # A proxy of an earlier document is still held (a traceback does that): leave the old buffer to it.
            # Documents that nest too deep or have endless integers come here as well, and fail again.
            self._parser = simdjson.Parser()
        except ValueError:
            pass
        try:
            return (simdjson.Parser() if len(text) > _KEPT_BYTES else self._parser).parse(text)
        except (ValueError, RuntimeError) as error:
            raise Malformed(f"failed to parse the request JSON buffer: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    # "CODE: text", which pysimdjson wraps for bad UTF-8.
    text = str(error).rpartition("position 0-0: ")[2]
    code, _, detail = text.partition(": ")
    return detail.split(".")[0] if code.isupper() and detail else text


def check_depth(text: bytes, limit: int) -> None:
    """Raise InvalidRequest when objects and arrays nest deeper than `limit`. Brackets inside strings do not count."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return
    if b"\\" in text:
        text = _without_escapes(text)
    structure = text.translate(None, _NOT_STRUCTURE)
    depth = 0
    inside = False
    for start in range(0, len(structure), _PIECE_BYTES):
        piece = np.frombuffer(structure, np.uint8, min(_PIECE_BYTES, len(structure) - start), start)
        quoted = np.logical_xor.accumulate(piece == ord('"')) ^ inside
        depths = np.cumsum(np.where(quoted, np.int8(0), _STEPS[piece]), dtype=np.int64) + depth
        if depths.max() > limit:
            raise InvalidRequest(f"the request JSON nests deeper than {limit} levels (setting json_depth_limit)")
        depth = int(depths[-1])
        inside = bool(quoted[-1])


def _without_escapes(text: bytes) -> bytes:
    """The text without backslashes and the characters they escape: those after a run of an odd number of them."""
    kept: list[bytes] = []
    odd = False
    for start in range(0, len(text), _PIECE_BYTES):
        piece = np.frombuffer(text, np.uint8, min(_PIECE_BYTES, len(text) - start), start)
        slashes = piece == ord("\\")
        places = np.arange(len(piece), dtype=np.int32)
        # Where the run of backslashes before each place begins; a run that came over from the last piece counts as one.
        before = np.maximum.accumulate(np.where(slashes, np.int32(-1), places))
        ends = np.concatenate((np.array([-1], np.int32), before[:-1]))
        runs = places - 1 - ends
        runs[ends < 0] += odd
        kept.append(piece[~slashes & (runs % 2 == 0)].tobytes())
        last = len(piece) - 1 - int(before[-1])
        odd = bool((last + (odd if before[-1] < 0 else 0)) % 2)
    return b"".join(kept)


# Stand-ins for the tokens: finite, so that strict parsers take them, and so large that another digit on either side,
# as of the nonsense `1NaN`, makes a number that no parser takes.
_NAN_VALUE: Final = 9.1057162839403e307
_INFINITY_VALUE: Final = 8.1057162839403e307
_NAN: Final = b"9.1057162839403e307"
_INFINITY: Final = b"8.1057162839403e307"
_FLOAT_MARK: Final = b".0e-0"
_DIGIT_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN: Final = b"0" * 19
_DIGITS: Final = re.compile(rb"\d+")
_MOST_DIGITS: Final = 400


@final
class Repaired:
    """A document after repair: restores the strings and numbers read from it."""

    def __init__(self, text: bytes) -> None:
        self.text: Final = text

    @staticmethod
    def string(value: str) -> str:
        """A string as the caller sent it: repair does not tell strings from numbers."""
        return (
            value.replace(_NAN.decode(), "NaN")
            .replace(_INFINITY.decode(), "Infinity")
            .replace(_FLOAT_MARK.decode(), "")
        )

    @staticmethod
    def number(value: float) -> float:
        """One number as the caller sent it."""
        if abs(value) == _NAN_VALUE:
            return math.nan
        return math.copysign(math.inf, value) if abs(value) == _INFINITY_VALUE else value

    @staticmethod
    def numbers(values: Tensor) -> Tensor:
        """float64 values with NaN and the infinities back in their places."""
        values = values.copy()
        values[np.abs(values) == _NAN_VALUE] = np.nan
        values[values == _INFINITY_VALUE] = np.inf
        values[values == -_INFINITY_VALUE] = -np.inf
        return values


def repaired(text: bytes) -> Repaired | None:
    """The document with what simdjson refuses rewritten; None where there is nothing of that kind in it."""
    if any(mark in text for mark in (_NAN, _INFINITY, _FLOAT_MARK)):
        return None
    result = _long_integers_as_floats(text.replace(b"Infinity", _INFINITY).replace(b"NaN", _NAN))
    return Repaired(result) if len(result) != len(text) else None


def _long_integers_as_floats(text: bytes) -> bytes:
    # The runs of digits are found in a copy whose digits are all 0: a search for a fixed text costs far less than
    # a regular expression's try at every place.
    masked = text.translate(_DIGIT_TO_ZERO)
    pieces: list[bytes] = []
    done = 0
    start = masked.find(_LONG_RUN)
    while start >= 0:
        match = _DIGITS.match(text, start)
        end = match.end() if match is not None else start + len(_LONG_RUN)
        if _is_long_integer(text, start, end):
            pieces += (text[done:end], _FLOAT_MARK)
            done = end
        start = masked.find(_LONG_RUN, end)
    return b"".join((*pieces, text[done:])) if pieces else text


def _is_long_integer(text: bytes, start: int, end: int) -> bool:
    if end - start > _MOST_DIGITS or text[end : end + 1] not in (b"", b" ", b"\t", b"\r", b"\n", b",", b"]", b"}"):
        return False
    negative = text[start - 1 : start] == b"-"
    first = start - negative
    if text[first - 1 : first] in (b".", b"e", b"E", b"+", b"-"):
        return False
    return not -(1 << 63) <= int(text[first:end]) < 1 << 64
