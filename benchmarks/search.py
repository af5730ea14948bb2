"""How good and how dear the search is, beside its peers, on machines whose truth is known.

    python benchmarks/search.py                  # every machine, budgets 10, 20, 30
    python benchmarks/search.py --machines two-sockets --budgets 20 --seeds 100
    python benchmarks/search.py --wander 0.1     # machines that get faster and slower meanwhile
    python benchmarks/search.py --crashes 0.1 --most-ranks 4 --tails 0.1 --searches cputune
    python benchmarks/search.py --measure benchmarks/tables/amx-2-cores.json

Share: time of the best plan of the space over that of the plan recommended, both without noise;
100 % is the optimum. Rivals: the same share of the fastest of the plans that were compared in the
end, at the worst twentieth: what the search found, whatever the comparison made of it. Seconds: of
every start (7.5 s of a new process, 0.8 s of a forked one, see ``starting.py``) and of every step
that was run; ours include the confirmation, and end where ``tune`` ends by default. Peers start
every trial as a new process, run it for 3 + 10 steps and believe the mean of the last ten, as
HyperTune and DeepSpeed's autotuner do.

With ``--wander`` the simulated machines as a whole get slower and faster by that much (standard
deviation of the log) over some 15 s, and no counter tells; tables that replay do not.

``--crashes`` is the share of plans that die, ``--most-ranks`` those for which there is memory, and
``--tails`` the share of steps that take twice as long while the kernel is silent. ``--touch`` is
the share of plans whose second step is as long as their first.

``--measure`` runs every plan of the machine it is started on and writes the table that
later runs replay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import optuna
from machines import MACHINES, Machine, SimulatedRunner
from replayed import measured_machine, write_table
from starting import StartingRunner, tuned

import cputune
from cputune.plans.plan import Plan
from cputune.records.steps import Crashed, OutOfMemory
from cputune.tuner import study as study_module
from cputune.tuner.sampler import PlanSampler
from cputune.tuner.space import SearchSpace

WARMUP, STEPS = 3, 10
BUDGETS = (10, 20, 30)
TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The plan that a search recommends, the seconds it took, and the plans it chose that from."""

    plan: Plan
    seconds: float
    rivals: tuple[Plan, ...]


Search = Callable[[Machine, SearchSpace, int, int], Outcome]
"""(machine, its space, budget, seed) -> what it finds."""


def ours(machine: Machine, space: SearchSpace, budget: int, seed: int) -> Outcome:
    runner = machine.runner(seed)
    result = tuned(runner, machine.workload, machine.facts, budget=budget, seed=seed)
    rivals = tuple({run.plan: run for run in result.confirmation})
    return Outcome(plan=result.best.plan, seconds=runner.spent_seconds, rivals=rivals)


def fixed_length(machine: Machine, seed: int, plans: Sequence[Plan]) -> Outcome:
    """Every plan for 3 + 10 steps; the one with the least mean."""
    runner = machine.runner(seed)
    fresh = StartingRunner(of=runner, fresh=True)
    means = [_mean_of_ten(fresh.steps(plan)) for plan in plans]
    best = plans[means.index(min(means))]
    return Outcome(plan=best, seconds=runner.spent_seconds, rivals=tuple(plans))


def _mean_of_ten(steps: Iterable[cputune.Step]) -> float:
    taken = [step.seconds for step in itertools.islice(steps, WARMUP + STEPS)]
    return statistics.fmean(taken[WARMUP:])


def random_search(machine: Machine, space: SearchSpace, budget: int, seed: int) -> Outcome:
    plans = list(space.plans())
    chosen = random.Random(seed).sample(plans, min(budget, len(plans)))
    return fixed_length(machine, seed, chosen)


def grid(machine: Machine, space: SearchSpace, budget: int, seed: int) -> Outcome:
    """``itertools.product`` in the order of HyperTune's own hyperparameters.

    intel_extension_for_pytorch/cpu/hypertune: cores of an instance, instances, logical
    cores, disable_iomp, malloc (tc, je, pt); what it does not know comes last.
    """
    mallocs = {"tcmalloc": 0, "jemalloc": 1, "default": 2}
    order = sorted(
        space.plans(),
        key=lambda plan: (
            plan.threads_per_process,
            plan.processes_per_node,
            space.values[plan]["smt"],
            plan.openmp == "default",
            mallocs[plan.allocator],
        ),
    )
    return fixed_length(machine, seed, order[:budget])


