"""What a start costs: runners whose plans take time before their first step, as processes do.

The seconds are those of torch and transformers on two cores: 7.5 s where a process imports them,
0.8 s where it is forked from one that has, which is so for the trials of one environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

from machines import SimulatedPlan, StepSource

from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.options import TuneOptions
from cputune.records.result import Result
from cputune.records.steps import Step
from cputune.tuner.study import TuningStudy

NEW_SECONDS, FORKED_SECONDS = 7.5, 0.8


@dataclass(slots=True, kw_only=True)
class StartingRunner:
    """Another runner's steps; its clock goes on while a plan starts.

    Plans that are begun together start together. ``fresh``: each plan is started as a new process.
    """

    of: StepSource
    fresh: bool = False
    _imported: set[object] = field(default_factory=set)
    _read: Iterator[Step] = field(default_factory=lambda: iter(()))

    def clock(self) -> float:
        """Seconds since the study began."""
        return self.of.spent_seconds

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Endless steps of a plan, once it has started."""
        self._read = self._begun(plan)
        for step in self._read:  # noqa: UP028  (that would end what may be kept)
            yield step

    def keep(self) -> SimulatedPlan:
        """The plan whose steps were read, alive."""
        return SimulatedPlan(self._read)

    def living(self, plan: Plan) -> SimulatedPlan:
        """The plan beside others, which starts while others do."""
        return SimulatedPlan(self._begun(plan, ready=self.clock() + self._start_seconds(plan)))

    def _begun(self, plan: Plan, ready: float | None = None) -> Iterator[Step]:
        if ready is None:
            ready = self.clock() + self._start_seconds(plan)
        self.of.spent_seconds = max(self.of.spent_seconds, ready)
        yield from self.of.steps(plan)

    def _start_seconds(self, plan: Plan) -> float:
        libraries = plan.allocator, plan.openmp, plan.ipex, plan.value("malloc")
        environment = plan.as_found, plan.threads_per_process, libraries
        forked = environment in self._imported and not self.fresh
        self._imported.add(environment)
        return FORKED_SECONDS if forked else NEW_SECONDS


def tuned(
    runner: StepSource, workload: Workload, facts: HostFacts, *, budget: int, seed: int
) -> Result:
    """What ``tune`` finds in the time that it takes by default, in which starts count."""
    trials = StartingRunner(of=runner)
    confirmed = StartingRunner(of=runner, fresh=True)
    study = TuningStudy(
        workload,
        facts,
        lambda job, fresh: nullcontext(confirmed if fresh else trials),
        TuneOptions(budget=budget, seed=seed),
        clock=trials.clock,
        started=0.0,
        limited=True,
    )
    return study.run()
