"""Lines at which a command ends although it was meant to continue.

A missing backslash, a blank behind it, a comment between two lines, carriage returns: the shell
runs the rest as another command or not at all. ``repaired`` gives the text as it was meant, with
every character in its place, so that spans stay those of the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cputune.launch.grammar import Tree
from cputune.launch.located_words import Span

Kind = Literal[
    "carriage return",
    "blank behind a backslash",
    "comment behind a backslash",
    "comment inside",
    "lost backslash",
]

# A fix may uncover another fault of the same line.
_ROUNDS = 3
_FLAG = r"[ \t]*--?[A-Za-z]"
_BLANKS = re.compile(r"(?m)\\([ \t]+(?:#[^\n]*)?)\n(?=[ \t]*\S)")
_COMMENT = re.compile(rf"(?<=\\\n)((?:[ \t]*#[^\n]*\n)+)(?={_FLAG})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One such line.

    ``span`` are the characters that end the command: the blanks, the comment lines, the line feed.
    """

    kind: Kind
    span: Span
    line: int


def repaired(text: str) -> tuple[str, tuple[Break, ...]]:
    """The text as it was meant, of the same length, and what had to be repaired."""
    breaks = list[Break]()
    if "\r\n" in text:
        at = text.index("\r\n")
        breaks.append(_break(text, "carriage return", at, at + 1))
        text = re.sub(r"(\\?)\r\n", lambda match: f" {match[1]}\n", text)
    for blanks in _BLANKS.finditer(text):
        if not text[text.rfind("\n", 0, blanks.start()) + 1 :].lstrip().startswith("#"):
            kind: Kind = "blank behind a backslash"
            if "#" in blanks[1]:
                kind = "comment behind a backslash"
            breaks.append(_break(text, kind, *blanks.span(1)))
    text = _BLANKS.sub(_turned, text)
    for comment in _COMMENT.finditer(text):
        breaks.append(_break(text, "comment inside", *comment.span(1)))
    text = _COMMENT.sub(lambda match: re.sub(r"[^\n]*[^\n]", _blanked, match[1]), text)
    for _ in range(_ROUNDS):
        lost = _lost(text)
        if not lost:
            break
        for at in lost:
            breaks.append(_break(text, "lost backslash", at, at + 1))
        for at in lost:
            text = f"{text[:at]} {text[at + 1 :]}"
    return text, tuple(breaks)


def _turned(match: re.Match[str]) -> str:
    """The blanks before the backslash; a comment stays as it is."""
    start = match.string.rfind("\n", 0, match.start()) + 1
    if match.string[start:].lstrip().startswith("#"):
        return match[0]
    return " " * len(match[1]) + "\\\n"


def _blanked(match: re.Match[str]) -> str:
    return " " * (len(match[0]) - 1) + "\\"


def _break(text: str, kind: Kind, start: int, end: int) -> Break:
    return Break(kind=kind, span=Span(start, end), line=text.count("\n", 0, start) + 1)


def _lost(text: str) -> list[int]:
    """Line feeds without a backslash before them: the next line is a command named ``--x``."""
    if re.search(rf"(?m)(?<!\\)\n{_FLAG}", text) is None:
        return []
    tree, places = Tree(text), list[int]()
    for node in tree.nodes("command_name"):
        start, _ = tree.span(node)
        first = text.rfind("\n", 0, start) + 1
        before = text[text.rfind("\n", 0, max(0, first - 1)) + 1 : first].strip()
        alone = text[first:start].strip() == "" and text[start : start + 1] == "-"
        if alone and first and before and not before.startswith("#"):
            places.append(first - 1)
    return places
