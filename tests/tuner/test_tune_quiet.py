"""Waiting until it is quiet, and claiming nothing where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from tuner.fakes import SMALL

from cputune.errors import NotMeasurableError
from cputune.layout import baseline_plan
from cputune.result import ConfirmRun
from cputune.tuner.events import Disturbed
from cputune.tuner.findings import Findings, is_disturbed
from cputune.tuner.quiet import AGAIN_SECONDS, wait_until_quiet

STRESS = "stress (process 7) 98 % of a CPU"


def waited(looks: Sequence[Sequence[str]], most_seconds: float | None) -> tuple[list[object], int]:
    """What was told, and how often was waited; each look sees the next of ``looks``."""
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
    return events, len(pauses)


def test_on_a_quiet_machine_nothing_is_said() -> None:
    assert waited([()], 600) == ([], 0)


def test_who_computes_here_is_told_and_not_waited_for() -> None:
    assert waited([[STRESS]], None) == ([Disturbed(neighbours=(STRESS,), waiting=False)], 0)


def test_where_it_is_asked_for_a_quiet_machine_is_waited_for() -> None:
    events, pauses = waited([[STRESS], [STRESS], (), [STRESS], (), ()], 600)
    assert events == [Disturbed(neighbours=(STRESS,), waiting=True)]
    assert pauses == 5


def test_one_that_does_not_get_quiet_is_not_measured() -> None:
    with pytest.raises(NotMeasurableError, match="not measurable today") as caught:
        waited([[STRESS]] * 10, 3 * AGAIN_SECONDS)
    assert STRESS in str(caught.value.details)
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
        (Findings(confirm_runs=[run("contended: others"), run("contended: others")]), True),
        (Findings(never_quiet=True, confirm_runs=[run(None), run("crashed: x")]), False),
    ],
    ids=["quiet", "no confirmation", "quiet at last", "most turns", "most rounds", "failed"],
)
def test_what_others_have_delayed_is_no_ground_for_a_claim(
    findings: Findings, disturbed: bool
) -> None:
    assert is_disturbed(findings) == disturbed
