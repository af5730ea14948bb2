"""Plans that live side by side in the confirmation, and take steps in turn."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import pytest
from rows import every_row
from tuner.fakes import PLANS, SMALL, FakeLiving, FakeLivingRunner, gain_over, measuring, tune

from cputune import ConfirmRun, Plan, Step
from cputune.records.steps import NoMeasurement, TimeUp
from cputune.tuner.changes import Change
from cputune.tuner.confirmation import ChangesTo, Confirmation
from cputune.tuner.contenders import SLOWER, Contender, blocks_of
from cputune.tuner.measuring import Findings


def steady(*seconds: float) -> FakeLivingRunner:
    return FakeLivingRunner(lambda number: repeat(Step(seconds=seconds[number], samples=8)))


def confirmed(
    runner: FakeLivingRunner,
    rivals: int = 1,
    seconds: float | None = None,
    changes_to: ChangesTo = lambda plan: (),
) -> tuple[Contender, list[Contender], Findings]:
    told: list[object] = []
    among = measuring(
        seconds, on_event=lambda e: told.append(e) if isinstance(e, ConfirmRun) else None
    )
    compared = Confirmation(among, PLANS[0], PLANS[1 : rivals + 1])
    try:
        compared.side_by_side(runner, changes_to)
    finally:
        assert not runner.alive
        assert told == among.findings.confirm_runs
    return compared.baseline, compared.rivals, among.findings


def test_the_factor_is_of_blocks_with_new_processes_of_the_leader_and_the_baseline() -> None:
    runner = steady(1.0, 0.9, 0.5)
    base, rivals, findings = confirmed(runner, 2)
    assert [set(runner.begun[:2]), *runner.begun[2:6]] == [{1, 2}, 2, 0, 0, 2]
    assert [rival.plan for rival in rivals] == [PLANS[2], PLANS[1]]
    assert [rival.out for rival in rivals] == [None, SLOWER]
    assert {run.round for run in findings.confirm_runs} == {0, 1, 2}
    assert base.blocks == sorted(base.blocks)
    assert blocks_of(base) == blocks_of(rivals[0]) == {1, 2}


def test_rivals_that_are_clearly_slower_sit_out_after_two_rounds() -> None:
    _, _, findings = confirmed(steady(1.0, 0.9, 0.5, 0.85, 0.505), 4)
    turns = {run.plan: run.turns for run in findings.confirm_runs if run.round == 0}
    assert [turns[plan] for plan in (PLANS[1], PLANS[3])] == [2, 2]
    assert turns[PLANS[2]] > 2


def way(*plans: int) -> Callable[[Plan], list[Change]]:
    """The way to any plan, over these."""
    return lambda plan: [
        Change(knob=f"knob {number}", value="on", plan=PLANS[number]) for number in plans
    ]


@pytest.mark.parametrize(
    ("quiet", "rounds"), [(range(3), 12), (range(4), 13), ((*range(4), 12), 16)]
)
def test_a_block_is_given_up_if_not_a_third_of_its_rounds_is_quiet(
    quiet: Sequence[int], rounds: int
) -> None:
    def steps(number: int) -> Iterator[Step]:
        yield from [Step(seconds=0.3, samples=8)] * 3
        for at in itertools.count():
            late = 0.0 if at in quiet else 0.2
            yield from [Step(seconds=0.3, samples=8, delayed_seconds=late)] * 3

    base, _, _ = confirmed(FakeLivingRunner(steps))
    assert base.blocks.count(0) == rounds


def test_when_the_time_is_up_while_a_step_is_waited_for_it_ends() -> None:
    def steps(number: int) -> Iterator[Step]:
        yield from [Step(seconds=1.0, samples=8)] * 3
        raise TimeUp("while it took a step")

    runner = FakeLivingRunner(steps)
    base, _, _ = confirmed(runner, seconds=9.0)
    assert (runner.begun, base.measured) == ([0, 1], [])


@every_row("after", [5, 6, 8, 12])
def test_a_short_script_is_confirmed_all_the_same(after: int) -> None:
    def steps(number: int) -> Iterator[Step]:
        yield from [Step(seconds=SMALL.seconds(PLANS[number]), samples=8)] * after
        raise NoMeasurement("train.py ended by itself")

    result = tune(FakeLivingRunner(steps))
    assert result.speedup.pairs >= 2
    assert not any("failed" in note for note in result.notes)


def test_a_rival_that_warms_up_long_is_waited_for_or_said_to_change() -> None:
    """It is 1.1 times as fast, when it has come to its speed after fifty steps."""
    rng = random.Random(0)

    def steps(number: int) -> Iterator[Step]:
        for at in itertools.count():
            slower = 1 + 0.4 * math.exp(-at / 20) if number and at < 50 else 1.0
            own = (0.55, 0.5)[number] * slower
            yield Step(seconds=own * math.exp(rng.gauss(0, 0.04)), samples=8)

    base, rivals, findings = confirmed(FakeLivingRunner(steps))
    gain = gain_over(base, rivals[0])
    assert gain.speedup.outcome != "equivalent"
    assert gain.low < math.log(1.1) < gain.high or any(
        "still got faster or slower" in note for note in findings.notes
    )


def test_worths_that_do_not_multiply_to_the_whole_are_not_told() -> None:
    runner: FakeLivingRunner

    def steps(number: int) -> Iterator[Step]:
        while True:
            slow = number == 1 and 2 in runner.begun  # in the last block the leader is another
            yield Step(seconds=(1.0, 3.0 if slow else 0.5, 0.9)[number], samples=8)

    runner = FakeLivingRunner(steps)
    _, _, findings = confirmed(runner, changes_to=way(2, 1), seconds=400.0)
    assert findings.worth == ()
    assert any("depend on each other" in note for note in findings.notes)


def test_what_ranks_report_in_the_comparison_is_kept_also_of_plans_between() -> None:
    """A block that ends early may not have seen a part of the plan change anything."""
    begun = [0, 0, 0]

    class FakeReporting(FakeLiving):
        def reports(self) -> tuple[dict[str, object], ...]:
            number = PLANS.index(self.plan)
            changes = ["schedule"] if (number, begun[number]) == (0, 1) else []
            return ({"applied": {"trainer": changes}, "number": number},)

    class FakeReportingRunner(FakeLivingRunner):
        def living(self, plan: Plan) -> FakeLiving:
            begun[PLANS.index(plan)] += 1
            living = super().living(plan)
            living.__class__ = FakeReporting
            return living

    runner = FakeReportingRunner(steady(1.0, 0.5, 0.8).script)
    _, _, findings = confirmed(runner, changes_to=way(2, 1))
    assert list(findings.reports) == [PLANS[0], PLANS[1], PLANS[2]]
    assert begun[0] >= 2
    assert findings.reports[PLANS[0]] == ({"applied": {"trainer": ["schedule"]}, "number": 0},)
    assert findings.reports[PLANS[2]] == ({"applied": {"trainer": []}, "number": 2},)
    assert PLANS[2] not in [run.plan for run in findings.confirm_runs]
