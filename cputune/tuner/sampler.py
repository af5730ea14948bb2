"""Which plan to try next, as an Optuna sampler over the plans of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What was tried, for the model: plans with their log time per sample, and failures."""

    tried: set[Plan] = field(default_factory=set)
    plans: list[Plan] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
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
        self._model = SpeedModel(space.facts, self._plans)

    def believe(self) -> Mapping[Plan, tuple[float, float]]:
        """Mean and deviation of the log time per sample of every plan, as believed now."""
        belief = self._belief()
        return {
            plan: (float(belief.mean[i]), float(belief.deviation[i]))
            for plan, i in self._index.items()
        }

    def _belief(self) -> Belief:
        past = self._history
        return self._model.believe(
            [self._index[plan] for plan in past.plans], past.logs, past.errors
        )

    def propose(self, number: int) -> Plan | None:
        """The plan to try as trial ``number``; None where all were tried."""
        open_ = [self._index[plan] for plan in self._untried()]
        if not open_:
            return None
        belief = self._belief()
        measured = [self._index[plan] for plan in self._history.plans]
        best = float(belief.mean[measured].min()) if measured else float(belief.mean.min())
        promise = expected_improvement(belief, best)[open_]
        promise = promise * np.array([self._chance(self._plans[i]) for i in open_])
        # Equal promises are told apart by the seed, not by the order of the space.
        jitter = np.random.default_rng([self._seed, number]).uniform(0, 1e-9, len(open_))
        return self._plans[open_[int(np.argmax(promise + jitter))]]

    def left(self) -> bool:
        """Whether there is a plan that was not tried."""
        return bool(self._untried())

    def _untried(self) -> list[Plan]:
        return [plan for plan in self._space.plans() if plan not in self._history.tried]

    def _chance(self, plan: Plan) -> float:
        """How likely the plan runs at all, judging by failures that share a value with it."""
        if not self._history.failed or not self._space.values:
            return 1.0
        values = self._space.values[plan]
        chance = 1.0
        for name, value in values.items():
            failed = self._sharing(self._history.failed, name, value)
            if failed:
                worked = self._sharing(self._history.plans, name, value)
                chance = min(chance, (worked + 1) / (worked + failed + 1))
        return chance

    def _sharing(self, plans: Sequence[Plan], name: str, value: KnobValue) -> int:
        values = self._space.values
        return sum(plan in values and values[plan][name] == value for plan in plans)

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
        plan = self.propose(len(self._history.tried))
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
