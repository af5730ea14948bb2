"""What is not known triggers nothing, and nothing that a machine says breaks a check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clean_machine import changed
from doctor_machines import VARIABLES
from golden_texts import Golden
from hosts.builder import machine
from hypothesis import given, settings, strategies as st
from unknown_machine import UNKNOWN

from cputune import Severity, diagnose, probe
from cputune.doctor.checks import CHECKS

NOTHING = replace(UNKNOWN, recorded=True)

TEXTS = st.one_of(
    st.text(max_size=20),
    st.integers(min_value=-(10**20), max_value=10**20).map(str),
    st.sampled_from(
        ["[0x3,0xc]", "[", "{0}:9:-1", "{0:4}:2:4", "0-9999999", "auto", "٣", "²", "-", "9" * 5000]
    ),
)


def test_no_facts_no_findings_but_that_they_are_missing() -> None:
    assert [finding.code for finding in diagnose(NOTHING).findings] == ["facts-missing"]


@given(variables=st.dictionaries(st.sampled_from(list(VARIABLES)), TEXTS, min_size=1))
@settings(deadline=None, max_examples=60)
def test_no_value_of_a_variable_breaks_a_check(variables: dict[str, str]) -> None:
    for facts in (changed(environment=variables), changed(NOTHING, environment=variables)):
        for finding in diagnose(facts).findings:
            assert finding.evidence
            assert finding.title
            assert finding.remedy
            assert finding.source


def test_a_recording_without_packages_is_not_judged_for_what_it_lacks(tmp_path: Path) -> None:
    codes = {finding.code for finding in diagnose(probe(machine(tmp_path, sockets=2))).findings}
    assert codes <= {"bf16-native"}


def test_findings_are_sorted_by_severity() -> None:
    facts = changed(
        environment={"GLOO_SOCKET_IFNAME": "ens3", "OMP_NUM_THREADS": "1"},
        settings={"turbo": False},
    )
    ranks = [finding.severity.rank for finding in diagnose(facts).findings]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 3


def test_advice_says_what_it_is_worth_and_a_fault_does_not(golden: Golden) -> None:
    facts = changed(environment={"LD_PRELOAD": None, "OMP_NUM_THREADS": None})
    found = {finding.code: finding for finding in diagnose(facts).findings}
    known, open_ = found["allocator-default"], found["threads-one"]
    golden(known.worth_words)
    assert known.to_json()["worth"] == (1.12, 1.30)
    assert (open_.worth_words, open_.to_json()["worth"]) == ("Worth: not known.", None)
    assert replace(known, severity=Severity.ERROR).worth_words == ""
    assert replace(open_, code="stack-fits").worth_words == ""


def test_every_check_tells_its_story() -> None:
    for check in CHECKS:
        assert "Symptom:" in check.story, check.code
        assert "Cause:" in check.story, check.code
        assert check.remedy.endswith("."), check.code
        assert not check.title.endswith("."), check.code
