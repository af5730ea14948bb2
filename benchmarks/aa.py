"""Does the interval hold the truth? The confirmation asked about plans whose ratio is known.

    python benchmarks/aa.py                       # simulated machines, some minutes
    python benchmarks/aa.py --studies 2000 --worlds wander
    python benchmarks/aa.py --real --studies 5    # this machine: it has to be quiet
    python benchmarks/aa.py --real --studies 20 --questions A/A
    python benchmarks/aa.py --studies 400 --first-seed 50000   # others than the rule was chosen on
    python benchmarks/aa.py --questions 1.07 --max-time 180      # in the time that a user gives
    python benchmarks/aa.py --forked --studies 5  # forked beside fresh processes of one plan

A/A are plans that are the same: a gain that is called there is false. For each question: how
often the 95 % interval held the truth, how often a gain was called, how often it was said that a
plan still gets faster or slower, the bias (mean of log(stated/true)), half of the interval's width,
and the seconds from the first start
to the answer (the median, and the 95th percentile), and of the steps of all turns. ``among 4`` is
the best of four rivals that are all like the baseline, or as much faster.

With ``--real`` the plan is today's launch of the recipe; a known ratio is planted by telling
each step of the rival as so much shorter than it was.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from machines import SimulatedRunner, machine

import cputune
from cputune.plans.plan import Plan
from cputune.plans.workload import DEFAULT_RECIPE, Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.result import LEAST_BLOCKS
from cputune.records.steps import Living, LivingRunner, Step
from cputune.tuner.confirmation import Confirmation
from cputune.tuner.contenders import blocks_of, fastest_of
from cputune.tuner.measuring import Findings, LivingTrial, LivingTrials, Measuring, Timer
from cputune.tuner.race import Race
from cputune.tuner.reading import Run

STEP_SECONDS = 0.5

START_SECONDS = 3.5
"""Of a process until its first step, where two are started at once: 5 to 8 s for both, as measured
with torch and transformers on two cores."""

TRIAL_STEPS = 8
"""Of a plan before the confirmation, whose first block has the processes of its trial."""

WORLDS: dict[str, dict[str, Any]] = {
    **{
        f"processes {own} %, wander {wander} %": {
            "noise": 0.04,
            "delays": 0.0,
            "wander": wander / 100,
            "run_noise": own / 100,
        }
        for own in (1, 3, 5)
        for wander in (0, 5, 10)
    },
    "bursts": {"noise": 0.04, "delays": 0.05, "delay": 3.0, "marked": False, "run_noise": 0.01},
    "unlike lengths": {"noise": 0.04, "delays": 0.0, "run_noise": 0.01, "spread": 0.5},
    "ratio wanders": {"noise": 0.04, "delays": 0.0, "run_noise": 0.005, "ratio_wander": 0.03},
    "ratio drifts": {"noise": 0.04, "delays": 0.0, "run_noise": 0.01, "drift": 0.02},
    "heavy tails": {"noise": 0.04, "delays": 0.1, "delay": 2.0, "marked": False, "run_noise": 0.01},
    "warm-up of 30": {
        "noise": 0.04,
        "delays": 0.0,
        "run_noise": 0.01,
        "warmup": tuple(1 + 0.6 * math.exp(-at / 12) for at in range(30)),
    },
    "warm-up of 50 in the rival": {
        "noise": 0.04,
        "delays": 0.0,
        "run_noise": 0.01,
        "rival_warmup": tuple(1 + 0.4 * math.exp(-at / 20) for at in range(50)),
    },
    "warm-up of 50 in today's launch": {
        "noise": 0.04,
        "delays": 0.0,
        "run_noise": 0.01,
        "todays_warmup": tuple(1 + 0.4 * math.exp(-at / 20) for at in range(50)),
    },
    **{
        f"starts {starts} %, crowd {crowd} %": {
            "noise": 0.04,
            "delays": 0.0,
            "run_noise": 0.02,
            "start_order": starts / 100,
            "crowd": crowd / 100,
        }
        for starts in (0, 4, 8)
        for crowd in (0, 8)
    },
}
"""White noise of 4 %, with processes of one plan that differ by so much, on a machine that wanders
by so much over 15 s; with one step in twenty three times as long and the kernel silent; with
batches of which one has half or twice the tokens of the next; with a ratio of two plans that
wanders by 3 % over a minute; that drifts by 2 % in each (the truth is the mean of it); with
a tenth of the steps twice as long; and with first steps that are slower, in all plans, in the
rivals alone, or in today's launch alone. In the last ones processes of one plan differ by 2 %, the
first that is started for a block is slower than the last by so much, in proportion to the place
(those of trials by the order of the trials), and the baseline is slower by so much while more than
two are alive."""

QUESTIONS = (
    ("A/A", 1, 1.0),
    ("A/A among 4", 4, 1.0),
    ("1.07", 1, 1.07),
    ("1.07 among 4", 4, 1.07),
    ("1.25", 1, 1.25),
    ("1.3 among 4", 4, 1.3),
    ("2.0", 1, 2.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one confirmation said of a ratio that is known."""

    ratio: float
    low: float
    high: float
    truth: float
    seconds: float
    in_turns: float
    settles: bool

    @property
    def holds(self) -> bool:
        """Whether the truth lies in the interval."""
        return self.low <= self.truth <= self.high

    @property
    def off(self) -> float:
        """How far (log) what was said is above the truth."""
        return math.log(self.ratio / self.truth)

    @property
    def half_width(self) -> float:
        """Half of the interval's width, as a log."""
        return math.log(self.high / self.low) / 2


