"""Runs the plans of one study: again where other processes delayed them, and within the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.result import ConfirmRun, Throughput
from cputune.steps import Contended, ObservingRunner, PunctualRunner, Runner, Step
from cputune.tuner.confirm import Contender
from cputune.tuner.events import OnEvent, StepTaken, TrialRepeated
from cputune.tuner.findings import Findings
from cputune.tuner.race import Race, Verdict
from cputune.tuner.reading import Rules, Run, read_run, turn_of
from cputune.tuner.statistics import Estimate

ATTEMPTS = 3
"""How often a trial is run that other processes delay, before it is given up."""

STUDY_SHARE = 0.7
"""Share of ``--max-time`` for the study; the rest is for the confirmation."""


@dataclass(slots=True, kw_only=True)
class Timer:
    """How much of the time that was given is used: by the clock, or by the steps' own time.

    ``started`` is when the command began, by the clock. Steps of a runner that simulates take
    no time of the clock.
    """

    clock: Callable[[], float]
    most_seconds: float | None
    started: float
    step_seconds: float = 0.0

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
    """

    facts: HostFacts
    race: Race
    findings: Findings
    timer: Timer
    on_event: OnEvent
    reference: Sequence[float | None] = field(default=())
    shared: bool = False
    steps_planned: int | None = None

    def quiet_run(self, runner: Runner, plan: Plan, number: int) -> tuple[Run, float]:
        """A run that no other process delayed, if one can be had; and the seconds of all tries."""
        spent = 0.0
        attempts = 1 if self.findings.never_quiet else ATTEMPTS
        for attempt in range(attempts):
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
            if attempt + 1 < attempts:
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
    ) -> Run:
        """One run of a plan in one round of the confirmation."""
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
        rate: Throughput | None = None
        reason = None if run.failure is None else f"{run.failure.kind}: {run.failure}"
        if run.failure is None and run.logs:
            rate = speed(self.race.estimate(run.logs))
        runs = self.findings.confirm_runs
        runs.append(
            ConfirmRun(
                round=number,
                plan=contender.plan,
                role=contender.role,
                samples_per_second=rate,
                reason=reason,
                taken=(turn_of(sum(r.round == number for r in runs), run.trace),),
            )
        )
        self.on_event(runs[-1])
        return run

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
        )
        return read_run(runner, plan, rules)

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
