"""A diagnosis as text for the terminal, as a JSON document, as Markdown for an issue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cputune.doctor import Diagnosis, Severity
from cputune.doctor.bindings import bound_parties
from cputune.doctor.finding import Check
from cputune.report.machine import machine_lines
from cputune.report.topology import picture

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "cputune.doctor/1"

_STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.ADVICE: "bold cyan",
}
_SECTIONS = (
    # heading, what belongs there
    ("What is wrong", (Severity.ERROR, Severity.WARNING)),
    ("Worth doing", (Severity.ADVICE,)),
)


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The ``cputune.doctor/1`` document."""
    from cputune.report.host import host_document

    return {
        "schema": SCHEMA,
        "host": host_document(diagnosis.facts),
        "findings": [finding.to_json() for finding in diagnosis.findings],
        "summary": diagnosis.summary,
    }


def print_text(diagnosis: Diagnosis, console: Console) -> None:
    """What is wrong first, then what is worth doing, then the facts and the picture."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(verdict(diagnosis), style="bold"))
    for heading, severities in _SECTIONS:
        findings = [f for f in diagnosis.findings if f.severity in severities]
        if not findings:
            continue
        console.print()
        console.print(Text(heading, style="bold underline"))
        for finding in findings:
            head = Text(f"{finding.severity.value:7} ", style=_STYLES[finding.severity])
            head.append(finding.title, style="bold")
            head.append(f"  [{finding.code}]", style="dim")
            console.print(head)
            console.print(Padding(Text(finding.evidence), (0, 0, 0, 8)))
            console.print(Padding(Text(finding.remedy, style="green"), (0, 0, 0, 8)))
            for line in (finding.command or "").splitlines():
                # A command that is wrapped cannot be pasted.
                console.print(Text(f"        $ {line}", style="cyan"), soft_wrap=True)
    console.print()
    console.print(Text("The machine", style="bold underline"))
    rows = machine_lines(diagnosis.facts)
    margin = max((len(label) for label, _ in rows), default=0) + 2
    for label, text in rows:
        console.print(_hanging(label, text, margin, console))
    for unknown in diagnosis.facts.unknown:
        console.print(_hanging("unknown", f"{unknown.fact}: {unknown.reason}", margin, console))
    console.print()
    ascii_only = not (console.encoding or "").lower().startswith("utf")
    for line in picture(
        diagnosis.facts,
        bound=bound_parties(diagnosis.facts),
        width=min(80, console.width),
        ascii_only=ascii_only,
    ):
        console.print(Text(line), soft_wrap=True)
    if diagnosis.findings:
        code = diagnosis.findings[0].code
        console.print()
        console.print(Text(f"The story of a finding: cputune doctor --explain {code}", "dim"))


def _hanging(label: str, text: str, margin: int, console: Console) -> Any:
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=0)
    row.add_column(width=margin)
    row.add_column(max_width=max(20, console.width - margin))
    row.add_row(Text(label, style="dim"), Text(text))
    return row


def verdict(diagnosis: Diagnosis) -> str:
    """One line: how many findings of each severity."""
    counts = [
        f"{count} {name}{'s' if count != 1 and name != 'advice' else ''}"
        for name, count in diagnosis.summary.items()
        if count
    ]
    return ", ".join(counts) if counts else "nothing is wrong, and there is nothing to advise"


def markdown(diagnosis: Diagnosis) -> str:
    """The whole diagnosis for pasting into an issue."""
    lines = ["## cputune doctor", "", verdict(diagnosis).capitalize() + ".", ""]
    for finding in diagnosis.findings:
        lines += [f"### {finding.severity.value}: {_escape(finding.title)} (`{finding.code}`)", ""]
        lines += [_escape(finding.evidence), "", _escape(finding.remedy), ""]
        if finding.command:
            lines += [*_fenced(finding.command, "sh"), ""]
        lines += [f"Source: {links(finding.source)}", ""]
    lines += ["### The machine", "", "| | |", "|---|---|"]
    lines += [f"| {label} | {_cell(text)} |" for label, text in machine_lines(diagnosis.facts)]
    lines += [f"| unknown | {_cell(f'{u.fact}: {u.reason}')} |" for u in diagnosis.facts.unknown]
    drawing = "\n".join(picture(diagnosis.facts, bound=bound_parties(diagnosis.facts)))
    return "\n".join([*lines, "", *_fenced(drawing, "text")]) + "\n"


def explain(check: Check) -> str:
    """The whole story of a check: symptom, cause, remedy and the threads."""
    return "\n".join(
        [
            f"{check.code} ({check.severity.value}): {check.title}",
            "",
            check.story,
            "",
            f"Remedy: {check.remedy}",
            "",
            *(f"Source: {url}" for url in source_urls(check.source)),
        ]
    )


def source_urls(source: str) -> list[str]:
    """The web addresses of a finding's source; what is neither thread nor URL stays as it is."""
    return [_url(part.strip()) for part in source.split(",")]


def links(source: str) -> str:
    """The source as Markdown links."""
    parts = [part.strip() for part in source.split(",")]
    return ", ".join(f"[{part}]({_url(part)})" if _url(part) != part else part for part in parts)


def _url(part: str) -> str:
    thread = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", part)
    return f"https://github.com/{thread[1]}/issues/{thread[2]}" if thread else part


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_<>\[\]#|])", r"\\\1", text)


def _cell(text: str) -> str:
    return _escape(text).replace("\n", " ")


def _fenced(text: str, language: str) -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence + language, text, fence]
