"""Plans that live side by side in the confirmation, and take steps in turn."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from rows import every_row
from tuner.fakes import (
    PLANS,
    SMALL,
    FakeLiving,
    FakeLivingRunner,
    gain_over,
    measuring,
    ratio,
)

import cputune
from cputune import ConfirmRun, Plan, Step
from cputune.records.steps import Crashed, NoMeasurement, TimeUp
from cputune.tuner.changes import Change
from cputune.tuner.confirmation import (
    GIVEN_UP,
    MOST_ROUNDS,
    TELL_APART_SECONDS,
    ChangesTo,
    Confirmation,
)
from cputune.tuner.contenders import SLOWER, Contender, blocks_of, gain_of
from cputune.tuner.measuring import Findings


def steady(*seconds: float, noise: float = 0.0) -> FakeLivingRunner:
    rng = random.Random(1)

    def steps(number: int) -> Iterator[Step]:
        while True:
            yield Step(seconds=seconds[number] * math.exp(rng.gauss(0, noise)), samples=8)

    return FakeLivingRunner(steps)


def confirmed(
    runner: FakeLivingRunner,
    rivals: int = 1,
    seconds: float | None = None,
    changes_to: ChangesTo = lambda plan: (),
) -> tuple[Contender, list[Contender], Findings]:
    told: list[object] = []
    among = measuring(
        seconds,
        on_event=lambda e: told.append(e) if isinstance(e, ConfirmRun) else None,
    )
    compared = Confirmation(among, PLANS[0], PLANS[1 : rivals + 1])
    try:
        compared.side_by_side(runner, changes_to)
    finally:
        assert not runner.alive
        assert told == among.findings.confirm_runs
    return compared.baseline, compared.rivals, among.findings


def test_the_rivals_have_turns_and_then_their_leader_and_the_baseline() -> None:
    runner = steady(1.0, 0.6, 0.5)
    base, rivals, findings = confirmed(runner, 2)
    assert runner.most_alive == 2
    assert ratio(base, rivals[0]) == pytest.approx(2.0)
    plans = [{run.plan for run in findings.confirm_runs if run.round == at} for at in (0, 1, 2)]
    assert plans == [{PLANS[1], PLANS[2]}, {PLANS[0], PLANS[2]}, {PLANS[0], PLANS[2]}]


def test_the_factor_is_of_blocks_with_new_processes_of_the_leader_and_the_baseline() -> None:
    runner = steady(1.0, 0.9, 0.5)
    base, rivals, findings = confirmed(runner, 2)
    assert [set(runner.begun[:2]), *runner.begun[2:6]] == [{1, 2}, 2, 0, 0, 2]
    assert [rival.plan for rival in rivals] == [PLANS[2], PLANS[1]]
    assert [rival.out for rival in rivals] == [None, SLOWER]
    assert {run.round for run in findings.confirm_runs} == {0, 1, 2}
    assert base.blocks == sorted(base.blocks)
    assert blocks_of(base) == blocks_of(rivals[0]) == {1, 2}


def test_what_is_slower_in_a_crowd_is_not_slower_in_the_factor() -> None:
    runner: FakeLivingRunner

    def steps(number: int) -> Iterator[Step]:
        while True:
            crowd = 1.2 if number == 0 and len(runner.alive) > 2 else 1.0
            yield Step(seconds=crowd * (1.0, 0.5, 0.52, 0.54, 0.56)[number], samples=8)

    runner = FakeLivingRunner(steps)
    base, rivals, _ = confirmed(runner, 4)
    assert ratio(base, rivals[0]) == pytest.approx(2.0)


def turns_to_choose(findings: Findings) -> dict[Plan, int]:
    return {run.plan: run.turns for run in findings.confirm_runs if run.round == 0}


def test_rivals_that_are_clearly_slower_sit_out_after_two_rounds() -> None:
    _, _, findings = confirmed(steady(1.0, 0.9, 0.5, 0.85, 0.505), 4)
    turns = turns_to_choose(findings)
    assert [turns[plan] for plan in (PLANS[1], PLANS[3])] == [2, 2]
    assert turns[PLANS[2]] > 2


def test_a_leader_that_falls_is_followed_by_the_next() -> None:
    begun = [0, 0, 0]

    def steps(number: int) -> Iterator[Step]:
        begun[number] += 1
        if number == 1 and begun[1] == 2:
            raise Crashed("rank 0 died")
        while True:
            yield Step(seconds=(1.0, 0.50, 0.505)[number], samples=8)

    base, rivals, _ = confirmed(FakeLivingRunner(steps), 2)
    assert [rival.out for rival in rivals] == ["crashed: rank 0 died", None]
    assert ratio(base, rivals[1]) == pytest.approx(1 / 0.505)


def test_rivals_that_are_alike_have_time_to_be_told_apart() -> None:
    def first_block(rivals: int) -> float:
        _, _, findings = confirmed(steady(0.2, 0.1, 0.1, noise=0.02), rivals)
        first = [run for run in findings.confirm_runs if run.round == 0]
        return sum(sum(turn.step_seconds) for run in first for turn in run.taken)

    assert first_block(1) < TELL_APART_SECONDS < first_block(2) < 2 * TELL_APART_SECONDS


def test_one_that_was_delayed_has_not_shown_that_it_is_slower() -> None:
    def steps(number: int) -> Iterator[Step]:
        for read in itertools.count():
            late = 0.5 * (number == 2 and read in (4, 5))  # of the first turn
            yield Step(seconds=(1.0, 0.5, 0.9)[number], samples=8, delayed_seconds=late)

    _, _, findings = confirmed(FakeLivingRunner(steps), 2)
    assert turns_to_choose(findings)[PLANS[2]] == 3


@pytest.mark.parametrize("failing", [0, 1])
def test_if_there_is_no_one_to_compare_it_ends(failing: int) -> None:
    def steps(number: int) -> Iterator[Step]:
        for _ in range(12 if number == failing else 10_000):
            yield Step(seconds=0.5, samples=8)
        raise Crashed("rank 0 died")

    runner = FakeLivingRunner(steps)
    base, rivals, _ = confirmed(runner)
    assert (base, *rivals)[failing].out == "crashed: rank 0 died"
    assert len(base.logs) == 4
    assert runner.begun == [0, 1]


def way(*plans: int) -> Callable[[Plan], list[Change]]:
    """The way to any plan, over these."""
    return lambda plan: [
        Change(knob=f"knob {number}", value="on", plan=PLANS[number]) for number in plans
    ]


def test_the_plans_on_the_way_to_the_leader_live_in_a_block_after_the_answer() -> None:
    begun = [0] * 4

    def steps(number: int) -> Iterator[Step]:
        begun[number] += 1
        second = number > 1 or begun[number] >= 2
        while True:
            yield Step(seconds=(3.0 if second else 1.0) * 0.8 ** (0, 3, 1, 2)[number], samples=8)

    runner = FakeLivingRunner(steps)
    _, _, findings = confirmed(runner, changes_to=way(2, 3, 1))
    assert {*runner.begun[:-4]} == {0, 1}
    assert sorted(runner.begun[-4:]) == [0, 1, 2, 3]
    assert [one.knob for one in findings.worth] == ["knob 2", "knob 3", "knob 1"]
    assert [one.speedup.ratio for one in findings.worth] == pytest.approx([1.25] * 3)
    assert {run.plan for run in findings.confirm_runs} == {PLANS[0], PLANS[1]}, (
        "those on the way are no candidates"
    )


def test_without_a_gain_there_is_no_way_to_look_at() -> None:
    runner = steady(1.0, 1.0)
    _, _, findings = confirmed(runner, changes_to=way(2, 1))
    assert 2 not in runner.begun
    assert findings.worth == ()


def test_a_runner_that_is_punctual_is_reported_how_long_it_may_wait() -> None:
    class FakePunctual(FakeLivingRunner):
        left = 0.0

        def keep_to(self, seconds_left: Callable[[], float]) -> None:
            self.left = seconds_left()

    runner = FakePunctual(steady(1.0, 0.5).script)
    confirmed(runner, seconds=100.0)
    assert runner.left == 100.0


def test_what_the_machine_does_hits_all_alike() -> None:
    turns = [0]

    def steps(number: int) -> Iterator[Step]:
        while True:
            turns[0] += 1
            wander = 1 + 0.3 * math.sin(turns[0] / 20)
            yield Step(seconds=(1.0, 0.8)[number] * wander, samples=8)

    base, rivals, _ = confirmed(FakeLivingRunner(steps))
    gain = gain_over(base, rivals[0])
    assert gain.low < math.log(1.25) < gain.high
    assert gain.half_width < 0.12


def test_a_round_that_others_delayed_does_not_count() -> None:
    def steps(number: int) -> Iterator[Step]:
        while True:
            for _ in range(6):
                yield Step(seconds=1.0 - 0.2 * number, samples=8)
            for _ in range(2):
                yield Step(seconds=9.0, samples=8, delayed_seconds=5.0)

    base, rivals, findings = confirmed(FakeLivingRunner(steps))
    assert ratio(base, rivals[0]) == pytest.approx(1.25)
    assert 0 < findings.delayed_turns < findings.turns


def test_if_it_is_never_quiet_it_is_soon_given_up() -> None:
    def steps(number: int) -> Iterator[Step]:
        while True:
            yield Step(seconds=1.0, samples=8, delayed_seconds=0.5)

    base, rivals, findings = confirmed(FakeLivingRunner(steps))
    assert findings.turns == findings.delayed_turns == 2 * GIVEN_UP
    assert {run.reason for run in findings.confirm_runs} == {
        "contended: other processes delayed its steps"
    }
    assert gain_of(base, rivals[0], 0.05) is None


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


def test_each_round_has_an_order_that_is_drawn_and_turned_in_the_next() -> None:
    runner = steady(0.3, 0.3, 0.3, 0.3)
    _, _, findings = confirmed(runner, 3)
    rounds = [runner.turns[at : at + 3] for at in range(3, 21, 3)]  # after the warm-up
    assert rounds[1::2] == [drawn[::-1] for drawn in rounds[::2]]
    assert len({tuple(drawn) for drawn in rounds}) > 1
    places = [turn.place for run in findings.confirm_runs if run.round == 0 for turn in run.taken]
    assert sorted(places) == list(range(len(places)))


def test_when_the_time_is_up_while_a_step_is_waited_for_it_ends() -> None:
    def steps(number: int) -> Iterator[Step]:
        yield from [Step(seconds=1.0, samples=8)] * 3
        raise TimeUp("while it took a step")

    runner = FakeLivingRunner(steps)
    base, _, _ = confirmed(runner, seconds=9.0)
    assert (runner.begun, base.measured) == ([0, 1], [])


def test_no_gain_is_looked_at_until_it_is_sure() -> None:
    base, rivals, _ = confirmed(steady(1.0, 1.0, noise=0.04))
    gain = gain_over(base, rivals[0])
    assert 2 * 6 <= gain.pairs <= 2 * MOST_ROUNDS
    assert gain.low < 0 < gain.high


def test_when_the_time_is_up_it_ends() -> None:
    base, _, _ = confirmed(steady(1.0, 1.0, noise=0.04), seconds=20.0)
    assert len(base.logs) == 3


def test_a_time_that_was_given_is_used_until_there_is_an_answer() -> None:
    short, _, _ = confirmed(differing(*[0.05, -0.05] * 20), seconds=60.0)
    long, _, _ = confirmed(differing(*[0.05, -0.05] * 20), seconds=800.0)
    assert max(short.blocks) < max(long.blocks)
    same, rivals, _ = confirmed(steady(1.0, 1.0, noise=0.04), seconds=800.0)
    assert gain_over(same, rivals[0]).speedup.outcome == "equivalent"
    clear, _, _ = confirmed(steady(1.0, 0.5), seconds=400.0)
    assert max(clear.blocks) == 1


@every_row("after", [5, 6, 8, 12])
def test_a_short_script_is_confirmed_all_the_same(after: int) -> None:
    def steps(number: int) -> Iterator[Step]:
        yield from [Step(seconds=SMALL.seconds(PLANS[number]), samples=8)] * after
        raise NoMeasurement("train.py ended by itself")

    result = cputune.tune(SMALL.workload, facts=SMALL.facts, runner=FakeLivingRunner(steps))
    assert result.speedup.pairs >= 2
    assert not any("failed" in note for note in result.notes)


def differing(*apart: float) -> FakeLivingRunner:
    """Two plans that are the same; the n-th process of the second is so much slower (log)."""
    rng, lives = random.Random(3), itertools.count()

    def steps(number: int) -> Iterator[Step]:
        slower = apart[next(lives)] if number else 0.0
        while True:
            yield Step(seconds=math.exp(slower + rng.gauss(0, 0.01)), samples=8)

    return FakeLivingRunner(steps)


def test_processes_that_differ_are_asked_in_more_blocks() -> None:
    base, rivals, _ = confirmed(differing(0.04, -0.03, 0.02, -0.02, 0.03, 0.0, 0.01, -0.01))
    assert max(base.blocks) > 1
    gain = gain_over(base, rivals[0])
    assert gain.low < 0 < gain.high


def warming(seed: int) -> tuple[Contender, list[Contender], Findings]:
    """A rival 1.1 times as fast, when it has come to its speed after fifty steps."""
    rng = random.Random(seed)

    def steps(number: int) -> Iterator[Step]:
        for at in itertools.count():
            slower = 1 + 0.4 * math.exp(-at / 20) if number and at < 50 else 1.0
            own = (0.55, 0.5)[number] * slower
            yield Step(seconds=own * math.exp(rng.gauss(0, 0.04)), samples=8)

    return confirmed(FakeLivingRunner(steps))


def test_a_rival_that_warms_up_long_is_waited_for_or_said_to_change() -> None:
    base, rivals, findings = warming(0)
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
