"""The pages of docs/ that are made from the program's own text are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_what_make_doc_writes(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()
