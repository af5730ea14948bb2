"""The model of speeds, held against the formulas that it names, written down once more in full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tuner.fakes import BY_NAME

import cputune
from cputune.tuner.sampler import Belief, SpeedModel

MACHINE = BY_NAME["eight-sockets-sub-numa"]
ALL = list(cputune.search_space(MACHINE.facts, MACHINE.workload).plans())
PLANS = [*ALL[:30], *ALL[30::10]]
"""Some that are much alike, and some of all kinds."""
TODAY = replace(PLANS[0], as_found=True)
MODEL = SpeedModel(MACHINE.facts, [*PLANS, TODAY])
EVERY = np.arange(len(PLANS) + 1)
PRIOR = MODEL.believe([], [], [])


def textbook(rows: np.ndarray, logs: np.ndarray, errors: np.ndarray) -> Belief:
    """Rasmussen and Williams 2006: equations 2.25 and 2.26."""
    kernel = MODEL._kernel(EVERY, EVERY)
    covariance = kernel[np.ix_(rows, rows)] + np.diag(errors**2 + 0.015**2)
    values = logs - PRIOR.mean[rows]
    values -= (offset := float(np.median(values)))
    cross = kernel[:, rows]
    gain = np.linalg.solve(covariance, cross.T).T
    variance = np.diag(kernel) - (gain * cross).sum(axis=1)
    return Belief(
        mean=PRIOR.mean + offset + gain @ values,
        deviation=np.sqrt(np.maximum(variance, 0.0) + 0.015**2),
    )


@pytest.mark.parametrize("trials", [1, 24])
def test_what_trials_tell_is_what_the_textbook_says(trials: int) -> None:
    rng = np.random.default_rng(7)
    rows = rng.choice(30, trials, replace=False)
    errors = rng.uniform(0.002, 0.01, trials)
    logs = PRIOR.mean[rows] + 3.0 + rng.normal(0, 0.05, trials)
    told = MODEL.believe(rows.tolist(), logs.tolist(), errors.tolist())
    right = textbook(rows, logs, errors)
    assert told.mean == pytest.approx(right.mean, abs=1e-6)
    assert told.deviation == pytest.approx(right.deviation, abs=1e-6)
