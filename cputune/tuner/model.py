"""What the trials so far say about the plans that were not tried: a Gaussian process.

The log of the time per sample is modelled as a sum of effects, each with a size that
is plausible for it beforehand: a factor for every precision, allocator, runtime; a
smooth surface over ranks and threads; smaller interactions of the two. With effects
that add up, twenty trials tell about hundreds of plans, and with standard errors of
the trials known, noise is not taken for a difference.

Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", algorithm 2.1;
Duvenaud et al. 2011, "Additive Gaussian Processes", arXiv:1112.4394.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cputune.facts import HostFacts
from cputune.knobs.precision import NATIVE_BF16
from cputune.layout import nodes_spanned
from cputune.plan import Plan

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Mean and standard deviation of the log time per sample of every plan."""

    mean: Array
    deviation: Array


class SpeedModel:
    """Beliefs about every plan of a fixed list."""

    def __init__(self, facts: HostFacts, plans: Sequence[Plan]) -> None:
        layouts: dict[object, tuple[float, ...]] = {}
        rows = []
        for plan in plans:
            key = (plan.cpus, plan.ccl_cpus)
            if key not in layouts:
                layouts[key] = _layout_features(facts, plan)
            rows.append(layouts[key])
        table = np.array(rows, dtype=np.float64).reshape(len(plans), 6)
        self._ranks, self._cores, self._used, self._smt, self._nodes, self._sockets = table.T
        self._workers = np.log2([1.0 + plan.ccl_workers for plan in plans])
        self._precision = _labels([plan.precision for plan in plans])
        self._allocator = _labels([plan.allocator for plan in plans])
        self._openmp = _labels([plan.openmp for plan in plans])
        self._ipex = _labels([str(plan.ipex) for plan in plans])
        self._backend = _labels([plan.backend if plan.world_size > 1 else "none" for plan in plans])
        self._unbound = _labels([str(plan.as_found) for plan in plans])
        native = any(facts.cpu.has(flag) for flag in NATIVE_BF16)
        bf16 = np.array([plan.precision == "bf16" for plan in plans], dtype=np.float64)
        # Half of the cores take longer, but seldom twice as long; bf16 pays where it is native.
        self._prior = -0.55 * math.log(2) * self._used + bf16 * (-0.7 if native else 1.0)
        one_by_one = [np.array([index]) for index in range(len(plans))]
        self._variance = np.array([self._kernel(one, one)[0, 0] for one in one_by_one])

    def believe(
        self, tried: Sequence[int], logs: Sequence[float], errors: Sequence[float]
    ) -> Belief:
        """Beliefs after trials of the plans ``tried`` gave ``logs`` with standard ``errors``."""
        everything = np.arange(len(self._prior))
        if not tried:
            return Belief(mean=self._prior.copy(), deviation=np.sqrt(self._variance))
        rows = np.asarray(tried, dtype=np.int64)
        values = np.asarray(logs, dtype=np.float64) - self._prior[rows]
        offset = float(np.median(values))
        covariance = self._kernel(rows, rows)
        covariance[np.diag_indices_from(covariance)] += np.square(errors) + _OWN**2
        factor: Array = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        cross = self._kernel(rows, everything)
        half = _forward(factor, cross)
        whitened = _forward(factor, (values - offset)[:, None])[:, 0]
        variance = np.maximum(self._variance - np.square(half).sum(axis=0), 0.0)
        return Belief(
            mean=self._prior + offset + np.einsum("ij,i->j", half, whitened),
            deviation=np.sqrt(variance + _OWN**2),
        )

    def _kernel(self, a: Labels, b: Labels) -> Array:
        """Covariance of the plans ``a`` with the plans ``b``; the sizes are logs of factors."""

        def near(feature: Array, scale: float) -> Array:
            return _rbf(feature[a], feature[b], scale)

        def same(labels: Labels) -> Array:
            return np.asarray(labels[a][:, None] == labels[b][None, :], dtype=np.float64)

        ranks, cores = near(self._ranks, 1.5), near(self._cores, 1.5)
        layout = ranks * cores
        smt = (self._smt[a][:, None] == self._smt[b][None, :]).astype(np.float64)
        line = np.outer(self._used[a], self._used[b])
        spans = np.outer(self._nodes[a], self._nodes[b])
        socket_spans = np.outer(self._sockets[a], self._sockets[b])
        kernel = 1.0 + 0.2**2 * line + 0.1**2 * spans + 0.15**2 * socket_spans
        kernel += 0.3**2 * layout + 0.15**2 * (ranks + cores)
        kernel += smt * (0.12**2 + 0.08**2 * layout)
        precision = same(self._precision)
        kernel += precision * (0.6**2 + 0.15**2 * layout + 0.1**2 * smt)
        for labels, own, within in (
            (self._allocator, 0.12, 0.04),
            (self._openmp, 0.08, 0.04),
            (self._ipex, 0.15, 0.06),
            (self._unbound, 0.2, 0.0),
        ):
            kernel += same(labels) * (own**2 + within**2 * layout + within**2 * precision)
        backend = same(self._backend)
        workers = near(self._workers, 1.0)
        kernel += backend * (0.1**2 + 0.1**2 * ranks + workers * (0.08**2 + 0.08**2 * ranks))
        return kernel


_OWN = 0.015
"""What is a plan's own and follows from no effect: standard deviation of the log time."""


def expected_improvement(belief: Belief, best: float) -> Array:
    """How much faster than ``best`` each plan is expected to be, nothing where it is slower.

    Jones, Schonlau and Welch 1998, equation 15, for minimizing.
    """
    gain = best - belief.mean
    ratio = gain / belief.deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(ratio / math.sqrt(2)))
    return np.asarray(gain * below + belief.deviation * density)


def _layout_features(facts: HostFacts, plan: Plan) -> tuple[float, ...]:
    """log2 of: ranks, busy cores of a rank, busy share of all cores, 1 + SMT, nodes, sockets."""
    core_of = {cpu: index for index, core in enumerate(facts.topology.cores) for cpu in core.cpus}
    first = plan.cpus[0]
    own = {core_of.get(cpu, -1) for cpu in first} or {-1}
    busy = max(1, min(len(own), plan.threads_per_process))
    smt = plan.threads_per_process > busy
    total = max(1, facts.topology.physical_cores)
    sockets, nodes = nodes_spanned(facts, first)
    return (
        math.log2(plan.processes_per_node),
        math.log2(busy),
        math.log2(busy * plan.processes_per_node / total),
        float(smt),
        math.log2(max(nodes, 1)),
        math.log2(max(sockets, 1)),
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


def _labels(values: Sequence[str]) -> Labels:
    known = {value: index for index, value in enumerate(dict.fromkeys(values))}
    return np.array([known[value] for value in values], dtype=np.int64)


def _rbf(a: Array, b: Array, scale: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((a[:, None] - b[None, :]) / scale) ** 2))
