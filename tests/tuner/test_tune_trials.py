"""The record of a trial: a number, a bound, or the reason why there is neither."""

from __future__ import annotations

import math

import pytest
from tuner.fakes import PLANS

from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, State, Trial
from cputune.steps import Crashed
from cputune.tuner.measuring import at_most, shortened, trial_of, was_disturbed
from cputune.tuner.race import Estimate, Race
from cputune.tuner.reading import Run

LEVEL = [math.log(0.5)] * 8


def recorded(run: Run, race: Race | None = None) -> Trial:
    return trial_of(
        run,
        race or Race(),
        number=3,
        plan=PLANS[0],
        origin="guide",
        step_seconds=9.0,
        observed=({"threads": 2},),
    )


def test_says_what_was_run_and_seen() -> None:
    trial = recorded(Run(logs=LEVEL, steps=9, delayed=1, verdict="enough"))
    assert (trial.number, trial.plan, trial.origin, trial.state) == (
        3,
        PLANS[0],
        "guide",
        COMPLETED,
    )
    assert (trial.steps, trial.delayed_steps, trial.warmup_steps) == (9, 1, 1)
    assert (trial.step_seconds, trial.observed, trial.reason) == (9.0, ({"threads": 2},), None)
    assert trial.samples_per_second is not None
    assert trial.samples_per_second.median == pytest.approx(2.0)
    assert trial.at_most_samples_per_second is None


def test_one_that_failed_says_why_and_in_which_words() -> None:
    trial = recorded(Run(failure=Crashed("rank 0 died", details="NameError: x")))
    assert (trial.state, trial.kind, trial.samples_per_second) == (FAILED, "crashed", None)
    assert trial.reason == "rank 0 died\nNameError: x"
    assert recorded(Run(failure=Crashed("rank 0 died"))).reason == "rank 0 died"
    longest = "x" * 16_384
    assert recorded(Run(failure=Crashed(longest))).reason == longest
    assert recorded(Run(failure=Crashed(longest + "x"))).reason != longest + "x"


def test_one_that_came_to_its_end_is_a_number() -> None:
    trial = recorded(Run(logs=[0.0, 0.0], steps=3, ended=True))
    assert (trial.state, trial.reason) == (COMPLETED, "the job ended after 3 steps")


@pytest.mark.parametrize(
    ("logs", "state"),
    [
        (LEVEL[:4], COMPLETED),
        (LEVEL[:3], PRUNED),  # fewer than three beside the warm-up
        ([-0.2 * n for n in range(8)], PRUNED),  # not level
    ],
)
def test_one_that_was_cut_short_is_a_number_where_its_steps_are_level(
    logs: list[float], state: State
) -> None:
    trial = recorded(Run(logs=logs, steps=len(logs), cut="after some steps"))
    assert (trial.state, trial.reason) == (state, "the time given was up after some steps")
    assert (trial.at_most_samples_per_second is None) is (state == COMPLETED)


def test_one_that_has_lost_has_a_bound() -> None:
    race = Race(fastest=Estimate(center=math.log(0.25), error=0, kept=(), warmup=0, level=True))
    trial = recorded(Run(logs=LEVEL, steps=8, verdict="lost"), race)
    assert (trial.state, trial.reason) == (
        PRUNED,
        "stopped after 8 steps: most likely slower than the fastest, 4 samples/s",
    )
    guess = race.lost(LEVEL)
    assert trial.samples_per_second is not None
    assert trial.samples_per_second.median == pytest.approx(math.exp(-guess.center))
    assert trial.at_most_samples_per_second == at_most(guess, race.fastest)
    assert recorded(Run(logs=LEVEL, steps=8)).reason == (
        "stopped after 8 steps: most likely slower than the fastest"
    )


def test_a_bound_above_the_fastest_says_nothing_and_is_not_told() -> None:
    race = Race(fastest=Estimate(center=math.log(0.4), error=0, kept=(), warmup=0, level=True))
    trial = recorded(Run(logs=LEVEL[:1], steps=1, verdict="lost"), race)
    assert (trial.state, trial.at_most_samples_per_second) == (PRUNED, None)
    assert (trial.reason or "").startswith("stopped after one step: most likely slower")


def test_the_bound_allows_for_a_machine_that_wanders() -> None:
    guess = Estimate(center=math.log(0.5), error=0.05, kept=(), warmup=0, level=True)
    bound = 2 * math.exp(1.96 * math.hypot(0.05, 0.1))
    assert at_most(guess, None) == pytest.approx(bound)
    for fastest, told in ((bound * 1.01, True), (bound * 0.99, False)):
        leader = Estimate(center=-math.log(fastest), error=0, kept=(), warmup=0, level=True)
        assert (at_most(guess, leader) is not None) is told


@pytest.mark.parametrize(
    ("kind", "delayed", "disturbed"),
    [(None, 2, False), (None, 3, True), ("contended", 0, True), ("crashed", 2, False)],
)
def test_it_was_disturbed_where_most_steps_were_delayed(
    kind: str | None, delayed: int, disturbed: bool
) -> None:
    plan: Plan = PLANS[0]
    trial = Trial(number=0, plan=plan, state=FAILED, kind=kind, steps=4, delayed_steps=delayed)
    assert was_disturbed(trial) is disturbed


def test_of_a_long_text_its_beginning_and_its_end_are_kept() -> None:
    text = "".join(map(str, range(40)))
    assert shortened(text, len(text)) == text
    assert shortened(text, 30) == f"{text[:5]}\n[…]\n{text[-5:]}"
    assert shortened(text, len(text) - 1).startswith(text[:24] + "\n[")
