"""The page of all checks; test_docs_pages.py says whether it is up to date."""

from __future__ import annotations

from cputune.doctor.registry import all_checks


def test_every_code_is_used_once() -> None:
    codes = [check.code for check in all_checks()]
    assert sorted(codes) == sorted(set(codes))