class Planted:
    """A runner of which the steps of the rivals are told as ``ratio`` times shorter.

    What else befalls them alone: the ratio wanders, or drifts in a minute, by so much (log), and
    their first steps are longer, or those of today's launch. Of processes that are alive at once
    the first is slower than the last by ``start_order``, and while more than two are alive, the
    baseline is slower by ``crowd`` (log). ``seconds`` is the clock of it all.
    """

    def __init__(
        self,
        runner: LivingRunner,
        baseline: Plan,
        ratio: float,
        *,
        seed: int = 0,
        ratio_wander: float = 0.0,
        drift: float = 0.0,
        rival_warmup: Sequence[float] = (),
        todays_warmup: Sequence[float] = (),
        start_order: float = 0.0,
        crowd: float = 0.0,
    ) -> None:
        self._runner = runner
        self._baseline = baseline
        self._ratio = ratio
        self._rng = random.Random(seed)
        self._wander, self._drift = ratio_wander, drift
        self._where, self._when = self._rng.gauss(0, 1), 0.0
        self.warmups = (todays_warmup, rival_warmup)
        self.seconds = 0.0
        self.trends: list[float] = []
        self._start_order, self._crowd = start_order, crowd
        self._started: list[Told] = []
        self._alive: list[Told] = []

    def steps(self, plan: Plan) -> Iterator[Step]:
        """As the runner's."""
        return self._runner.steps(plan)

    def living(self, plan: Plan) -> Living:
        """The plan; in rivals each step is shorter."""
        self.seconds += START_SECONDS
        told = Told(self._runner.living(plan), self, rival=plan is not self._baseline)
        if not self._alive:
            self._started = []
        self._started.append(told)
        self._alive.append(told)
        return told

    def ended(self, told: Told) -> None:
        """It is alive no longer."""
        if told in self._alive:
            self._alive.remove(told)

    def slower(self, told: Told, *, rival: bool) -> float:
        """How much longer (log) its steps are for the order of starts and the crowd."""
        longer = 0.0
        if len(self._started) > 1:
            place = self._started.index(told) / (len(self._started) - 1) - 0.5
            longer -= self._start_order * place
        if not rival and len(self._alive) > 2:
            longer += self._crowd
        return longer

    def ratio(self) -> float:
        """How much shorter the steps of the rivals are now."""
        kept = math.exp(-(self.seconds - self._when) / 60)
        self._where = kept * self._where + math.sqrt(1 - kept**2) * self._rng.gauss(0, 1)
        self._when = self.seconds
        trend = self._drift * (self.seconds / 60 - 0.5)
        self.trends.append(trend)
        return self._ratio * math.exp(self._wander * self._where + trend)


class Told:
    """A living plan; of a rival the steps are told as so many times shorter."""

    def __init__(self, living: Living, planted: Planted, *, rival: bool) -> None:
        self._living, self._planted, self._rival = living, planted, rival
        self._taken = 0

    def turn(self, steps: int) -> Sequence[Step]:
        """The steps of a turn."""
        told = []
        for step in self._living.turn(steps):
            seconds = step.seconds
            if self._rival:
                seconds /= self._planted.ratio()
            warmup = self._planted.warmups[self._rival]
            seconds *= warmup[self._taken] if self._taken < len(warmup) else 1.0
            seconds *= math.exp(self._planted.slower(self, rival=self._rival))
            self._taken += 1
            self._planted.seconds += seconds
            told.append(replace(step, seconds=seconds))
        return told

    def close(self) -> None:
        """End it."""
        self._planted.ended(self)
        self._living.close()


