"""``docs/checks.md``: every check, in its own words."""

from __future__ import annotations

from cputune.doctor.finding import Check
from cputune.doctor.registry import all_checks
from cputune.report.writing import source_urls

_HEAD = """# Every check of the doctor

What each finding means, its cause, its fix and its source. `cputune doctor --explain CODE` prints
the same. Codes never change their meaning. **error**: it fails or is wrong. **warning**: it costs
much speed. **advice**: it is worth doing. An unknown fact leads to no finding. Made by `make doc`.
"""


def checks_page() -> str:
    """The page: a table of all checks, then the story of each."""
    checks = all_checks()
    table = ["| code | usually | what it finds |", "|---|---|---|"]
    table += [
        f"| [`{check.code}`](#{check.code}) | {check.severity.value} | {check.title} |"
        for check in checks
    ]
    return "\n".join([_HEAD, *table, "", *(_section(check) for check in checks)])


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
        found.append(url if part.strip() == url else f"[{part.strip()}]({url})")
    return ", ".join(found)
