"""A diagnosis on paper: hostile text stays text, long lines keep their colour."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import CLEAN, IPEX_ERA, changed
from golden_texts import Golden
from hosts.builder import machine
from rich.console import Console

from cputune import Diagnosis, Finding, HostFacts, Severity, diagnose, probe
from cputune.doctor.registry import all_checks
from cputune.host.facts import Unknown
from cputune.plans.untried import SLOWER
from cputune.records.shared_texts import Verdict
from cputune.report.diagnosis import blocks, verdict, verdict_of
from cputune.report.writing import FindingRows, Lines, print_blocks

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


def test_a_long_title_has_one_color_on_all_of_its_lines(facts: HostFacts, golden: Golden) -> None:
    lines = colored(facts, finding(text="a long title " * 12))
    first = next(number for number, line in enumerate(lines) if "a long title" in line)
    golden(lines[first])
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


def test_a_verdict_is_said_also_without_findings(facts: HostFacts) -> None:
    assert verdict(Diagnosis(facts=facts, findings=())).startswith("nothing is wrong")
    assert verdict(Diagnosis(facts=facts, findings=(finding(), finding("b")))) == "2 warnings"


def warned(*codes: str) -> str:
    found = tuple(finding(code) for code in codes)
    return verdict_of(Diagnosis(facts=CLEAN, findings=found)).means


def test_only_what_makes_training_slower_is_called_slower(golden: Golden) -> None:
    golden(warned("machine-busy", "threads-mkl"))
    for others in (("folder-unusable",), ("machine-busy", "folder-unusable"), ("torch-missing",)):
        assert "Training runs" not in warned(*others)
    assert "slower" not in warned("folder-unusable")
    assert warned("torch-missing", "machine-busy").startswith("Nothing trains here")
    assert {check.code for check in all_checks()} >= SLOWER


FAULTS_TOGETHER: tuple[dict[str, Any], ...] = (
    {},
    {"environment": {"OMP_NUM_THREADS": "many", "LOCAL_RANK": "1", "RANK": "1", "KMP_TPAUSE": "0"}},
    {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MALLOC_CONF": "background_thread:true"}},
    {"limits": {"cpu_quota": 1.5}, "environment": {"OMP_NUM_THREADS": "28"}},
    {"packages": IPEX_ERA, "environment": {"CCL_WORKER_COUNT": "64", "WORLD_SIZE": "2"}},
)


def test_the_headline_counts_what_is_shown_below_it() -> None:
    """It said "4 pieces of advice" above two, and "5 errors" above three."""
    for changes in FAULTS_TOGETHER:
        found = diagnose(changed(**changes))
        for unfold in (False, True):
            verdict, *rest = blocks(found, unfold=unfold)
            rows = [f for block in rest if isinstance(block, FindingRows) for f in block.findings]
            tried = [block for block in rest if isinstance(block, Lines) and "tries" in str(block)]
            assert isinstance(verdict, Verdict)
            for severity, word in (("error", "error"), ("warning", "warning"), ("advice", "piece")):
                many = sum(row.severity.value == severity for row in rows)
                counted = re.search(rf"(\d+) {word}", verdict.means)
                assert many == (int(counted[1]) if counted else 0)
            assert bool(tried) == ("cputune tune tries" in verdict.means)
        assert diagnose(changed(**changes)).summary["advice"] == sum(
            f.severity is Severity.ADVICE for f in found.findings
        ), "the document counts each finding"


def test_a_factor_names_what_it_was_read_on() -> None:
    advice = replace(finding("allocator-missing"), severity=Severity.ADVICE)
    assert "×1.12–1.30, 2 x86 cores" in advice.worth_words
    assert replace(advice, code="other").worth_words == "Worth: not known."
    found = diagnose(CLEAN)
    for unfold in (False, True):
        stream = io.StringIO()
        print_blocks(blocks(found, unfold=unfold), Console(file=stream, width=400))
        for line in re.findall(r".*×\d.*", stream.getvalue()):
            assert len(re.findall(r"×\d", line)) == line.count(", 2 x86 cores")