class ForkedAndFresh:
    """Two runners as one: the baseline's ranks are forked, the rivals' are new processes."""

    def __init__(self, forked: LivingRunner, fresh: LivingRunner, baseline: Plan) -> None:
        self._forked, self._fresh, self._baseline = forked, fresh, baseline

    def steps(self, plan: Plan) -> Iterator[Step]:
        """As a forked rank's."""
        return self._forked.steps(plan)

    def living(self, plan: Plan) -> Living:
        """The plan, forked where it is the baseline."""
        return (self._forked if plan is self._baseline else self._fresh).living(plan)


class OfTrials(LivingTrials):
    """The processes of trials, found by which plan it is: here they are all equal."""

    def __init__(self, runner: LivingRunner, plans: Sequence[Plan]) -> None:
        super().__init__(FACTS)
        self._processes = {id(plan): runner.living(plan) for plan in plans}
        for living in self._processes.values():
            living.turn(TRIAL_STEPS)

    def only(self, plans: Iterable[Plan]) -> None:
        """End those of all other plans."""
        for known in set(self._processes) - {id(plan) for plan in plans}:
            self._processes.pop(known).close()

    def __contains__(self, plan: Plan) -> bool:
        return id(plan) in self._processes

    def take(self, plan: Plan) -> LivingTrial | None:
        """Those of this very plan."""
        living = self._processes.pop(id(plan), None)
        run = Run(steps=TRIAL_STEPS)
        return living and LivingTrial(living=living, run=run, center=0.0, held_bytes=0)


def ask(
    runner: LivingRunner,
    facts: cputune.HostFacts,
    plan: Plan,
    rivals: int,
    truth: float,
    clock: Callable[[], float] = time.monotonic,
    most_seconds: float | None = None,
) -> Answer | None:
    """One confirmation of a plan against as many copies of it, whose trials are behind them.

    It has ``most_seconds``, or what it takes where nobody gives it a time.
    """
    measuring = Measuring(
        facts=facts,
        race=Race(),
        findings=Findings(),
        timer=Timer(clock=clock, most_seconds=most_seconds, started=clock()),
        on_event=lambda event: None,
    )
    others = [replace(plan) for _ in range(rivals)]
    measuring.living = OfTrials(runner, [plan, *others])
    began = clock()
    compared = Confirmation(measuring, plan, others)
    compared.side_by_side(runner)
    twice = [one for one in compared.rivals if len(blocks_of(one)) >= LEAST_BLOCKS]
    found = fastest_of(compared.baseline, twice, measuring.race.noise.deviation)
    if found is None:
        return None
    _, best = found
    return Answer(
        ratio=math.exp(best.mean),
        low=math.exp(best.low),
        high=math.exp(best.high),
        truth=truth,
        seconds=clock() - began,
        in_turns=sum(
            sum(turn.step_seconds) for run in measuring.findings.confirm_runs for turn in run.taken
        ),
        settles=any("still got" in note for note in measuring.findings.notes),
    )


PLANTED = ("ratio_wander", "drift", "rival_warmup", "todays_warmup", "start_order", "crowd")
FACTS = machine(cores_per_socket=2)
PLAN = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),))


def simulated(
    world: str, rivals: int, ratio: float, seed: int, most_seconds: float | None
) -> Answer | None:
    """A confirmation on a machine that does not exist."""
    workload = Workload.from_recipe(DEFAULT_RECIPE)
    what = dict(WORLDS[world])
    own = {name: what.pop(name) for name in PLANTED if name in what}
    runner = SimulatedRunner(true=lambda plan: STEP_SECONDS, workload=workload, seed=seed, **what)
    planted = Planted(runner, PLAN, ratio, seed=seed, **own)
    answer = ask(planted, FACTS, PLAN, rivals, ratio, lambda: planted.seconds, most_seconds)
    if answer is None:
        return None
    return replace(answer, truth=ratio * math.exp(statistics.fmean(planted.trends)))


def told(answers: Iterable[Answer | None]) -> list[Answer]:
    """Those that came, each printed as soon as it is there."""
    came = []
    for answer in filter(None, answers):
        print(
            f"    {answer.ratio:.3f} ({answer.low:.3f}-{answer.high:.3f}), "
            f"{answer.seconds:.0f} s, {answer.in_turns:.0f} s of them in turns",
            flush=True,
        )
        came.append(answer)
    return came


