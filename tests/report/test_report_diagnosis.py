"""A diagnosis on paper: hostile text stays text, long lines keep their colour."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from clean_machine import CLEAN
from golden_texts import Golden
from hosts.builder import machine
from report.result_cases import printed

from cputune import Diagnosis, Finding, Severity, diagnose, probe
from cputune.doctor.registry import all_checks
from cputune.plans.untried import SLOWER
from cputune.report.diagnosis import blocks, verdict_of

HOSTILE = "`touch pwned`; $(touch pwned) \x1b[31m\n touch pwned"


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


def test_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path / "machine", sockets=2, cores=4))
    hostile = Diagnosis(facts=facts, findings=(finding(text=HOSTILE, command="echo \x1b[2J"),))
    assert "\x1b" not in printed(blocks(hostile), 80)


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


def test_a_factor_names_what_it_was_read_on() -> None:
    advice = replace(finding("allocator-missing"), severity=Severity.ADVICE)
    assert "×1.12–1.30, 2 x86 cores" in advice.worth_words
    assert replace(advice, code="other").worth_words == "Worth: not known."
    found = diagnose(CLEAN)
    for unfold in (False, True):
        for line in re.findall(r".*×\d.*", printed(blocks(found, unfold=unfold), 400)):
            assert len(re.findall(r"×\d", line)) == line.count(", 2 x86 cores")
