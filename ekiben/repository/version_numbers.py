"""Integers for versions that are words: given once, in creation order, and kept in a state file for ever.

A version that is a whole number keeps it, and needs no state.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ekiben.errors import InvalidSettings

__all__ = ["VERSION_LIMIT", "VersionNumbers", "number_in"]

VERSION_LIMIT: Final = 2**63
"""Version numbers are below this: TF Serving's are int64."""

_Numbers = dict[str, dict[str, int]]


def number_in(word: str) -> int | None:
    """The version number that `word` spells, leading zeros allowed ('00000123' is 123), or None."""
    if not (word.isascii() and word.isdigit()):
        return None
    digits = word.lstrip("0") or "0"
    return int(digits) if len(digits) < 20 and int(digits) < VERSION_LIMIT else None


class VersionNumbers:
    """The numbers of every model's versions. Blocks; safe between processes that share the file.

    `path` is the state file, made with its folder when the first number is given; None keeps the numbers in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory: _Numbers = {}

    def assign(self, model: str, words: Sequence[str]) -> Mapping[str, int]:
        """The number of each of the model's versions, given in creation order; new words get new numbers.

        A version that spells a number which another version has is left out: numbers are never shared or moved.
        Raises InvalidSettings, naming the file, when it cannot be read, or cannot be written and there are new words.
        """
        spelled = {word: number for word in words if (number := number_in(word)) is not None}
        named = [word for word in words if word not in spelled]
        known = self._named(model, named, spelled) if named else {}
        numbers: dict[str, int] = {}
        for word in named:
            numbers[word] = known[word]
        taken = set(numbers.values())
        for word, number in spelled.items():
            if number not in taken:
                taken.add(number)
                numbers[word] = number
        return numbers

    def words(self, model: str) -> Mapping[str, int]:
        """The words of the model that have a number. Raises InvalidSettings when the file cannot be read."""
        return self._read().get(model, {})

    def _named(self, model: str, named: Sequence[str], spelled: Mapping[str, int]) -> Mapping[str, int]:
        known = self._read().get(model, {})
        if all(word in known for word in named):
            return known
        with self._locked():
            # Another process may have numbered them since.
            numbers = self._read()
            known = numbers.setdefault(model, {})
            for word in named:
                if word not in known:
                    highest = max((*known.values(), *spelled.values()), default=0)
                    if highest + 1 >= VERSION_LIMIT:
                        raise InvalidSettings(f"version '{word}' of '{model}' gets no number: {highest} is the last")
                    known[word] = highest + 1
            self._write(numbers)
        return known

    def _read(self) -> _Numbers:
        if self._path is None:
            return self._memory
        try:
            numbers = msgspec.json.decode(self._path.read_bytes(), type=_Numbers)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InvalidSettings(f"the state file '{self._path}' cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        for model, known in numbers.items():
            if len(set(known.values())) < len(known):
                raise self._damaged(f"two versions of '{model}' have one number")
        return numbers

    def _damaged(self, reason: str) -> InvalidSettings:
        return InvalidSettings(
            f"the state file '{self._path}' is damaged ({reason}): restore it, or move it away to number the versions "
            "anew in creation order"
        )

    def _write(self, numbers: _Numbers) -> None:
        if self._path is None:
            self._memory = numbers
            return
        content = msgspec.json.format(msgspec.json.encode(numbers, order="sorted"), indent=2) + b"\n"
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the state file for this process; the lock goes when the descriptor is closed."""
        if self._path is None:
            yield
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise InvalidSettings(
                f"the state file '{self._path}' cannot be written: {error.strerror}; name a folder that can with "
                "--state-dir or EKIBEN_STATE_DIR"
            ) from None
