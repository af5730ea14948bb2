"""A diagnosis, of one machine or of several: for the terminal, as JSON, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from cputune import cpulist
from cputune.carrier.interface import Chosen, choose_interface
from cputune.doctor import Diagnosis, Finding, Severity
from cputune.doctor.finding import Check, FoundOn, Looked
from cputune.doctor.variables import bound_parties
from cputune.facts import HostFacts
from cputune.probing.installed import MPI_PROGRAMS
from cputune.report.machine import gib, host_document, machine_lines, picture
from cputune.report.writing import (
    Rows,
    fenced,
    markdown_table,
    markdown_text,
    markdown_verdict,
    print_hanging,
    print_heading,
    print_labelled,
    print_picture,
    print_verdict,
    rich_table,
)
from cputune.text import visible
from cputune.words import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from cputune.doctor.hosts import HostsDiagnosis, SeenHost

SCHEMA = "cputune.doctor/1"

STYLES = {"error": "bold red", "warning": "bold yellow", "advice": "bold cyan"}
"""How a severity looks, by its name."""

_SECTIONS = (
    # heading, what belongs there
    ("What is wrong", (Severity.ERROR, Severity.WARNING)),
    ("Worth doing", (Severity.ADVICE,)),
)


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The ``cputune.doctor/1`` document; ``checks`` where all of them are asked for."""
    said = {
        "schema": SCHEMA,
        "host": host_document(diagnosis.facts),
        "findings": [finding.to_json() for finding in diagnosis.findings],
        "done": [asdict(one) for one in diagnosis.done],
        "summary": diagnosis.summary,
    }
    if diagnosis.looked is not None:
        said["checks"] = [row.to_json() for row in diagnosis.looked]
    return said


def print_text(
    diagnosis: Diagnosis, console: Console, *, machine: bool = True, stories: bool = False
) -> None:
    """What is wrong first, then what is worth doing, then the facts and the picture.

    Without ``machine`` the findings alone, for those that are not about the machine. With
    ``stories`` each finding tells symptom, cause and source, and each unknown fact its reason.
    """
    from rich.text import Text

    print_verdict(verdict_of(diagnosis), console)
    print_findings(diagnosis.findings, console, stories=stories)
    for one in diagnosis.done:
        print_hanging(console, Text("done    ", "green"), Text(visible(one.words)))
    if diagnosis.looked is not None:
        _print_looked(diagnosis.looked, console, unfold=stories)
    if machine:
        _print_machine(diagnosis, console, unfold=stories)
    if not stories:
        _print_way_on(diagnosis.findings, console)


def print_findings(findings: Iterable[Finding], console: Console, *, stories: bool) -> None:
    """What is wrong, then what is worth doing; with ``stories`` the story of each."""
    found = tuple(findings)
    for heading, severities in _SECTIONS:
        those = [finding for finding in found if finding.severity in severities]
        if those:
            print_heading(console, heading)
        for finding in those:
            _print_finding(finding, console)
            if stories:
                _print_story(finding, console)


def _print_way_on(findings: tuple[Finding, ...], console: Console) -> None:
    """How the story of a finding is had."""
    from rich.text import Text

    if findings:
        console.print()
        code = findings[0].code
        console.print(Text(f"The story of a finding: cputune doctor --explain {code}", "dim"))


def _print_looked(looked: tuple[Looked, ...], console: Console, *, unfold: bool) -> None:
    from rich.text import Text

    print_heading(console, HEADING)
    styles = {"✓": "green", "!": "yellow", "–": "dim"}
    for sign, head, body in looked_rows(looked, unfold=unfold):
        text = Text.assemble((head, "bold"), "  ", (visible(body), "dim"))
        print_hanging(console, Text(f"{sign} ", styles[sign]), text)
    console.print(Text(looked_line(looked)))


def _print_machine(diagnosis: Diagnosis, console: Console, *, unfold: bool) -> None:
    facts = diagnosis.facts
    print_heading(console, "The machine")
    print_labelled(console, machine_lines(facts) + _unknown_rows(facts, unfold=unfold))
    print_picture(console, facts.topology, bound_parties(facts))


def _unknown_rows(facts: HostFacts, *, unfold: bool) -> list[tuple[str, str]]:
    """What is not known: a row for each fact with its reason, or one row for all of them."""
    if unfold or len(facts.unknown) < 2:
        return [("unknown", f"{item.fact}: {item.reason}") for item in facts.unknown]
    return [("unknown", f"{len(facts.unknown)} facts; with -v each of them and why")]


