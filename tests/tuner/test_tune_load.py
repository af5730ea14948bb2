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
from tuner.fakes import SMALL

import cputune
from cputune.result import Result
from cputune.tuner.model import Belief, SpeedModel
from cputune.tuner.race import USUAL_NOISE, Noise
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


def test_what_a_history_says_is_worked_out_once() -> None:
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
    load.make(tmp_path / "s.db", space, 120)
    result = load.resume(tmp_path / "s.db", 121)
    assert [trial.number for trial in result.trials] == list(range(121))
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json") == result
