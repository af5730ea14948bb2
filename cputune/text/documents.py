"""JSON and TOML documents: read with limits, and held against the records' types.

Whoever writes such a document may have made a mistake, or mean harm. What is read here is
of bounded depth, its numbers are finite, and it becomes a record only where every value
has the type and the range that the record's annotations say.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from importlib import resources
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from cputune.errors import CputuneError

MOST_DEPTH = 32
"""Objects and lists inside each other; a result has 6."""

MOST_CHARACTERS = 1 << 17
"""Of one text: Linux takes no longer argument (MAX_ARG_STRLEN)."""

MOST_NUMBER = (1 << 63) - 1
"""The largest whole number: what 64 bits hold."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""How many: every JSON reader has whole numbers up to 2**53."""

Amount = Annotated[float, Meta(ge=0, le=1e30)]
"""A quantity that is measured: neither infinite nor NaN, and never below 0."""

Record = TypeVar("Record")

JSON: TypeAlias = "str | int | float | list[JSON] | dict[str, JSON] | None"
"""What a document is made of."""

_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


def parse(text: str) -> Any:
    """The values of a JSON text. Raises ValueError that says why it is none."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: readers differ in which of two counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return found


def toml(text: str) -> dict[str, Any]:
    """The values of a TOML document. Raises ValueError where it is none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:  # of 5,000 brackets
        raise ValueError("it is nested too deeply") from error
    return found


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """A table that is part of ours: that it can be read is a test's business."""
    return toml(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def record_of(kind: type[Record], document: object) -> Record:
    """The record that a document of plain JSON values describes.

    Raises ValueError with the place and what is wrong there: a type, a range, a key that
    is missing, a key that nobody knows.
    """
    _check(document)
    try:
        record = msgspec.convert(document, kind, dec_hook=_made_of)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error))) from error
    except CputuneError as error:  # a record that refuses what it was given
        raise ValueError(str(error)) from error
    unknown = _unknown_key(document, msgspec.to_builtins(record, enc_hook=str))
    if unknown is not None:
        raise ValueError(f"unknown key {unknown}")
    return record


def _made_of(kind: type, value: object) -> object:
    """A value of a type that documents have none for, such as a version, made of its text."""
    return value if isinstance(value, kind) else kind(value)


def plain(record: object) -> Any:
    """A record as plain JSON values, its fields in the order of their definition.

    What JSON has no number for (NaN, as a rank may say of itself) becomes null.
    """
    text = json.dumps(msgspec.to_builtins(record))  # tuples become lists
    return json.loads(text, parse_constant=lambda name: None)


def for_people(document: object) -> str:
    """A document as JSON text: indented, and a list of numbers on one line.

    Python's own encoder takes a minute to indent a study of 10,000 trials.
    """
    try:
        compact = json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate: a word that is no UTF-8, which no file holds
        return json.dumps(document, indent=2)
    text = msgspec.json.format(compact, indent=2).decode()
    return _NUMBERS.sub(lambda found: "[" + re.sub(r",\n *", ", ", found[1]) + "]", text)


_NUMBERS = re.compile(r"\[\n *(-?[0-9][^\s,\]]*(?:,\n *-?[0-9][^\s,\]]*)*)\n *\]")
"""A list of numbers, an item a line; no text of a document holds the end of a line as it is."""


def _check(document: object) -> None:
    """Raise ValueError for a document that is no plain values within the limits.

    Walked level by level: a document may be nested deeper than Python can recurse.
    """
    level = [document]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, (list, tuple)):
                below.extend(value)
            elif type(value) is not int or abs(value) > MOST_NUMBER:  # most are CPUs
                _check_scalar(value)
        if not below:
            return
        level = below
    raise ValueError("it is nested too deeply")


def _check_scalar(value: object) -> None:
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise ValueError(f"a text of {len(value)} characters")
    if isinstance(value, int) and abs(value) > MOST_NUMBER:
        raise ValueError("a whole number has more than 19 digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number that can be meant")
    if not (value is None or isinstance(value, (str, int, float))):
        raise ValueError(f"{value} is no text, number, list or mapping")


def _in_words(said: str) -> str:
    """Msgspec's message, its place first: ``best.plan.nodes: expected a whole number, …``."""
    what, _, place = said.partition(" - at `$")
    what = re.sub(r"Object missing required field (`.*`)", r"the key \1 is missing", what)
    what = re.sub(r"`(\w+(?: \| \w+)*)`", _kinds, what)
    what = what[:1].lower() + what[1:]
    place = place.rstrip("`").lstrip(".")
    return f"{place}: {what}" if place else what


def _kinds(match: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in match[1].split(" | "))


def _unknown_key(document: Any, kept: Any, place: str = "") -> str | None:
    """The first key of a document that its record has no field for."""
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(document, dict) and isinstance(kept, dict):
        if not document.keys() <= kept.keys():
            key = next(key for key in document if key not in kept)
            return f"{place}.{key}".lstrip(".")
        pairs = ((f"{place}.{key}", value, kept[key]) for key, value in document.items())
    elif isinstance(document, (list, tuple)):
        both = enumerate(zip(document, kept, strict=False))
        pairs = ((f"{place}[{number}]", value, part) for number, (value, part) in both)
    nested = (pair for pair in pairs if isinstance(pair[1], (dict, list, tuple)))
    found = (_unknown_key(value, part, where) for where, value, part in nested)
    return next((key for key in found if key is not None), None)