def tpe(machine: Machine, space: SearchSpace, budget: int, seed: int) -> Outcome:
    """Optuna's default sampler over the same knobs, each a choice among what is feasible."""
    runner = machine.runner(seed)
    fresh = StartingRunner(of=runner, fresh=True)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    tried: dict[Plan, float] = {}
    for _ in range(budget):
        trial = study.ask()
        plan = _suggest(trial, space)
        seconds = _mean_of_ten(fresh.steps(plan))
        study.tell(trial, seconds)
        tried[plan] = min(seconds, tried.get(plan, math.inf))
    best = min(tried, key=lambda plan: tried[plan])
    return Outcome(plan=best, seconds=runner.spent_seconds, rivals=tuple(tried))


def _suggest(trial: optuna.Trial, space: SearchSpace) -> Plan:
    return _walk(space, lambda name, feasible, knob: trial.suggest_categorical(name, feasible))


def _told(space: SearchSpace, plan: Plan, log: float) -> optuna.trial.FrozenTrial:
    """A finished trial of a plan, in the words of ``_suggest``."""
    params: dict[str, Any] = {}
    choices: dict[str, optuna.distributions.BaseDistribution] = {}

    def record(name: str, feasible: tuple[Any, ...], knob: str) -> Any:
        params[name] = space.values[plan][knob]
        choices[name] = optuna.distributions.CategoricalDistribution(feasible)
        return params[name]

    _walk(space, record)
    return optuna.trial.create_trial(params=params, distributions=choices, value=log)


def _walk(space: SearchSpace, choose: Callable[[str, tuple[Any, ...], str], Any]) -> Plan:
    """One knob after another, each a choice among what the others leave feasible."""
    left = list(space.values.items())
    for knob in space.knobs:
        feasible = tuple(dict.fromkeys(values[knob.name] for _, values in left))
        if len(feasible) == 1:
            continue
        name = knob.name if feasible == knob.values else f"{knob.name} of {feasible}"
        chosen = choose(name, feasible, knob.name)
        left = [(plan, values) for plan, values in left if values[knob.name] == chosen]
    return left[0][0]


class RandomPlans(PlanSampler):
    """Any plan that was not tried, with our trials: what the model is worth."""

    def propose(self, number: int) -> Plan | None:
        plans = [plan for plan in self._space.plans() if plan not in self._history.tried]
        rng = random.Random(f"{self._seed} {number}")
        return rng.choice(plans) if plans else None


class TpePlans(PlanSampler):
    """Optuna's TPE, with our trials: it is asked until it says something new."""

    def propose(self, number: int) -> Plan | None:
        past = self._history
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=1000 * self._seed + number)
        )
        for plan, log in zip(past.plans, past.logs, strict=True):
            if plan in self._space.values:
                study.add_trial(_told(self._space, plan, log))
        for _ in range(100):
            plan = _suggest(study.ask(), self._space)
            if plan not in past.tried:
                return plan
        untried = [plan for plan in self._space.plans() if plan not in past.tried]
        return untried[0] if untried else None


def with_sampler(sampler: type[PlanSampler]) -> Search:
    """Our own study with another sampler in it."""

    def search(machine: Machine, space: SearchSpace, budget: int, seed: int) -> Outcome:
        with mock.patch.object(study_module, "PlanSampler", sampler):
            return ours(machine, space, budget, seed)

    return search


SEARCHES: dict[str, Search] = {
    "cputune": ours,
    "TPE, our trials": with_sampler(TpePlans),
    "random, our trials": with_sampler(RandomPlans),
    "TPE, 3+10 steps": tpe,
    "random, 3+10 steps": random_search,
    "grid, 3+10 steps": grid,
}


class Faulty(SimulatedRunner):
    """Some plans die: by chance, or because their ranks need more memory than there is."""

    crashes: float = 0.0
    most_ranks: float = math.inf

    def steps(self, plan: Plan) -> Iterator[cputune.Step]:
        """Endless steps of a plan, or its death."""
        if plan.processes_per_node > self.most_ranks:
            raise OutOfMemory("killed for memory")
        if not plan.as_found and random.Random(f"{self.seed} {plan}").random() < self.crashes:
            raise Crashed("rank 0 died")
        yield from super().steps(plan)


