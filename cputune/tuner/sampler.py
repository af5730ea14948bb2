"""Which plan to try next: an Optuna sampler over the plans of a space, with a Gaussian process.

The Gaussian process predicts untried plans from the trials so far. The log of the time per sample
is modelled as a sum of effects, one for each knob, with the sizes in the knobs' records, and a few
of the machine: how many cores are busy, how many sockets and NUMA nodes a rank spans. Because
effects add, twenty trials inform about hundreds of plans, and because the standard errors of the
trials are known, noise is not taken for a difference. All sizes are standard deviations of the
natural log of the time. ``benchmarks/search.py`` measures the result.

Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", algorithm 2.1; Duvenaud et
al. 2011, "Additive Gaussian Processes", arXiv:1112.4394.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from cputune.host.facts import HostFacts
from cputune.plans.cores import nodes_spanned, usable_cores
from cputune.plans.knobs import KNOBS
from cputune.plans.knobs.batches import accumulation_of
from cputune.plans.knobs.record import Effect, Footprint
from cputune.plans.layout import lie_astride
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue
from cputune.tuner.refusals import Refusal
from cputune.tuner.space import SearchSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

# How far the speed of all plans together may be from the expected one: nothing is known.
LEVEL = 1.0

# Expected factor on the time for twice the cores: 0.68, not half, since a part of every step is
# serial (measured on two cores: 0.56 in fp32, 0.67 in bf16).
EXPECTED_PER_DOUBLING = -0.55 * math.log(2)

# How far a doubling may be from that; training of small models hardly scales.
DOUBLING = 0.2

# What a doubling of the sockets (NUMA nodes) of one rank may change: assumed, from the memory
# distance that its threads then have.
SOCKETS_SPANNED, NODES_SPANNED = 0.15, 0.1

# How far the baseline may be from the same plan with bound CPUs: assumed.
UNBOUND = 0.2

# What is a plan's own and follows from no effect (six processes of one plan, measured side by
# side, had medians within 2 % of each other).
OWN = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Mean and standard deviation of the log time per sample of every plan."""

    mean: Array
    deviation: Array


class SpeedModel:
    """Beliefs about every plan of a fixed list."""

    def __init__(self, facts: HostFacts, plans: Sequence[Plan]) -> None:
        at = _footprints(facts, plans)
        self._shares = np.log2([footprint.share for footprint in at])
        self._sockets = np.log2([float(footprint.sockets) for footprint in at])
        self._nodes = np.log2([float(footprint.nodes) for footprint in at])
        self._unbound = _labels([plan.as_found for plan in plans])
        self._effects = {knob.name: knob.effect for knob in KNOBS}
        self._alike = {name: _Alike(name, e, plans, at) for name, e in self._effects.items()}
        self._prior = EXPECTED_PER_DOUBLING * self._shares + self._expected(facts, plans)
        self._variance = np.full(len(plans), LEVEL**2 + self._spread() + UNBOUND**2)
        for slope, feature in self._slopes():
            self._variance = self._variance + np.square(slope * feature)

    def believe(
        self, tried: Sequence[int], logs: Sequence[float], errors: Sequence[float]
    ) -> Belief:
        """Beliefs after trials of the plans ``tried`` gave ``logs`` with standard ``errors``."""
        if not tried:
            return Belief(mean=self._prior.copy(), deviation=np.sqrt(self._variance))
        rows = np.array(tried, dtype=np.int64)
        values = np.asarray(logs, dtype=np.float64) - self._prior[rows]
        offset = float(np.median(values))
        covariance = self._kernel(rows, rows)
        covariance[np.diag_indices_from(covariance)] += np.square(errors) + OWN**2
        factor: Array = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        whitened = _forward(factor, (values - offset)[:, None])[:, 0]
        half = _forward(factor, self._kernel(rows, np.arange(len(self._prior))))
        variance = np.maximum(self._variance - np.square(half).sum(axis=0), 0.0)
        return Belief(
            mean=self._prior + offset + np.einsum("ij,i->j", half, whitened),
            deviation=np.sqrt(variance + OWN**2),
        )

    def _expected(self, facts: HostFacts, plans: Sequence[Plan]) -> Array:
        """What all knobs together are expected to change in the log time of each plan."""
        expected = np.zeros(len(plans))
        for row, plan in enumerate(plans):
            for effect in self._effects.values():
                if effect.expected is not None:
                    expected[row] += effect.expected(facts, plan)
        return expected

    def _slopes(self) -> tuple[tuple[float, Array], ...]:
        return (
            (DOUBLING, self._shares),
            (NODES_SPANNED, self._nodes),
            (SOCKETS_SPANNED, self._sockets),
        )

    def _spread(self) -> float:
        """The variance that the effects of all knobs add to."""
        variance = 0.0
        for effect in self._effects.values():
            variance += effect.size**2 + sum(size**2 for size in effect.within.values())
        return variance

    def _kernel(self, a: Labels, b: Labels) -> Array:
        """Covariance of the plans ``a`` with the plans ``b``."""
        alike = {name: of(a, b) for name, of in self._alike.items()}
        alike["layout"] = alike["ranks"] * alike["threads"]
        kernel = LEVEL**2 + UNBOUND**2 * _same(self._unbound, a, b)
        for slope, feature in self._slopes():
            kernel += slope**2 * np.outer(feature[a], feature[b])
        for name, effect in self._effects.items():
            within = np.zeros_like(kernel)
            for other, size in effect.within.items():
                within += size**2 * alike[other]
            part = alike[name]
            if effect.part_of is not None:
                part = part * alike[effect.part_of]
            kernel += part * (effect.size**2 + within)
        return kernel


