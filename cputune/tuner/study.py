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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cputune.errors import CannotError, Interrupted, NotMeasurableError, NoValidTrialError
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
    HostLost,
    LearningRunner,
    OutOfMemory,
    ProfilingRunner,
    Runner,
)
from cputune.tuner.conclusion import cannot_work, conclude
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
    how_disturbed,
    is_disturbed,
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
    Identity,
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


class TrialHistory:
    """The trials so far, as the sampler, the race and the findings of a study know them.

    Attributes:
        history: what the sampler learns from.
    """

    def __init__(self, measuring: Measuring, storage: StudyStorage) -> None:
        self.history = History()
        self._measuring = measuring
        self._storage = storage
        self._next = 0

    @property
    def spent(self) -> int:
        """How many trials of the budget are over."""
        return len(self._measuring.findings.trials)

    def next_number(self) -> int:
        """The number of the next trial."""
        self._next += 1
        return self._next - 1

    def take_up(self, identity: Identity, where: object) -> int:
        """Go on from the trials on record in the file ``where``; returns how many there are.

        Some of them are run again: those that other processes disturbed, for it may be quiet now,
        and those that lost a host, which may be back. Raises CannotError where the record is of
        another study.
        """
        recorded = self._storage.identity
        if recorded is None:
            self._storage.identify(identity)
            return 0
        different = [name for name in identity if identity[name] != recorded.get(name)]
        if different:
            raise CannotError(
                f"the study in {where} is of another "
                + ", ".join(name.replace("_", " ") for name in different),
                hint="resume it as it was started, or give another file with --study",
            )
        all_told = self._storage.past()
        self._next = max((trial.number + 1 for trial, _ in all_told), default=0)
        past = [
            (trial, run)
            for trial, run in all_told
            if not was_disturbed(trial) and trial.kind != HostLost.kind
        ]
        for trial, run in past:
            self.add(trial, run)
        self._measuring.timer.step_seconds = 0.0  # spent by an earlier command
        return len(past)

    def add(self, trial: Trial, run: Run, *, doubt: float = 0.0) -> None:
        """Learn from a trial: its speed, its failure, its memory.

        ``doubt`` is how unsure its speed is (log), beside the scatter of its own steps.
        """
        past, race, findings = self.history, self._measuring.race, self._measuring.findings
        findings.trials.append(trial)
        here = 0.0 if trial.elsewhere else trial.step_seconds
        self._measuring.timer.step_seconds += here
        past.tried.add(trial.plan)
        past.seconds += here
        findings.compile_seconds = max(findings.compile_seconds, trial.compile_seconds)
        if trial.plan.as_found:
            self._measuring.reference = tuple(run.losses)
        if trial.state != FAILED and not findings.never_quiet:
            findings.saw_quiet = True
        if trial.state == FAILED:
            if trial.kind not in (Contended.kind, HostLost.kind):
                past.failed.append(trial.plan)
            if trial.kind == OutOfMemory.kind:
                past.too_large.append(trial.plan)
            return
        held = (int(rank.get("peak_bytes") or 0) for rank in trial.observed)
        past.rank_bytes = max(past.rank_bytes, *held, 0)
        guess = race.lost(run.logs) if trial.state == PRUNED else race.estimate(run.logs)
        guess = replace(guess, error=math.hypot(guess.error, doubt))
        race.learn(run.logs, guess, completed=trial.state == COMPLETED)
        busy = BUSY_ERROR if was_disturbed(trial) else 0.0
        past.plans.append(trial.plan)
        past.logs.append(guess.center)
        past.errors.append(max(guess.error, busy))
        if not trial.elsewhere:
            past.when.append(past.seconds - here / 2)


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
        self._timer = Timer(
            clock=clock,
            started=clock() if started is None else started,
            most_seconds=options.max_time_seconds,
        )
        self._limited = limited and options.max_time_seconds is None
        self._race = Race()
        self._findings = Findings()
        self._measuring = Measuring(
            facts=facts,
            race=self._race,
            findings=self._findings,
            timer=self._timer,
            on_event=self._on_event,
            shared=options.share_machine,
            steps_planned=options.steps_planned,
        )
        self._hopeless = False
        self._space: SearchSpace | None = None
        self._sampler: PlanSampler | None = None
        self._identity = identity_of(options, facts, workload, hosts)
        self._storage = StudyStorage(
            None if options.study is None else Path(options.study),
            resume=options.resume,
            private=bool(workload.argv),
        )
        self._past = TrialHistory(self._measuring, self._storage)

    def run(self) -> Result:
        """Tune. Raises NoValidTrialError, or Interrupted with the ``result`` so far."""
        try:
            with closing(self._storage):
                return self._run()
        except (KeyboardInterrupt, Interrupted):  # also after the last trial
            raise self._interrupted() from None

    def _run(self) -> Result:
        try:
            resumed = self._past.take_up(self._identity, self._options.study)
            self._workload = self._storage.workload or self._workload
            with (
                self._open_runner(self._workload, False) as runner,
                closing(self._measuring.living),
            ):
                self._search(runner, resumed)
                if self._sampler is not None and self._has_hosts:
                    fresh = partial(self._open_runner, self._workload, True)
                    assert self._space is not None
                    belief = self._sampler.believe()
                    confirm_best(self._measuring, self._space, belief, runner, fresh)
            result = self._with_flag(self._with_profile(self._conclude()))
            self._on_event(StudyEnded(result=result))
            return result
        except BaseException as error:
            self._storage.abandon()
            interrupted = isinstance(error, (KeyboardInterrupt, Interrupted))
            if not interrupted and not self._findings.trials:
                self._storage.discard()
            raise

    def _with_flag(self, result: Result) -> Result:
        """The result, with what the script's own flag against padding would gain."""
        if self._sampler is None or result.disturbed or self._hosts is not None:
            return result
        self._findings.flag = gain_of_flag(
            self._measuring, self._workload, result.best.plan, self._open_runner
        )
        if self._findings.flag is None:
            return result
        concluded = self._concluded()
        return replace(result, untried=concluded.untried, seconds=concluded.seconds)

    def _with_profile(self, result: Result) -> Result:
        """The result, with where the time of its best plan goes, if that can be seen."""
        seen = self._findings.profile
        if seen is not None and seen.plan == result.best.plan:
            return replace(result, profile=seen)
        if self._sampler is None or result.disturbed or self._timer.up(1.0) or not self._has_hosts:
            return result
        with self._open_runner(self._workload, True) as runner:
            if not isinstance(runner, ProfilingRunner):
                return result
            self._on_event(Said(text="looking where the time of the best plan goes"))
            left = partial(self._timer.left, 1.0)
            return replace(result, profile=profile_of(runner, result.best.plan, left))

    def _interrupted(self) -> Interrupted:
        count = len(self._findings.trials)
        error = StudyInterrupted(
            f"interrupted after {count} {'trial' if count == 1 else 'trials'}",
            hint=(
                "go on with: cputune tune --resume"
                if self._options.study is not None
                else "--study FILE.db keeps what was measured, --resume goes on from there"
            ),
        )
        rounds = len(self._findings.confirm_runs)
        self._findings.notes.append(
            f"The study was interrupted after {rounds} runs of its confirmation."
            if rounds
            else "The study was interrupted; nothing was confirmed."
        )
        if is_disturbed(self._findings):
            self._findings.notes.append(
                f"Nothing of it can be relied on: {how_disturbed(self._findings)}."
            )
        try:
            error.result = self._concluded()
        except NoValidTrialError:
            error.result = None
        return error

    # The search

    def _search(self, runner: Runner, resumed: int) -> None:
        if not self._findings.trials:
            self._measure_today(runner)
            if not self._has_hosts:
                return
            self._end_what_cannot_work()
            if not any(trial.state == COMPLETED for trial in self._findings.trials) and (
                self._findings.cut_off is not None
            ):
                return
            self._workload = self._observed_workload(runner)
            self._storage.remember(self._workload)
        space = self._open_space(runner, resumed)
        self._measure_all(runner, space)

    def _measure_all(self, runner: Runner, space: SearchSpace) -> None:
        """Measure trials, some at once, until the budget, the time or the plans are spent."""
        tried = self._findings.trials
        today = next((t for t in tried if t.plan.as_found and t.state == COMPLETED), None)
        with closing(Nodes(runner, self._hosts, today, self._measuring)) as nodes:
            while self._has_hosts:
                left = self._options.budget - self._past.spent - nodes.trials
                time_up = self._findings.cut_off is not None or self._timer.up(STUDY_SHARE)
                following = self._following(space) if left > 0 and not time_up else None
                if following is None and not nodes.trials:
                    if left > 0 and time_up:
                        note = "The search ended early: the time given was up."
                        self._findings.notes.append(note)
                    self._findings.exhausted = left > 0 and not time_up
                    return
                free = None if following is None else nodes.free_for(following[1], left)
                if following is None or free is None:
                    self._end(nodes.next_ended())
                    continue
                origin, plan = following
                begun = self._storage.begin(space, None if origin == "sampler" else plan)
                self._begin(nodes, begun, origin, free)

    def _following(self, space: SearchSpace) -> tuple[Origin, Plan] | None:
        """The next plan and who proposes it; None where there is none."""
        assert self._sampler is not None
        for origin, plan in space.suggestions:
            if plan not in self._past.history.tried and self._sampler.fits(plan) > SURELY_DIES:
                return origin, plan
        proposed = self._sampler.next_plan()
        return None if proposed is None else ("sampler", proposed)

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

    def _end_what_cannot_work(self) -> None:
        error = cannot_work(self._findings.trials, hopeless=self._hopeless)
        if error is not None:
            self._storage.discard()
            raise error

    def _open_space(self, runner: Runner, resumed: int) -> SearchSpace:
        """Build the space of plans, now that the baseline has shown what the script trains."""
        options = self._options
        seen = next((t.plan for t in self._findings.trials if t.plan.as_found), None)
        space = space_of(options, self._facts, self._workload, self._hosts, baseline=seen)
        if not resumed and space.asks_for_profile:
            self._look_where_time_goes(runner)
            space = replace(space, workload=self._workload)
        self._space = space
        self._leave_today_out(space)
        self._sampler = PlanSampler(space, self._past.history, seed=options.seed)
        self._storage.guide(self._sampler)
        start = self._measuring.start_seconds if not resumed else None
        if self._limited:
            self._timer.most_seconds = max(USUAL_SECONDS, USUAL_RUNS * self._timer.used_seconds)
            self._timer.usual = True
        most = self._timer.most_seconds
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

    def _leave_today_out(self, space: SearchSpace) -> None:
        """Leave out the plans that would run exactly as today's launch was seen to run."""
        today = next((t for t in self._findings.trials if t.plan.as_found and t.observed), None)
        if today is None or today.state != COMPLETED:
            return
        same = [plan for plan in space.plans() if runs_alike(plan, today.observed)]
        self._past.history.tried.update(same)
        self._findings.same_as_today = len(same)

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

    def _observed_workload(self, runner: Runner) -> Workload:
        workload = runner.workload if isinstance(runner, LearningRunner) else self._workload
        if workload.global_batch_size is None and workload.batch_per_rank is None:
            workload = replace(workload, global_batch_size=self._findings.samples_per_step)
        return workload

    def _begin(self, nodes: Nodes, plan: Plan, origin: Origin, free: tuple[str, ...]) -> None:
        """Run a plan as the next trial; wait for its end unless others may run beside it."""
        number = self._past.next_number()
        self._on_event(TrialStarted(number=number, plan=plan, origin=origin))
        self._race.expected = self._belief().get(plan)
        self._measuring.living.make_room(self._past.history.rank_bytes * plan.processes_per_node)
        attempt = nodes.attempt(plan, free, number, origin)
        attempt.delayed = attempt.measuring.findings.contended_runs
        if free:
            self._past.history.tried.add(plan)  # so that it is not proposed again while it runs
            nodes.start(attempt)
        else:
            attempt.measure()
            self._end(attempt)

    def _end(self, attempt: Attempt) -> None:
        """Write down what came of an attempt, and draw the consequences."""
        run, plan, found = attempt.run, attempt.plan, attempt.measuring.findings
        if found is not self._findings:
            self._findings.contended_runs += found.contended_runs
        if attempt.number is not None:
            self._end_trial(attempt, attempt.number, found.contended_runs - attempt.delayed)
        if isinstance(run.failure, HostLost):
            self._go_on_without(run.failure)
        if not plan.as_found:
            self._end_what_cannot_work()

    def _end_trial(self, attempt: Attempt, number: int, delayed_runs: int) -> None:
        run, plan, seen = attempt.run, attempt.plan, attempt.observed
        if run.cut is not None:
            self._findings.cut_off = CutOff(
                number=number,
                plan=plan,
                when=run.cut,
                run=run,
                startup_seconds=attempt.measuring.start_seconds,
                delayed_runs=delayed_runs,
            )
            if not run.logs:  # nothing to write down; it may be tried again
                self._storage.abandon(plan)
                return
        if attempt.slower:
            run = replace(run, logs=[value - attempt.slower for value in run.logs])
        self._hopeless = run.failure is not None and run.failure.hopeless
        if plan.as_found and seen:
            plan = as_seen(plan, seen)
        trial = trial_of(
            run,
            self._race,
            number=number,
            plan=plan,
            origin=attempt.origin,
            step_seconds=attempt.seconds,
            observed=seen,
        )
        trial = replace(trial, elsewhere=attempt.doubt > 0)
        self._findings.data = attempt.data or self._findings.data
        if run.samples is not None and plan.world_size == 1:
            self._findings.samples_per_step = run.samples
        self._storage.end(trial, run)
        self._past.add(trial, run, doubt=attempt.doubt)
        if run.living is not None:
            self._measuring.living.add(trial, run, self._race.estimate(run.logs).center)
        self._on_event(TrialEnded(trial=trial))

    def _go_on_without(self, lost: HostLost) -> None:
        """Go on without a lost host: leave out the plans that need more hosts than are left."""
        assert self._hosts is not None, "a host was lost, so the study has hosts"
        if lost.name in self._hosts.names:  # else another trial on it has reported the loss
            self._hosts.leave_out(lost.name)
        left = self._hosts.names
        with_them = "went on with " + ", ".join(left) if left else "ended: no host is left"
        self._findings.notes.append(f"{lost}; the study {with_them}.")
        self._on_event(
            Said(text=f"{lost}; {'going on with ' if left else 'no host is left'}{', '.join(left)}")
        )
        if self._space is not None:
            too_many = (plan for plan in self._space.plans() if plan.nodes > len(left))
            self._past.history.tried.update(too_many)

    @property
    def _has_hosts(self) -> bool:
        """Whether a machine is left to run on."""
        return self._hosts is None or bool(self._hosts.names)

    def _belief(self) -> Mapping[Plan, tuple[float, float]]:
        return {} if self._sampler is None else self._sampler.believe()

    def _conclude(self) -> Result:
        if is_disturbed(self._findings) and not self._options.share_machine:
            error = not_measurable(how_disturbed(self._findings), self._neighbours())
            with suppress(NoValidTrialError):
                error.result = self._concluded()
            raise error
        return self._concluded()

    def _concluded(self) -> Result:
        """The result of what is known so far. That of a disturbed study says that it is."""
        return conclude(
            self._findings,
            facts=self._facts,
            workload=self._workload,
            space=self._space,
            options=self._options,
            created=self._created,
            noise=self._race.noise.deviation,
            seconds=self._timer.used_seconds,
            hosts=self._named,
            interface=None if self._hosts is None else next(iter(self._hosts.interfaces), None),
        )


class StudyDisturbedError(NotMeasurableError):
    """Other processes disturbed the study. ``result``: what was found; None: no valid trial."""

    result: Result | None = None


class StudyInterrupted(Interrupted):
    """The study was interrupted. ``result`` is what was found; None without a valid trial."""

    result: Result | None = None
