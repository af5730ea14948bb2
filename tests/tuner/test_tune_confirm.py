"""The baseline and the best two, measured side by side."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from tuner.fakes import PLANS

from cputune.steps import Contended, Crashed
from cputune.tuner.confirmation import confirm, settled
from cputune.tuner.gains import (
    SLOWER,
    Contender,
    Gain,
    doubt_each,
    gain_of,
    gain_of_rounds,
    gain_side_by_side,
    throughput_of,
)
from cputune.tuner.race import Race, Verdict
from cputune.tuner.reading import Run


def contenders(*seconds: float) -> list[Contender]:
    return [
        Contender(
            role="baseline" if i == 0 else "candidate",
            plan=PLANS[i],
            believed=(math.log(s), 0.05),
        )
        for i, s in enumerate(seconds)
    ]


def runner(
    seconds: dict[int, Callable[[int], float]], order: list[int] | None = None
) -> Callable[[int, Contender, Callable[[Sequence[float]], Verdict]], Run]:
    """Runs that take what ``seconds`` says for a plan in a round, step after step."""

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        index = PLANS.index(contender.plan)
        if order is not None:
            order.append(index)
        done = Run()
        while not done.logs or verdict(done.logs) == "more":
            done.logs.append(math.log(seconds[index](number)))
        return done

    return run


def test_rounds_are_interleaved_and_turned() -> None:
    order: list[int] = []
    base, *rivals = contenders(1.0, 0.9, 0.9)
    steady = {i: (lambda number, s=s: s) for i, s in enumerate((1.0, 0.9, 0.9))}
    confirm(base, rivals, Race(), runner(steady, order))
    assert order[:6] == [0, 1, 2, 1, 2, 0]


def test_a_clear_gain_needs_few_rounds() -> None:
    base, rival = contenders(1.0, 0.25)
    confirm(base, [rival], Race(), runner({0: lambda n: 1.0, 1: lambda n: 0.25}))
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert gain.pairs == 2
    assert math.exp(gain.mean) == pytest.approx(4.0)
    assert gain.low > 0


def test_what_changes_on_the_machine_hits_both_alike() -> None:
    base, rival = contenders(1.0, 0.8)

    def slower(base_seconds: float) -> Callable[[int], float]:
        return lambda number: base_seconds * (1 + number)

    confirm(base, [rival], Race(), runner({0: slower(1.0), 1: slower(0.8)}))
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert math.exp(gain.mean) == pytest.approx(1.25)


def test_no_gain_is_looked_at_to_the_end() -> None:
    rng = random.Random(2)
    base, rival = contenders(1.0, 1.0)
    noisy = {i: (lambda number: math.exp(rng.gauss(0, 0.05))) for i in (0, 1)}
    confirm(base, [rival], Race(), runner(noisy))
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert gain.low < 0
    assert [len(one.logs) for one in (base, rival)] == [5, 5]


def test_of_two_rivals_the_slower_sits_out() -> None:
    order: list[int] = []
    base, *rivals = contenders(1.0, 0.9, 0.6)
    steady = {i: (lambda number, s=s: s) for i, s in enumerate((1.0, 0.9, 0.6))}
    confirm(base, rivals, Race(), runner(steady, order))
    assert order.count(1) == 1
    assert order.count(2) >= 2


def test_a_rival_that_fails_is_out_and_a_delayed_one_is_not() -> None:
    base, *rivals = contenders(1.0, 0.5, 0.5)

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        if contender is rivals[0]:
            return Run(failure=Crashed("rank 0 died"))
        if contender is rivals[1] and number == 0:
            return Run(failure=Contended("others"))
        done = Run()
        while not done.logs or verdict(done.logs) == "more":
            done.logs.append(contender.believed[0])
        return done

    confirm(base, rivals, Race(), run)
    assert rivals[0].out == "crashed: rank 0 died"
    assert rivals[1].out is None
    assert rivals[1].logs[0] is None
    gain = gain_of(base, rivals[1], 0.05)
    assert gain is not None
    assert math.exp(gain.mean) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("failure", "out"),
    [(Crashed("rank 0 died"), "crashed: rank 0 died"), (None, "no measurement")],
)
def test_a_baseline_that_fails_ends_it(failure: Crashed | None, out: str) -> None:
    base, rival = contenders(1.0, 0.5)
    order: list[int] = []

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        order.append(number)
        return Run(failure=failure) if contender is base else Run(logs=[-0.7] * 4)

    confirm(base, [rival], Race(), run)
    assert (base.out, order) == (out, [0, 0])


def test_without_a_rival_nothing_is_run() -> None:
    order: list[int] = []
    confirm(contenders(1.0)[0], [], Race(), runner({0: lambda n: 1.0}, order))
    assert order == []


@pytest.mark.parametrize(
    ("rival", "steps"),
    [(math.exp(-0.39), [4, 5]), (math.exp(-0.41), [3, 3])],
    ids=["a small gain", "a clear gain"],
)
def test_a_small_gain_is_told_by_more_steps_in_every_round(rival: float, steps: list[int]) -> None:
    read: list[int] = []

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        done = Run()
        while not done.logs or verdict(done.logs) == "more":
            done.logs.append(contender.believed[0])
        if contender.role == "baseline":
            read.append(len(done.logs))
        return done

    base, other = contenders(1.0, rival)
    confirm(base, [other], Race(), run)
    assert read == steps


def test_a_run_that_does_not_settle_has_twelve_steps() -> None:
    read: list[int] = []

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        done = Run()
        while not done.logs or verdict(done.logs) == "more":
            done.logs.append(float(len(done.logs) % 2))
        read.append(len(done.logs))
        return done

    confirm(*_split(contenders(1.0, 0.9)), Race(), run)
    assert set(read) == {12}


def _split(all_: list[Contender]) -> tuple[Contender, list[Contender]]:
    return all_[0], all_[1:]


def test_what_the_study_believes_and_the_rounds_say_are_weighed() -> None:
    (one,) = contenders(1.0)
    assert (one.merged(), one.deviation) == (0.0, pytest.approx(0.05))
    one.logs = [0.1, None, 0.2]
    assert one.merged() == pytest.approx((625 * 0.1 + 625 * 0.2) / (400 + 2 * 625))
    assert one.deviation == pytest.approx(math.sqrt(1 / (400 + 2 * 625)))


@pytest.mark.parametrize(("behind", "out"), [(0.087, None), (0.09, "slower than the other")])
def test_two_deviations_behind_is_out(behind: float, out: str | None) -> None:
    base, fast, slow = contenders(2.0, 1.0, math.exp(behind))
    seconds = {0: lambda n: 2.0, 1: lambda n: 1.0, 2: lambda n: math.exp(behind)}
    alone = runner(seconds)
    ran: list[Contender] = []

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        ran.append(contender)
        return alone(number, contender, verdict)

    confirm(base, [slow, fast], Race(), run, out_of_time=lambda: len(ran) >= 3)
    assert (fast.out, slow.out) == (None, out)


def test_of_three_rivals_none_sits_out() -> None:
    base, *rivals = contenders(2.0, 1.0, 1.5, 1.9)
    seconds = {i: (lambda n, s=s: s) for i, s in enumerate((2.0, 1.0, 1.5, 1.9))}
    confirm(base, rivals, Race(), runner(seconds))
    assert [rival.out for rival in rivals] == [None] * 3


def test_when_the_third_has_failed_the_slower_of_two_sits_out() -> None:
    base, *rivals = contenders(2.0, 1.0, 1.0, 1.5)
    seconds = {i: (lambda n, s=s: s) for i, s in enumerate((2.0, 1.0, 1.0, 1.5))}
    alone = runner(seconds)

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        if contender is rivals[0] and number == 1:
            return Run(failure=Crashed("rank 0 died"))
        return alone(number, contender, verdict)

    confirm(base, rivals, Race(), run)
    assert [rival.out for rival in rivals] == ["crashed: rank 0 died", None, SLOWER]


def test_rounds_of_one_sitting_are_compared_with_each_other() -> None:
    base, rival = contenders(1.0, 0.9)
    base.logs, rival.logs = [0.1, 0.1, 0.3, 0.3, 0.6, 0.6], [0.0] * 6
    base.sittings = rival.sittings = [0, 0, 1, 1, 2, 2]
    gain = gain_of(base, rival, 0.05)
    assert gain == gain_side_by_side([[0.1, 0.1], [0.3, 0.3], [0.6, 0.6]], 0.05)


@pytest.mark.parametrize(
    ("mean", "low", "high", "done"),
    [
        (0.0, -0.02, 0.019, True),  # no gain that is worth it
        (0.0, -0.02, 0.02, False),
        (0.1, 0.01, 0.17, True),
        (0.25, 0.1, 0.375, False),
        (0.1, 0.01, 0.19, False),  # wide
        (0.1, 0.0, 0.17, False),  # perhaps none
        (0.5, 0.3, 0.69, True),  # so large that wide will do
        (0.5, 0.3, 0.71, False),
    ],
)
def test_a_gain_is_settled_where_more_rounds_would_say_the_same(
    mean: float, low: float, high: float, done: bool
) -> None:
    assert settled(Gain(mean=mean, low=low, high=high, pairs=2)) == done


def test_of_several_rivals_each_has_half_the_doubt() -> None:
    rivals = contenders(1.0, 0.9)
    assert [doubt_each(rivals[:1]), doubt_each(rivals)] == [0.03, 0.015]


def test_a_speed_has_an_interval_after_one_round_too() -> None:
    one = throughput_of([math.log(0.5)], 0.05)
    half = 2 * math.sqrt(0.05**2 / 3 + 0.02**2)
    assert one.median == pytest.approx(2.0)
    assert (one.low, one.high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    two = throughput_of([0.0, 0.2], 0.05)
    gain = gain_of_rounds([0.0, 0.2], 0.05)
    assert gain is not None
    assert two.median == pytest.approx(math.exp(-0.1))
    assert two.high / two.median == pytest.approx(math.exp(gain.half_width))


def test_a_gain_needs_two_rounds_that_both_have() -> None:
    base, rival = contenders(1.0, 0.9)
    base.logs, rival.logs = [0.5, None, 0.7], [0.25, 0.3]
    assert gain_of(base, rival, 0.05) is None
    rival.logs.append(0.45)
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert (gain.pairs, gain.mean) == (2, pytest.approx(0.25))


def test_when_time_is_up_it_ends() -> None:
    order: list[int] = []
    base, rival = contenders(1.0, 0.97)
    steady = {0: lambda n: 1.0, 1: lambda n: 0.97}
    confirm(base, [rival], Race(), runner(steady, order), out_of_time=lambda: len(order) >= 3)
    assert len(order) == 3


def test_the_interval_holds_the_true_gain() -> None:
    rng = random.Random(3)
    held = 0
    for _ in range(200):
        base, rival = contenders(1.0, 0.8)
        noisy = {
            i: (lambda number, s=s: s * math.exp(rng.gauss(0, 0.05)))
            for i, s in enumerate((1.0, 0.8))
        }
        confirm(base, [rival], Race(), runner(noisy))
        gain = gain_of(base, rival, 0.05)
        assert gain is not None
        held += gain.low <= math.log(1.25) <= gain.high
    assert held >= 185
