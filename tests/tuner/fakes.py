"""Runners that behave as told, for tests of the tuner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

from machines import MACHINES, Machine, Model, machine, simulated

from cputune.plan import Plan
from cputune.steps import Step

Script = Callable[[Plan, int], Iterable[Step]]
"""The steps of a plan, given how often it was run before."""

SMALL = simulated("small", machine(cores_per_socket=2), Model(work=2.0, bandwidth=2.0))
"""Two cores, bf16: six plans."""

BY_NAME = {m.name: m for m in MACHINES}


@dataclass
class FakeRunner:
    """Plays a script, and remembers what was run and that it was closed."""

    script: Script
    started: list[Plan] = field(default_factory=list)
    closed: int = 0
    steps_read: int = 0

    def steps(self, plan: Plan) -> Iterator[Step]:
        before = self.started.count(plan)
        self.started.append(plan)
        try:
            for step in self.script(plan, before):
                self.steps_read += 1
                yield step
        finally:
            self.closed += 1


def steady(seconds: float, *, delayed: float = 0.0, loss: float | None = None) -> Iterable[Step]:
    """The same step for ever."""
    return repeat(Step(seconds=seconds, samples=8, loss=loss, delayed_seconds=delayed))


def truthful(of: Machine = SMALL) -> Script:
    """Every plan at its true speed, without noise."""
    return lambda plan, before: steady(of.seconds(plan))
