"""Numbers for words: given once, never shared, never moved, whatever happens to the file."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

from ekiben.errors import InvalidSettings
from ekiben.repository.version_numbers import VersionNumbers, number_in


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("7", 7),
        ("0", 0),
        ("00000123", 123),
        ("000000000000000000000000000001", 1),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("1.0", None),
        ("v1", None),
        ("1 ", None),
        ("²", None),
        ("٣", None),
    ],
)
def test_number_in(word: str, number: int | None) -> None:
    assert number_in(word) == number


def test_words_are_numbered_in_creation_order_and_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "versions.json"
    assert VersionNumbers(path).assign("m", ["b", "a"]) == {"b": 1, "a": 2}
    assert VersionNumbers(path).assign("m", ["a", "c"]) == {"a": 2, "c": 3}
    assert VersionNumbers(path).assign("m", ["b"]) == {"b": 1}
    assert VersionNumbers(path).assign("n", ["c"]) == {"c": 1}


def test_a_number_is_itself_and_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    assert VersionNumbers(path).assign("m", ["7", "003"]) == {"7": 7, "003": 3}
    assert not path.exists()


def test_words_get_numbers_above_those_that_are_there(tmp_path: Path) -> None:
    numbers = VersionNumbers(tmp_path / "versions.json")
    assert numbers.assign("m", ["a", "7", "b"]) == {"7": 7, "a": 8, "b": 9}


def test_a_number_that_a_word_has_already_is_left_out(tmp_path: Path) -> None:
    numbers = VersionNumbers(tmp_path / "versions.json")
    numbers.assign("m", ["a"])
    assert numbers.assign("m", ["a", "1"]) == {"a": 1}
    assert numbers.assign("m", ["1"]) == {"1": 1}


def test_two_spellings_of_a_number_are_one_version() -> None:
    assert VersionNumbers(None).assign("m", ["7", "007"]) == {"7": 7}


def test_after_the_last_number_there_is_none() -> None:
    with pytest.raises(InvalidSettings, match="'a' of 'm'"):
        VersionNumbers(None).assign("m", [str(2**63 - 1), "a"])


@trying(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", "1", "2", "03", "9"]), unique=True), max_size=6))
def test_numbers_are_never_shared_nor_moved(scans: list[list[str]]) -> None:
    numbers = VersionNumbers(None)
    seen: dict[str, int] = {}
    for words in scans:
        given_numbers = numbers.assign("m", words)
        assert len(set(given_numbers.values())) == len(given_numbers)
        for word, number in given_numbers.items():
            assert seen.setdefault(word, number) == number
        assert all(word in given_numbers for word in words if number_in(word) is None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"m": 1}',
        b'{"m": {"a": "x"}}',
        b'{"m": {"a": 1, "b": 1}}',
        b"\xff\xfe",
        b'{"m": {"a": null}}',
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    path.write_bytes(content)
    numbers = VersionNumbers(path)
    with pytest.raises(InvalidSettings, match="damaged") as raised:
        numbers.assign("m", ["a"])
    assert str(path) in raised.value.message
    assert path.read_bytes() == content
    assert numbers.assign("m", ["3"]) == {"3": 3}


def test_a_place_that_cannot_be_written_is_named() -> None:
    with pytest.raises(InvalidSettings, match="EKIBEN_STATE_DIR") as raised:
        VersionNumbers(Path("/proc/no-such-folder/versions.json")).assign("m", ["a"])
    assert "/proc/no-such-folder/versions.json" in raised.value.message


def test_known_words_need_no_writing(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    path.write_text('{"m": {"a": 4}}')
    (tmp_path / "versions.lock").mkdir()  # No lock can be taken, as in a folder that is read-only.
    numbers = VersionNumbers(path)
    assert numbers.assign("m", ["a"]) == {"a": 4}
    with pytest.raises(InvalidSettings, match="cannot be written"):
        numbers.assign("m", ["a", "b"])


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    VersionNumbers(tmp_path / "versions.json").assign("m", ["a"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["versions.json", "versions.lock"]
    assert json.loads((tmp_path / "versions.json").read_text()) == {"m": {"a": 1}}


def test_several_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    words = [f"w{number}" for number in range(20)]
    results: list[dict[str, int]] = [{} for _ in range(8)]

    def assign(index: int) -> None:
        mine = VersionNumbers(path)
        for word in words[index:] + words[:index]:
            results[index].update(mine.assign("m", [word]))

    threads = [threading.Thread(target=assign, args=(index,)) for index in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == results[0] for result in results)
    assert sorted(results[0].values()) == list(range(1, 21))
