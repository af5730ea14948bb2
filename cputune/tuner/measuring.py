"""Runs the plans of a study, and writes down what came of each.

A run that other processes delayed is made again, and none lasts beyond the time that was given;
the trial that the end of the time has cut short is kept with what is known of it (``CutOff``).
``Findings`` hold what a study has found so far, and whether others have disturbed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cputune.errors import NoValidTrialError
from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.result import (
    COMPLETED,
    FAILED,
    PRUNED,
    TIME_UP,
    ConfirmRun,
    Origin,
    Profile,
    Throughput,
    Trial,
    Worth,
)
from cputune.steps import (
    Contended,
    NoMeasurement,
    ObservingRunner,
    OutOfMemory,
    PunctualRunner,
    Runner,
    Step,
)
from cputune.text import figure
from cputune.tuner.events import OnEvent, StepTaken, TrialRepeated
from cputune.tuner.gains import Contender
from cputune.tuner.living import LivingTrials
from cputune.tuner.race import LEAST_KEPT, WANDER, Z95, Estimate, Race, Verdict
from cputune.tuner.reading import Rules, Run, count_of_steps, read_run, turn_of

_WORTHWHILE = 6
"""A study that compares anything takes about as long as so many trials of today's launch."""

_STEPS = 8
"""Steps of a trial that is read to its end, warm-up among them, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """The trial that was running when the time was up.

    ``when`` says during what: "after 2 steps", "while importing torch". ``startup_seconds``
    went by before its first step began, as far as it began. ``delayed_runs`` of the same plan were
    before it, and do not count, because others delayed them.
    """

    number: int
    plan: Plan
    when: str
    run: Run
    startup_seconds: float
    delayed_runs: int = 0

    def note(self) -> str:
        """For a result: what became of the trial."""
        return f"Trial {self.number} ({self.plan.describe()}) was cut short {self.when}."

    def error(self) -> NoValidTrialError:
        """For a study of which this was the first trial, and which has no number."""
        hint = f"give it more: --max-time {self._enough()}"
        if self.delayed_runs:
            hint = "others delayed its runs: wait until nobody else computes here, --wait-quiet 10m"
        return NoValidTrialError(
            f"{TIME_UP} before today's launch had a speed to compare with: {self.when}", hint=hint
        )

    def _enough(self) -> str:
        """A time in which a study can compare something, in whole minutes."""
        each = self.run.step_seconds / self.run.steps if self.run.steps else 0.0
        trial = self.startup_seconds + _STEPS * each
        return f"{max(1, math.ceil(_WORTHWHILE * trial / 60))}m"


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a study has found so far.

    ``turns`` are those of the confirmation, ``delayed_turns`` those that others delayed.
    ``believed``: the confirmation has counted steps that others delayed, since it was asked to.
    ``cut_off`` is the trial that the end of the time has cut short. ``stand_in`` is the plan
    that is compared with where the baseline did not run; ``fallen`` are candidates that failed
    in the confirmation, ``unsettled`` those that still got faster or slower at its end.
    ``same_as_today`` counts the plans that are today's launch, as its ranks show.
    ``compile_seconds`` is the longest that torch.compile has taken. ``profile``: where the time
    of the best plan goes. ``flag``: how many times as fast the script's own flag against padding
    makes it, at least and at most.
    """

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exhausted: bool = False
    same_as_today: int = 0
    never_quiet: bool = False
    saw_quiet: bool = False
    contended_runs: int = 0
    turns: int = 0
    delayed_turns: int = 0
    believed: bool = False
    samples_per_step: int | None = None
    unsettled: list[Plan] = field(default_factory=list)
    compile_seconds: float = 0.0
    data: str | None = None
    cut_off: CutOff | None = None
    stand_in: Plan | None = None
    baseline: Contender | None = None
    rivals: list[Contender] = field(default_factory=list)
    fallen: list[Contender] = field(default_factory=list)
    confirm_runs: list[ConfirmRun] = field(default_factory=list)
    worth: tuple[Worth, ...] = ()
    profile: Profile | None = None
    flag: tuple[float, float] | None = None


