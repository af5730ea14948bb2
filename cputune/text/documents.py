"""Reads JSON and TOML with limits, and converts documents to records.

A document may be damaged or hostile, so its depth, its texts and its numbers are bounded.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from cputune.errors import CputuneError

# Levels of objects and lists inside each other. A result has 6.
MOST_DEPTH = 32

# Linux accepts no longer argument (MAX_ARG_STRLEN).
MOST_CHARACTERS = 1 << 17

# The largest whole number: 64 bits, signed.
MOST_NUMBER = (1 << 63) - 1

# A number of things. Every JSON reader has whole numbers up to 2**53.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]

# A measured quantity: finite, and 0 or more.
Amount = Annotated[float, Meta(ge=0, le=1e30)]

Record = TypeVar("Record")

JSON: TypeAlias = "str | int | float | list[JSON] | dict[str, JSON] | None"

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
    """Parse JSON text. Raises ValueError with the reason if it is not valid."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, and refuse duplicate keys: JSON readers differ in which of two values
    counts.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} occurs twice")
    return members


def at(value: Any, *path: str | int) -> Any:
    """The value at a path of a document; None if the path does not exist."""
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def toml(text: str) -> dict[str, Any]:
    """Parse a TOML document. Raises ValueError if it is not valid."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:  # of 5,000 brackets
        raise ValueError("it is nested too deeply") from error
    return document


def packaged_text(package: str, name: str) -> str:
    """Read a file of this package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """Read a TOML table of this package. A test makes sure that each of them is valid."""
    return toml(packaged_text(package, name))


def record_of(kind: type[Record], document: object) -> Record:
    """Convert a document of plain JSON values to a record of this type.

    Raises ValueError with the place and the problem.
    """
    _check(document)
    try:
        record = msgspec.convert(document, kind, dec_hook=_made_of)
    except msgspec.ValidationError as error:
        raise ValueError(_explained(str(error))) from error
    except CputuneError as error:  # raised by the record's own __post_init__
        raise ValueError(str(error)) from error
    unknown = _unknown_key(document, msgspec.to_builtins(record, enc_hook=str))
    if unknown is not None:
        raise ValueError(f"unknown key {unknown}")
    return record


def _made_of(kind: type, value: object) -> object:
    """Make a value of a type that JSON does not have, such as a version, from its text."""
    if isinstance(value, kind):
        return value
    return kind(value)


def plain(record: object) -> Any:
    """Convert a record to plain JSON values, its fields in order. NaN becomes null."""
    text = json.dumps(msgspec.to_builtins(record))  # tuples become lists
    return json.loads(text, parse_constant=lambda name: None)


def for_people(document: object) -> str:
    """Write a document as indented JSON text, each list of numbers on one line.

    Python's encoder takes a minute for a study of 10,000 trials, msgspec less.
    """
    try:
        compact = json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, from an argument that was not UTF-8
        return json.dumps(document, indent=2)
    text = msgspec.json.format(compact, indent=2).decode()
    return _NUMBERS.sub(lambda match: "[" + re.sub(r",\n *", ", ", match[1]) + "]", text)


# A list of numbers, one item per line. It cannot match inside a text: JSON escapes line ends.
_NUMBERS = re.compile(r"\[\n *(-?[0-9][^\s,\]]*(?:,\n *-?[0-9][^\s,\]]*)*)\n *\]")


def _check(document: object) -> None:
    """Raise ValueError if a document exceeds the limits or has anything but plain values, level
    by level: it may be nested deeper than Python can recurse.
    """
    level = [document]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, (list, tuple)):
                below.extend(value)
            elif type(value) is not int or abs(value) > MOST_NUMBER:  # fast path: CPU numbers
                _check_scalar(value)
        if not below:
            return
        level = below
    raise ValueError("it is nested too deeply")


def _check_scalar(value: object) -> None:
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise ValueError(f"a text has {len(value)} characters, more than {MOST_CHARACTERS}")
    if isinstance(value, int) and abs(value) > MOST_NUMBER:
        raise ValueError("a whole number has more than 19 digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if not (value is None or isinstance(value, (str, int, float))):
        raise ValueError(f"{value} is not a text, number, list or mapping")


def _explained(message: str) -> str:
    """Rewrite msgspec's message with its place first: ``best.plan.nodes: expected a whole …``."""
    what, _, place = message.partition(" - at `$")
    what = re.sub(r"Object missing required field (`.*`)", r"the key \1 is missing", what)
    what = re.sub(r"`(\w+(?: \| \w+)*)`", _kinds, what)
    what = what[:1].lower() + what[1:]
    place = place.rstrip("`").lstrip(".")
    if place:
        return f"{place}: {what}"
    return what


def _kinds(match: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(kind, kind) for kind in match[1].split(" | "))


def _unknown_key(document: Any, kept: Any, place: str = "") -> str | None:
    nested: list[tuple[str, Any, Any]] = []
    if isinstance(document, dict) and isinstance(kept, dict):
        for key, value in document.items():
            if key not in kept:
                return f"{place}.{key}".lstrip(".")
            nested.append((f"{place}.{key}", value, kept[key]))
    elif isinstance(document, (list, tuple)):
        for number, (value, part) in enumerate(zip(document, kept, strict=False)):
            nested.append((f"{place}[{number}]", value, part))
    for path, value, part in nested:
        if isinstance(value, (dict, list, tuple)):
            key = _unknown_key(value, part, path)
            if key is not None:
                return key
    return None
