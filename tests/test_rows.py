"""A table in one item names every row that fails, and rows share no folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from rows import every_row


def test_every_row_that_fails_is_named() -> None:
    @every_row(("value", "limit"), [(1, 2), (3, 2), (2, 2)], ids=["below", "above", "at"])
    def below(value: int, limit: int) -> None:
        assert value < limit

    with pytest.raises(AssertionError, match=r"^2 of 3 rows fail: 1: above, 2: at$"):
        below()


@every_row("name", ["a", "b"])
@every_row("again", ["c", "d"])
def test_each_row_has_a_folder_of_its_own(tmp_path: Path, name: str, again: str) -> None:
    assert list(tmp_path.iterdir()) == []
    (tmp_path / name).write_text(again)


def test_a_row_with_a_mark_needs_an_item() -> None:
    with pytest.raises(AssertionError, match="a mark of its own"):
        every_row("value", [pytest.param(1, marks=pytest.mark.matrix)])
