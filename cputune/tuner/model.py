"""What the trials so far say about the plans that were not tried: a Gaussian process.

The log of the time per sample is modelled as a sum of effects, one for each knob, with
the sizes that stand in the knobs' records, and a few of the machine: how many cores are
busy, how many sockets and NUMA nodes a rank spans. With effects that add up, twenty
trials tell about hundreds of plans, and with standard errors of the trials known, noise
is not taken for a difference. All sizes are standard deviations of the natural log of
the time.

Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", algorithm 2.1;
Duvenaud et al. 2011, "Additive Gaussian Processes", arXiv:1112.4394.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cputune.cores import nodes_spanned
from cputune.facts import HostFacts
from cputune.knobs import KNOBS
from cputune.knobs.record import Effect, Footprint
from cputune.plan import Plan

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

LEVEL = 1.0
"""How far the speed of all plans together may lie from what is expected: nothing is known."""

EXPECTED_PER_DOUBLING = -0.55 * math.log(2)
"""What twice the cores are expected to do: not half the time, but 0.68 of it, since a part of
every step is not shared out (read on two cores: 0.56 in fp32, 0.67 in bf16)."""

DOUBLING = 0.2
"""How far a doubling may lie from that; training of small models hardly scales at all."""

SOCKETS_SPANNED, NODES_SPANNED = 0.15, 0.1
"""What a doubling of the sockets (NUMA nodes) under one rank may change: assumed, from the
distance in memory that its threads then share."""

UNBOUND = 0.2
"""How far the launch as found may lie from the same plan with its CPUs bound: assumed."""

OWN = 0.015
"""What is a plan's own and follows from no effect (six processes of one plan, measured side by
side, had medians within 2 % of each other)."""

DRIFTS = (0.0, 0.05, 0.1)
"""How far a machine may wander while a study lasts, as it is asked of the trials; a virtual machine
that looks idle was read to wander by 10 %."""

DRIFT_SECONDS = 15.0
"""After so long a machine has forgotten where it was, about."""

MOST_TRIALS = 400
"""The model learns from so many, the fastest: its work grows with the cube of them."""

STEADY = 2.0
"""How much likelier (log) a drift has to make the trials before it is believed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Mean and standard deviation of the log time per sample of every plan."""

    mean: Array
    deviation: Array


class SpeedModel:
    """Beliefs about every plan of a fixed list."""

    def __init__(self, facts: HostFacts, plans: Sequence[Plan]) -> None:
        at = _footprints(facts, plans)
        self._shares = np.log2([one.share for one in at])
        self._sockets = np.log2([float(one.sockets) for one in at])
        self._nodes = np.log2([float(one.nodes) for one in at])
        self._unbound = _labels([plan.as_found for plan in plans])
        self._effects = {knob.name: knob.effect for knob in KNOBS}
        self._alike = {name: _Alike(name, e, plans, at) for name, e in self._effects.items()}
        self._prior = EXPECTED_PER_DOUBLING * self._shares + np.array(
            [
                sum(e.expected(facts, plan) for e in self._effects.values() if e.expected)
                for plan in plans
            ],
            dtype=np.float64,
        )
        self._variance = np.full(len(plans), LEVEL**2 + self._spread() + UNBOUND**2)
        for slope, feature in self._slopes():
            self._variance = self._variance + np.square(slope * feature)

    def believe(
        self,
        tried: Sequence[int],
        logs: Sequence[float],
        errors: Sequence[float],
        when: Sequence[float] | None = None,
    ) -> Belief:
        """Beliefs after trials of the plans ``tried`` gave ``logs`` with standard ``errors``.

        ``when`` they were made, in seconds: then what the machine has done meanwhile is not
        taken for the plans', where the trials show it.
        """
        everything = np.arange(len(self._prior))
        if not tried:
            return Belief(mean=self._prior.copy(), deviation=np.sqrt(self._variance))
        chosen = np.sort(np.argsort(logs, kind="stable")[:MOST_TRIALS])
        rows = np.array(tried, dtype=np.int64)[chosen]
        values = np.asarray(logs, dtype=np.float64)[chosen] - self._prior[rows]
        offset = float(np.median(values))
        covariance = self._kernel(rows, rows)
        covariance[np.diag_indices_from(covariance)] += np.square(errors)[chosen] + OWN**2
        times = None if when is None else np.asarray(when, dtype=np.float64)[chosen]
        factor, whitened = _likeliest(covariance, values - offset, times)
        cross = self._kernel(rows, everything)
        half = _forward(factor, cross)
        variance = np.maximum(self._variance - np.square(half).sum(axis=0), 0.0)
        return Belief(
            mean=self._prior + offset + np.einsum("ij,i->j", half, whitened),
            deviation=np.sqrt(variance + OWN**2),
        )

    def _slopes(self) -> tuple[tuple[float, Array], ...]:
        return (
            (DOUBLING, self._shares),
            (NODES_SPANNED, self._nodes),
            (SOCKETS_SPANNED, self._sockets),
        )

    def _spread(self) -> float:
        """The variance that the effects of all knobs add up to."""
        return sum(
            effect.own**2 + sum(size**2 for size in effect.within.values())
            for effect in self._effects.values()
        )

    def _kernel(self, a: Labels, b: Labels) -> Array:
        """Covariance of the plans ``a`` with the plans ``b``."""
        alike = {name: of(a, b) for name, of in self._alike.items()}
        alike["layout"] = alike["ranks"] * alike["threads"]
        kernel = LEVEL**2 + UNBOUND**2 * _same(self._unbound, a, b)
        for slope, feature in self._slopes():
            kernel += slope**2 * np.outer(feature[a], feature[b])
        for name, effect in self._effects.items():
            size: Array = effect.own**2 + sum(
                (within**2 * alike[other] for other, within in effect.within.items()),
                start=np.zeros_like(kernel),
            )
            part = alike[name] if effect.part_of is None else alike[name] * alike[effect.part_of]
            kernel += part * size
        return kernel


class _Alike:
    """How alike plans are in one knob, from 0 to 1."""

    def __init__(
        self, name: str, effect: Effect, plans: Sequence[Plan], at: Sequence[Footprint]
    ) -> None:
        pairs = list(zip(plans, at, strict=True))
        self._scale = effect.scale
        self._features = (
            None
            if effect.feature is None
            else np.array([effect.feature(*pair) for pair in pairs], dtype=np.float64)
        )
        own = self._features is None
        label = effect.label or (lambda plan, at: plan.value(name) if own else None)
        self._labels = _labels([label(*pair) for pair in pairs])

    def __call__(self, a: Labels, b: Labels) -> Array:
        alike = _same(self._labels, a, b)
        if self._features is None:
            return alike
        distance = (self._features[a][:, None] - self._features[b][None, :]) / self._scale
        return np.asarray(alike * np.exp(-0.5 * distance**2))


def _likeliest(covariance: Array, values: Array, times: Array | None) -> tuple[Array, Array]:
    """The Cholesky factor, and the values solved by it, with the drift that explains them best.

    By the marginal likelihood (Rasmussen and Williams 2006, equation 2.30).
    """
    found: list[tuple[float, Array, Array]] = []
    for drift in DRIFTS if times is not None else DRIFTS[:1]:
        drifting = covariance
        if drift and times is not None:
            apart = np.abs(times[:, None] - times[None, :])
            drifting = covariance + drift**2 * np.exp(-apart / DRIFT_SECONDS)
        factor: Array = np.asarray(np.linalg.cholesky(drifting), dtype=np.float64)
        whitened = _forward(factor, values[:, None])[:, 0]
        likely = -0.5 * float(whitened @ whitened) - float(np.log(np.diag(factor)).sum())
        found.append((likely - STEADY * bool(drift), factor, whitened))
    _, factor, whitened = max(found, key=lambda one: one[0])
    return factor, whitened


def expected_improvement(belief: Belief, best: float) -> Array:
    """How much faster than ``best`` each plan is expected to be, nothing where it is slower.

    Jones, Schonlau and Welch 1998, equation 15, for minimizing.
    """
    gain = best - belief.mean
    ratio = gain / belief.deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(ratio / math.sqrt(2)))
    return np.asarray(gain * below + belief.deviation * density)


def _footprints(facts: HostFacts, plans: Sequence[Plan]) -> list[Footprint]:
    known: dict[object, Footprint] = {}
    found = []
    for plan in plans:
        key: object = (plan.nodes, plan.cpus, plan.threads_per_process)
        if key not in known:
            known[key] = footprint(facts, plan)
        found.append(known[key])
    return found


def footprint(facts: HostFacts, plan: Plan) -> Footprint:
    """What the first rank of a plan, and all of them together, occupy."""
    first = set(plan.cpus[0])
    own = sum(not first.isdisjoint(core.cpus) for core in facts.topology.cores)
    busy = max(1, min(own, plan.threads_per_process))
    sockets, nodes = nodes_spanned(facts, plan.cpus[0])
    everywhere = nodes_spanned(facts, tuple(cpu for cpus in plan.cpus for cpu in cpus))[0]
    return Footprint(
        busy_cores=busy,
        on_siblings=plan.threads_per_process > busy,
        share=busy * plan.world_size / max(1, facts.topology.physical_cores),
        sockets=max(1, sockets),
        nodes=max(1, nodes),
        sockets_of_all=max(1, everywhere),
    )


def _forward(lower: Array, right: Array) -> Array:
    """Solve ``lower @ x = right`` by forward substitution.

    Plain loops on purpose: a threaded BLAS would wake threads that spin on the cores
    that are about to be measured.
    """
    solved = np.empty_like(right)
    for row in range(len(lower)):
        known = np.einsum("k,kj->j", lower[row, :row], solved[:row])
        solved[row] = (right[row] - known) / lower[row, row]
    return solved


def _labels(values: Sequence[object]) -> Labels:
    known = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return np.array([known[value] for value in values], dtype=np.int64)


def _same(labels: Labels, a: Labels, b: Labels) -> Array:
    return np.asarray(labels[a][:, None] == labels[b][None, :], dtype=np.float64)