def _print_finding(finding: Finding, console: Console) -> None:
    from rich.text import Text

    head = Text(visible(finding.title), style="bold")
    head.append(f"  [{finding.code}]", style="not bold dim")
    margin = Text(f"{finding.severity.value:7} ", style=STYLES[finding.severity.value])
    blank = Text(" " * len(margin))
    print_hanging(console, margin, head)
    print_hanging(console, blank, Text(visible(finding.evidence)))
    print_hanging(console, blank, Text(visible(finding.remedy), style="green"))
    if finding.worth_words:
        print_hanging(console, blank, Text(finding.worth_words))
    for line in (finding.command or "").splitlines():
        # A command that is wrapped cannot be pasted.
        console.print(blank + Text(f"$ {visible(line)}", style="cyan"), soft_wrap=True)


def _print_story(finding: Finding, console: Console) -> None:
    from rich.text import Text

    from cputune.doctor.registry import all_checks

    story = next((check.story for check in all_checks() if check.code == finding.code), "")
    for line in (*story.splitlines(), *(f"Source: {url}" for url in source_urls(finding.source))):
        console.print(Text(f"        {line}".rstrip(), "dim"), soft_wrap=True)


_MEANS = {
    Severity.ERROR: "Training fails, or is wrong, until something is mended",
    Severity.WARNING: "Training runs here, slower than it could",
    Severity.ADVICE: "Nothing is wrong, and there is more to gain",
}
"""By the gravest finding."""


def verdict_of(diagnosis: Diagnosis | HostsDiagnosis) -> Verdict:
    """What the findings mean together, what to do first, and what it rests on."""
    found = diagnosis.findings
    gravest = next((s for s in Severity if any(one.severity is s for one in found)), None)
    means = "" if gravest is None else f"{_MEANS[gravest]}: "
    first = next((one for one in found if one.severity is gravest), None)
    do = "cputune tune"
    if not isinstance(diagnosis, Diagnosis):
        do += f" --hosts {','.join(one.name for one in diagnosis.hosts)}"
    if first is not None and gravest is not Severity.ADVICE:  # tune measures what advice brings
        lines = (first.command or "").splitlines()
        do = lines[0] if len(lines) == 1 else f"cputune doctor --explain {first.code}"
    if not isinstance(diagnosis, Diagnosis):
        looked_at = [one.facts for one in diagnosis.hosts if one.facts is not None]
        where = f"{len(looked_at)} of {len(diagnosis.hosts)} hosts"
    else:
        looked_at = [diagnosis.facts]
        where = "the recording" if diagnosis.facts.recorded else "this machine"
        where += ", nothing was timed"
    unknown = sum(len(facts.unknown) for facts in looked_at)
    gaps = f"; {unknown} fact{'s are' if unknown > 1 else ' is'} not known" if unknown else ""
    said = verdict(diagnosis)
    return Verdict(
        means=f"{means}{said if means else said[0].upper() + said[1:]}.",
        do=do,
        sure=f"read from {where}{gaps}",
    )


def verdict(diagnosis: FoundOn) -> str:
    """One line: how many findings of each severity, and how many are not shown."""
    shown, hidden = _counts(diagnosis.findings), _counts(diagnosis.hidden)
    if not hidden:
        return shown or "nothing is wrong, and there is nothing to advise"
    return f"{shown or 'nothing found'}; left out by --only or --ignore: {hidden}"


def _counted(severity: Severity, count: int) -> str:
    many = "s" * (count > 1)
    return f"piece{many} of advice" if severity is Severity.ADVICE else severity.value + many


def _counts(findings: tuple[Finding, ...]) -> str:
    counted = [(sum(f.severity is severity for f in findings), severity) for severity in Severity]
    return ", ".join(f"{count} {_counted(severity, count)}" for count, severity in counted if count)


