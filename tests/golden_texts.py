"""Sentences that users read, reviewed in files: ``golden(text)`` and ``golden.raises(Error)``.

A test file has one golden file, ``tests/golden/texts/ROOM/TEST_FILE.txt``, with a section for each
call. After a message was reworded, ``pytest FILE --update-golden`` writes its sections anew, and
the diff is what there is to review. Tests themselves assert codes, fields and numbers.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TEXTS = HERE / "golden" / "texts"
SECTION = "=== "


def short(test: str) -> str:
    """The name of a test, at most 100 characters of it."""
    if len(test) <= 100:
        return test
    return f"{test[:80]}~{sha256(test.encode()).hexdigest()[:8]}"


def path_of(test_file: Path) -> Path:
    """The golden file of a test file."""
    return (TEXTS / test_file.relative_to(HERE)).with_suffix(".txt")


def said(something: object) -> str:
    """What users read of it: an error with its hint, or the text itself.

    Of what a command wrote it is the error: notes before it depend on the machine of the test.
    """
    hint = getattr(something, "hint", None)
    if isinstance(something, BaseException) and hint:
        return f"{something}\nhint: {hint}"
    if isinstance(something, (list, tuple)):
        return "\n".join(map(str, something))
    text = str(something)
    error = re.search(r"(?m)^error: ", text)
    if error is not None:
        return text[error.start() :]
    return text


@cache
def sections(path: Path) -> dict[str, str]:
    """Each section of a golden file, by its name."""
    found: dict[str, str] = {}
    if path.exists():
        parts = re.split(rf"(?m)^{SECTION}(.*)\n", path.read_text(encoding="utf-8"))
        found = {
            name: text.removesuffix("\n")
            for name, text in zip(parts[1::2], parts[2::2], strict=True)
        }
    return found


def renew(path: Path, name: str, text: str) -> None:
    """Write one section anew; several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        sections.cache_clear()
        kept = {**sections(path), name: text}
        written = (f"{SECTION}{name}\n{kept[name]}\n" for name in sorted(kept))
        path.write_text("".join(written), encoding="utf-8")
    sections.cache_clear()


@dataclass
class Golden:
    """The fixture ``golden`` of one test. ``hidden``: what differs between runs, and its word."""

    path: Path
    test: str
    hidden: dict[str, str]
    update: bool
    asked: int = 0

    def __call__(self, something: object) -> None:
        """Compare a text that users read with the one that was reviewed."""
        self.asked += 1
        name, text = f"{short(self.test)} {self.asked}", said(something).rstrip("\n")
        for value, word in self.hidden.items():
            text = text.replace(value, word)
        if self.update:
            renew(self.path, name, text)
        found = sections(self.path).get(name)
        assert found == text, "--update-golden writes what is to be reviewed"

    @contextmanager
    def raises(self, kind: type[Exception], match: str | None = None) -> Iterator[Any]:
        """Expect an error as ``pytest.raises`` does, and review it with its hint."""
        with pytest.raises(kind, match=match) as raised:
            yield raised
        self(raised.value)
