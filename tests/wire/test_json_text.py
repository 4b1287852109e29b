"""Depth of JSON documents, and the repair of what simdjson refuses."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiben.errors import InvalidRequest
from ekiben.wire.json_text import JsonParser, Malformed, check_depth, repaired


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


_TEXTS = st.text(alphabet='[]{}"\\x\n ', max_size=8)
_DOCUMENTS = st.recursive(
    st.none() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(_DOCUMENTS, st.integers(0, 6))
def test_depth_is_that_of_the_document(document: object, limit: int) -> None:
    text = json.dumps(document).encode()
    if _depth(document) > limit:
        with pytest.raises(InvalidRequest, match=f"deeper than {limit}"):
            check_depth(text, limit)
    else:
        check_depth(text, limit)


def test_depth_holds_across_pieces() -> None:
    filler = b"[]," * 400_000
    check_depth(b'["' + b"[" * 3_000_000 + b'",' + filler + b"[[]]]", 3)
    with pytest.raises(InvalidRequest):
        check_depth(b'["' + b"[" * 3_000_000 + b'",' + filler + b"[[[]]]]", 3)


@pytest.mark.parametrize("shift", range(6))
@pytest.mark.parametrize("slashes", [2, 3, 4, 1 << 21, (1 << 21) + 1])
def test_escapes_hold_across_pieces(shift: int, slashes: int) -> None:
    string = b'"' + b"x" * ((1 << 20) - 6 + shift) + b"\\" * slashes
    closed = slashes % 2 == 0
    text = b"[" + string + (b'",' if closed else b'"[[[[",') + b'"[[[["' + b",[]" * 5 + b"]"
    assert _depth(json.loads(text)) == 2
    check_depth(text, 2)
    with pytest.raises(InvalidRequest):
        check_depth(text, 1)


@given(st.binary(max_size=200), st.integers(0, 5))
def test_depth_takes_any_bytes(text: bytes, limit: int) -> None:
    try:
        check_depth(text, limit)
    except InvalidRequest:
        assert text.count(b"[") + text.count(b"{") > limit


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1 2]", b"\xff", b'{"a":"\\ud800"}', b"[1e400]", b"[NaN]", b"[" * 2000 + b"]" * 2000, b"[01]"]
)
def test_what_is_not_json_is_refused_with_a_reason(text: bytes) -> None:
    parser = JsonParser()
    with pytest.raises(Malformed, match=r"failed to parse the request JSON buffer: \w"):
        parser.parse(text)
    assert list(parser.parse(b"[1]")) == [1]


def test_a_proxy_still_held_does_not_hurt() -> None:
    parser = JsonParser()
    held = parser.parse(b"[1, 2]")
    assert list(parser.parse(b"[3]")) == [3]
    assert list(held) == [1, 2]


def test_repair_gives_back_numbers_and_strings() -> None:
    mended = repaired(
        b'{"a": [NaN, -Infinity, Infinity, 1e20, 100000000000000000000, -1], "s": "NaN Infinity [-Infinity]"}'
    )
    assert mended is not None
    document = JsonParser().parse(mended.text)
    values = mended.numbers(np.frombuffer(document["a"].as_buffer(of_type="d")))
    np.testing.assert_array_equal(values, [np.nan, -np.inf, np.inf, 1e20, 1e20, -1])
    assert mended.string(document["s"]) == "NaN Infinity [-Infinity]"


@pytest.mark.parametrize("text", [b"[1NaN]", b"[NaN1]", b"[NaNNaN]", b"[+Infinity]", b'{"a" NaN}'])
def test_repair_does_not_make_sense_of_nonsense(text: bytes) -> None:
    mended = repaired(text)
    assert mended is not None
    with pytest.raises(Malformed):
        JsonParser().parse(mended.text)


def test_repair_leaves_64_bit_integers_exact() -> None:
    mended = repaired(b"[[-9223372036854775808, 18446744073709551615, 0.1234567890123456789012], [NaN]]")
    assert mended is not None
    assert list(JsonParser().parse(mended.text)[0]) == [-(1 << 63), (1 << 64) - 1, 0.1234567890123456789012]


@pytest.mark.parametrize("text", [b"[1, 2", b'{"a": 1}', b"[18446744073709551615]"])
def test_nothing_to_repair(text: bytes) -> None:
    assert repaired(text) is None
