"""A plan that never comes to its first step costs three usual starts, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tuner.fakes import FakeRunner, steady, study

import cputune
from cputune import Plan, Result, Step, TuneOptions
from cputune.records.result import COMPLETED, FAILED
from cputune.records.steps import TimedOut, TimeUp


@dataclass
class FakeHanging(FakeRunner):
    """Each plan starts in 30 s of its clock, and bf16 never does; it waits as long as it may."""

    now: float = 0.0
    patience: float = 1800.0
    left: Callable[[], float] = lambda: 1e9

    def keep_to(self, seconds_left: Callable[[], float]) -> None:
        self.left = seconds_left

    def start_within(self, seconds: float) -> None:
        self.patience = seconds

    def steps(self, plan: Plan) -> Iterator[Step]:
        self.started.append(plan)
        if plan.precision == "bf16":
            waited = min(self.patience, self.left())
            self.now += waited
            if waited < self.patience:
                raise TimeUp("before its first step")
            raise TimedOut(f"no first step in {waited:.0f} s")
        self.now += 30
        for step in steady(0.5):
            self.now += step.seconds
            yield step


def tuned(runner: FakeHanging, **options: Any) -> Result:
    return study(runner, TuneOptions(**options), clock=lambda: runner.now, started=0.0)


def test_a_plan_that_hangs_is_given_three_times_the_slowest_start() -> None:
    runner = FakeHanging(lambda plan, before: ())
    result = tuned(runner, budget=4)
    (hung,) = (trial for trial in result.trials if trial.state == FAILED)
    assert (hung.reason, hung.kind) == ("no first step in 90 s", "timed out")
    assert sum(trial.state == COMPLETED for trial in result.trials) >= 2  # the search went on


def test_it_is_not_tried_again_if_the_time_was_up_meanwhile(tmp_path: Path) -> None:
    """It was cut off after more than three starts, so it hangs: that is on record."""
    book = {"study": str(tmp_path / "s.db"), "budget": 6}
    runner = FakeHanging(lambda plan, before: ())
    runner.start_within = lambda seconds: None  # type: ignore[method-assign]
    first = tuned(runner, max_time_seconds=300.0, **book)
    assert [trial.kind for trial in first.trials] == [None, "timed out"]
    later = FakeHanging(lambda plan, before: ())
    tuned(later, resume=True, **book)
    assert first.trials[1].plan not in later.started


@pytest.mark.torch
@pytest.mark.usefixtures("workdir")
def test_a_real_script_that_hangs_in_one_precision() -> None:
    """It waits for ever before its first step where the plan asks for two ranks."""
    Path("train.py").write_text(
        "import os, time\n"
        "import torch\n"
        "if os.environ.get('WORLD_SIZE', '1') != '1':\n"
        "    time.sleep(600)\n"
    )
    from cputune.ranks.runner import ProcessRunner

    facts = cputune.probe()
    job = cputune.Workload.script(["train.py"], global_batch_size=2)
    two = next(
        plan
        for plan in cputune.search_space(facts, job).plans()
        if plan.processes_per_node == 2 and plan.allocator == "default"
    )
    with ProcessRunner(job, facts, fresh=True, offline=True) as runner:
        runner.start_within(8.0)
        with pytest.raises(TimedOut, match="no first step in 8 s"):
            next(runner.steps(two))
