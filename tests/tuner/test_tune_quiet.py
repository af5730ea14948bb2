"""Claiming nothing where others have delayed most of it."""

from __future__ import annotations

import pytest
from tuner.fakes import SMALL

from cputune.layout import baseline_plan
from cputune.result import ConfirmRun
from cputune.tuner.measuring import Findings


def run(reason: str | None) -> ConfirmRun:
    plan = baseline_plan(SMALL.facts)
    return ConfirmRun(round=0, role="baseline", plan=plan, samples_per_second=None, reason=reason)


@pytest.mark.parametrize(
    ("findings", "disturbed"),
    [
        (Findings(), False),
        (Findings(never_quiet=True), True),
        (Findings(never_quiet=True, turns=24, delayed_turns=2), False),
        (Findings(turns=24, delayed_turns=13), True),
        (Findings(turns=24, delayed_turns=12), False),
        (Findings(confirm_runs=[run("contended: others"), run("contended: others")]), True),
        (Findings(confirm_runs=[run("contended: others"), run(None)]), False),
        (Findings(confirm_runs=[run(None)], shared=True, never_quiet=True), True),
        (Findings(never_quiet=True, confirm_runs=[run(None), run("crashed: x")]), False),
    ],
    ids=[
        "quiet",
        "no confirmation",
        "quiet at last",
        "most turns",
        "half of the turns",
        "most rounds",
        "half of the rounds",
        "delayed rounds that count",
        "failed",
    ],
)
def test_what_others_have_delayed_is_no_ground_for_a_claim(
    findings: Findings, disturbed: bool
) -> None:
    assert findings.disturbed == disturbed