class _Alike:
    """How alike plans are in one knob, from 0 to 1."""

    def __init__(
        self, name: str, effect: Effect, plans: Sequence[Plan], at: Sequence[Footprint]
    ) -> None:
        features: list[float] = []
        labels: list[object] = []
        for plan, occupied in zip(plans, at, strict=True):
            if effect.feature is not None:
                features.append(effect.feature(plan, occupied))
            if effect.label is not None:
                labels.append(effect.label(plan, occupied))
            elif effect.feature is None:
                labels.append(plan.value(name))
            else:
                labels.append(None)  # only the distance of their features tells plans apart
        self._scale = effect.scale
        self._features: Array | None = None
        if effect.feature is not None:
            self._features = np.array(features, dtype=np.float64)
        self._labels = _labels(labels)

    def __call__(self, a: Labels, b: Labels) -> Array:
        alike = _same(self._labels, a, b)
        if self._features is None:
            return alike
        distance = (self._features[a][:, None] - self._features[b][None, :]) / self._scale
        return np.asarray(alike * np.exp(-0.5 * distance**2))


def expected_improvement(belief: Belief, best: float) -> Array:
    """How much faster than ``best`` each plan is expected to be; 0 if it is slower.

    Jones, Schonlau and Welch 1998, equation 15, for minimizing.
    """
    gain = best - belief.mean
    ratio = gain / belief.deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(ratio / math.sqrt(2)))
    return np.asarray(gain * below + belief.deviation * density)


def _footprints(facts: HostFacts, plans: Sequence[Plan]) -> list[Footprint]:
    # Most plans differ only in knobs that do not decide CPUs, and a footprint visits every core.
    by_layout: dict[object, Footprint] = {}
    footprints = []
    for plan in plans:
        layout: object = (plan.nodes, plan.cpus, plan.threads_per_process)
        if layout not in by_layout:
            by_layout[layout] = footprint(facts, plan)
        footprints.append(by_layout[layout])
    return footprints


def footprint(facts: HostFacts, plan: Plan) -> Footprint:
    """What the first rank of a plan occupies, and which share of the machine all ranks do."""
    first = set(plan.cpus[0])
    busy_cores = sum(not first.isdisjoint(core.cpus) for core in facts.topology.cores)
    busy = max(1, min(busy_cores, plan.threads_per_process))
    sockets, nodes = nodes_spanned(facts, plan.cpus[0])
    return Footprint(
        busy_cores=busy,
        on_siblings=plan.threads_per_process > busy,
        share=busy * plan.world_size / max(1, facts.topology.physical_cores),
        sockets=max(1, sockets),
        nodes=max(1, nodes),
    )


