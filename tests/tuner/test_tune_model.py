"""The model of speeds, held against the formulas that it names, written down once more in full."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from machines import machine
from rows import every_row
from tuner.fakes import BY_NAME

import cputune
from cputune import Plan
from cputune.plans.knobs import KNOBS
from cputune.plans.knobs.record import Footprint
from cputune.tuner.sampler import Belief, SpeedModel, expected_improvement, footprint

MACHINE = BY_NAME["eight-sockets-sub-numa"]
ALL = list(cputune.search_space(MACHINE.facts, MACHINE.workload).plans())
PLANS = [*ALL[:30], *ALL[30::10]]
"""Some that are much alike, and some of all kinds."""
TODAY = replace(PLANS[0], as_found=True)
MODEL = SpeedModel(MACHINE.facts, [*PLANS, TODAY])
EVERY = np.arange(len(PLANS) + 1)
PRIOR = MODEL.believe([], [], [])


def by_hand(plan: Plan) -> tuple[float, float]:
    """What is expected of a plan before anything was measured, and how sure that is."""
    at = footprint(MACHINE.facts, plan)
    effects = [knob.effect for knob in KNOBS]
    expected = sum(e.expected(MACHINE.facts, plan) for e in effects if e.expected is not None)
    mean = -0.55 * math.log(2) * math.log2(at.share) + expected
    sizes = [size for e in effects for size in (e.size, *e.within.values())]
    sizes += [1.0, 0.2]  # the level of the machine, and what binding changes
    sizes += [0.2 * math.log2(at.share), 0.15 * math.log2(at.sockets), 0.1 * math.log2(at.nodes)]
    return mean, math.hypot(*sizes)


def test_before_any_trial_the_effects_of_all_knobs_add_up() -> None:
    of_plans = [by_hand(plan) for plan in (*PLANS, TODAY)]
    assert PRIOR.mean == pytest.approx([mean for mean, _ in of_plans])
    assert PRIOR.deviation == pytest.approx([deviation for _, deviation in of_plans])


def test_plans_are_as_alike_as_the_effects_of_their_knobs() -> None:
    kernel = MODEL._kernel(EVERY, EVERY)
    plans = [(plan, footprint(MACHINE.facts, plan)) for plan in (*PLANS, TODAY)]
    effects = {knob.name: knob.effect for knob in KNOBS}

    def alike(name: str, a: tuple[Plan, Footprint], b: tuple[Plan, Footprint]) -> float:
        if name == "layout":
            return alike("ranks", a, b) * alike("threads", a, b)
        effect = effects[name]
        if effect.label is not None and effect.label(*a) != effect.label(*b):
            return 0.0
        if effect.feature is None:
            return float(effect.label is not None or a[0].value(name) == b[0].value(name))
        return math.exp(-(((effect.feature(*a) - effect.feature(*b)) / effect.scale) ** 2) / 2)

    def covariance(a: tuple[Plan, Footprint], b: tuple[Plan, Footprint]) -> float:
        both = [[math.log2(x) for x in (at.share, at.nodes, at.sockets)] for _, at in (a, b)]
        slopes = (0.2, 0.1, 0.15)
        found = 1.0 + 0.2**2 * (a[0].as_found == b[0].as_found)
        found += sum((s**2 * x * y for s, x, y in zip(slopes, *both, strict=True)))
        for name, effect in effects.items():
            part = alike(name, a, b)
            part *= alike(effect.part_of, a, b) if effect.part_of else 1.0
            within = (size**2 * alike(other, a, b) for other, size in effect.within.items())
            found += part * (effect.size**2 + sum(within))
        return found

    for row in (0, 3, 11, -1):
        by_hand = [covariance(plans[row], other) for other in plans]
        assert kernel[row] == pytest.approx(by_hand)


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


@every_row(
    ("mean", "deviation", "expected"),
    [
        (0.0, 1.0, 0.398942),  # the density of the normal distribution at 0
        (-1.0, 2.0, 1.395593),  # 1 * P(z < 0.5) + 2 * p(0.5)
        (1.0, 2.0, 0.395593),  # -1 * P(z < -0.5) + 2 * p(0.5)
        (-5.0, 0.1, 5.0),
        (5.0, 0.1, 0.0),
    ],
)
def test_the_improvement_that_is_expected(mean: float, deviation: float, expected: float) -> None:
    belief = Belief(mean=np.array([mean]), deviation=np.array([deviation]))
    assert expected_improvement(belief, 0.0) == pytest.approx([expected], abs=1e-6)
    assert expected_improvement(replace(belief, mean=belief.mean + 2), 2.0) == pytest.approx(
        [expected], abs=1e-6
    )


LARGE = machine(sockets=4, cores_per_socket=4, nodes_per_socket=2, threads_per_core=2)


def plan(threads: int, *cpus: tuple[int, ...]) -> Plan:
    return Plan(processes_per_node=len(cpus), threads_per_process=threads, cpus=cpus)


@every_row(
    ("one", "occupied"),
    [
        # (busy cores of a rank, on siblings, share of the machine, its sockets, nodes, all sockets)
        (plan(2, (0, 1)), (2, False, 2 / 16, 1, 1)),
        (plan(1, (0, 1)), (1, False, 1 / 16, 1, 1)),
        (plan(4, (0, 1, 16, 17)), (2, True, 2 / 16, 1, 1)),
        (plan(6, tuple(range(2, 8))), (6, False, 6 / 16, 2, 3)),
        (plan(6, tuple(range(2, 8)), (8, 9, 10, 11)), (6, False, 12 / 16, 2, 3)),
        (plan(16, tuple(range(16))), (16, False, 1.0, 4, 8)),
        (plan(3, (90, 91, 92)), (1, True, 1 / 16, 1, 1)),  # CPUs that nobody knows
    ],
)
def test_what_a_plan_occupies(one: Plan, occupied: tuple[object, ...]) -> None:
    names = ("busy_cores", "on_siblings", "share", "sockets", "nodes")
    assert footprint(LARGE, one) == Footprint(**dict(zip(names, occupied, strict=True)))
