"""A JSON array that grows in a file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ekiben.extensions.array_file import ArrayFile


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_file_can_be_read_after_each_append(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    array = ArrayFile(str(path))
    for number in range(1, 4):
        array.append(b'{"n":%d},{"n":-%d}' % (number, number))
        assert read(path) == [{"n": sign * each} for each in range(1, number + 1) for sign in (1, -1)]


def test_what_was_there_before_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" + "1," * 1000 + "1]")
    ArrayFile(str(path)).append(b"2")
    assert read(path) == [2]


@pytest.mark.parametrize("happens", [os.unlink, lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 2)])
def test_a_file_that_is_taken_away_or_emptied_begins_anew(tmp_path: Path, happens: Any) -> None:
    path = tmp_path / "a.json"
    array = ArrayFile(str(path))
    array.append(b"1,2,3")
    happens(path)
    array.append(b"4")
    array.append(b"5")
    assert read(path) == [4, 5]


def test_what_others_write_behind_it_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    array = ArrayFile(str(path))
    array.append(b"1")
    with path.open("a") as stream:
        stream.write("x" * 100)
    array.append(b"2")
    assert read(path) == [1, 2]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    array = ArrayFile(str(path))
    pwrite = os.pwrite

    def half(file: int, data: bytes, offset: int) -> int:
        return pwrite(file, data if len(data) < 2 else data[: len(data) // 2], offset)

    array.append(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(OSError, match="No space left"):
            array.append(b'"long enough"')
    assert read(path) == [1]
    array.append(b"2")
    assert read(path) == [1, 2]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ArrayFile(str(tmp_path / "none" / "a.json")).append(b"1")