def _forward(lower: Array, right: Array) -> Array:
    """Solve ``lower @ x = right`` by forward substitution.

    Plain loops on purpose: a threaded BLAS would wake threads that spin on the cores that are about
    to be measured.
    """
    solved = np.empty_like(right)
    for row in range(len(lower)):
        solved_part = np.einsum("k,kj->j", lower[row, :row], solved[:row])
        solved[row] = (right[row] - solved_part) / lower[row, row]
    return solved


def _labels(values: Sequence[object]) -> Labels:
    """A number for each value: the same for equal values."""
    numbers: dict[object, int] = {}
    labels = []
    for value in values:
        labels.append(numbers.setdefault(value, len(numbers)))
    return np.array(labels, dtype=np.int64)


def _same(labels: Labels, a: Labels, b: Labels) -> Array:
    return np.asarray(labels[a][:, None] == labels[b][None, :], dtype=np.float64)


# After this many trials one is skipped if it is expected to improve the best plan by less than the
# limit (log). On simulated machines of 12 to 252 plans the search then ends after 7 to 20 of 20
# trials, with the same plans found.
LEAST_PROMISE = 0.003
LEAST_TRIALS = 7


@dataclass(slots=True)
class History:
    """What was tried, for the model: plans with their log time per sample, and failures.

    ``tried`` are those of all trials. ``too_large`` are those of ``failed`` that ran out of memory,
    ``rank_bytes`` is the largest memory of a rank so far. ``refused`` is what trials have shown not
    to work here.
    """

    tried: set[Plan] = field(default_factory=set)
    plans: list[Plan] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    failed: list[Plan] = field(default_factory=list)
    too_large: list[Plan] = field(default_factory=list)
    rank_bytes: int = 0
    refused: tuple[Refusal, ...] = ()

    def refuses(self, plan: Plan) -> bool:
        """Whether a plan has a value that was shown not to work here."""
        return any(refusal.meets(plan) for refusal in self.refused)


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """The knobs as Optuna distributions, every one categorical."""
    return {knob.name: CategoricalDistribution(knob.values) for knob in space.knobs}


