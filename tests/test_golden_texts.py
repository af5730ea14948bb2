"""Golden texts belong to tests that exist, and a text that differs is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_texts import HERE, TEXTS, Golden, renew, sections
from rows import every_row


@every_row("path", sorted(TEXTS.rglob("*.txt")), ids=lambda path: path.stem)
def test_every_section_has_its_test(path: Path) -> None:
    test_file = (HERE / path.relative_to(TEXTS)).with_suffix(".py")
    tests = test_file.read_text(encoding="utf-8")
    for name in sections(path):
        function = name.rpartition(" ")[0].partition("[")[0].rpartition("::")[2]
        assert f"def {function}(" in tests, f"{path.name}: {name} has no test"


def test_what_differs_is_noticed_and_written_anew_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "room" / "said.txt"
    renew(path, "test_of_another 1", "one line\n\nand = another")
    Golden(path, "test_one", {str(tmp_path): "TMP"}, update=True)(f"in {tmp_path}/x")
    Golden(path, "test_one", {str(tmp_path): "TMP"}, update=False)(f"in {tmp_path}/x\n")
    with pytest.raises(AssertionError, match="--update-golden"):
        Golden(path, "test_one", {}, update=False)("in TMP/y")
    assert sections(path)["test_of_another 1"] == "one line\n\nand = another"
