"""Text from outside cannot move the cursor, clear the screen or forge a line."""

from __future__ import annotations

import codecs

from rows import every_row

from cputune.text.plain import figure, spelled, visible


@every_row(
    ("text", "shown"),
    [
        ("a\u2028b\u202ec", "a\\u2028b\\u202ec"),
    ],
)
def test_control_characters_appear_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


@every_row(
    "encoding",
    [
        "ascii",
    ],
)
def test_signs_that_a_stream_has_not_are_spelled(encoding: str) -> None:
    codecs.register_error(spelled.__name__, spelled)
    text = "✓ 2 × 8 → 3.92–4.31 … שלום"
    written = text.encode(encoding, spelled.__name__).decode(encoding)
    assert "+ 2 " in written
    assert " -> 3.92" in written
    assert written.endswith(r"\u05e9\u05dc\u05d5\u05dd")


def test_more_digits_if_they_are_asked_for() -> None:
    assert (figure(22.5441, 4), figure(9999.6, 4)) == ("22.54", "10000")
