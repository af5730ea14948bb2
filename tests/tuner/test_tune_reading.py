"""One run of a plan, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest
from rows import every_row
from tuner.fakes import SMALL, FakeRunner, steady

import cputune
from cputune import Plan, Step
from cputune.records.steps import TimedOut, TimeUp
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


@pytest.mark.parametrize("rule", ["delays_itself", "believe_delayed"])
def test_delays_count_if_they_are_the_plans_or_all_there_is(rule: str) -> None:
    run, _ = read(steady(4.4, delayed=2.1), **{rule: True})
    assert run.failure is None
    assert len(run.logs) == 5


def test_time_that_is_up_before_the_first_step_is_reported_in_the_runners_words() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        yield from [Step(1.0, 8)] * before
        raise TimeUp("while it loaded")

    runner = FakeRunner(script)
    cuts = [read_run(runner, PLAN, Rules(verdict=five)).cut for _ in range(2)]
    assert cuts == ["while it loaded", "after one step"]


@pytest.mark.parametrize(
    ("steps", "said"),
    [(0, "the job ended after no steps"), (1, "the job ended after one step"), (2, "")],
)
def test_a_job_that_ends_by_itself_has_two_steps_at_least(steps: int, said: str) -> None:
    run, _ = read([Step(0.5, 8)] * steps)
    assert run.ended
    assert str(run.failure or "").startswith(said)
    assert (run.failure is None) == (said == "")


@pytest.mark.parametrize("step", [Step(0.0, 8), Step(math.inf, 8), Step(0.5, 0)])
def test_a_step_without_a_time_ends_a_run(step: Step) -> None:
    run, runner = read([Step(0.5, 8), *[step] * 9])
    assert runner.steps_read == 2
    assert str(run.failure).startswith("step 1 took")


def test_half_of_the_steps_may_be_delayed() -> None:
    late, good = Step(2.0, 8, delayed_seconds=1.5), Step(0.5, 8)
    run, _ = read([good, good, good, late, late, late, good, good])
    assert (run.failure, run.delayed) == (None, 3)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (TimedOut("no step"), "timed out", "no step"),
        (RuntimeError("no"), "crashed", "RuntimeError: no"),
        (SystemExit(), "crashed", "SystemExit"),
    ],
)
def test_what_a_runner_raises_fails_the_run(error: BaseException, kind: str, said: str) -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        yield Step(1.0, 8)
        raise error

    failure = read_run(FakeRunner(script), PLAN, Rules(verdict=five)).failure
    assert (failure.kind, str(failure)) == (kind, said)


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


@every_row(
    ("losses", "reference", "said"),
    [
        ([5.0, 4.9, 4.8], [5.0, 4.9, 4.8], None),
        ([5.1, 4.8, 4.9], [5.0, 4.9, 4.8], None),
        ([None, None], [5.0, 4.9], None),
        ([5.0, 9.0], [], None),
        ([math.nan], [], "the loss is NaN in step 1 of the current launch"),
        ([5.0, math.inf], [5.0, 4.9], "the loss is infinite in step 2"),
        ([5.0, 4.9, 4.8, 40.0], [5.0, 4.9, 4.8], "the loss is 40 at step 3"),
        ([7.5, 7.4, 7.6], [5.0, 4.9, 4.8], "the mean loss of the first 3 steps is 7.5"),
        ([2.0, 2.0, 2.0], [5.0, 4.9, 4.8], "the mean loss of the first 3 steps is 2"),
        ([5.0, 4.0], [None, math.nan], None),
        ([11.0], [5.0], None),  # twice the worst, and one
        ([11.1], [5.0], "the loss is 11.1 at step 0"),
        ([-11.1], [-5.0], "the loss is -11.1 at step 0"),
        ([7.5, 7.4], [5.0, 4.9], None),  # two say nothing
        ([None, 7.5, 7.4, 7.6], [9.0, 5.0, 4.9, 4.8], "the mean loss of the first 3 steps is 7.5"),
        ([9.0, 7.5, 7.4, 7.6], [None, 5.0, 4.9, 4.8], "the mean loss of the first 3 steps is 7.5"),
        ([9.0, 7.5, 7.4, 7.6], [math.inf, 5.0, 4.9, 4.8], "the mean loss of the first 3 steps"),
        ([13.2] * 3, [10.0] * 3, None),  # a third
        ([13.4] * 3, [10.0] * 3, "the mean loss of the first 3 steps is 13.4"),
        ([1.5] * 3, [1.0] * 3, None),  # a half
        ([1.6] * 3, [1.0] * 3, "the mean loss of the first 3 steps is 1.6"),
        ([8.25, 6.25] * 2, [5.0] * 4, None),  # twice the error of the mean, and a little less
        ([8.37, 6.37] * 2, [5.0] * 4, "the mean loss of the first 4 steps is 7.37"),
    ],
)
def test_losses_beside_the_baselines(
    losses: list[float | None], reference: list[float | None], said: str | None
) -> None:
    reason = divergence(losses, reference)
    assert reason is None if said is None else str(reason).startswith(said)
