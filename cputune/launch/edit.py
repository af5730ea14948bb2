"""A change of a file as data, and as a diff that ``patch`` takes. A finding has the edits that
fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Edit:
    """The characters from ``start`` to ``end`` of a file become ``text``."""

    start: int
    end: int
    text: str = ""


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with these edits; of two that overlap the first is taken.

    If characters are removed twice, nothing is lost.
    """
    parts, at = list[str](), 0
    for edit in sorted(set(edits)):
        start = edit.start
        if start < at and not edit.text and edit.end > at:
            start = at
        if start < at:
            continue
        parts += [text[at:start], edit.text]
        at = max(at, edit.end)
    parts.append(text[at:])
    return "".join(parts)


def unified(name: str, before: str, after: str) -> str:
    """The change as ``patch -p0`` and ``git apply -p0`` take it; "" without a change.

    ``before`` is empty for a new file.
    """
    old = "/dev/null"
    if before:
        old = name
    text = ""
    for line in difflib.unified_diff(_lines(before), _lines(after), old, name):
        text += line
        if not line.endswith("\n"):
            text += "\n\\ No newline at end of file\n"
    return text


def original_lines(before: str, after: str) -> list[int]:
    """Of each line of the changed text (from 1) its line in the text before.

    A line that was added or changed has the place at which it is.
    """
    old, new = _lines(before), _lines(after)
    lines = list[int]()
    same = difflib.SequenceMatcher(None, old, new)
    for _, first, last, start, end in same.get_opcodes():
        for number in range(end - start):
            lines.append(max(1, min(first + number, last - 1, len(old) - 1) + 1))
    return lines


def _lines(text: str) -> list[str]:
    """Lines as ``patch`` counts them: only a line feed ends one."""
    parts = text.split("\n")
    ended = [f"{part}\n" for part in parts[:-1]]
    if parts[-1]:
        return ended + parts[-1:]
    return ended
