"""From what a study has found to what it recommends, claims and says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from confirmed import confirmed
from golden_texts import Golden
from rows import every_row
from tuner.fakes import PLANS, SMALL

import cputune
from cputune import (
    ConfirmRun,
    HostFacts,
    NoValidTrialError,
    Result,
    Trial,
    TuneOptions,
    Workload,
)
from cputune.host.facts import Package
from cputune.plans.equivalence import Training
from cputune.plans.knobs.record import LeftOut
from cputune.plans.layout import baseline_plan
from cputune.records.claims import host_fingerprint
from cputune.records.next_command import NextStep
from cputune.records.result import COMPLETED, FAILED, Throughput
from cputune.tuner.conclusion import cannot_work, conclude
from cputune.tuner.contenders import Contender, gain_of
from cputune.tuner.measuring import Findings

SPACE = cputune.search_space(SMALL.facts, SMALL.workload)
TODAY = baseline_plan(SMALL.facts)
FIRST, SECOND = PLANS[:2]
NOISE = 0.05


def rate(median: float, within: float = 1.1) -> Throughput:
    return Throughput(centre=median, low=median / within, high=median * within)


def trials(today: float | None, *others: float, within: float = 1.1) -> list[Trial]:
    """Completed trials at these samples per second; None: today's launch was not tried."""
    plans = [TODAY, *PLANS] if today is not None else PLANS
    speeds = others if today is None else (today, *others)
    return [
        Trial(number=n, plan=plan, state=COMPLETED, samples_per_second=rate(speed, within))
        for n, (plan, speed) in enumerate(zip(plans, speeds, strict=False))
    ]


def failed(*reasons: str | None, kind: str = "crashed") -> list[Trial]:
    return [
        Trial(number=n, plan=plan, state=FAILED, kind=kind, reason=reason)
        for n, (plan, reason) in enumerate(zip([TODAY, *PLANS], reasons, strict=False))
    ]


def contender(number: int, *logs: float | None, out: str | None = None) -> Contender:
    """Today's launch (0) or another plan, with its log seconds per sample in each round."""
    return Contender(
        role="candidate" if number else "baseline",
        plan=PLANS[number - 1] if number else TODAY,
        logs=list(logs),
        out=out,
    )


LONGER = 2 * 1.23456
"""Twice the seconds of ``ended``."""


def found(baseline: Contender, *rivals: Contender, **more: object) -> Findings:
    """What a confirmation of two blocks has left."""
    for one in (baseline, *rivals):
        one.blocks = [int(2 * at >= len(one.logs)) for at in range(len(one.logs))]
    runs = confirmed(baseline.plan, *(one.plan for one in rivals if one.measured), turns=99)
    return Findings(
        trials=trials(8.0, 16.0),
        baseline=baseline,
        rivals=list(rivals),
        confirm_runs=list(runs),
        **more,
    )


def ended(
    findings: Findings,
    left_out: tuple[LeftOut, ...] = SPACE.left_out,
    facts: HostFacts = SMALL.facts,
    workload: Workload = SMALL.workload,
) -> Result:
    return conclude(
        findings,
        facts=facts,
        workload=workload,
        left_out=left_out,
        options=TuneOptions(seed=7),
        created="today",
        noise=NOISE,
        seconds=1.23456,
    )


def said(findings: Findings) -> str:
    return " ".join(ended(findings).notes)


class TestWithoutConfirmation:
    def test_single_trials_are_never_compared(self, golden: Golden) -> None:
        result = ended(Findings(trials=trials(8.0, 12.0, 16.0)))
        assert (result.baseline.plan, result.best.plan) == (TODAY, TODAY)
        assert result.speedup is None
        golden(result.not_compared)

    @every_row(
        ("findings", "why", "step"),
        [
            (
                Findings(trials=trials(8.0)),
                "only one plan was measured",
                NextStep(kind="tune", budget=20),
            ),
            (
                Findings(trials=trials(8.0), cut_off="after 2 steps"),
                "the time limit was reached before another plan had run",
                NextStep(seconds=LONGER),
            ),
            (
                Findings(
                    trials=trials(8.0),
                    time_up=True,
                    confirm_runs=[*confirmed(TODAY, FIRST, blocks=1)],
                ),
                "the time limit was reached before two plans had run side by side twice",
                NextStep(seconds=LONGER),
            ),
            (
                Findings(trials=[*trials(8.0), *failed("died\nat all")]),
                "every other plan failed: died",
                NextStep(kind="keep"),
            ),
            (
                Findings(trials=trials(8.0, 9.0), interrupted=True),
                "the study was interrupted",
                NextStep(),
            ),
            (
                Findings(trials=trials(8.0, 9.0), host_lost=True),
                "a host can no longer be reached",
                NextStep(when="when it is reachable again"),
            ),
            (
                Findings(trials=trials(8.0, 9.0), time_up=True),
                "the time limit was reached before two plans had run side by side twice",
                NextStep(seconds=LONGER),
            ),
            (
                Findings(
                    trials=trials(8.0, 9.0),
                    baseline=contender(0, out="crashed: exit code 134; its last line: bad port"),
                    rivals=[contender(1)],
                ),
                "your current launch failed when restarted: "
                "crashed: exit code 134; its last line: bad port",
                NextStep(kind="check"),
            ),
            (
                Findings(
                    trials=trials(8.0, 9.0),
                    baseline=contender(0, 1.0),
                    rivals=[contender(1, out="crashed: rank 0 died")],
                ),
                "every other plan failed when restarted: crashed: rank 0 died",
                NextStep(kind="keep"),
            ),
        ],
    )
    def test_why_nothing_was_compared_and_what_to_do(
        self, findings: Findings, why: str, step: NextStep
    ) -> None:
        result = ended(findings)
        assert (result.not_compared, result.next_step) == (why, step)


