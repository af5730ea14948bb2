"""Runs the plans of a study, and records the outcome of each.

A run that other processes delayed is repeated. The trial that runs at the end of the time is cut
short, and what is known of it is kept.

The processes of the baseline and of the best trials are stopped and kept for the first block of the
confirmation: they have done their imports and warm-up. As many are kept as fit into memory besides
the next trial.

``benchmarks/search.py`` measures the numbers below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any

from cputune.errors import NotMeasurableError
from cputune.host.facts import HostFacts
from cputune.plans.memory import spare_bytes
from cputune.plans.plan import Plan
from cputune.records.result import (
    COMPLETED,
    FAILED,
    PRUNED,
    TIME_UP,
    ConfirmRun,
    Origin,
    Profile,
    Rung,
    Trial,
    Worth,
)
from cputune.records.steps import (
    Contended,
    Living,
    NoMeasurement,
    ObservingRunner,
    OutOfMemory,
    PatientRunner,
    PunctualRunner,
    Runner,
    Step,
    TimedOut,
)
from cputune.text.plain import figure
from cputune.tuner.contenders import Contender
from cputune.tuner.events import Message, OnEvent, StepTaken
from cputune.tuner.gains import throughput
from cputune.tuner.race import LEAST_KEPT, WANDER, Z95, Estimate, Race, Verdict
from cputune.tuner.reading import Rules, Run, count_of_steps, read_run, turn_of


def _changes_of(ranks: Iterable[Mapping[str, Any]]) -> int:
    """How many changes the parts of a plan noted in these ranks."""
    count = 0
    for rank in ranks:
        for changes in (rank.get("applied") or {}).values():
            count += len(changes)
    return count


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a study has measured so far.

    Attributes:
        notes: sentences for the result.
        never_quiet: no run was quiet, so delayed steps count.
        shared: they count in the confirmation too: the user said that the machine is busy.
        turns: of the confirmation; delayed_turns: those that other processes delayed.
        cut_off: what the last trial was doing when the time was up: "after 2 steps", "while
            importing torch".
        baseline: its contender in the confirmation.
        reports: what the ranks of each plan reported in the confirmation.
        time_up: all time was used when the comparison ended.
        search_cut: plans that may be faster were not tried, since the comparison needed the time.
        host_lost: a host cannot be reached any more.
        baseline_seconds: how long the baseline took to start and to be measured.
        usual_seconds: the time limit with which a study of this script tries the usual number of
            plans; 0 if the present one is enough.
        start_seconds: the slowest start so far.
        unfit: why the whole script does not run with a number of ranks.
    """

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shared: bool = False
    never_quiet: bool = False
    saw_quiet: bool = False
    contended_runs: int = 0
    turns: int = 0
    delayed_turns: int = 0
    samples_per_step: int | None = None
    data: str | None = None
    cut_off: str | None = None
    time_up: bool = False
    search_cut: bool = False
    interrupted: bool = False
    host_lost: bool = False
    taken_away: str | None = None
    baseline: Contender | None = None
    rivals: list[Contender] = field(default_factory=list)
    confirm_runs: list[ConfirmRun] = field(default_factory=list)
    reports: dict[Plan, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    worth: tuple[Worth, ...] = ()
    rungs: tuple[Rung, ...] = ()
    profiles: dict[Plan, Profile | None] = field(default_factory=dict)
    baseline_seconds: float = 0.0
    usual_seconds: float = 0.0
    start_seconds: float = 0.0
    confirm_seconds: float = 0.0
    unfit: dict[int, str] = field(default_factory=dict)

    def add_reports(self, plan: Plan, ranks: tuple[Mapping[str, Any], ...]) -> None:
        """Keep what the ranks of a plan reported in the block that showed the most.

        A block with fewer steps may end before a part of the plan has changed anything.
        """
        if ranks and _changes_of(ranks) >= _changes_of(self.reports.get(plan, ())):
            self.reports[plan] = ranks

    @property
    def has_rival(self) -> bool:
        """Whether a plan other than the baseline was measured."""
        return any(trial.state == COMPLETED and not trial.plan.as_found for trial in self.trials)

    @property
    def believes_delayed(self) -> bool:
        """Whether delayed steps count in the confirmation too."""
        return self.shared and self.never_quiet

    @property
    def disturbed(self) -> bool:
        """Whether other processes delayed most of what the result would be based on."""
        if self.turns:
            return 2 * self.delayed_turns > self.turns
        if self.confirm_runs:
            reasons = [run.reason or "" for run in self.confirm_runs]
            contended = sum(reason.startswith(Contended.kind) for reason in reasons)
            return self.believes_delayed or 2 * contended > len(reasons)
        return self.never_quiet

    @property
    def how_disturbed(self) -> str:
        """How other processes disturbed the study, for a message."""
        if self.turns:
            return f"other processes delayed {self.delayed_turns} of {self.turns} measurements"
        return "other processes delayed most steps in every attempt"


# How often a trial is run if other processes delay it.
ATTEMPTS = 3

# A plan hangs if it has no first step after HANGS times the slowest start so far, and at least
# these seconds. Assumed: a busy machine makes a start two times as long.
HANGS, LEAST_PATIENCE_SECONDS = 3.0, 60.0

# How far (log) a trial may be behind the fastest and still be compared.
NEAR_ENOUGH = 2 * WANDER

# How many plans the first block compares with the baseline. With three, the worst twentieth of the
# choices reached 0.90 of the optimum on a machine that wanders by 10 %; with four 0.95
# (``benchmarks/search.py``).
MOST_RIVALS = 4


@dataclass(slots=True, kw_only=True)
class Timer:
    """How much of the study's time is used: by the clock, or by the steps' time with a simulating
    runner.

    ``started`` is when the command began, by the clock. ``most_seconds`` None: no limit.
    """

    clock: Callable[[], float]
    most_seconds: float | None
    started: float
    step_seconds: float = 0.0

    @property
    def limited(self) -> bool:
        return self.most_seconds is not None and self.most_seconds < math.inf

    @property
    def used_seconds(self) -> float:
        """Seconds since the start of the command."""
        return max(self.clock() - self.started, self.step_seconds)

    def left(self, share: float, running_seconds: float = 0.0) -> float:
        """Seconds left of this share, after the current run's seconds."""
        if self.most_seconds is None:
            return math.inf
        used = max(self.used_seconds, self.step_seconds + running_seconds)
        return share * self.most_seconds - used

    def up(self, share: float) -> bool:
        """Whether this share of the time is over."""
        return self.left(share) <= 0


def most_living(facts: HostFacts, trials: Sequence[Trial]) -> int:
    """How many plans can be alive at once, by the memory of the largest trial.

    If no rank has reported its memory, the runner has no processes, and all plans can.
    """
    held = max((held_bytes(trial) for trial in trials if trial.state != FAILED), default=0)
    room = spare_bytes(facts)
    if room is None or not held:
        return len(trials)
    return int(room // held)


def held_bytes(trial: Trial) -> int:
    """The most memory that the ranks of a trial used on a node; shared libraries count for each."""
    return sum(int(rank.get("peak_bytes") or 0) for rank in trial.observed) // trial.plan.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingTrial:
    """The processes of a trial, and what was measured of them."""

    living: Living
    run: Run
    center: float
    held_bytes: int


class LivingTrials:
    """The processes that a study keeps."""

    def __init__(self, facts: HostFacts) -> None:
        self._room = spare_bytes(facts)
        self._kept: dict[Plan, LivingTrial] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, plan: Plan) -> bool:
        return plan in self._kept

    def add(self, trial: Trial, run: Run, center: float) -> None:
        """Keep the processes that a run has left alive; ``center`` is its log seconds per sample.

        If there are too many, the slowest plan except the baseline is ended.
        """
        if run.living is None:
            return
        self._end(trial.plan)
        self._kept[trial.plan] = LivingTrial(
            living=run.living, run=run, center=center, held_bytes=held_bytes(trial)
        )
        while len(self._kept) > 1 + MOST_RIVALS:
            self._end(self._slowest())

    def make_room(self, needed_bytes: float) -> None:
        """End the slowest, the baseline last, until another trial has this much memory."""
        while self._room is not None and self._kept:
            held = sum(kept.held_bytes for kept in self._kept.values())
            if held + needed_bytes <= self._room:
                return
            self._end(self._slowest())

    def take(self, plan: Plan) -> LivingTrial | None:
        """The processes of a plan, which the caller ends; None if none are kept."""
        return self._kept.pop(plan, None)

    def only(self, plans: Iterable[Plan]) -> None:
        """End all processes but those of these plans."""
        for plan in set(self._kept) - set(plans):
            self._end(plan)

    def close(self) -> None:
        """End all processes."""
        self.only(())

    def _slowest(self) -> Plan:
        return max(self._kept, key=lambda plan: (not plan.as_found, self._kept[plan].center))

    def _end(self, plan: Plan) -> None:
        kept = self._kept.pop(plan, None)
        if kept is not None:
            with suppress(Exception):  # its measurements stand
                kept.living.close()


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Runs plans, and records what the runs show of the machine.

    Attributes:
        reference: the losses of the baseline, by step.
        start_seconds: from the start of the last run to its first step.
        block_start_seconds: from the start of a block of new processes to their first steps: the
            last one, or the slowest start so far.
        step_seconds: of a step of the baseline after its warm-up.
        settled: of a step of each plan after its warm-up.
        runs_alone: two plans cannot be alive at once, so each run of the comparison has a start.
        reserved_seconds: what the comparison needs; a trial is cut short before.
    """

    facts: HostFacts
    race: Race
    findings: Findings
    timer: Timer
    on_event: OnEvent
    reference: Sequence[float | None] = field(default=())
    start_seconds: float = 0.0
    slowest_start_seconds: float = 0.0
    block_start_seconds: float = 0.0
    step_seconds: float = 0.0
    reserved_seconds: float = 0.0
    runs_alone: bool = False
    starts: list[float] = field(default_factory=list)
    settled: dict[Plan, float] = field(default_factory=dict)
    living: LivingTrials = field(init=False)

    def __post_init__(self) -> None:
        self.living = LivingTrials(self.facts)

    def quiet_run(
        self,
        runner: Runner,
        plan: Plan,
        number: int | None,
        others: Callable[[], Sequence[str]] = tuple,
    ) -> tuple[Run, float]:
        """Repeat a run until no other process delays it, as often as is worthwhile.

        Returns the last run, and the seconds of all. ``number`` None: no trial. ``others`` looks
        for processes that used the CPUs since the study began. Raises NotMeasurableError if they
        delay the first trial, unless the machine is shared.
        """
        spent = 0.0
        attempts = 1
        if not (self.findings.never_quiet or self.findings.shared):
            attempts = ATTEMPTS
        for attempt in range(attempts):
            run = self._read(runner, plan, number)
            if isinstance(run.failure, OutOfMemory) and len(self.living):
                spent += run.step_seconds
                self.living.close()  # their memory may be needed for this run
                run = self._read(runner, plan, number)
            spent += run.step_seconds
            contended = isinstance(run.failure, Contended)
            self.findings.saw_quiet |= run.cut is None and not contended
            if run.cut is not None or not contended:
                return run, spent
            self.findings.contended_runs += 1
            if self.timer.left(1.0, spent) <= self._reserved(number):
                return run, spent
            quiet_once = self.findings.saw_quiet or self.findings.shared
            if not quiet_once and (busy := others()):
                raise not_measurable(f"{run.failure}", busy)
            if attempt + 1 < attempts and number is not None:
                text = f"trial {number}: {run.failure}, so it is run again"
                self.on_event(Message(text=text, warns=True))
        if not self.findings.saw_quiet:
            # No run was quiet so far, so none is to be expected: this one counts.
            self.findings.never_quiet = True
            run = self._read(runner, plan, number, believe_delayed=True)
            spent += run.step_seconds
        return run, spent

    def confirm_run(
        self,
        runner: Runner,
        number: int,
        contender: Contender,
        verdict: Callable[[Sequence[float]], Verdict],
    ) -> float | None:
        """The log seconds per sample of one run of a plan alone; None if it failed."""
        run = self._read(
            runner,
            contender.plan,
            None,
            believe_delayed=self.findings.believes_delayed,
            verdict=verdict,
        )
        self.timer.step_seconds += run.step_seconds
        if isinstance(runner, ObservingRunner):
            self.findings.add_reports(contender.plan, runner.observed())
        contended = isinstance(run.failure, Contended)
        self.findings.contended_runs += contended
        measured = None
        if run.logs and not run.failure:
            measured = self.race.estimate(run.logs)
        if measured is not None:
            contender.steps[len(contender.logs)] = run.counted[measured.warmup :]
            contender.sizes = max(contender.sizes, run.sizes, key=len)
        elif not contended and run.cut is None:
            contender.out = run.reason or NoMeasurement.kind
        runs = self.findings.confirm_runs
        runs.append(
            ConfirmRun(
                round=number,
                plan=contender.plan,
                role=contender.role,
                samples_per_second=None if measured is None else self.race.throughput(measured),
                reason=run.reason,
                taken=(turn_of(sum(r.round == number for r in runs), run.trace),),
            )
        )
        self.on_event(runs[-1])
        if measured is None:
            return None
        return measured.center

    def _read(
        self,
        runner: Runner,
        plan: Plan,
        number: int | None,
        *,
        believe_delayed: bool = False,
        verdict: Callable[[Sequence[float]], Verdict] | None = None,
    ) -> Run:
        reserved = self._reserved(number)
        self.hold_to_time(runner, reserved)
        rules = replace(
            self.rules(plan, number),
            verdict=verdict or self.race.verdict,
            believe_delayed=believe_delayed,
            out_of_time=lambda seconds: self.timer.left(1.0, seconds) <= reserved,
            keeps=lambda run: number is not None and self._keeps(run),
        )
        begun = self.timer.used_seconds
        run = read_run(runner, plan, rules)
        if not isinstance(run.failure, TimedOut):  # which waited for a step, after its start
            run.start_seconds = max(0.0, self.timer.used_seconds - begun - run.step_seconds)
        self.start_seconds = run.start_seconds
        if run.steps:
            self.saw_start(run.start_seconds)
            self.settled[plan] = self._settled_seconds(run)
            if plan.as_found:
                self.step_seconds = self.settled[plan]
        elif run.cut is not None and run.start_seconds > HANGS * self.slowest_start_seconds > 0:
            run.failure = TimedOut(f"no first step in {run.start_seconds:.0f} s: {run.cut}")
        return run

    def recall(self, trial: Trial) -> None:
        """Take the length of a step from a trial of an earlier command."""
        if trial.taken is None or not trial.taken.step_seconds:
            return
        self.settled[trial.plan] = median(trial.taken.step_seconds[-LEAST_KEPT:])
        if trial.plan.as_found:
            self.step_seconds = self.settled[trial.plan]

    def _settled_seconds(self, run: Run) -> float:
        """Of a step of this run after its warm-up."""
        if run.logs and run.samples:
            return math.exp(self.race.estimate(run.logs).center) * run.samples
        return run.step_seconds / run.steps

    @property
    def usual_start_seconds(self) -> float:
        """The median time of a start; most starts are forked, and the first one is not."""
        if not self.starts:
            return 0.0
        return median(self.starts)

    def _reserved(self, number: int | None) -> float:
        """The seconds at the end of the time that a run may not use.

        The baseline may use all of it: nothing can be compared without it.
        """
        if number:
            return self.reserved_seconds
        return 0.0

    def saw_block_start(self, seconds: float) -> None:
        """Record how long the new processes of a block took to their first steps."""
        self.block_start_seconds = seconds

    def saw_start(self, seconds: float) -> None:
        """Record how long a run took to its first step."""
        self.starts.append(seconds)
        self.slowest_start_seconds = max(self.slowest_start_seconds, seconds)
        self.block_start_seconds = max(self.block_start_seconds, seconds)
        self.findings.start_seconds = self.slowest_start_seconds

    def hold_to_time(self, runner: Runner, reserved: float = 0.0, *, together: int = 1) -> None:
        """Limit how long a runner waits for steps and for a start.

        ``reserved`` are the seconds at the end of the time that it may not use. ``together`` plans
        start at the same time, and slow each other down.
        """
        if isinstance(runner, PunctualRunner):
            runner.keep_to(lambda: self.timer.left(1.0) - reserved)
        if isinstance(runner, PatientRunner) and self.slowest_start_seconds:
            longest = max(LEAST_PATIENCE_SECONDS, HANGS * self.slowest_start_seconds)
            runner.start_within(together * longest)

    def _keeps(self, run: Run) -> bool:
        """Whether a run is kept alive for the confirmation: the baseline's, or perhaps the best."""
        if run.verdict != "enough":
            return False
        fastest = self.race.fastest
        return fastest is None or self.race.estimate(run.logs).center < fastest.center + NEAR_ENOUGH

    def rules(self, plan: Plan, number: int | None = None) -> Rules:
        """The rules by which the steps of trial ``number`` are read; None: of the confirmation."""

        def on_step(index: int, step: Step, delayed: bool) -> None:
            self.race.step_seconds = step.seconds
            self.on_event(
                StepTaken(number=number, index=index, seconds=step.seconds, delayed=delayed)
            )

        return Rules(
            delays_itself=delays_itself(plan, self.facts),
            believe_delayed=self.findings.believes_delayed,
            reference=() if plan.as_found else self.reference,
            on_step=on_step,
        )


def not_measurable(reason: str, busy: Sequence[str]) -> NotMeasurableError:
    """The error for a busy machine: why there is no result, what is running, what to do."""
    return NotMeasurableError(
        f"the machine is too busy to measure: {reason}",
        details="\n".join(f"busy now: {name}" for name in busy) or None,
        hint="end the processes that use the CPUs, then the same command with --resume; "
        "--share-machine measures anyway, without a ratio if most steps are delayed",
    )


def delays_itself(plan: Plan, facts: HostFacts) -> bool:
    """Whether a plan has more threads than CPUs or CPU time, so that it delays itself."""
    threads = plan.processes_per_node * plan.threads_per_process
    cpus = len(set(chain.from_iterable(plan.cpus)))
    quota = facts.limits.cpu_quota
    if quota is not None and threads > quota:
        return True
    return plan.oversubscribed or threads > cpus


# The longest reason in a result; a longer one is cut.
MOST_CHARACTERS = 16_384


def shortened(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= most:
        return text
    half = most // 2 - 10
    return f"{text[:half]}\n[…]\n{text[-half:]}"


def first_line(text: str | None) -> str:
    """The first line of the reason why a trial failed."""
    return (text or "no reason given").strip().split("\n")[0][:500]


def trial_of(
    run: Run,
    race: Race,
    *,
    number: int,
    plan: Plan,
    origin: Origin,
    step_seconds: float,
    observed: tuple[Mapping[str, object], ...],
) -> Trial:
    """The trial as it ended: with a number, with a bound, or with the reason why it has none.

    ``step_seconds`` are those of all its runs. A run that the time limit cut short has at least one
    step that counts.
    """
    trial = Trial(
        number=number,
        plan=plan,
        state=COMPLETED,
        steps=run.steps,
        delayed_steps=run.delayed,
        step_seconds=step_seconds,
        origin=origin,
        observed=observed,
        taken=turn_of(0, run.trace),
    )
    if run.failure is not None:
        details = run.failure.details
        reason = str(run.failure) + (f"\n{details}" if details else "")
        return replace(
            trial, state=FAILED, kind=run.failure.kind, reason=shortened(reason, MOST_CHARACTERS)
        )
    now = race.estimate(run.logs)
    trial = replace(trial, samples_per_second=race.throughput(now), warmup_steps=now.warmup)
    if run.ended:
        return replace(trial, reason=f"the job ended after {run.steps} steps")
    if run.verdict == "enough":
        return trial
    cut = None
    if run.cut is not None:
        cut = f"{TIME_UP} {run.cut}"
    if cut and now.level and len(run.logs) >= race.warmup + LEAST_KEPT:
        return replace(trial, reason=cut)
    guess = race.lost(run.logs)
    return replace(
        trial,
        state=PRUNED,
        samples_per_second=throughput([guess.center], race.noise.deviation),
        at_most_samples_per_second=at_most(guess, race.fastest),
        reason=cut or _lost(run.steps, race),
    )


def at_most(guess: Estimate, fastest: Estimate | None) -> float | None:
    """A likely bound of the samples per second of a plan of which only the first steps were seen.

    A machine that is slow for some seconds makes it too low. It allows for the scatter of the steps
    and for a slow machine. None if it is above the fastest plan so far.
    """
    bound = math.exp(-guess.center + Z95 * math.hypot(guess.error, WANDER))
    if fastest is None or bound < math.exp(-fastest.center):
        return bound
    return None


def was_disturbed(trial: Trial) -> bool:
    """Whether other processes delayed most steps of this trial."""
    return trial.kind == Contended.kind or trial.delayed_steps * 2 > trial.steps


def _lost(steps: int, race: Race) -> str:
    fastest = race.fastest
    rate = ""
    if fastest is not None:
        rate = f", {figure(math.exp(-fastest.center))} samples/s"
    return f"stopped after {count_of_steps(steps)}: most likely slower than the fastest{rate}"
