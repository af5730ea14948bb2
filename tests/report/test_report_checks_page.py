"""The page of all checks is the checks' own text, and up to date."""

from __future__ import annotations

from pathlib import Path

from cputune.doctor.registry import all_checks
from cputune.report.checks_page import checks_page

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"


def test_the_page_is_what_make_doc_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == checks_page()


def test_every_code_is_used_once() -> None:
    codes = [check.code for check in all_checks()]
    assert sorted(codes) == sorted(set(codes))
