"""What the doctor looked at: found, fine, or not to be told; silence alone is no clean bill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts.builder import machine

from cputune.doctor import diagnose
from cputune.doctor.registry import CHECKS, THEMES, looked_at
from cputune.facts import HostFacts, Unknown
from cputune.probing import probe


@pytest.fixture
def facts(tmp_path: Path) -> HostFacts:
    return probe(machine(tmp_path, sockets=2, cores=4, smt=2))


def states(facts: HostFacts) -> dict[str, str]:
    return {row.check.code: row.state for row in looked_at(facts)}


def test_every_check_has_one_row_in_its_theme(facts: HostFacts) -> None:
    rows = looked_at(facts)
    assert [row.check for row in rows] == list(CHECKS)
    assert {row.theme for row in rows} == set(THEMES)


def test_what_is_found_is_what_the_diagnosis_finds(facts: HostFacts) -> None:
    found = {code for code, state in states(facts).items() if state == "found"}
    assert found == {finding.code for finding in diagnose(facts).findings}


def test_a_check_that_read_a_fact_nobody_knows_is_not_fine(facts: HostFacts) -> None:
    blind = replace(
        facts,
        settings=replace(facts.settings, turbo=None),
        unknown=(Unknown(fact="settings.turbo", reason="the kernel does not say"),),
    )
    assert [code for code, state in states(blind).items() if state == "unknown"] == ["turbo-off"]
    known = replace(blind, unknown=())
    assert "unknown" not in states(known).values()


def test_an_unknown_governor_is_told_by_the_frequencies(facts: HostFacts) -> None:
    blind = replace(
        facts,
        settings=replace(facts.settings, governor=None, frequencies=()),
        unknown=(Unknown(fact="settings.governor", reason="no such file"),),
    )
    assert states(blind)["governor"] == "unknown"


def test_what_was_found_elsewhere_is_not_called_fine(facts: HostFacts) -> None:
    (row,) = (row for row in looked_at(facts, {"niced"}) if row.check.code == "niced")
    assert row.state == "found"
