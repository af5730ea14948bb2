"""What the doctor says of several hosts: for the terminal, as JSON, as Markdown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cputune import cpulist
from cputune.carrier.interface import Chosen, choose_interface
from cputune.doctor.hosts import HostsDiagnosis, SeenHost
from cputune.facts import HostFacts
from cputune.probing.launchers import MPI_PROGRAMS
from cputune.report.diagnosis import markdown_findings, print_findings, verdict
from cputune.report.host import host_document
from cputune.report.machine import gib
from cputune.report.writing import Rows, markdown_table, rich_table

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "cputune.hosts/1"


def document(diagnosis: HostsDiagnosis) -> dict[str, Any]:
    """The ``cputune.hosts/1`` document: each host as it was seen, then the findings.

    ``host`` and what is told of it is null where it was not reached, ``reason`` where it was.
    """
    return {
        "schema": SCHEMA,
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


def _host(host: SeenHost) -> dict[str, Any]:
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


def print_text(diagnosis: HostsDiagnosis, console: Console, *, stories: bool) -> None:
    """How many findings, a row for each host, then the findings."""
    from rich.text import Text

    console.print(Text(verdict(diagnosis), style="bold"))
    console.print()
    console.print(rich_table(rows(diagnosis)))
    console.print()
    console.print(Text(_interface_line(diagnosis)))
    print_findings(diagnosis.findings, console, stories=stories)
    if diagnosis.findings and not stories:
        code = diagnosis.findings[0].code
        console.print()
        console.print(Text(f"The story of a finding: cputune doctor --explain {code}", "dim"))


def markdown(diagnosis: HostsDiagnosis) -> str:
    """The same for pasting into an issue."""
    count = len(diagnosis.hosts)
    lines = [f"## cputune doctor, {count} host{'s' * (count != 1)}", ""]
    lines += [verdict(diagnosis).capitalize() + ".", "", *markdown_table(rows(diagnosis)), ""]
    lines += [f"{_interface_line(diagnosis).capitalize()}.", ""]
    return "\n".join([*lines, *markdown_findings(diagnosis.findings)])
