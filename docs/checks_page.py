"""``docs/checks.md``: every check, in its own words."""

from __future__ import annotations

from cputune.doctor.finding import Check, Severity
from cputune.doctor.registry import all_checks
from cputune.report.writing import source_urls

_HEAD = """# Every check of the doctor

`cputune doctor --explain CODE` prints the same. Codes never change their meaning. An *error* fails
or is wrong, a *warning* costs much speed, *advice* is worth doing. Made by `make doc`.
"""


def checks_page() -> str:
    """The page: the codes by severity, then the story of each check."""
    checks = all_checks()
    lines = [_HEAD]
    for severity in Severity:
        codes = [check.code for check in checks if check.severity is severity]
        links = ", ".join(f"[{code}](#{code})" for code in codes)
        lines += [f"**{severity.value}**: {links}", ""]
    return "\n".join([*lines, *(_section(check) for check in checks)])


def _section(check: Check) -> str:
    return "\n".join(
        [
            f"## {check.code}",
            "",
            f"**{check.title}** ({check.severity.value})",
            "",
            check.story,
            "",
            f"Remedy: {check.remedy}",
            "",
            f"Source: {_links(check.source)}",
            "",
        ]
    )


def _links(source: str) -> str:
    found = []
    for part, url in zip(source.split(","), source_urls(source), strict=True):
        name = part.strip().rpartition("/")[2]  # repository#number
        found.append(url if part.strip() == url else f"[{name}]({url})")
    return ", ".join(found)
