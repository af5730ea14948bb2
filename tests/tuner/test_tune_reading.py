"""One run of a plan, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest
from tuner.fakes import SMALL, FakeRunner, steady

import cputune
from cputune.plan import Plan
from cputune.steps import Step
from cputune.tuner.race import Verdict
from cputune.tuner.reading import Rules, Run, divergence, read_run

PLAN = next(cputune.search_space(SMALL.facts, SMALL.workload).plans())


def five(logs: Sequence[float]) -> Verdict:
    return "enough" if len(logs) >= 5 else "more"


def read(steps: Iterable[Step], **rules: object) -> tuple[Run, FakeRunner]:
    runner = FakeRunner(lambda plan, before: steps)
    return read_run(runner, PLAN, Rules(verdict=five, **rules)), runner


def test_no_more_is_read_than_is_needed_and_the_run_is_ended() -> None:
    run, runner = read(steady(0.5))
    assert runner.steps_read == 5
    assert runner.closed == 1
    assert run.logs == [math.log(0.5 / 8)] * 5
    assert run.step_seconds == 2.5


def test_delayed_steps_cost_time_and_do_not_count() -> None:
    late = Step(seconds=2.0, samples=8, delayed_seconds=1.5)
    run, _ = read([late, *[Step(0.5, 8)] * 5])
    assert (run.delayed, run.steps, len(run.logs)) == (1, 6, 5)
    assert run.step_seconds == 4.5


def test_a_small_wait_is_no_delay() -> None:
    run, _ = read(steady(0.5, delayed=0.01))
    assert run.delayed == 0


def test_mostly_delayed_steps_end_a_run_early() -> None:
    run, runner = read(steady(4.4, delayed=2.1))
    assert run.failure is not None
    assert run.failure.kind == "contended"
    assert runner.steps_read == 3


@pytest.mark.parametrize("rule", ["delays_itself", "believe_delayed"])
def test_delays_count_where_they_are_the_plans_or_all_there_is(rule: str) -> None:
    run, _ = read(steady(4.4, delayed=2.1), **{rule: True})
    assert run.failure is None
    assert len(run.logs) == 5


def test_time_that_is_up_ends_a_run() -> None:
    run, runner = read(steady(1.0), out_of_time=lambda seconds: seconds >= 2)
    assert runner.steps_read == 2
    assert run.verdict == "more"
    assert run.failure is None


def test_an_interrupt_comes_through_and_the_run_is_ended() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        yield Step(1.0, 8)
        raise KeyboardInterrupt

    runner = FakeRunner(script)
    with pytest.raises(KeyboardInterrupt):
        read_run(runner, PLAN, Rules(verdict=five))
    assert runner.closed == 1


def test_what_goes_wrong_while_ending_does_not_hide_the_steps() -> None:
    class FakeStubborn:
        def steps(self, plan: Plan) -> Iterable[Step]:
            try:
                yield from steady(0.5)
            finally:
                raise OSError("could not be ended")

    run = read_run(FakeStubborn(), PLAN, Rules(verdict=five))
    assert run.failure is None
    assert len(run.logs) == 5


@pytest.mark.parametrize(
    ("losses", "reference", "said"),
    [
        ([5.0, 4.9, 4.8], [5.0, 4.9, 4.8], None),
        ([5.1, 4.8, 4.9], [5.0, 4.9, 4.8], None),
        ([None, None], [5.0, 4.9], None),
        ([5.0, 9.0], [], None),
        ([math.nan], [], "the loss is nan at step 0"),
        ([5.0, math.inf], [5.0, 4.9], "the loss is inf at step 1"),
        ([5.0, 4.9, 4.8, 40.0], [5.0, 4.9, 4.8], "the loss is 40 at step 3"),
        ([7.5, 7.4, 7.6], [5.0, 4.9, 4.8], "the mean loss of the first 3 steps is 7.5"),
        ([2.0, 2.0, 2.0], [5.0, 4.9, 4.8], "the mean loss of the first 3 steps is 2"),
        ([5.0, 4.0], [None, math.nan], None),
    ],
)
def test_losses_beside_the_baselines(
    losses: list[float | None], reference: list[float | None], said: str | None
) -> None:
    reason = divergence(losses, reference)
    assert reason is None if said is None else str(reason).startswith(said)