def troubled(
    machine: Machine,
    *,
    wander: float,
    crashes: float,
    most_ranks: float,
    tails: float,
    touch: float,
) -> Machine:
    """The machine, getting slower and faster while it is measured, and with plans that die.

    The truth of a plan for which there is no memory is that it never ends.
    """

    def runner(seed: int) -> SimulatedRunner:
        made = machine.runner(seed)
        assert isinstance(made, SimulatedRunner)
        own = {one.name: getattr(made, one.name) for one in fields(made) if one.init}
        faulty = Faulty(**{**own, "wander": wander, "touch": touch})
        if tails:
            faulty.delays, faulty.delay, faulty.marked = tails, 2.0, False
        faulty.crashes, faulty.most_ranks = crashes, most_ranks
        return faulty

    def seconds(plan: Plan) -> float:
        return math.inf if plan.processes_per_node > most_ranks else machine.seconds(plan)

    return replace(machine, runner=runner, seconds=seconds)


def compare(machine: Machine, budget: int, seeds: Sequence[int], names: Sequence[str]) -> None:
    space = cputune.search_space(machine.facts, machine.workload)
    best = min(machine.seconds(plan) for plan in space.plans())
    baseline = machine.seconds(space.baseline)
    print(
        f"\n{machine.name}: {len(space)} plans, budget {budget}, {len(seeds)} seeds; "
        f"today's launch is at {100 * best / baseline:.0f} % of the optimum"
    )
    print(
        f"  {'search':<20}{'median':>9}{'5th pct':>9}{'worst':>9}{'rivals':>9}{'seconds':>9}"
        f"{'of fixed':>10}"
    )
    costs: dict[str, float] = {}
    for name in names:
        found = [SEARCHES[name](machine, space, budget, seed) for seed in seeds]
        shares = sorted(100 * best / machine.seconds(one.plan) for one in found)
        rivals = sorted(100 * best / min(map(machine.seconds, one.rivals)) for one in found)
        costs[name] = statistics.fmean(one.seconds for one in found)
        print(
            f"  {name:<20}{statistics.median(shares):>8.1f}%{_fifth(shares):>8.1f}%"
            f"{shares[0]:>8.1f}%{_fifth(rivals):>8.1f}%{costs[name]:>9.0f}" + _ratio(costs, name),
            flush=True,
        )


def _fifth(ordered: Sequence[float]) -> float:
    """The value at the worst twentieth."""
    return ordered[max(0, math.ceil(0.05 * len(ordered)) - 1)]


def _ratio(costs: dict[str, float], name: str) -> str:
    if name == "cputune" or "cputune" not in costs:
        return ""
    return f"{100 * costs['cputune'] / costs[name]:>9.0f}%"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--machines", nargs="*", help="names; all where none is given")
    parser.add_argument("--budgets", nargs="*", type=int, default=BUDGETS)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES))
    parser.add_argument("--wander", type=float, default=0.0, help="of simulated machines")
    parser.add_argument("--crashes", type=float, default=0.0, help="share of plans that die")
    parser.add_argument("--most-ranks", type=float, default=math.inf, help="that have memory")
    parser.add_argument("--tails", type=float, default=0.0, help="share of steps twice as long")
    parser.add_argument("--touch", type=float, default=0.0, help="share with a long second step")
    parser.add_argument("--measure", metavar="FILE", help="measure this machine into a table")
    parser.add_argument("--steps", type=int, default=15, help="steps a plan when measuring")
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if options.measure:
        write_table(Path(options.measure), steps=options.steps)
        return 0
    tables = [measured_machine(json.loads(p.read_text())) for p in sorted(TABLES.glob("*.json"))]
    known = {machine.name: machine for machine in (*tables, *MACHINES)}
    trouble = {
        name: getattr(options, name)
        for name in ("wander", "crashes", "most_ranks", "tails", "touch")
    }
    unlimited = {**trouble, "most_ranks": options.most_ranks < math.inf}
    if any(unlimited.values()):
        known = {one.name: troubled(one, **trouble) for one in MACHINES}
    wanted = options.machines or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"no machine {unknown[0]!r}; there are: {', '.join(known)}")
    started = time.perf_counter()
    for budget in options.budgets:
        for name in wanted:
            compare(known[name], budget, range(options.seeds), options.searches)
    print(f"\n{time.perf_counter() - started:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