def markdown(diagnosis: Diagnosis, *, machine: bool = True) -> str:
    """The diagnosis for pasting into an issue; without ``machine`` its findings alone."""
    lines = ["## cputune doctor", "", *markdown_verdict(verdict_of(diagnosis))]
    lines += markdown_findings(diagnosis.findings)
    lines += [f"Done: {markdown_text(one.words)}\n" for one in diagnosis.done]
    if diagnosis.looked is not None:
        lines += [f"### {HEADING}", ""]
        for sign, head, body in looked_rows(diagnosis.looked):
            lines.append(f"- {sign} **{markdown_text(head)}** {markdown_text(body)}")
        lines += ["", f"{looked_line(diagnosis.looked)}.", ""]
    if not machine:
        return "\n".join(lines)
    lines += ["### The machine", "", "| | |", "|---|---|"]
    rows = machine_lines(diagnosis.facts) + _unknown_rows(diagnosis.facts, unfold=True)
    lines += [f"| {label} | {markdown_text(text)} |" for label, text in rows]
    drawing = "\n".join(
        map(visible, picture(diagnosis.facts.topology, bound=bound_parties(diagnosis.facts)))
    )
    return "\n".join([*lines, "", *fenced(drawing, "text")]) + "\n"


def markdown_findings(findings: Iterable[Finding]) -> list[str]:
    """The lines of the findings, each under a heading of its own."""
    lines = []
    for finding in findings:
        title = markdown_text(finding.title)
        lines += [f"### {finding.severity.value}: {title} (`{finding.code}`)", ""]
        lines += [markdown_text(finding.evidence), "", markdown_text(finding.remedy), ""]
        lines += [finding.worth_words, ""] if finding.worth_words else []
        if finding.command:
            lines += [*fenced("\n".join(map(visible, finding.command.splitlines())), "sh"), ""]
        lines += [f"Source: {links(finding.source)}", ""]
    return lines


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
            "",
        ]
    )


def check_list(checks: tuple[Check, ...]) -> str:
    """A line for each check: code, usual severity, title."""
    width = max(len(check.code) for check in checks)
    lines = [f"{c.code:{width}}  {c.severity.value:7}  {c.title}" for c in checks]
    return "\n".join([*lines, "", "The story of one: cputune doctor --explain CODE", ""])


def check_document(check: Check) -> dict[str, object]:
    """The same story as a document."""
    return {
        "schema": "cputune.check/1",
        "code": check.code,
        "severity": check.severity.value,
        "title": check.title,
        "story": check.story,
        "remedy": check.remedy,
        "sources": source_urls(check.source),
    }


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


HEADING = "What was looked at"

Sign = Literal["✓", "!", "–"]


def looked_rows(looked: tuple[Looked, ...], *, unfold: bool = False) -> list[tuple[Sign, str, str]]:
    """(sign, theme, what came of its checks) of each theme; unfolded, a row for each check."""
    if unfold:
        return [
            (_sign([row]), row.check.code, f"{_word(row)}: {row.check.title}{_reasons(row)}")
            for row in looked
        ]
    themes = [(theme, list(rows)) for theme, rows in groupby(looked, key=lambda row: row.theme)]
    return [(_sign(rows), theme, _states(rows)) for theme, rows in themes]


def looked_line(looked: tuple[Looked, ...]) -> str:
    """How many checks there are of each state."""
    counted = [
        (sum(row.state == state for row in looked), text)
        for state, text in (
            ("fine", "fine"),
            ("found", "found something"),
            ("unknown", "asked what is not known"),
        )
    ]
    counts = ", ".join(f"{count} {text}" for count, text in counted if count)
    return f"{len(looked)} checks: {counts}"


def _sign(rows: list[Looked]) -> Sign:
    states = {row.state for row in rows}
    return "!" if "found" in states else "–" if "unknown" in states else "✓"


def _states(rows: list[Looked]) -> str:
    parts = []
    for state, text in (("found", "found"), ("unknown", "not known"), ("fine", "fine")):
        codes = [row.check.code for row in rows if row.state == state]
        if codes:
            parts.append(f"{text}: {', '.join(codes)}")
    return "; ".join(parts)


def _word(row: Looked) -> str:
    return {"found": "found", "fine": "not so", "unknown": "not known"}[row.state]


def _reasons(row: Looked) -> str:
    told = "; ".join(f"{item.fact}: {item.reason}" for item in row.unknown)
    return f" ({told})" if told else ""


HOSTS_SCHEMA = "cputune.hosts/1"


