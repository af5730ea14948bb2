"""Which plan to try next, as an Optuna sampler over the plans of a space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from cputune.knobs import KnobValue
from cputune.plan import Plan
from cputune.tuner.model import Belief, SpeedModel, expected_improvement
from cputune.tuner.space import SearchSpace

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(slots=True)
class History:
    """What was tried, for the model: plans with their log time per sample, and failures.

    ``claimed`` are those that other tuners of a shared study measure now: they are passed over.
    ``seconds`` are those of the steps of all trials, and ``when`` is the middle of each in them; of
    trials on other machines, which wander by themselves, there is none.
    """

    tried: set[Plan] = field(default_factory=set)
    claimed: Set[Plan] = frozenset()
    plans: list[Plan] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    when: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failed: list[Plan] = field(default_factory=list)


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
        self._model = SpeedModel(space.facts, self._plans, space.workload.time_shares)
        self._known = 0
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
            when = past.when if len(past.when) == len(past.plans) else None
            self._learnt = self._model.believe(rows, past.logs, past.errors, when)
            self._known = len(past.plans)
        return self._learnt

    def propose(self, number: int) -> Plan | None:
        """The plan to try as trial ``number``; None where all were tried."""
        open_ = [self._index[plan] for plan in self._untried()]
        if not open_:
            return None
        belief = self._belief()
        measured = [self._index[plan] for plan in self._history.plans]
        best = float(belief.mean[measured].min()) if measured else float(belief.mean.min())
        promise = expected_improvement(belief, best)[open_]
        if self._history.failed:
            promise = promise * np.array(self.chances([self._plans[i] for i in open_]))
        # Equal promises are told apart by the seed, not by the order of the space.
        jitter = np.random.default_rng([self._seed, number]).uniform(0, 1e-9, len(open_))
        return self._plans[open_[int(np.argmax(promise + jitter))]]

    def next_plan(self) -> Plan | None:
        """The plan to try next; None where there is none."""
        return self.propose(len(self._history.tried))

    def left(self) -> bool:
        """Whether there is a plan that was not tried, and that nobody measures now."""
        return bool(self._untried())

    def _untried(self) -> list[Plan]:
        taken = self._history.tried | self._history.claimed
        return [plan for plan in self._space.plans() if plan not in taken]

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
    ) -> dict[str, Any]:
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
