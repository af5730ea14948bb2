"""Which plan to try next, as an Optuna sampler over the plans of a space."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from cputune.knobs.batches import accumulation_of
from cputune.knobs.record import KnobValue
from cputune.memory import spare_bytes
from cputune.plan import Plan
from cputune.tuner.model import Array, Belief, SpeedModel, expected_improvement
from cputune.tuner.space import SearchSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)

LEAST_PROMISE = 0.003
LEAST_TRIALS = 7
"""A trial that is expected to make the best plan faster by less than that (log) is not made, once
there are so many. On simulated machines of 12 to 252 plans the search ends after 7 to 20 of 20
trials so, with the same plans found."""

SURELY_DIES = 0.001
"""The chance of a plan that needs no less memory than one that died of it."""


@dataclass(slots=True)
class History:
    """What was tried, for the model: plans with their log time per sample, and failures.

    ``tried`` are those of all trials. ``seconds`` are those of the steps of all trials, and
    ``when`` is the middle of each trial in them. ``too_large`` are those of ``failed`` that ran out
    of memory, ``rank_bytes`` is the most that a rank was seen to hold.
    """

    tried: set[Plan] = field(default_factory=set)
    plans: list[Plan] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    when: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failed: list[Plan] = field(default_factory=list)
    too_large: list[Plan] = field(default_factory=list)
    rank_bytes: int = 0


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """The knobs as Optuna distributions, every one a choice."""
    return {knob.name: CategoricalDistribution(knob.values) for knob in space.knobs}


class PlanSampler(BaseSampler):  # type: ignore[misc]  # optuna is not followed
    """Proposes the untried plan of which the most improvement is expected.

    Proposals follow from the space, the seed and the history alone, so that the same
    study with the same measurements makes the same proposals, in one go or resumed.
    """

    def __init__(self, space: SearchSpace, history: History, *, seed: int) -> None:
        self._space = space
        self._history = history
        self._seed = seed
        self._plans = tuple(dict.fromkeys((*space.plans(), space.baseline)))
        self._index = {plan: index for index, plan in enumerate(self._plans)}
        self._model = SpeedModel(space.facts, self._plans)
        self._known = 0
        self._asked: object = None
        self._next: Plan | None = None
        self._learnt = self._model.believe([], [], [])

    def believe(self) -> Mapping[Plan, tuple[float, float]]:
        """Mean and deviation of the log time per sample of every plan, as believed now."""
        belief = self._belief()
        return {
            plan: (float(belief.mean[i]), float(belief.deviation[i]))
            for plan, i in self._index.items()
        }

    def _belief(self) -> Belief:
        """What the history says, worked out once for each length of it."""
        past = self._history
        if self._known != len(past.plans):
            rows = [self._index[plan] for plan in past.plans]
            self._learnt = self._model.believe(rows, past.logs, past.errors, past.when or None)
            self._known = len(past.plans)
        return self._learnt

    def propose(self, number: int) -> Plan | None:
        """The plan to try as trial ``number``; None where no trial is worth its time."""
        open_ = self._untried()
        if not open_:
            return None
        promise = self._promise(open_)
        if len(self._history.tried) >= LEAST_TRIALS and promise.max() < LEAST_PROMISE:
            return None
        # Equal promises are told apart by the seed, not by the order of the space.
        jitter = np.random.default_rng([self._seed, number]).uniform(0, 1e-9, len(open_))
        return open_[int(np.argmax(promise + jitter))]

    def next_plan(self) -> Plan | None:
        """The plan to try next; None where there is none that is worth it."""
        past = self._history
        asked = (len(past.tried), len(past.plans), len(past.failed))
        if asked != self._asked:
            self._asked, self._next = asked, self.propose(len(past.tried))
        return self._next

    def _untried(self) -> list[Plan]:
        """The plans that nobody has tried, but for those that would run out of memory."""
        tried = self._history.tried
        return [p for p in self._space.plans() if p not in tried and self.fits(p) > SURELY_DIES]

    def _promise(self, plans: Sequence[Plan]) -> Array:
        """How much faster than the fastest so far (log) each is expected to be, if it runs."""
        belief = self._belief()
        measured = [self._index[plan] for plan in self._history.plans]
        best = float(belief.mean[measured].min()) if measured else float(belief.mean.min())
        promise = expected_improvement(belief, best)[[self._index[plan] for plan in plans]]
        if self._history.failed:
            promise = promise * self.chances(plans) * [self.fits(plan) for plan in plans]
        return np.asarray(promise)

    def chances(self, plans: Sequence[Plan]) -> list[float]:
        """How likely each of these plans runs at all: as its least likely value does.

        A value that plans have failed with ran in all the others, and once more.
        """
        failed = self._having(self._history.failed)
        worked = self._having(self._history.plans)
        values = self._space.values
        return [
            min(
                (worked[pair] + 1) / (worked[pair] + 1 + failed[pair])
                for pair in values[plan].items()
            )
            for plan in plans
        ]

    def fits(self, plan: Plan) -> float:
        """How likely the memory suffices for a plan, by those that ran and those that died of it.

        More ranks need more memory, and so do fewer, larger batches of one step. Between the
        most ranks that ran and the fewest that died any number may be the last that fits, each
        doubling as likely as the next.
        """
        past, cuts = self._history, self._batches(plan)
        died = [d.processes_per_node for d in past.too_large if self._batches(d) >= cuts]
        if not died:
            return 1.0
        ran = [w.processes_per_node for w in past.plans if self._batches(w) <= cuts]
        most_ran = max(ran, default=0)
        spare = spare_bytes(self._space.facts)
        if past.rank_bytes and spare:
            ran.append(int(spare) // past.rank_bytes)
        least, ranks = min(died), plan.processes_per_node
        if least <= ranks <= most_ran:
            return 0.5  # as many have run, so it was not their number
        most = max((one for one in ran if one < least), default=0.5)
        if ranks >= least:
            return SURELY_DIES if past.plans else 0.5 * least / ranks
        return min(1.0, math.log(least / ranks) / math.log(least / most))

    def _batches(self, plan: Plan) -> int:
        """In how many batches a rank takes its samples of a step."""
        return accumulation_of(plan) or self._space.workload.accumulation or 1

    def _having(self, plans: Sequence[Plan]) -> Counter[tuple[str, KnobValue]]:
        """How many of these plans have each value of each knob."""
        values = self._space.values
        return Counter(pair for plan in plans if plan in values for pair in values[plan].items())

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
        return {} if plan is None else dict(self._space.values[plan])

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A knob on its own: never asked for, since a plan is proposed as a whole."""
        raise NotImplementedError(f"{param_name} is proposed together with the other knobs")
