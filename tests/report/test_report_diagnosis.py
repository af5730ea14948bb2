"""A diagnosis on paper: hostile text stays text, long lines keep their colour."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hosts.builder import machine
from rich.console import Console

from cputune.doctor import Diagnosis, Finding, Severity
from cputune.host.facts import HostFacts, Unknown
from cputune.host.probing import probe
from cputune.report.diagnosis import blocks, verdict
from cputune.report.writing import print_blocks

HOSTILE = "`touch pwned`; $(touch pwned) \x1b[31m\n touch pwned"


@pytest.fixture
def facts(tmp_path: Path) -> HostFacts:
    return probe(machine(tmp_path / "machine", sockets=2, cores=4))


def finding(code: str = "some-code", command: str | None = None, text: str = "seen") -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        title=text,
        evidence=text,
        remedy=text,
        command=command,
        source="owner/repo#1",
    )


def test_control_characters_reach_no_terminal(facts: HostFacts) -> None:
    stream = io.StringIO()
    hostile = Diagnosis(facts=facts, findings=(finding(text=HOSTILE, command="echo \x1b[2J"),))
    print_blocks(blocks(hostile), Console(file=stream, width=80, no_color=True))
    assert "\x1b" not in stream.getvalue()


def colored(facts: HostFacts, *found: Finding) -> list[str]:
    stream = io.StringIO()
    out = Console(file=stream, width=80, force_terminal=True, color_system="standard")
    print_blocks(blocks(Diagnosis(facts=facts, findings=found)), out)
    return stream.getvalue().splitlines()


def test_a_long_title_has_one_color_on_all_of_its_lines(facts: HostFacts) -> None:
    lines = colored(facts, finding(text="a long title " * 12))
    first = next(number for number, line in enumerate(lines) if "a long title" in line)
    assert lines[first].startswith("\x1b[1;33mwarning \x1b[0m\x1b[1ma long")
    assert lines[first + 1].startswith("        \x1b[1mtitle a")


def test_unknown_facts_are_one_line_until_stories_are_asked_for(facts: HostFacts) -> None:
    blind = replace(
        facts, unknown=tuple(Unknown(fact=f"load.{n}", reason=f"why {n}") for n in range(5))
    )
    for stories, shown in ((False, 1), (True, 5)):
        stream = io.StringIO()
        out = Console(file=stream, width=80, no_color=True)
        print_blocks(blocks(Diagnosis(facts=blind, findings=()), unfold=stories), out)
        rows = [line for line in stream.getvalue().splitlines() if line.startswith("unknown ")]
        assert len(rows) == shown
        assert ("load.3: why 3" in stream.getvalue()) == stories


def test_a_verdict_is_said_when_there_is_none(facts: HostFacts) -> None:
    assert verdict(Diagnosis(facts=facts, findings=())).startswith("nothing is wrong")
    assert verdict(Diagnosis(facts=facts, findings=(finding(), finding("b")))) == "2 warnings"
