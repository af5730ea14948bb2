"""A second study of a command: the earlier plan is tried first, and what became of it is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.result_cases import tuned
from tuner.fakes import BY_NAME, VARIED, FakeKeepingRunner

import cputune
from cputune import Plan, Result, Step
from cputune.records.claims import Speedup
from cputune.records.earlier import Earlier

OF = BY_NAME["two-sockets"]
LAUNCH = Speedup(ratio=2.0, low=1.8, high=2.2, pairs=9)


def again(earlier: Result, fastest: Plan | None = None) -> Result:
    """The study once more; ``fastest`` is twice as fast as the machine's model says."""

    def steps(plan: Plan, before: int) -> object:
        seconds = OF.seconds(plan) / (2 if plan == fastest else 1)
        while True:
            yield Step(seconds=seconds, samples=8)

    asked = {"budget": 6, "knobs": VARIED, "earlier": earlier}
    return cputune.tune(OF.workload, facts=OF.facts, runner=FakeKeepingRunner(steps), **asked)


def test_another_plan_may_be_the_best_now() -> None:
    best = tuned().best
    slow = next(trial.plan for trial in tuned().trials[1:] if trial.plan != best.plan)
    why = {"speedup": None, "not_compared": "-", "worth": (), "rungs": ()}
    first = replace(tuned(), best=replace(best, plan=slow), **why)
    result = again(first, fastest=best.plan)
    assert result.best.plan == best.plan
    assert not result.earlier.is_best
    assert "another plan is the best now" in result.earlier.text(result.speedup)


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (None, "the two were not compared side by side"),
        (Speedup(ratio=1.2, low=1.1, high=1.3, pairs=9), "×1.20 (1.10–1.30) over yours"),
        (Speedup(ratio=1.01, low=0.98, high=1.04, pairs=9), "still as fast as the best, which is"),
        (Speedup(ratio=1.02, low=0.9, high=1.15, pairs=9), "may still be the best"),
    ],
)
def test_what_became_of_it_in_words(gain: Speedup | None, text: str) -> None:
    earlier = Earlier(created=None, changes=(), plan=tuned().best.plan, gain=gain)
    assert text in earlier.text(LAUNCH)
    gone = replace(earlier, not_tried="because it is not possible here any more")
    assert "not possible here any more" in gone.text(None)
    best = replace(earlier, is_best=True)
    assert "then" not in best.text(LAUNCH)
    assert "then" in replace(best, speedup=LAUNCH).text(LAUNCH)
