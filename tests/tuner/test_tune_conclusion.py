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


def rate(median: float) -> Throughput:
    return Throughput(centre=median, low=median / 1.1, high=median * 1.1)


def trials(*speeds: float) -> list[Trial]:
    """Completed trials at these samples per second, the baseline first."""
    return [
        Trial(number=n, plan=plan, state=COMPLETED, samples_per_second=rate(speed))
        for n, (plan, speed) in enumerate(zip([TODAY, *PLANS], speeds, strict=False))
    ]


def failed(*reasons: str | None, kind: str = "crashed") -> list[Trial]:
    return [
        Trial(number=n, plan=plan, state=FAILED, kind=kind, reason=reason)
        for n, (plan, reason) in enumerate(zip([TODAY, *PLANS], reasons, strict=False))
    ]


def contender(number: int, *logs: float | None, out: str | None = None) -> Contender:
    """Today's launch (0) or another plan, with its log seconds per sample in each round."""
    if number == 0:
        return Contender(role="baseline", plan=TODAY, logs=list(logs), out=out)
    return Contender(role="candidate", plan=PLANS[number - 1], logs=list(logs), out=out)


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


ALONE, TWO = trials(8.0), trials(8.0, 9.0)
ONE_BLOCK = confirmed(TODAY, FIRST, blocks=1)
NO_PORT = "crashed: exit code 134; its last line: bad port"
FELL = {"baseline": contender(0, out=NO_PORT), "rivals": [contender(1)]}
RIVAL_FELL = {"baseline": contender(0, 1.0), "rivals": [contender(1, out="crashed: it died")]}
NO_PAIRS = "the time limit was reached before two plans had run side by side twice"
KEEP, MORE_TIME = NextStep(kind="keep"), NextStep(seconds=LONGER)
UNDECIDED = [
    # (what was found, why nothing was compared, what to do)
    (Findings(trials=ALONE), "only one plan was measured", NextStep(kind="tune", budget=20)),
    (
        Findings(trials=ALONE, cut_off="after 2 steps"),
        "the time limit was reached before another plan had run",
        MORE_TIME,
    ),
    (Findings(trials=ALONE, time_up=True, confirm_runs=[*ONE_BLOCK]), NO_PAIRS, MORE_TIME),
    (Findings(trials=TWO, time_up=True), NO_PAIRS, MORE_TIME),
    (Findings(trials=[*ALONE, *failed("died\nhere")]), "every other plan failed: died", KEEP),
    (Findings(trials=TWO, interrupted=True), "the study was interrupted", NextStep()),
    (
        Findings(trials=TWO, host_lost=True),
        "a host can no longer be reached",
        NextStep(when="when it is reachable again"),
    ),
    (
        Findings(trials=TWO, **FELL),
        f"your current launch failed when restarted: {NO_PORT}",
        NextStep(kind="check"),
    ),
    (
        Findings(trials=TWO, **RIVAL_FELL),
        "every other plan failed when restarted: crashed: it died",
        KEEP,
    ),
]


class TestWithoutConfirmation:
    def test_single_trials_are_never_compared(self, golden: Golden) -> None:
        result = ended(Findings(trials=trials(8.0, 12.0, 16.0)))
        assert (result.baseline.plan, result.best.plan) == (TODAY, TODAY)
        assert result.speedup is None
        golden(result.not_compared)

    @every_row(("findings", "why", "step"), UNDECIDED)
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


@pytest.mark.parametrize(
    ("delayed", "words", "disturbed"),
    [(3, "nothing can be said of which plan is faster", True), (2, "at the end was", False)],
)
def test_notes_say_whether_the_machine_was_quiet_at_last(
    delayed: int, words: str, disturbed: bool
) -> None:
    findings = found(contender(0, 1, 1), contender(1, 0, 0), never_quiet=True, turns=4)
    findings.delayed_turns = delayed
    result = ended(findings)
    assert words in " ".join(result.notes)
    assert result.disturbed is disturbed
    assert (result.speedup is None) is disturbed

    def test_of_several_ranks_that_fill_the_last_batch_up(self) -> None:
        findings = found(contender(0, 1, 1), contender(5, 0, 0))
        for last, noted in ((7, True), (8, False)):
            job = replace(SMALL.workload, training=Training(last=last))
            result = ended(findings, workload=job)
            assert result.best.plan.world_size == 2
            assert ("has 8 samples instead of 7" in " ".join(result.notes)) is noted


def test_a_result_holds_what_it_was_made_of_and_with() -> None:
    versions = {"torch": "2.8.0", "optuna": None, "numpy": "2.0"}
    packages = (Package(name=name, version=of, location=None) for name, of in versions.items())
    facts = replace(SMALL.facts, python="3.11.9", packages=tuple(packages))
    run = ConfirmRun(round=0, role="baseline", plan=TODAY, samples_per_second=rate(8.0))
    findings = Findings(trials=trials(8.0, 16.0), confirm_runs=[run], data="made up")
    result = ended(findings, facts=facts)
    own = {"cputune": cputune.__version__, "python": "3.11.9"}
    assert result.versions == {**own, "torch": "2.8.0"}
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
        with golden.raises(NoValidTrialError):
            ended(Findings(cut_off="at once"))
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
        assert (str(error), error.details) == ("it has no Trainer", None)
        golden(error.hint)

    def test_shows_the_last_twelve_lines_of_what_the_script_wrote(self) -> None:
        lines = [f"line {number}" for number in range(20)]
        error = cannot_work(failed("\n".join(["died", *lines, "", ""])), hopeless=True)
        assert str(error.details).splitlines() == lines[8:]