def row(name: str, answers: Sequence[Answer | None]) -> None:
    """A line of the table."""
    given = [answer for answer in answers if answer is not None]
    if not given:
        print(f"  {name:<16} no answer", flush=True)
        return
    print(
        f"  {name:<16}{100 * statistics.fmean(a.holds for a in given):>9.1f}%"
        f"{100 * statistics.fmean(a.low > 1 for a in given):>9.1f}%"
        f"{100 * statistics.fmean(a.settles for a in given):>9.1f}%"
        f"{100 * statistics.fmean(a.off for a in given):>+9.1f}%"
        f"{100 * statistics.median(a.half_width for a in given):>9.1f}%"
        f"{statistics.median(a.seconds for a in given):>9.0f}"
        f"{sorted(a.seconds for a in given)[int(0.95 * len(given))]:>9.0f}"
        f"{statistics.fmean(a.in_turns for a in given):>10.0f}",
        flush=True,
    )


def heading(text: str) -> None:
    """The head of a table."""
    print(f"\n{text}\n  {'question':<16}{'holds':>10}{'gain':>10}{'changes':>10}", end="")
    print(f"{'bias':>10}{'+-':>10}{'seconds':>9}{'95th pct':>9}{'in turns':>10}")


def on_simulated_machines(
    worlds: Sequence[str],
    seeds: Sequence[int],
    questions: Container[str],
    most_seconds: float | None,
) -> None:
    """The table of every world."""
    for world in worlds:
        heading(f"{world}: {len(seeds)} confirmations each")
        for name, rivals, ratio in QUESTIONS:
            if name not in questions:
                continue
            row(name, [simulated(world, rivals, ratio, seed, most_seconds) for seed in seeds])


def on_this_machine(studies: int, questions: Container[str], forked: bool) -> None:
    """The same with processes: today's launch of the recipe, and bf16 where it is forked."""
    facts = cputune.probe()
    workload = Workload.from_recipe(DEFAULT_RECIPE)
    space = cputune.search_space(facts, workload)
    with ExitStack() as held:

        def open_runner(fresh: bool) -> ProcessRunner:
            return held.enter_context(ProcessRunner(workload, facts, fresh=fresh))

        if not forked:
            runner = open_runner(True)
            heading(f"real: {space.baseline.describe()}, {studies} confirmations each")
            for name, rivals, ratio in QUESTIONS:
                if name not in questions or rivals > 1:
                    continue
                planted = Planted(runner, space.baseline, ratio)
                row(
                    name,
                    told(ask(planted, facts, space.baseline, 1, ratio) for _ in range(studies)),
                )
            return
        forking, fresh = open_runner(False), open_runner(True)
        heading(f"fresh over forked: {studies} confirmations each")
        for plan in _one_of_each_shape(space):
            both = ForkedAndFresh(forking, fresh, plan)
            row(plan.describe()[:16], told(ask(both, facts, plan, 1, 1.0) for _ in range(studies)))


def _one_of_each_shape(space: cputune.SearchSpace) -> list[Plan]:
    """For each number of ranks and threads the plan that is otherwise as plain as can be."""
    shapes: dict[tuple[int, int], Plan] = {}
    for plan in space.plans():
        plain = plan.allocator == "default" and plan.openmp == "default"
        if plain and plan.precision == "bf16" and not plan.oversubscribed:
            shapes.setdefault((plan.processes_per_node, plan.threads_per_process), plan)
    return list(shapes.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = [name for name, _, _ in QUESTIONS]
    parser.add_argument("--studies", type=int, help="confirmations of each question")
    parser.add_argument("--first-seed", type=int, default=0, help="of the simulated machines")
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--questions", nargs="*", default=tuple(names), choices=names)
    parser.add_argument("--max-time", type=float, help="seconds that each simulated one is given")
    parser.add_argument("--real", action="store_true", help="measure on this machine")
    parser.add_argument("--forked", action="store_true", help="forked beside fresh processes")
    options = parser.parse_args(argv)
    if options.real or options.forked:
        on_this_machine(options.studies or 5, options.questions, options.forked)
    else:
        first = options.first_seed
        seeds = range(first, first + (options.studies or 400))
        on_simulated_machines(options.worlds, seeds, options.questions, options.max_time)
    return 0


if __name__ == "__main__":
    sys.exit(main())
