"""Thousands of trials: what is learnt stays as it was, and no work grows with all of them."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from unittest import mock

import load
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner.fakes import BY_NAME, SMALL

import cputune
from cputune.plan import Plan
from cputune.result import Result
from cputune.tuner.model import MOST_POINTS, OWN, Belief, SpeedModel
from cputune.tuner.race import USUAL_NOISE, Noise, _lower_median
from cputune.tuner.sampler import History, PlanSampler

LOGS = st.lists(st.floats(-9, 9), max_size=30)


@given(st.lists(LOGS, max_size=5))
def test_noise_is_the_median_of_all_differences_however_they_came(runs: list[list[float]]) -> None:
    noise = Noise()
    for run in runs:
        noise.learn(run)
    usual = [USUAL_NOISE] * 6
    scale = 0.6745 * math.sqrt(2)
    seen = [abs(b - a) / scale for run in runs for a, b in itertools.pairwise(run)]
    expected = min(max(statistics.median([*usual, *seen]), 0.01), 0.3)
    assert noise.deviation == pytest.approx(expected)


@given(LOGS, st.floats(-9, 9))
def test_a_value_counts_among_others_without_their_being_sorted_anew(
    others: list[float], another: float
) -> None:
    assert _lower_median(sorted(others), another) == statistics.median_low([*others, another])


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    machine = BY_NAME["two-sockets-ipex-ccl"]
    return list(cputune.search_space(machine.facts, machine.workload).plans())


@pytest.fixture(scope="module")
def model(plans: list[Plan]) -> SpeedModel:
    return SpeedModel(BY_NAME["two-sockets-ipex-ccl"].facts, plans)


def test_trials_of_one_plan_are_one_of_their_weight(model: SpeedModel) -> None:
    twice = model.believe([3, 7, 3], [0.1, 0.5, 0.3], [0.02, 0.02, 0.02])
    error = math.sqrt((0.02**2 + OWN**2) / 2 - OWN**2)
    once = model.believe([3, 7], [0.2, 0.5], [error, 0.02])
    assert np.allclose(twice.mean, once.mean)
    assert np.allclose(twice.deviation, once.deviation)


def test_of_very_many_plans_the_fastest_and_some_of_the_others_count(
    model: SpeedModel, plans: list[Plan]
) -> None:
    tried = list(range(MOST_POINTS + 200))
    logs = [math.sin(index) for index in tried]
    with mock.patch.object(model, "_kernel", wraps=model._kernel) as kernel:
        model.believe(tried, logs, [0.02] * len(tried))
    rows = kernel.call_args_list[0].args[0]
    assert len(rows) == len(set(rows)) == MOST_POINTS
    ranked = sorted(tried, key=lambda index: logs[index])
    assert set(ranked[: MOST_POINTS // 2]) < set(rows)
    assert ranked[-1] in rows


def test_what_a_history_says_is_worked_out_once(plans: list[Plan]) -> None:
    space = cputune.search_space(SMALL.facts, SMALL.workload)
    history = History()
    sampler = PlanSampler(space, history, seed=0)
    first, second, *_ = space.plans()
    with mock.patch.object(SpeedModel, "believe", autospec=True) as believe:
        believe.side_effect = lambda *given: Belief(mean=np.zeros(9), deviation=np.ones(9))
        for plan in (first, second):
            history.plans.append(plan)
            history.logs.append(0.0)
            history.errors.append(0.1)
            sampler.believe()
            sampler.propose(2)
    assert believe.call_count == 2


@pytest.mark.slow
def test_a_study_of_many_trials_is_gone_on_with_and_reads_back(tmp_path: Path) -> None:
    space = cputune.search_space(load.LARGE.facts, load.JOB, **load.OPTIONS)
    load.make(tmp_path / "s.db", space, 300)
    result = load.resume(tmp_path / "s.db", 301)
    assert [trial.number for trial in result.trials] == list(range(301))
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json") == result