def is_disturbed(findings: Findings) -> bool:
    """Whether others delayed most of what a claim would rest on."""
    if findings.turns:
        return 2 * findings.delayed_turns > findings.turns
    if findings.confirm_runs:
        contended = [run for run in findings.confirm_runs if _is_contended(run.reason)]
        return findings.believed or 2 * len(contended) > len(findings.confirm_runs)
    return findings.never_quiet


def how_disturbed(findings: Findings) -> str:
    """The same in words."""
    if findings.turns:
        return f"other processes delayed {findings.delayed_turns} of {findings.turns} turns"
    return "other processes delayed most steps, again and again"


def _is_contended(reason: str | None) -> bool:
    return (reason or "").startswith(Contended.kind)


ATTEMPTS = 3
"""How often a trial is run that other processes delay, before it is given up."""

USUAL_SECONDS, USUAL_RUNS = 300.0, 12
"""What a study takes at most that was given no time: so many seconds, or so many times what it took
to start and measure today's launch, whichever is more."""

NEAR_ENOUGH = 2 * WANDER
"""So far behind the fastest (log) a trial may still be compared with it in the confirmation."""

STUDY_SHARE = 0.7
"""Share of ``--max-time`` for the study; the rest is for the confirmation."""


@dataclass(slots=True, kw_only=True)
class Timer:
    """How much of the time that was given is used: by the clock, or by the steps' own time.

    ``started`` is when the command began, by the clock. Steps of a runner that simulates take
    no time of the clock. ``usual``: it is the time that a study takes which was given none.
    """

    clock: Callable[[], float]
    most_seconds: float | None
    started: float
    step_seconds: float = 0.0
    usual: bool = False

    @property
    def given(self) -> bool:
        """Whether somebody has said how long it may take."""
        return self.most_seconds is not None and not self.usual

    @property
    def used_seconds(self) -> float:
        """Seconds since the start of the command."""
        return max(self.clock() - self.started, self.step_seconds)

    def left(self, share: float, running_seconds: float = 0.0) -> float:
        """Seconds that are left of this share, beside a run of so many seconds."""
        if self.most_seconds is None:
            return math.inf
        used = max(self.used_seconds, self.step_seconds + running_seconds)
        return share * self.most_seconds - used

    def up(self, share: float, running_seconds: float = 0.0) -> bool:
        """Whether this share of the time is over, a run of so many seconds included."""
        return self.left(share, running_seconds) <= 0


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Runs plans, and writes down what that shows of the machine.

    ``reference`` are the losses of the baseline, by step. ``shared``: the machine is known not
    to be quiet, so what a busy machine gives is taken in the confirmation too. ``steps_planned``
    are those of the user's run; None: so many that the time to compile does not matter.
    ``start_seconds`` went by before the first step of the last run. ``joules`` reads what the
    machine has used so far; None where nobody can.
    """

    facts: HostFacts
    race: Race
    findings: Findings
    timer: Timer
    on_event: OnEvent
    reference: Sequence[float | None] = field(default=())
    shared: bool = False
    steps_planned: int | None = None
    start_seconds: float = 0.0
    joules: Callable[[], float | None] = lambda: None
    living: LivingTrials = field(init=False)

    def __post_init__(self) -> None:
        self.living = LivingTrials(self.facts)

    def beside(self, race: Race, on_event: OnEvent) -> Measuring:
        """For a trial that runs beside others: what it finds is its own until it has ended."""
        found = self.findings
        return replace(
            self,
            race=race,
            findings=Findings(
                never_quiet=found.never_quiet,
                saw_quiet=found.saw_quiet,
                compile_seconds=found.compile_seconds,
            ),
            timer=replace(self.timer),
            on_event=on_event,
        )

    def quiet_run(self, runner: Runner, plan: Plan, number: int | None) -> tuple[Run, float]:
        """A run that no other process delayed, if one can be had; and the seconds of all tries.

        ``number`` is the trial's; None of a run that is none.
        """
        spent = 0.0
        attempts = 1 if self.findings.never_quiet or self.shared else ATTEMPTS
        for attempt in range(attempts):
            run = self._read(runner, plan, number, believe_delayed=False)
            spent += run.step_seconds
            if isinstance(run.failure, OutOfMemory) and len(self.living):
                self.living.close()  # it may have the memory that they hold
                run = self._read(runner, plan, number, believe_delayed=False)
                spent += run.step_seconds
            if run.cut is not None:
                return run, spent
            if not isinstance(run.failure, Contended):
                self.findings.saw_quiet = True
                return run, spent
            self.findings.contended_runs += 1
            if self.timer.up(share_of(number), spent):
                return run, spent
            if attempt + 1 < attempts and number is not None:
                self.on_event(
                    TrialRepeated(number=number, attempt=attempt + 1, reason=str(run.failure))
                )
        if not self.findings.saw_quiet:
            # Never one quiet run so far: what the busy machine gives is all there is.
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
        """The log seconds per sample of one run of a plan alone; None where it gave none.

        It is made once more where others delayed it; a contender that fails is out.
        """
        for _ in range(2):
            run = self._read(
                runner,
                contender.plan,
                None,
                believe_delayed=self._believes_delayed,
                verdict=verdict,
            )
            self.findings.believed |= self._believes_delayed
            self.timer.step_seconds += run.step_seconds
            if not isinstance(run.failure, Contended) or self.timer.up(1.0):
                break
            self.findings.contended_runs += 1
        measured = self.race.estimate(run.logs) if run.logs and not run.failure else None
        if measured is not None:
            contender.steps[len(contender.logs)] = run.counted[measured.warmup :]
            contender.sizes = max(contender.sizes, run.sizes, key=len)
        reason = None if run.failure is None else f"{run.failure.kind}: {run.failure}"
        if measured is None and not isinstance(run.failure, Contended):
            contender.out = reason or NoMeasurement.kind
        runs = self.findings.confirm_runs
        runs.append(
            ConfirmRun(
                round=number,
                plan=contender.plan,
                role=contender.role,
                samples_per_second=None if measured is None else speed(measured),
                reason=reason,
                taken=(turn_of(sum(r.round == number for r in runs), run.trace),),
            )
        )
        self.on_event(runs[-1])
        return None if measured is None else measured.center

    def _read(
        self,
        runner: Runner,
        plan: Plan,
        number: int | None,
        *,
        believe_delayed: bool,
        verdict: Callable[[Sequence[float]], Verdict] | None = None,
    ) -> Run:
        share = share_of(number)
        if isinstance(runner, PunctualRunner):
            runner.keep_to(partial(self.timer.left, share))
        rules = replace(
            self.rules(plan, number),
            verdict=verdict or self.race.verdict,
            believe_delayed=believe_delayed,
            out_of_time=lambda seconds: self.timer.up(share, seconds),
            keeps=lambda run: number is not None and self._keeps(run),
        )
        begun = self.timer.used_seconds
        run = read_run(runner, plan, rules)
        self.start_seconds = max(0.0, self.timer.used_seconds - begun - run.step_seconds)
        return run

    def _keeps(self, run: Run) -> bool:
        """Whether a plan may be the best of all, or is today's launch, which comes first."""
        if run.verdict != "enough":
            return False
        fastest = self.race.fastest
        return fastest is None or self.race.estimate(run.logs).center < fastest.center + NEAR_ENOUGH

    @property
    def _believes_delayed(self) -> bool:
        return self.shared and self.findings.never_quiet

    def rules(self, plan: Plan, number: int | None = None) -> Rules:
        """How the steps of a plan are read: of trial ``number``, or of the confirmation."""

        def on_step(index: int, step: Step, delayed: bool) -> None:
            self.on_event(
                StepTaken(number=number, index=index, seconds=step.seconds, delayed=delayed)
            )

        return Rules(
            delays_itself=delays_itself(plan, self.facts),
            believe_delayed=self._believes_delayed,
            reference=() if plan.as_found else self.reference,
            steps_planned=self.steps_planned,
            compile_seconds=self.findings.compile_seconds,
            on_step=on_step,
        )


