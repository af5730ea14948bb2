"""What is not known triggers nothing, and nothing that a machine says breaks a check."""

from __future__ import annotations

from dataclasses import replace

from clean_machine import changed
from doctor_machines import VARIABLES
from hypothesis import given, settings, strategies as st
from unknown_machine import UNKNOWN

from cputune import diagnose
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


def test_every_check_tells_its_story() -> None:
    for check in CHECKS:
        assert "Symptom:" in check.story, check.code
        assert "Cause:" in check.story, check.code
        assert check.remedy.endswith("."), check.code
        assert not check.title.endswith("."), check.code
