"""Text from outside cannot move the cursor, clear the screen or forge a line."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rows import every_row

from cputune.cli import main
from cputune.text.plain import figure, spelled, visible


def test_signs_that_a_stream_has_not_are_spelled() -> None:
    codecs.register_error(spelled.__name__, spelled)
    text = "✓ 2 × 8 → 3.92–4.31 … שלום"
    written = text.encode("ascii", spelled.__name__).decode("ascii")
    assert "+ 2 " in written
    assert " -> 3.92" in written
    assert written.endswith(r"\u05e9\u05dc\u05d5\u05dd")


def test_more_digits_if_they_are_asked_for() -> None:
    assert (figure(22.5441, 4), figure(9999.6, 4)) == ("22.54", "10000")


@pytest.mark.parametrize("verbose", [(), ("-vv",)])
def test_an_error_that_quotes_a_name_is_clean(
    verbose: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    name = str(tmp_path / "a\x1b[2J\nerror: b.json")
    monkeypatch.setattr(sys, "argv", ["cputune", *verbose, "emit", "-f", "mpirun", name])
    with pytest.raises(SystemExit):
        main()
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert not any(line.startswith("error: b") for line in err.splitlines())


@given(st.text())
def test_any_text_is_one_line_that_can_be_printed(text: str) -> None:
    assert visible(text).isprintable()


@every_row(
    ("text", "shown"),
    [
        ("plain, 95 % – ×", "plain, 95 % – ×"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\nerror: b\r", "a\\nerror: b\\r"),
        ("a\u2028b\u202ec", "a\\u2028b\\u202ec"),
        ("a\tb", "a b"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_appear_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
