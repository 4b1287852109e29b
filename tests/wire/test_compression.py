"""gzip and deflate within limits."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiben.errors import InvalidRequest, TooLarge, Unsupported
from ekiben.wire.compression import chosen_encoding, compressed, decompressed

_MIB = 1 << 20


@given(st.binary(), st.sampled_from([b"gzip", b"deflate"]))
def test_there_and_back(body: bytes, encoding: bytes) -> None:
    assert decompressed(compressed(body, encoding), encoding, len(body)) == body


def test_formats_are_those_of_the_libraries() -> None:
    assert decompressed(gzip.compress(b"abc"), b" GZIP ", 3) == b"abc"
    assert decompressed(zlib.compress(b"abc"), b"deflate", 3) == b"abc"
    assert gzip.decompress(compressed(b"abc", b"gzip")) == b"abc"
    assert zlib.decompress(compressed(b"abc", b"deflate")) == b"abc"
    assert decompressed(b"abc", b"identity", 0) == b"abc"


def test_a_bomb_is_refused_within_the_limits_memory() -> None:
    bomb = gzip.compress(bytes(256 * _MIB), 1)
    tracemalloc.start()
    with pytest.raises(TooLarge, match="unpacks to more than 1048576 bytes"):
        decompressed(bomb, b"gzip", _MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * _MIB + len(bomb)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "ends too early"),
        (b"nothing of the kind", "incorrect header"),
        (gzip.compress(b"abc")[:-1], "ends too early"),
        (gzip.compress(b"abc") + b"x", "something follows"),
        (gzip.compress(b"abc") * 2, "something follows"),
        (zlib.compress(b"abc"), "incorrect header"),
    ],
)
def test_broken_data_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        decompressed(body, b"gzip", 100)


@pytest.mark.parametrize("encoding", [b"br", b"gzip, gzip", b"\xff", b"zstd"])
def test_other_encodings_are_not_supported(encoding: bytes) -> None:
    with pytest.raises(Unsupported, match="Unsupported compression type"):
        decompressed(b"", encoding, 1)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"", b""),
        (b"gzip", b"gzip"),
        (b"deflate, gzip", b"gzip"),
        (b"Deflate", b"deflate"),
        (b"gzip;q=0.5, deflate;q=0.8", b"deflate"),
        (b"gzip;q=0", b""),
        (b"gzip;q=0, *;q=0.1", b"deflate"),
        (b"*", b"gzip"),
        (b"identity", b""),
        (b"gzip;q=0.5, identity", b""),
        (b"gzip, identity;q=0.5", b"gzip"),
        (b"br", b""),
        (b"gzip;q=nan, ;;=,q", b""),
        (b"gzip ; q=x", b""),
        (b"\xff\x00", b""),
    ],
)
def test_what_the_caller_accepts(accepted: bytes, chosen: bytes) -> None:
    assert chosen_encoding(accepted) == chosen
