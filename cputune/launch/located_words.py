"""Words of a launch, and where each is in its text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """The characters from ``start`` to ``end`` of a text; quotes around a word belong to it."""

    start: int
    end: int


class Word(str):
    """A word as its program receives it, with the span that it was read from.

    Attributes:
        span: None if the word is in no text, or only running shows it.
        exact: the text of the span, without quotes, is the word: no variable was filled in and
            no character escaped. Otherwise the span can only be replaced as a whole.
        places: of each letter, for a word that is a text of several lines.
    """

    __slots__ = ("exact", "places", "span")
    span: Span | None
    exact: bool
    places: tuple[int, ...]

    def __new__(
        cls,
        text: str,
        span: Span | None = None,
        *,
        exact: bool = True,
        places: tuple[int, ...] = (),
    ) -> Word:
        word = super().__new__(cls, text)
        word.span = span
        word.exact = exact and span is not None
        word.places = places
        return word


def span_of(word: str) -> Span | None:
    """The span of a word that was read from a text; None for another."""
    if isinstance(word, Word):
        return word.span
    return None


def plain(name: str) -> str:
    """The name of an option with ``_`` for ``-``, by which names are compared."""
    bare = name.lstrip("-")
    return name[: len(name) - len(bare)] + bare.replace("-", "_")


def pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option among these words, by its ``plain`` name, and its value or ""."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[position + 1 : position + 2]
        if not equals and following and not following[0].startswith("-"):
            value = following[0]
        if name.startswith("-"):
            yield plain(name), value


def value_of(words: Sequence[str], *names: str) -> str | None:
    """The last value of an option; dashes and underscores are the same."""
    wanted = set(map(plain, names))
    last = None
    for name, value in pairs(words):
        if name in wanted:
            last = value
    return last


def without_options(command: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """The words without these options and their values; names have underscores."""
    kept: list[str] = []
    dropped = False
    for word in command:
        if not word.startswith("-"):
            if not dropped:
                kept.append(word)
            dropped = False
            continue
        name, equals, _ = word.partition("=")
        named = plain(name) in names
        if not named:
            kept.append(word)
        dropped = named and not equals
    return tuple(kept)


def number_of(text: str | None) -> int | None:
    """A whole number of at most nine digits; None for anything else."""
    if text and re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    return None


_SHELLS = ("sh", "bash", "zsh", "dash", "ksh")


def shell_at(words: Sequence[str]) -> int | None:
    """Where the text is that ``bash -c`` runs."""
    for at, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in _SHELLS:
            for number in range(at + 1, min(at + 4, len(words) - 1)):
                if re.fullmatch(r"-[a-z]*c", words[number]):
                    return number + 1
            return None
    return None
