"""A study: it measures today's launch, then other plans, and confirms the best of them.

The first trial is today's launch, the baseline. Suggested plans follow, then those that the sampler
proposes. The confirmation comes last.

Nothing is claimed of a machine on which somebody else computes; the message names who does. There,
even ratios that are measured side by side are false, because plans suffer differently: one thread
ran at 0.62 of the speed of two on a quiet machine, and at 1.73 of it beside one busy process.

Today's launch is profiled before the search, where knowing what takes its time changes what is
tried first. The best plan is profiled at the end. No speed counts a profiled step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cputune.errors import Interrupted, NotMeasurableError, NoValidTrialError
from cputune.facts import HostFacts
from cputune.knobs import as_seen
from cputune.layout import baseline_plan
from cputune.options import TuneOptions
from cputune.plan import Plan
from cputune.ranks.compare import runs_alike
from cputune.result import (
    COMPLETED,
    FAILED,
    PRUNED,
    Origin,
    Result,
    Trial,
)
from cputune.steps import (
    Contended,
    DataRunner,
    HostLost,
    LearningRunner,
    OutOfMemory,
    ProfilingRunner,
    Runner,
)
from cputune.tuner.conclusion import cannot_work, conclude, recommend
from cputune.tuner.confirmation import confirm_best
from cputune.tuner.events import (
    Disturbed,
    OnEvent,
    Said,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialStarted,
)
from cputune.tuner.measuring import (
    STUDY_SHARE,
    USUAL_RUNS,
    USUAL_SECONDS,
    CutOff,
    Findings,
    Measuring,
    Timer,
    observed,
    trial_of,
    was_disturbed,
)
from cputune.tuner.nodes import Attempt, Nodes
from cputune.tuner.padding_flag import gain_of_flag
from cputune.tuner.profiling import profile_of, time_shares
from cputune.tuner.race import Race
from cputune.tuner.reading import Run
from cputune.tuner.sampler import SURELY_DIES, History, PlanSampler
from cputune.tuner.space import SearchSpace, space_of
from cputune.tuner.storage import (
    StudyStorage,
    identity_of,
)
from cputune.workload import Workload

if TYPE_CHECKING:
    from cputune.ranks.hosts import RankHosts


AGAIN_SECONDS = 4.0
QUIET_LOOKS = 2
"""How many looks in a row have to find the machine quiet: a process that computes may pause
shortly."""

Look = Callable[[], Sequence[str]]
"""Looks at who else computes on this machine just now. Returns descriptions; none where it is
quiet."""


def wait_until_quiet(
    look: Look,
    on_event: OnEvent,
    *,
    most_seconds: float | None,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> None:
    """Report who else computes here; where ``most_seconds`` are given, wait until nobody does.

    Raises NotMeasurableError where the machine was still not quiet after them.
    """
    neighbours = tuple(look())
    if not neighbours:
        return
    on_event(Disturbed(neighbours=neighbours, waiting=most_seconds is not None))
    if most_seconds is None:
        return
    until, quiet = clock() + most_seconds, 0
    while quiet < QUIET_LOOKS:
        if clock() >= until:
            raise not_measurable(f"it was not quiet in {most_seconds:.0f} s", neighbours)
        pause(AGAIN_SECONDS)
        seen = tuple(look())
        quiet = 0 if seen else quiet + 1
        neighbours = seen or neighbours


def not_measurable(why: str, neighbours: Sequence[str]) -> StudyDisturbedError:
    """The error for a busy machine: why there is no result, who computes here, what to do."""
    return StudyDisturbedError(
        f"not measurable today: {why}",
        details="\n".join(f"busy now: {name}" for name in neighbours) or None,
        hint="end the other processes that compute here, or wait for it: "
        "--wait-quiet 30m; the trials are kept with the study, --resume goes on with those that "
        "were quiet",
    )


BUSY_ERROR = 0.1
"""The least standard error (log) of a trial on a machine that is never quiet."""


OpenRunner = Callable[[Workload, bool], AbstractContextManager[Runner]]
"""Opens a runner for a workload. True asks for fresh processes, such as an emitted launch
starts."""


class TuningStudy:
    """One study, from its first trial to its result. ``run()`` is called once."""

    def __init__(
        self,
        workload: Workload,
        facts: HostFacts,
        open_runner: OpenRunner,
        options: TuneOptions,
        *,
        on_event: OnEvent | None = None,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        neighbours: Look = tuple,
        hosts: RankHosts | None = None,
        limited: bool = False,
    ) -> None:
        """``hosts`` are those that plans run on, None: this machine; ``facts`` the first one's.

        ``limited``: a study that was given no time takes the usual one.
        """
        self._workload = workload
        self._facts = facts
        self._open_runner = open_runner
        self._options = options
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._on_event: OnEvent = on_event or (lambda event: None)
        self._neighbours = neighbours
        self._hosts = hosts
        self._named = () if hosts is None else hosts.names
        self._limited = limited and options.max_time_seconds is None
        self._race = Race()
        self._findings = Findings(shared=options.share_machine)
        self._timer = Timer(
            clock=clock,
            started=clock() if started is None else started,
            most_seconds=options.max_time_seconds,
        )
        self._measuring = Measuring(
            facts=facts,
            race=self._race,
            findings=self._findings,
            timer=self._timer,
            on_event=self._on_event,
        )
        self._history = History()
        self._next = 0  # the number of the next trial
        self._hopeless = False
        self._space: SearchSpace | None = None
        self._sampler: PlanSampler | None = None
        self._identity = identity_of(options, facts, workload, self._named)
        self._storage = StudyStorage(
            None if options.study is None else Path(options.study),
            resume=options.resume,
            private=bool(workload.argv),
        )

    def run(self) -> Result:
        """Tune. Raises NoValidTrialError, or Interrupted with the ``result`` so far."""
        try:
            with closing(self._storage):
                return self._run()
        except (KeyboardInterrupt, Interrupted):  # also after the last trial
            raise self._interrupted() from None

    def _run(self) -> Result:
        try:
            resumed = self._take_up()
            self._workload = self._storage.workload or self._workload
            with (
                self._open_runner(self._workload, False) as runner,
                closing(self._measuring.living),
            ):
                self._search(runner, resumed)
                if self._sampler is not None and self._space is not None and self._has_hosts:
                    fresh = partial(self._open_runner, self._workload, True)
                    belief = self._sampler.believe()
                    confirm_best(self._measuring, self._space, belief, runner, fresh)
            if self._findings.disturbed and not self._options.share_machine:
                raise self._disturbed()
            self._look_at_best()
            result = self._concluded()
            self._on_event(StudyEnded(result=result))
            return result
        except BaseException as error:
            self._storage.abandon()
            interrupted = isinstance(error, (KeyboardInterrupt, Interrupted))
            if not interrupted and not self._findings.trials:
                self._storage.discard()
            raise

    def _concluded(self) -> Result:
        """The result of what is known so far. That of a disturbed study says that it is."""
        return conclude(
            self._findings,
            facts=self._facts,
            workload=self._workload,
            left_out=() if self._space is None else self._space.left_out,
            options=self._options,
            created=self._created,
            noise=self._race.noise.deviation,
            seconds=self._timer.used_seconds,
            hosts=self._named,
            interface=None if self._hosts is None else next(iter(self._hosts.interfaces), None),
        )

    def _disturbed(self) -> StudyDisturbedError:
        error = not_measurable(self._findings.how_disturbed, self._neighbours())
        with suppress(NoValidTrialError):
            error.result = self._concluded()
        return error

    def _interrupted(self) -> Interrupted:
        findings, count = self._findings, len(self._findings.trials)
        error = StudyInterrupted(
            f"interrupted after {count} {'trial' if count == 1 else 'trials'}",
            hint=(
                "go on with: cputune tune --resume"
                if self._options.study is not None
                else "--study FILE.db keeps what was measured, --resume goes on from there"
            ),
        )
        rounds = len(findings.confirm_runs)
        after = f" after {rounds} runs of its confirmation" if rounds else "; nothing was confirmed"
        findings.notes.append(f"The study was interrupted{after}.")
        if findings.disturbed:
            findings.notes.append(f"Nothing of it can be relied on: {findings.how_disturbed}.")
        with suppress(NoValidTrialError):
            error.result = self._concluded()
        return error

    # What is on record

    def _take_up(self) -> int:
        """Go on from the trials on record; returns how many there are.

        Some of them are run again: those that other processes disturbed, for it may be quiet now,
        and those that lost a host, which may be back. Raises CannotError where the record is of
        another study.
        """
        self._storage.claim(self._identity)
        for trial, run in self._storage.past():
            self._next = max(self._next, trial.number + 1)
            if not was_disturbed(trial) and trial.kind != HostLost.kind:
                self._learn(trial, run)
        self._timer.step_seconds = 0.0  # spent by an earlier command
        return len(self._findings.trials)

    def _learn(self, trial: Trial, run: Run, *, doubt: float = 0.0) -> None:
        """Learn from a trial: its speed, its failure, its memory.

        ``doubt`` is how unsure its speed is (log), beside the scatter of its own steps.
        """
        past, race, findings = self._history, self._race, self._findings
        findings.trials.append(trial)
        here = 0.0 if trial.elsewhere else trial.step_seconds
        self._timer.step_seconds += here
        past.tried.add(trial.plan)
        past.seconds += here
        if trial.plan.as_found:
            self._measuring.reference = tuple(run.losses)
        if trial.state == FAILED:
            if trial.kind not in (Contended.kind, HostLost.kind):
                past.failed.append(trial.plan)
            if trial.kind == OutOfMemory.kind:
                past.too_large.append(trial.plan)
            return
        findings.saw_quiet |= not findings.never_quiet
        held = (int(rank.get("peak_bytes") or 0) for rank in trial.observed)
        past.rank_bytes = max(past.rank_bytes, *held, 0)
        guess = race.lost(run.logs) if trial.state == PRUNED else race.estimate(run.logs)
        guess = replace(guess, error=math.hypot(guess.error, doubt))
        race.learn(run.logs, guess, completed=trial.state == COMPLETED)
        past.plans.append(trial.plan)
        past.logs.append(guess.center)
        past.errors.append(max(guess.error, BUSY_ERROR if was_disturbed(trial) else 0.0))
        if not trial.elsewhere:
            past.when.append(past.seconds - here / 2)

    # The search

    def _search(self, runner: Runner, resumed: int) -> None:
        trials = self._findings.trials
        if not trials:
            self._measure_today(runner)
            if not self._has_hosts:
                return
            self._end_what_cannot_work()
            if self._findings.cut_off and not any(one.state == COMPLETED for one in trials):
                return
            self._workload = self._observed_workload(runner)
            self._storage.remember(self._workload)
        self._measure_all(runner, self._open_space(runner, resumed))

    def _measure_today(self, runner: Runner) -> None:
        """Measure today's launch on the first host; where that host is lost, on the next one."""
        today = baseline_plan(self._facts, ranks=self._workload.launch_ranks)
        nodes = Nodes(runner, None, None, self._measuring)
        lost = True
        while lost and self._has_hosts:
            self._storage.begin_baseline()
            self._begin(nodes, today, "baseline", ())
            trials = self._findings.trials
            lost = bool(trials) and trials[-1].kind == HostLost.kind

    def _observed_workload(self, runner: Runner) -> Workload:
        workload = runner.workload if isinstance(runner, LearningRunner) else self._workload
        if workload.global_batch_size is None and workload.batch_per_rank is None:
            workload = replace(workload, global_batch_size=self._findings.samples_per_step)
        return workload

    def _open_space(self, runner: Runner, resumed: int) -> SearchSpace:
        """Build the space of plans, now that the baseline has shown what the script trains."""
        options, timer = self._options, self._timer
        seen = next((t for t in self._findings.trials if t.plan.as_found), None)
        plan = None if seen is None else seen.plan
        space = space_of(options, self._facts, self._workload, self._hosts, baseline=plan)
        if not resumed and space.asks_for_profile:
            self._look_where_time_goes(runner)
            space = replace(space, workload=self._workload)
        self._space = space
        if seen is not None and seen.observed and seen.state == COMPLETED:
            same = [one for one in space.plans() if runs_alike(one, seen.observed)]
            self._history.tried.update(same)
            if same:
                note = "A plan is today's launch itself, as its ranks show: it was not run again."
                self._findings.notes.append(note)
        self._sampler = PlanSampler(space, self._history, seed=options.seed)
        self._storage.guide(self._sampler)
        start = self._measuring.start_seconds if not resumed else None
        if self._limited:
            timer.most_seconds = max(USUAL_SECONDS, USUAL_RUNS * timer.used_seconds)
            timer.usual = True
        most = timer.most_seconds
        self._on_event(
            StudyStarted(
                space=space,
                budget=options.budget,
                resumed=resumed,
                start_seconds=start,
                most_seconds=most if most is not None and most < math.inf else None,
            )
        )
        return space

    def _look_where_time_goes(self, runner: Runner) -> None:
        """Profile today's launch, where that can be done: it says what is worth trying first."""
        today = self._findings.trials[0]
        if today.state == COMPLETED and isinstance(runner, ProfilingRunner):
            self._on_event(Said(text="looking where the time of today's launch goes"))
            shares = time_shares(runner, today.plan, partial(self._timer.left, STUDY_SHARE))
            if self._workload.padding is not None:
                shares["padding"] = 1 - self._workload.padding.left
            self._workload = replace(self._workload, time_shares=shares)
            self._storage.remember(self._workload)

    def _measure_all(self, runner: Runner, space: SearchSpace) -> None:
        """Measure trials, some at once, until the budget, the time or the plans are spent."""
        findings = self._findings
        completed = (t for t in findings.trials if t.plan.as_found and t.state == COMPLETED)
        with closing(Nodes(runner, self._hosts, next(completed, None), self._measuring)) as nodes:
            while self._has_hosts:
                left = self._options.budget - len(findings.trials) - nodes.trials
                time_up = findings.cut_off is not None or self._timer.up(STUDY_SHARE)
                following = self._following(space) if left > 0 and not time_up else None
                free = None if following is None else nodes.free_for(following[1], left)
                if following is not None and free is not None:
                    origin, plan = following
                    begun = self._storage.begin(space, None if origin == "sampler" else plan)
                    self._begin(nodes, begun, origin, free)
                elif nodes.trials or following is not None:
                    self._end(nodes.next_ended())
                else:
                    if left > 0:
                        findings.notes.append(self._why_it_ended(space, time_up=time_up))
                    return

    def _why_it_ended(self, space: SearchSpace, *, time_up: bool) -> str:
        if time_up:
            return "The search ended early: the time given was up."
        tried = len({trial.plan for trial in self._findings.trials} & set(space.values))
        return (
            f"The search ended after {tried} of {len(space)} plans: no other one is expected to be "
            "worth a trial."
        )

    def _following(self, space: SearchSpace) -> tuple[Origin, Plan] | None:
        """The next plan and who proposes it; None where there is none."""
        assert self._sampler is not None
        for origin, plan in space.suggestions:
            if plan not in self._history.tried and self._sampler.fits(plan) > SURELY_DIES:
                return origin, plan
        proposed = self._sampler.next_plan()
        return None if proposed is None else ("sampler", proposed)

    def _begin(self, nodes: Nodes, plan: Plan, origin: Origin, free: tuple[str, ...]) -> None:
        """Run a plan as the next trial; wait for its end unless others may run beside it."""
        number, self._next = self._next, self._next + 1
        self._on_event(TrialStarted(number=number, plan=plan, origin=origin))
        belief = {} if self._sampler is None else self._sampler.believe()
        self._race.expected = belief.get(plan)
        self._measuring.living.make_room(self._history.rank_bytes * plan.processes_per_node)
        attempt = nodes.attempt(plan, free, number, origin)
        if free:
            self._history.tried.add(plan)  # so that it is not proposed again while it runs
            nodes.start(attempt)
        else:
            attempt.measure()
            self._end(attempt)

    def _end(self, attempt: Attempt) -> None:
        """Write down what came of an attempt, and draw the consequences."""
        failure, found = attempt.run.failure, attempt.measuring.findings
        if found is not self._findings:
            self._findings.contended_runs += found.contended_runs
        if attempt.number is not None:
            self._end_trial(attempt, attempt.number)
        if isinstance(failure, HostLost):
            self._go_on_without(failure)
        if not attempt.plan.as_found:
            self._end_what_cannot_work()

    def _end_trial(self, attempt: Attempt, number: int) -> None:
        run, plan, runner = attempt.run, attempt.plan, attempt.runner
        if run.cut is not None:
            self._findings.cut_off = CutOff(number=number, plan=plan, when=run.cut)
            if not run.logs:  # nothing to write down; it may be tried again
                self._storage.abandon(plan)
                return
        if attempt.slower:
            run = replace(run, logs=[value - attempt.slower for value in run.logs])
        self._hopeless = run.failure is not None and run.failure.hopeless
        seen = observed(runner)
        trial = trial_of(
            run,
            self._race,
            number=number,
            plan=as_seen(plan, seen) if plan.as_found and seen else plan,
            origin=attempt.origin,
            step_seconds=attempt.seconds,
            observed=seen,
        )
        trial = replace(trial, elsewhere=attempt.doubt > 0)
        if isinstance(runner, DataRunner):
            self._findings.data = runner.data or self._findings.data
        if run.samples is not None and plan.world_size == 1:
            self._findings.samples_per_step = run.samples
        self._storage.end(trial, run)
        self._learn(trial, run, doubt=attempt.doubt)
        if run.living is not None:
            self._measuring.living.add(trial, run, self._race.estimate(run.logs).center)
        self._on_event(TrialEnded(trial=trial))

    def _end_what_cannot_work(self) -> None:
        error = cannot_work(self._findings.trials, hopeless=self._hopeless)
        if error is not None:
            self._storage.discard()
            raise error

    def _go_on_without(self, lost: HostLost) -> None:
        """Go on without a lost host: leave out the plans that need more hosts than are left."""
        assert self._hosts is not None, "a host was lost, so the study has hosts"
        if lost.name in self._hosts.names:  # else another trial on it has reported the loss
            self._hosts.leave_out(lost.name)
        left = self._hosts.names
        with_them = "goes on with " + ", ".join(left) if left else "ends: no host is left"
        said = f"{lost}; the study {with_them}"
        self._findings.notes.append(f"{said}.")
        self._on_event(Said(text=said))
        if self._space is not None:
            too_many = (plan for plan in self._space.plans() if plan.nodes > len(left))
            self._history.tried.update(too_many)

    @property
    def _has_hosts(self) -> bool:
        """Whether a machine is left to run on."""
        return self._hosts is None or bool(self._hosts.names)

    # The best plan

    def _look_at_best(self) -> None:
        """Find out what the script's own flag would gain, and where the time of the plan goes."""
        findings = self._findings
        if self._sampler is None or findings.disturbed:
            return
        best = recommend(findings, self._race.noise.deviation).best.plan
        if self._hosts is None:
            findings.flag = gain_of_flag(self._measuring, self._workload, best, self._open_runner)
        known = findings.profile is not None and findings.profile.plan == best
        if known or self._timer.up(1.0) or not self._has_hosts:
            return
        with self._open_runner(self._workload, True) as runner:
            if isinstance(runner, ProfilingRunner):
                self._on_event(Said(text="looking where the time of the best plan goes"))
                findings.profile = profile_of(runner, best, partial(self._timer.left, 1.0))


class StudyDisturbedError(NotMeasurableError):
    """Other processes disturbed the study. ``result``: what was found; None: no valid trial."""

    result: Result | None = None


class StudyInterrupted(Interrupted):
    """The study was interrupted. ``result`` is what was found; None without a valid trial."""

    result: Result | None = None
