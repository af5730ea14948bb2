"""A study in words: a line for each event, a verdict and a table at the end."""

from __future__ import annotations

from dataclasses import replace

from confirmed import BUSY
from golden_texts import Golden
from report.result_cases import printed
from rows import every_row
from tuner.fakes import SMALL, VARIED

import cputune
from cputune import ConfirmRun, ConfirmStarted, Event, Message, Result, StudyStarted, TrialStarted
from cputune.plans.knobs.record import LeftOut
from cputune.plans.untried import UntriedGain
from cputune.records.claims import Speedup
from cputune.records.shared_texts import saved, verdict_of
from cputune.report.study_table import line_of, plans
from cputune.tuner.events import outcome

SPACE = cputune.search_space(SMALL.facts, SMALL.workload, knobs=VARIED)
PLAN = next(SPACE.plans())
FAILED_ROUND = ConfirmRun(
    round=1, plan=PLAN, role="baseline", samples_per_second=None, reason="crashed: x"
)
LEGEND = max(SPACE.plans(), key=lambda plan: plan.processes_per_node).legend()
TWENTY = f"{len(SPACE)} plans, at most 20 trials; {LEGEND}"


@every_row(
    ("event", "line"),
    [
        (StudyStarted(space=SPACE, budget=20), TWENTY),
        (StudyStarted(space=SPACE, budget=20, start_seconds=9.0), TWENTY),
        (
            StudyStarted(space=SPACE, budget=9, resumed=2),
            f"{len(SPACE)} plans, at most 9 trials, 2 trials on record; {LEGEND}",
        ),
        (Message(text="trial 3: run again", warns=True), "trial 3: run again"),
        (ConfirmStarted(plans=(PLAN, PLAN)), "measuring 2 plans again, side by side"),
        (FAILED_ROUND, "round 2: crashed: x  1×2 fp32"),
        (Message(text="importing torch"), None),
        (TrialStarted(number=0, plan=PLAN, origin="guide"), None),
    ],
)
def test_a_line_for_an_event(event: Event, line: str | None) -> None:
    assert line_of(event) == line


def test_of_a_trial_that_lost_no_number_is_shown(result: Result, golden: Golden) -> None:
    lost = replace(
        next(trial for trial in result.trials if trial.state == "pruned"),
        at_most_samples_per_second=None,
        steps=1,
    )
    plan = lost.plan.short()
    golden(outcome(lost))
    known = replace(lost, at_most_samples_per_second=9.0)
    assert outcome(known) == outcome(lost), "a guess from few steps is no speed"
    table = printed([plans(replace(result, trials=(lost,)))])
    row = next(line for line in table.splitlines() if plan in line)
    assert row.split()[:2] == [str(lost.number), "–"]
    golden(row)


def test_the_table_has_the_fastest_first_and_failures_last(result: Result, golden: Golden) -> None:
    why = {"kind": "out of memory", "reason": "killed\nat 3 GB"}
    failed = replace(result.trials[2], state="failed", samples_per_second=None, **why)
    trials = (*result.trials[:2], failed, *result.trials[3:])
    lines = printed([plans(replace(result, trials=trials))], 200).splitlines()[1:]
    assert sum(line.rstrip().endswith("best") for line in lines) == 1
    speeds = [float(line.split()[1]) for line in lines if line.split()[1][0].isdigit()]
    assert speeds == sorted(speeds, reverse=True)
    assert lines[-1].split()[:2] == ["2", "–"]
    golden(lines[-1])
    assert "at 3 GB" not in lines[-1]


def test_the_verdict(result: Result, golden: Golden) -> None:
    gain = result.speedup
    said = verdict_of(result, "cputune run cputune.json")
    hour = f"an hour of training takes {60 / gain.ratio:.0f} min"
    assert said.lines() == (
        f"{gain.ratio:.2f} times as fast as your current launch: {hour}.",
        "Do now: cputune run cputune.json",
        f"How sure: 95 % interval {gain.low:.2f}–{gain.high:.2f}, {gain.pairs} pairs side by side",
    )
    alike = Speedup(ratio=1.01, low=0.98, high=1.04, pairs=2)
    same = replace(result, best=result.baseline, speedup=alike, untried=(), left_out=())
    best_other = "is as fast as the best other plan, within 5%"
    assert verdict_of(same, "").means == f"Your current launch {best_other}."
    missing = UntriedGain(what="no tcmalloc", low=1.1, high=1.3, takes="one command", do="get it")
    untried = verdict_of(replace(same, untried=(missing,)), "").means
    assert untried.endswith(f"{best_other}; not tried: no tcmalloc.")
    left_out = tuple(LeftOut(what=what, why="not here") for what in ("ipex", "openmp", "ipex"))
    golden(verdict_of(replace(same, left_out=left_out), "").means)


def test_the_gain_is_said_in_time_and_money_if_the_whole_training_is_known(
    result: Result, golden: Golden
) -> None:
    speed = replace(result.baseline.samples_per_second, centre=10.0)
    known = replace(
        result,
        baseline=replace(result.baseline, samples_per_second=speed),
        speedup=Speedup(ratio=2.5, low=2.4, high=2.6, pairs=2),
        workload=replace(result.workload, samples_to_end=204_000, epochs=3.0),
        seconds=120.0,
        price_per_hour=0.6,
        hosts=(),
    )
    golden(saved(known, 2.5))
    steps = replace(known, workload=replace(known.workload, epochs=None), price_per_hour=None)
    assert saved(steps, 2.5).startswith("your training: 2 h 16 min instead of")


def test_a_factor_is_said_only_if_it_is_known_well(result: Result, golden: Golden) -> None:
    wide = replace(result, speedup=Speedup(ratio=14.15, low=3.65, high=54.78, pairs=2))
    said = verdict_of(wide, "")
    golden(said.means)
    golden(said.sure)
    unsure = replace(
        wide, best=wide.baseline, speedup=Speedup(ratio=1.1, low=0.7, high=1.7, pairs=2)
    )
    undecided = verdict_of(unsure, "")
    assert unsure.outcome == "undecided"
    golden(undecided.means)
    assert "as fast as the best" not in undecided.means
    golden(undecided.sure)
    assert "14" not in " ".join(verdict_of(replace(wide, **BUSY), "").lines())


def test_what_a_long_start_costs_is_said_before(golden: Golden) -> None:
    golden(line_of(StudyStarted(space=SPACE, budget=3, start_seconds=38.0)))
