"""Steps of batches of unlike length: what they say of two plans, and how surely."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from statistics import fmean

import pytest
from tuner.fakes import PLANS, FakeLivingRunner, measuring

from cputune import Step
from cputune.tuner.confirmation import Confirmation
from cputune.tuner.contenders import Contender, gain_of, level_rounds
from cputune.tuner.reading import doubt_of_mean, levelled

DICE = random.Random(3)
SIZES = [8 * round(8 * min(16, max(2, 5 * math.exp(DICE.gauss(0, 0.5))))) for _ in range(999)]
"""Of the first batches of a training: 128 to 1024 tokens, as lengths of sentences are spread."""

PADDED = 1024


def seconds(size: int) -> float:
    """Of a step: the same for each, and more for each token."""
    return 0.1 + 0.4 * size / PADDED


def told(size_of: Callable[[int, int], int]) -> FakeLivingRunner:
    """Equally fast plans whose step ``at`` has ``size_of(number, at)`` tokens."""
    dice = random.Random(5)

    def steps(number: int) -> Iterator[Step]:
        for at in count():
            size = size_of(number, at)
            noise = math.exp(dice.gauss(0, 0.03))
            yield Step(seconds=seconds(size) * noise, samples=8, size=size)

    return FakeLivingRunner(steps)


def cut(number: int, at: int) -> int:
    return SIZES[at] if number else PADDED


def test_so_it_is_if_no_two_live_at_once() -> None:
    compared = Confirmation(measuring(), PLANS[0], PLANS[1:2])
    compared.one_after_another(told(cut))
    base, (rival,) = compared.baseline, compared.rivals
    found = gain_of(base, rival, 0.03)
    truth = seconds(PADDED) / fmean(map(seconds, SIZES[: min(len(base.sizes), len(rival.sizes))]))
    assert math.exp(found.mean) == pytest.approx(truth, rel=0.05)


def test_a_trial_is_level_and_as_fast_as_its_mean_batch() -> None:
    steps = [(math.log(seconds(size) / 8), size) for size in SIZES[:12]]
    logs = levelled(steps, SIZES[:12])
    assert max(logs) - min(logs) < 0.1
    assert math.exp(fmean(logs)) == pytest.approx(fmean(map(seconds, SIZES[:12])) / 8, rel=0.02)
    raw = [log for log, _ in steps]
    assert levelled([(log, 0) for log in raw], [0] * 12) == raw
    assert levelled([(log, 512) for log in raw], [512] * 12) == raw
    assert levelled([], []) == []


def test_of_a_single_step_seconds_are_taken_to_rise_as_tokens_do() -> None:
    (log,) = levelled([(0.0, 200)], [200, 100, 300, 200, 400])
    assert math.exp(log) == pytest.approx(1.2)


def test_batches_of_two_lengths_are_enough() -> None:
    logs = levelled([(math.log(size), size) for size in (100, 200, 100)], [100, 200])
    assert logs == pytest.approx([math.log(150)] * 3)


def test_a_slow_step_does_not_say_what_a_token_takes() -> None:
    steps = [(math.log(seconds(size)), size) for size in SIZES[:20]]
    steps[0] = (3.0, steps[0][1])
    logs = levelled(steps, SIZES[:20])
    assert max(logs[1:]) - min(logs[1:]) < 0.12
    assert logs[0] > 2.5


def contender(order: str | None, sizes: list[int]) -> Contender:
    plan = replace(PLANS[0], settings={} if order is None else {"order": order})
    one = Contender(role="candidate", plan=plan, sizes=sizes)
    for at, size in enumerate(sizes[10:20]):
        one.steps[at] = [(math.log(size / 1000), size)]
        one.logs.append(one.steps[at][0][0])
        one.blocks.append(0)
    return one


def test_other_samples_are_as_unsure_as_their_lengths_make_them() -> None:
    short = [size // 2 for size in SIZES[100:140]]
    same = contender(None, SIZES[:40]), contender(None, short)
    other = contender(None, SIZES[:40]), contender("length", short)
    for pair in (same, other):
        level_rounds(pair)
    sure, unsure = gain_of(*same, 0.03), gain_of(*other, 0.03)
    assert unsure.half_width > 1.5 * sure.half_width
    truth = fmean(SIZES) / (fmean(SIZES) / 2)
    assert unsure.low < math.log(truth) < unsure.high
    assert unsure.mean == pytest.approx(math.log(fmean(SIZES[:40]) / fmean(short)), abs=0.01)


def test_batches_of_one_length_add_no_doubt_in_whatever_order() -> None:
    sizes = [PADDED] * 40
    same = contender(None, sizes), contender(None, sizes)
    other = contender(None, sizes), contender("length", sizes)
    for pair in (same, other):
        level_rounds(pair)
    assert gain_of(*other, 0.03) == gain_of(*same, 0.03) is not None


def test_of_a_single_batch_whose_length_is_known_lengths_leave_no_doubt() -> None:
    assert doubt_of_mean([(0.0, 512)], [512, 0]) == 0.0
