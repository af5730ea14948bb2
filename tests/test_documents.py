"""Documents from outside: bounded, finite, and of the types that the records have."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
from rows import every_row

from cputune.text.documents import Amount, for_people, parse, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    speed: Amount
    cpus: tuple[tuple[int, ...], ...] = ()


@every_row(
    "text",
    [
        "[" * 100_000,
    ],
)
def test_text_that_is_no_document_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_a_word_that_is_no_utf8_can_be_written_down() -> None:
    text = for_people({"argv": ["caf\udce9"]})
    assert json.loads(text.encode()) == {"argv": ["caf\udce9"]}


def test_what_json_has_no_number_for_becomes_null() -> None:
    record = Inner(speed=math.nan)
    assert plain(record) == {"speed": None, "cpus": []}