def hosts_document(diagnosis: HostsDiagnosis) -> dict[str, object]:
    """The ``cputune.hosts/1`` document: each host as it was seen, then the findings.

    ``host`` and what is told of it is null where it was not reached, ``reason`` where it was.
    """
    return {
        "schema": HOSTS_SCHEMA,
        "hosts": [_host(host) for host in diagnosis.hosts],
        "interface": asdict(interface_of(diagnosis)),
        "findings": [finding.to_json() for finding in diagnosis.findings],
        "summary": diagnosis.summary,
    }


def interface_of(diagnosis: HostsDiagnosis) -> Chosen:
    """The interface that a job over the hosts that were reached would be told."""
    seen = [(host.name, host.facts.network) for host in diagnosis.hosts if host.facts is not None]
    return choose_interface(seen)


def _interface_line(diagnosis: HostsDiagnosis) -> str:
    chosen = interface_of(diagnosis)
    return f"interface between the hosts: {chosen.name or 'none'} ({chosen.why})"


def _host(host: SeenHost) -> dict[str, object]:
    return {
        "name": host.name,
        "slots": host.node.slots,
        "reached": host.facts is not None,
        "reason": host.reason,
        "cure": host.cure,
        "seconds": round(host.seconds, 3),
        "clock_offset_seconds": host.clock_offset_seconds,
        "clock_uncertainty_seconds": host.clock_uncertainty_seconds,
        "python_path": host.python,
        "launch": dict(host.launch),
        "host": None if host.facts is None else host_document(host.facts),
        "findings": [finding.to_json() for finding in host.findings],
    }


def rows(diagnosis: HostsDiagnosis) -> Rows:
    """One row for each host: what people compare first."""
    headings = ("host", "CPU", "cores", "allowed", "memory", "Python", "torch", "MPI", "clock")
    return Rows(
        headings=headings,
        rows=tuple(_row(host, len(headings)) for host in diagnosis.hosts),
        right=frozenset({"memory", "clock"}),
    )


def _row(host: SeenHost, columns: int) -> tuple[str, ...]:
    facts = host.facts
    if facts is None:
        return (host.name, f"not reached: {host.reason}", *[""] * (columns - 2))
    memory = facts.memory.total_bytes
    torch = facts.package("torch")
    return (
        host.name,
        facts.cpu.codename or facts.cpu.model_name or "?",
        _cores(facts),
        cpulist.render(facts.topology.allowed) or "?",
        "?" if memory is None else gib(memory),
        facts.python or "?",
        "none" if torch is None else torch.version or "?",
        _mpi(facts),
        _clock(host.clock_offset_seconds),
    )


def _clock(offset_seconds: float | None) -> str:
    """How far a clock is from ours; tenths of a second are enough for anybody."""
    if offset_seconds is None:
        return "?"
    return "ours" if abs(offset_seconds) < 0.05 else f"{offset_seconds:+.1f} s"


def _cores(facts: HostFacts) -> str:
    topology = facts.topology
    if not (topology.cores_known and topology.sockets_known):
        return f"{len(topology.online)} CPUs"
    each = "/".join(map(str, sorted(set(topology.cores_per_socket))))
    return f"{topology.sockets} × {each}"


def _mpi(facts: HostFacts) -> str:
    found = next((one for one in facts.launchers if one.name in MPI_PROGRAMS), None)
    return "none" if found is None else f"{found.dialect or '?'} {found.version or ''}".strip()


def print_hosts(diagnosis: HostsDiagnosis, console: Console, *, stories: bool) -> None:
    """What it means in three lines, a row for each host, then the findings."""
    from rich.text import Text

    print_verdict(verdict_of(diagnosis), console)
    console.print()
    console.print(rich_table(rows(diagnosis)))
    console.print()
    console.print(Text(_interface_line(diagnosis)))
    print_findings(diagnosis.findings, console, stories=stories)
    if not stories:
        _print_way_on(diagnosis.findings, console)


def hosts_markdown(diagnosis: HostsDiagnosis) -> str:
    """The same for pasting into an issue."""
    count = len(diagnosis.hosts)
    lines = [f"## cputune doctor, {count} host{'s' * (count != 1)}", ""]
    lines += [*markdown_verdict(verdict_of(diagnosis)), *markdown_table(rows(diagnosis)), ""]
    lines += [f"{_interface_line(diagnosis).capitalize()}.", ""]
    return "\n".join([*lines, *markdown_findings(diagnosis.findings)])