class PlanSampler(BaseSampler):  # type: ignore[misc]  # optuna is not followed
    """Proposes the untried plan with the largest expected improvement.

    Proposals follow from the space, the seed and the history alone, so that the same study with the
    same measurements makes the same proposals, in one go or resumed.
    """

    def __init__(self, space: SearchSpace, history: History, *, seed: int) -> None:
        self._space = space
        self._history = history
        self._seed = seed
        self._cores = usable_cores(space.facts)
        self._astride: dict[int, bool] = {}
        self._index: dict[Plan, int] = {}
        for plan in (*space.plans(), space.baseline):
            self._index.setdefault(plan, len(self._index))
        self._plans = tuple(self._index)
        self.baseline = space.baseline
        self._model = SpeedModel(space.facts, self._plans)
        self._learnt_plans = 0
        self._proposed_at: object = None
        self._next: Plan | None = None
        self._learnt = self._model.believe([], [], [])

    def believe(self) -> Mapping[Plan, tuple[float, float]]:
        """Current mean and deviation of the log time per sample of every plan."""
        belief = self._belief()
        by_plan: dict[Plan, tuple[float, float]] = {}
        for plan, i in self._index.items():
            by_plan[plan] = (float(belief.mean[i]), float(belief.deviation[i]))
        return by_plan

    def _belief(self) -> Belief:
        """The model's prediction, computed once for each length of the history."""
        past = self._history
        if self._learnt_plans != len(past.plans):
            rows = [self._index[plan] for plan in past.plans]
            self._learnt = self._model.believe(rows, past.logs, past.errors)
            self._learnt_plans = len(past.plans)
        return self._learnt

    def propose(self, number: int) -> Plan | None:
        """The plan to try as trial ``number``; None if no trial is worth its time.

        Plans with ranks that span NUMA nodes come last: if no other one is worth a trial.
        """
        untried = self._untried()
        within_nodes = []
        for plan in untried:
            if not self._lies_astride(plan):
                within_nodes.append(plan)
        return self._most_promising(within_nodes, number) or self._most_promising(untried, number)

    def _most_promising(self, plans: Sequence[Plan], number: int) -> Plan | None:
        if not plans:
            return None
        promise = self._promise(plans)
        if len(self._history.tried) >= LEAST_TRIALS and promise.max() < LEAST_PROMISE:
            return None
        # Equal promises are ordered by the seed, not by the order of the space.
        jitter = np.random.default_rng([self._seed, number]).uniform(0, 1e-9, len(plans))
        return plans[int(np.argmax(promise + jitter))]

    def _lies_astride(self, plan: Plan) -> bool:
        ranks = plan.processes_per_node
        if ranks not in self._astride:
            self._astride[ranks] = lie_astride(self._cores, ranks)
        return self._astride[ranks]

    def next_plan(self) -> Plan | None:
        """The plan to try next; None if none is worth it."""
        past = self._history
        key = (len(past.tried), len(past.plans), len(past.failed))
        if key != self._proposed_at:
            self._proposed_at = key
            self._next = self.propose(len(past.tried))
        return self._next

    def _untried(self) -> list[Plan]:
        """The plans that were not tried and that may run here."""
        plans = []
        for plan in self._space.plans():
            if plan not in self._history.tried and self.may_run(plan):
                plans.append(plan)
        return plans

    def may_run(self, plan: Plan) -> bool:
        """Whether a plan may have enough memory, and has no value that does not work here."""
        return self.fits(plan) and not self._history.refuses(plan)

    def _promise(self, plans: Sequence[Plan]) -> Array:
        """How much faster than the fastest so far (log) each is expected to be, if it runs."""
        belief = self._belief()
        measured = [self._index[plan] for plan in self._history.plans]
        if measured:
            best = float(belief.mean[measured].min())
        else:
            best = float(belief.mean.min())
        rows = [self._index[plan] for plan in plans]
        promise = expected_improvement(belief, best)[rows]
        if self._history.failed:
            promise = promise * self.chances(plans)
        return np.asarray(promise)

    def chances(self, plans: Sequence[Plan]) -> list[float]:
        """The probability that each of these plans runs: that of its least likely value.

        A value of failed plans counts as if it had run in all others, and once more. If a failure
        is explained no other value is to blame.
        """
        unexplained = [plan for plan in self._history.failed if not self._history.refuses(plan)]
        failed = self._having(unexplained)
        worked = self._having(self._history.plans)
        chances = []
        for plan in plans:
            least = 1.0
            for pair in self._space.values[plan].items():
                least = min(least, (worked[pair] + 1) / (worked[pair] + 1 + failed[pair]))
            chances.append(least)
        return chances

    def fits(self, plan: Plan) -> bool:
        """Whether a plan may have enough memory, by those that ran and those that ran out of it.

        More ranks need more memory, and so do fewer, larger batches of one step. If no plan ran
        yet, each may.
        """
        past, batches, ranks = self._history, self._batches(plan), plan.processes_per_node
        if not past.plans:
            return True
        fewest_that_died = math.inf
        for larger in past.too_large:
            if self._batches(larger) >= batches:
                fewest_that_died = min(fewest_that_died, larger.processes_per_node)
        most_that_ran = 0
        for other in past.plans:
            if self._batches(other) <= batches:
                most_that_ran = max(most_that_ran, other.processes_per_node)
        return ranks < fewest_that_died or ranks <= most_that_ran

    def _batches(self, plan: Plan) -> int:
        """In how many batches a rank takes its samples of a step."""
        batches = accumulation_of(plan) or self._space.workload.accumulation
        return batches or 1

    def _having(self, plans: Sequence[Plan]) -> Counter[tuple[str, KnobValue]]:
        """How many of these plans have each value of each knob."""
        having: Counter[tuple[str, KnobValue]] = Counter()
        for plan in plans:
            having.update(self._space.values.get(plan, {}).items())
        return having

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every knob: a plan is proposed as a whole."""
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        """The knob values of the proposed plan."""
        if "fixed_params" in trial.system_attrs:
            return {}
        plan = self.next_plan()
        if plan is None:
            return {}
        return dict(self._space.values[plan])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A single knob: never requested, since a plan is proposed as a whole."""
        raise NotImplementedError(f"{param_name} is proposed together with the other knobs")
