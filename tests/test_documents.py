"""Documents from outside: bounded, finite, and of the types that the records have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from golden_texts import Golden
from rows import every_row

from cputune.text.documents import Amount, Count, for_people, parse, plain, record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    kind: Literal["a", "b"]
    inner: Inner
    count: Count = 0
    free: Mapping[str, Any]
    parts: tuple[Inner, ...] = ()


SOUND = {"kind": "a", "inner": {"speed": 1.5, "cpus": [[0, 1]]}, "count": 2, "free": {"x": None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    speed: Amount
    cpus: tuple[tuple[int, ...], ...] = ()


def test_text_that_is_no_document_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        parse("[" * 100_000)


def test_a_word_that_is_no_utf8_can_be_written_down() -> None:
    text = for_people({"argv": ["caf\udce9"]})
    assert json.loads(text.encode()) == {"argv": ["caf\udce9"]}


def test_what_json_has_no_number_for_becomes_null() -> None:
    record = Inner(speed=math.nan)
    assert plain(record) == {"speed": None, "cpus": []}


def test_a_list_of_numbers_stands_on_one_line() -> None:
    document = {"cpus": [[0, 1], [2]], "text": "[\n 1,\n 2\n]", "mixed": ["a", 1.5], "none": []}
    text = for_people(document)
    assert "[0, 1]" in text
    assert json.loads(text) == document


def test_nesting_is_bounded(golden: Golden) -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    with golden.raises(ValueError):
        record_of(Outer, {**SOUND, "free": {"x": deep}})
    while isinstance(deep, list):  # piece by piece: Python recurses where it frees the whole
        deep = deep[0]


@every_row(
    ("change", "said"),
    [
        ({"kind": "c"}, "kind: invalid enum value 'c'"),
        ({"inner": {}}, "inner: the key speed is missing"),
        ({"inner": {"speed": float("nan")}}, "nan is not a finite number"),
        ({"inner": {"speed": float("inf")}}, "inf is not a finite number"),
        ({"inner": {"speed": -1}}, "inner.speed: expected a number >= 0"),
        ({"inner": {"speed": True}}, "inner.speed: expected a number, got true or false"),
        ({"inner": {"speed": 1, "spede": 2}}, "unknown key inner.spede"),
        ({"parts": [{"speed": 1}, {"speed": 1, "sped": 2}]}, r"unknown key parts\[1\].sped"),
        ({"inner": {"speed": 1, "cpus": "0"}}, "inner.cpus: expected a list, got text"),
        ({"count": 10**30}, "more than 19 digits"),
        ({"free": {"x": object()}}, "not a text, number, list or mapping"),
    ],
)
def test_what_a_record_cannot_hold_is_refused_with_its_place(
    change: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        record_of(Outer, {**SOUND, **change})
