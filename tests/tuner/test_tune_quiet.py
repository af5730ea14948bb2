"""Waiting until it is quiet, and claiming nothing where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from tuner.fakes import SMALL

from cputune.errors import NotMeasurableError
from cputune.layout import baseline_plan
from cputune.result import ConfirmRun
from cputune.tuner.events import Disturbed
from cputune.tuner.measuring import Findings
from cputune.tuner.study import wait_until_quiet

STRESS = "stress (process 7) 98 % of a CPU"


def waited(
    looks: Sequence[Sequence[str]], most_seconds: float | None
) -> tuple[list[object], list[float]]:
    """What was told, and how long was waited each time; each look sees the next of ``looks``."""
    seen: Iterator[Sequence[str]] = iter(looks)
    events: list[object] = []
    pauses: list[float] = []
    wait_until_quiet(
        lambda: next(seen),
        events.append,
        most_seconds=most_seconds,
        clock=lambda: sum(pauses),
        pause=pauses.append,
    )
    return events, pauses


def test_who_computes_here_is_told_and_not_waited_for() -> None:
    assert waited([[STRESS]], None) == ([Disturbed(neighbours=(STRESS,), waiting=False)], [])


@pytest.mark.parametrize("later", [[(), ()], [(), [STRESS], (), ()]])
def test_where_it_is_asked_for_a_quiet_machine_is_waited_for(later: list[list[str]]) -> None:
    events, pauses = waited([[STRESS], *later], 600)
    assert events == [Disturbed(neighbours=(STRESS,), waiting=True)]
    assert pauses == [4.0] * len(later)


def test_one_that_does_not_get_quiet_is_not_measured() -> None:
    with pytest.raises(NotMeasurableError, match="it was not quiet in 12 s") as caught:
        waited([[STRESS], [STRESS], ["make"], ()], 12.0)
    assert caught.value.details == "busy now: make"
    assert caught.value.exit_code == 4


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
