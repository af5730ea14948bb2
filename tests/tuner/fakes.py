"""Runners that behave as told, for tests of the tuner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any

from machines import MACHINES, Machine, Model, SimulatedRunner, machine, simulated

import cputune
from cputune import Message, Plan, Result, Step, TrialEnded, TuneOptions, Workload
from cputune.records.steps import NoMeasurement, OutOfMemory
from cputune.tuner.contenders import Contender, gain_of
from cputune.tuner.gains import Gain
from cputune.tuner.measuring import Findings, Measuring, Timer
from cputune.tuner.race import Race
from cputune.tuner.study import TuningStudy


def measuring(most_seconds: float | None = None, **more: Any) -> Measuring:
    """What runs plans of the small machine; its clock stands still, and the steps' time counts."""
    return Measuring(
        **{
            "facts": SMALL.facts,
            "race": Race(),
            "findings": Findings(),
            "timer": Timer(clock=lambda: 0.0, most_seconds=most_seconds, started=0.0),
            "on_event": lambda event: None,
            **more,
        }
    )


Script = Callable[[Plan, int], Iterable[Step]]
"""The steps of a plan, given how often it was run before."""

SMALL = simulated("small", machine(cores_per_socket=2), Model(work=2.0, bandwidth=2.0))
"""Two cores, bf16: a handful of plans."""

VARIED = ("ranks", "threads", "precision")
"""A new knob makes no more plans of it."""

SPACE = cputune.search_space(SMALL.facts, SMALL.workload, knobs=VARIED)

PLANS = list(SPACE.plans())

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


@dataclass
class FakeLife:
    """Plays steps, some at a time, and remembers how many it was asked for."""

    played: Iterator[Step]
    asked: list[int] = field(default_factory=list)
    closed: int = 0

    def turn(self, steps: int) -> Sequence[Step]:
        self.asked.append(steps)
        return list(islice(self.played, steps))

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeLiving:
    """A plan between its turns; it tells when it has one and when it is ended."""

    runner: FakeLivingRunner
    plan: Plan
    steps: Iterator[Step]

    def turn(self, steps: int) -> Sequence[Step]:
        self.runner.turns.append(PLANS.index(self.plan))
        return list(islice(self.steps, steps))

    def close(self) -> None:
        self.runner.alive.discard(id(self))


@dataclass
class FakeLivingRunner:
    """Plays the steps of a plan by its number, and remembers the turns."""

    script: Callable[[int], Iterator[Step]]
    turns: list[int] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    most_alive: int = 0
    begun: list[int] = field(default_factory=list)

    def steps(self, plan: Plan) -> Iterator[Step]:
        return self.script(PLANS.index(plan))

    def living(self, plan: Plan) -> FakeLiving:
        self.begun.append(PLANS.index(plan))
        living = FakeLiving(self, plan, self.steps(plan))
        self.alive.add(id(living))
        self.most_alive = max(self.most_alive, len(self.alive))
        return living


@dataclass
class FakeKeepingRunner:
    """Plays a script, and can leave alive what was read; ``greedy`` plans die beside others."""

    script: Script
    greedy: bool = False
    begun: list[Plan] = field(default_factory=list)
    turned: list[FakeProcesses] = field(default_factory=list)
    living_now: list[FakeProcesses] = field(default_factory=list)

    def steps(self, plan: Plan) -> Iterator[Step]:
        self._read = self._begin(plan)
        if self.greedy and not plan.as_found and self.living_now:
            raise OutOfMemory("killed")
        for step in self._read:  # noqa: UP028  (that would close what may be kept)
            yield step

    def keep(self) -> FakeProcesses:
        return FakeProcesses(self, self.begun[-1], self._read, kept=True)

    def living(self, plan: Plan) -> FakeProcesses:
        return FakeProcesses(self, plan, self._begin(plan), kept=False)

    def _begin(self, plan: Plan) -> Iterator[Step]:
        before = self.begun.count(plan)
        self.begun.append(plan)
        return iter(self.script(plan, before))


class FakeProcesses:
    """Those of one plan; it also tells where their time goes."""

    def __init__(
        self, runner: FakeKeepingRunner, plan: Plan, steps: Iterator[Step], *, kept: bool
    ) -> None:
        self.runner, self.plan, self.kept, self._steps = runner, plan, kept, steps
        runner.living_now.append(self)

    def turn(self, steps: int) -> Sequence[Step]:
        assert self in self.runner.living_now
        self.runner.turned.append(self)
        taken = list(islice(self._steps, steps))
        if len(taken) < steps:
            raise NoMeasurement("the script has trained to its end")
        return taken

    def profile(self) -> Sequence[Mapping[str, Any]]:
        assert self in self.runner.living_now
        return [
            {"steps": 4, "seconds": 2.0, "shares": {"the rest": 1.0}, "gflops": None}
            | {"limit_gflops": None, "dtype": "bfloat16"}
        ]

    def close(self) -> None:
        if self in self.runner.living_now:
            self.runner.living_now.remove(self)


class Heard(list[str]):
    """What a study says; ``acts`` happen after the trials of these numbers."""

    def __init__(self, acts: Mapping[int, Callable[[], object]] | None = None) -> None:
        super().__init__()
        self.acts = acts or {}

    def __call__(self, event: object) -> None:
        if isinstance(event, TrialEnded) and event.trial.number in self.acts:
            self.acts[event.trial.number]()
        if isinstance(event, Message):
            self.append(event.text)


def tune(runner: object, **options: Any) -> Result:
    """A study of the small machine."""
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, **options)


def study(runner: Any, options: TuneOptions, **more: Any) -> Result:
    """The same, with what only the study itself takes: a clock, and CPUs that are taken away."""

    def opened(workload: Workload, fresh: bool) -> AbstractContextManager[Any]:
        return nullcontext(runner)

    return TuningStudy(SMALL.workload, SMALL.facts, opened, options, **more).run()


def gain_over(base: Contender, rival: Contender, **more: Any) -> Gain:
    """The gain of a rival that has rounds enough for one."""
    gain = gain_of(base, rival, 0.05, **more)
    assert gain is not None
    return gain


def ratio(base: Contender, rival: Contender) -> float:
    """How many times as fast the rival is."""
    return math.exp(gain_over(base, rival).mean)


def steady(seconds: float, *, delayed: float = 0.0, loss: float | None = None) -> Iterable[Step]:
    """The same step for ever."""
    return repeat(Step(seconds=seconds, samples=8, loss=loss, delayed_seconds=delayed))


def alike(seed: int, seconds: float, *, wander: float, run_noise: float) -> SimulatedRunner:
    """Plans that are equally fast, on a machine that wanders and processes that differ."""
    return SimulatedRunner(
        true=lambda plan: seconds,
        workload=SMALL.workload,
        seed=seed,
        noise=0.04,
        delays=0.0,
        wander=wander,
        run_noise=run_noise,
    )


def truthful(of: Machine = SMALL) -> Script:
    """Every plan at its true speed, without noise."""
    return lambda plan, before: steady(of.seconds(plan))


def failing(error: BaseException, *, after: int = 0, when: str = "bf16") -> Script:
    """Every plan of a precision fails, after so many steps."""

    def script(plan: Plan, before: int) -> Iterable[Step]:
        for index, step in enumerate(steady(SMALL.seconds(plan))):
            if plan.precision == when and index == after:
                raise error
            yield step

    return script
