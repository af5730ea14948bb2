"""``cputune doctor --explain``: the checks, told by the doctor itself."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

from cputune.cli._output import json_text
from cputune.errors import UsageError


def explained(code: str, *, as_json: bool) -> str:
    """The story of a check, or the list of all where ``code`` is empty."""
    from cputune.doctor.registry import all_checks
    from cputune.report.diagnosis import check_document, check_list, explain

    if not code:
        checks = all_checks()
        documents = {"schema": "cputune.checks/1", "checks": [check_document(c) for c in checks]}
        return json_text(documents) if as_json else check_list(checks) + _pages()
    known(code, codes())
    check = next(check for check in all_checks() if check.code == code)
    return json_text(check_document(check)) if as_json else explain(check)


def _pages() -> str:
    """Where the pages of docs/ lie: inside the wheel, or beside the package in a checkout."""
    package = Path(str(resources.files("cputune")))
    places = (package / "docs", package.parent / "docs")
    found = next((place for place in places if (place / "checks.md").is_file()), None)
    return f"All of them on one page: {found / 'checks.md'}\n" if found else ""


def codes() -> tuple[str, ...]:
    """The codes of all checks."""
    from cputune.doctor.registry import all_checks

    return tuple(check.code for check in all_checks())


def known(word: str, words: tuple[str, ...]) -> None:
    """Raise UsageError for a word that is none of these."""
    if word in words:
        return
    near = difflib.get_close_matches(word, words, n=3)
    hint = (
        "did you mean " + " or ".join(near) if near else "cputune doctor --explain lists the codes"
    )
    raise UsageError(f"no check is called {word!r}", hint=hint)
