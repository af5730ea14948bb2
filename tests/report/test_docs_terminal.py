"""docs/terminal/: what commands print, drawn; that it is current is held with all made pages."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from rows import every_row
from terminal import COMMANDS, PICTURES, RESULT, WIDTHS

from cputune import Result

DOCS = Path(__file__).parents[2] / "docs"
MOST_BYTES = 48 << 10
PASTED = re.compile(r"\s*\$|variables |flags ")


@every_row("command", COMMANDS)
@every_row("width", WIDTHS)
def test_text_is_plain_and_within_its_columns(command: str, width: int) -> None:
    lines = (DOCS / "terminal" / f"{command}-{width}.txt").read_text().splitlines()
    assert all(line.isprintable() for line in lines)
    assert all(len(line) <= width for line in lines if not PASTED.match(line))


@every_row("name", [name for name in PICTURES if name.endswith(".svg")])
def test_a_picture_is_small_and_fetches_nothing(name: str) -> None:
    text = (DOCS / name).read_text()
    assert len(text.encode()) < MOST_BYTES
    ElementTree.fromstring(text)
    assert "url(http" not in text
    assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }


def test_every_file_there_is_made() -> None:
    made = {Path(name).name for name in PICTURES} | {RESULT.name}
    assert {path.name for path in (DOCS / "terminal").iterdir()} == made


def test_the_kept_study_says_that_it_is_simulated() -> None:
    assert "simulated" in Result.load(RESULT).notes[0]