def share_of(number: int | None) -> float:
    """The share of ``--max-time`` at whose end a trial is cut short.

    Nothing is known without today's launch, and the confirmation (None) comes last: these may
    use all of it.
    """
    return STUDY_SHARE if number else 1.0


def speed(now: Estimate) -> Throughput:
    """Samples per second from log seconds per sample."""
    return Throughput(
        median=math.exp(-now.center), low=math.exp(-now.high), high=math.exp(-now.low)
    )


def delays_itself(plan: Plan, facts: HostFacts) -> bool:
    """Whether a plan has more threads than CPUs or CPU time: its delays are its own fault."""
    threads = plan.processes_per_node * plan.threads_per_process
    cpus = len({cpu for cpus in plan.cpus for cpu in cpus})
    quota = facts.limits.cpu_quota
    return plan.oversubscribed or threads > cpus or (quota is not None and threads > quota)


def observed(runner: Runner) -> tuple[Mapping[str, Any], ...]:
    """What the ranks of the last run saw, where the runner knows."""
    return tuple(runner.observed()) if isinstance(runner, ObservingRunner) else ()


MOST_CHARACTERS = 16_384
"""Of a reason: its first line and the last lines of a stderr; a result is read by people."""


def shortened(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2 - 10
    return f"{text[:half]}\n[…]\n{text[-half:]}"


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
    """How a run ended: with a number, with a bound on it, or with the reason why it has none.

    ``step_seconds`` are those of all tries, ``observed`` is what the ranks of the last saw.
    A run that the end of the time has cut short has one step that counts at least.
    """
    trial = Trial(
        number=number,
        plan=plan,
        state=COMPLETED,
        steps=run.steps,
        delayed_steps=run.delayed,
        step_seconds=step_seconds,
        compile_seconds=run.compile_seconds,
        origin=origin,
        observed=observed,
    )
    if run.failure is not None:
        details = run.failure.details
        reason = str(run.failure) + (f"\n{details}" if details else "")
        return replace(
            trial, state=FAILED, kind=run.failure.kind, reason=shortened(reason, MOST_CHARACTERS)
        )
    now = race.estimate(run.logs)
    trial = replace(trial, samples_per_second=speed(now), warmup_steps=now.warmup)
    if run.ended:
        return replace(trial, reason=f"the job ended after {run.steps} steps")
    if run.verdict == "enough":
        return trial
    cut = None if run.cut is None else f"{TIME_UP} {run.cut}"
    if cut and now.level and len(run.logs) >= race.warmup + LEAST_KEPT:
        return replace(trial, reason=cut)
    guess = race.lost(run.logs)
    return replace(
        trial,
        state=PRUNED,
        samples_per_second=speed(guess),
        at_most_samples_per_second=at_most(guess, race.fastest),
        reason=cut or _lost(run.steps, race),
    )


def at_most(guess: Estimate, fastest: Estimate | None) -> float | None:
    """Samples per second that a plan has at most of which only the first steps were seen.

    Beside what the steps scatter, the machine may just have been slower than usual. None
    where the bound says nothing: it lies above the fastest plan so far.
    """
    bound = math.exp(-guess.center + Z95 * math.hypot(guess.error, WANDER))
    return bound if fastest is None or bound < math.exp(-fastest.center) else None


def was_disturbed(trial: Trial) -> bool:
    """Whether other processes delayed most of its steps."""
    return trial.kind == Contended.kind or trial.delayed_steps * 2 > trial.steps


def _lost(steps: int, race: Race) -> str:
    fastest = race.fastest
    rate = "" if fastest is None else f", {figure(math.exp(-fastest.center))} samples/s"
    return f"stopped after {count_of_steps(steps)}: most likely slower than the fastest{rate}"