class TestConfirmed:
    def test_the_gain_is_that_of_the_rounds(self) -> None:
        base, rival = contender(0, *[1.0, 1.1, 1.0] * 2), contender(1, *[0.3, 0.3, 0.4] * 2)
        result = ended(found(base, rival))
        gain = gain_of(base, rival, NOISE)
        assert gain is not None
        assert result.speedup == gain.speedup
        assert result.speedup.pairs == 6
        assert (result.baseline.plan, result.best.plan) == (TODAY, FIRST)
        assert result.baseline.samples_per_second.centre == pytest.approx(math.exp(-3.1 / 3))
        assert result.best.samples_per_second.centre == pytest.approx(math.exp(-1.0 / 3))
        assert result.notes == ()

    def test_no_gain_leaves_the_baseline_and_says_what_was_seen(self, golden: Golden) -> None:
        result = ended(found(contender(0, 1.0, 1.0), contender(1, 0.98, 1.0)))
        assert result.best == result.baseline
        golden(result.notes[0])


class TestNotes:
    @pytest.mark.parametrize(
        ("delayed", "words", "disturbed"),
        [
            (3, "nothing can be said of which plan is faster", True),
            (2, "at the end was quiet", False),
        ],
    )
    def test_of_a_machine_that_is_never_quiet(
        self, delayed: int, words: str, disturbed: bool
    ) -> None:
        findings = found(contender(0, 1, 1), contender(1, 0, 0), never_quiet=True, turns=4)
        findings.delayed_turns = delayed
        assert words in said(findings)
        assert ended(findings).disturbed is disturbed
        assert (ended(findings).speedup is None) is disturbed

    def test_of_several_ranks_that_fill_the_last_batch_up(self) -> None:
        findings = found(contender(0, 1, 1), contender(5, 0, 0))
        for last, noted in ((7, True), (8, False)):
            job = replace(SMALL.workload, training=Training(last=last))
            result = ended(findings, workload=job)
            assert result.best.plan.world_size == 2
            assert ("has 8 samples instead of 7" in " ".join(result.notes)) is noted


def test_a_result_holds_what_it_was_made_of_and_with() -> None:
    facts = replace(
        SMALL.facts,
        python="3.11.9",
        packages=(
            Package(name="torch", version="2.8.0", location=None),
            Package(name="optuna", version=None, location=None),
            Package(name="numpy", version="2.0", location=None),
        ),
    )
    run = ConfirmRun(round=0, role="baseline", plan=TODAY, samples_per_second=rate(8.0))
    findings = Findings(trials=trials(8.0, 16.0), confirm_runs=[run], data="made up")
    result = ended(findings, facts=facts)
    assert result.versions == {
        "cputune": cputune.__version__,
        "python": "3.11.9",
        "torch": "2.8.0",
    }
    assert (result.budget, result.seed, result.created, result.seconds) == (20, 7, "today", 1.235)
    assert result.trials == tuple(findings.trials)
    assert (result.confirmation, result.data) == ((run,), "made up")
    assert result.left_out == SPACE.left_out != ()
    assert ended(findings, left_out=()).left_out == ()
    assert result.host == host_fingerprint(facts)
    unknown = replace(facts, python=None, packages=())
    assert list(ended(findings, facts=unknown).versions) == ["cputune"]


class TestNothingValid:
    def test_says_what_the_failures_were_and_how_the_first_failed(self, golden: Golden) -> None:
        wrong = failed("no such file\nat all", "rank 1 died") + failed("slow", kind="timed out")
        with pytest.raises(NoValidTrialError) as caught:
            ended(Findings(trials=wrong))
        golden(str(caught.value))
        golden(caught.value.hint)

    def test_says_where_the_time_went(self, golden: Golden) -> None:
        with pytest.raises(NoValidTrialError) as raised:
            ended(Findings(cut_off="at once"))
        golden(raised.value)
        with pytest.raises(NoValidTrialError, match="1 crashed"):
            ended(Findings(trials=failed("died"), cut_off="at once"))


class TestCannotWork:
    @every_row(
        "wrong",
        [
            [],
            trials(8.0),
            failed("died"),
            failed("died", "hung"),
            [*failed("died"), *failed("died", kind="timed out")],
            [*failed("died"), *trials(8.0)],
            [*trials(8.0), *failed("died")],
            failed("busy", "busy", kind="contended"),
            failed("died", "died", "died"),
        ],
    )
    def test_is_not_said_of_what_may_work(self, wrong: list[Trial]) -> None:
        assert cannot_work(wrong, hopeless=False) is None

    def test_is_said_of_what_is_hopeless(self, golden: Golden) -> None:
        error = cannot_work(failed("it has no Trainer"), hopeless=True)
        assert error is not None
        assert (str(error), error.details) == ("it has no Trainer", None)
        golden(error.hint)

    def test_shows_the_last_twelve_lines_of_what_the_script_wrote(self) -> None:
        lines = [f"line {number}" for number in range(20)]
        error = cannot_work(failed("\n".join(["died", *lines, "", ""])), hopeless=True)
        assert error is not None
        assert str(error.details).splitlines() == lines[8:]
