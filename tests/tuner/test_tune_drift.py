"""A machine that gets faster and slower while plans are tried: that is not the plans'."""

from __future__ import annotations

import math
import random
from itertools import accumulate

import numpy as np
import pytest
from tuner.fakes import BY_NAME

import cputune
from cputune.tuner.model import DRIFT_SECONDS, SpeedModel

MACHINE = BY_NAME["eight-sockets-sub-numa"]
PLANS = list(cputune.search_space(MACHINE.facts, MACHINE.workload).plans())
MODEL = SpeedModel(MACHINE.facts, PLANS)
TRUTH = MODEL.believe([], [], []).mean
TRIALS, APART, ERROR = 20, 3.0, 0.02
WHEN = [APART * number for number in range(TRIALS)]


def wandering(size: float, rng: random.Random) -> list[float]:
    """Where the machine is at each trial (Ornstein and Uhlenbeck 1930)."""
    kept = math.exp(-APART / DRIFT_SECONDS)
    return list(
        accumulate(
            (size * rng.gauss(0, 1) for _ in range(TRIALS)),
            lambda where, kick: kept * where + math.sqrt(1 - kept**2) * kick,
        )
    )


def studied(size: float, seed: int) -> tuple[list[int], list[float]]:
    rng = random.Random(seed)
    tried = rng.sample(range(len(PLANS)), TRIALS)
    drift = wandering(size, rng)
    return tried, [TRUTH[i] + d + rng.gauss(0, ERROR) for i, d in zip(tried, drift, strict=True)]


def off(tried: list[int], logs: list[float], when: list[float] | None) -> float:
    """How far the belief about the differences of plans is from the truth (log)."""
    error = MODEL.believe(tried, logs, [ERROR] * TRIALS, when).mean - TRUTH
    return float(np.std(error))


def test_is_told_from_what_the_plans_do() -> None:
    studies = [studied(0.1, seed) for seed in range(10)]
    known = sum(off(*study, WHEN) for study in studies)
    assert known < 0.75 * sum(off(*study, None) for study in studies)


@pytest.mark.parametrize("seed", range(5))
def test_is_not_seen_where_there_is_none(seed: int) -> None:
    tried, logs = studied(0.0, seed)
    with_times, without = (MODEL.believe(tried, logs, [ERROR] * TRIALS, w) for w in (WHEN, None))
    assert np.array_equal(with_times.mean, without.mean)
