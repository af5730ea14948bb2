"""A study: baseline, suggestions, then what the sampler proposes; at the end the confirmation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cputune.errors import Interrupted, NoValidTrialError
from cputune.facts import HostFacts
from cputune.knobs import as_seen
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.result import (
    COMPLETED,
    Origin,
    Result,
)
from cputune.steps import (
    DataRunner,
    HostLost,
    LearningRunner,
    ProfilingRunner,
    Runner,
)
from cputune.tuner.book import LostDatabase
from cputune.tuner.conclusion import cannot_work, conclude
from cputune.tuner.cutoff import CutOff
from cputune.tuner.events import (
    OnEvent,
    Said,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialStarted,
)
from cputune.tuner.final import confirm_best
from cputune.tuner.findings import Findings, how_disturbed, is_disturbed
from cputune.tuner.kept import identity_of, open_book
from cputune.tuner.learnt import Learnt
from cputune.tuner.measuring import STUDY_SHARE, Measuring, Timer, observed
from cputune.tuner.options import StudyOptions
from cputune.tuner.profiling import profile_of, time_shares
from cputune.tuner.quiet import Look, not_measurable
from cputune.tuner.race import Race
from cputune.tuner.sampler import PlanSampler
from cputune.tuner.space import SearchSpace, build_space
from cputune.tuner.trials import trial_of
from cputune.workload import Workload

if TYPE_CHECKING:
    from cputune.ranks.hosts import RankHosts

OpenRunner = Callable[[Workload, bool], AbstractContextManager[Runner]]
"""Opens a runner for a workload; true asks for fresh processes, as an emitted launch has."""


class TuningStudy:
    """One study, from its first trial to its result. Used once: ``run()``."""

    def __init__(
        self,
        workload: Workload,
        facts: HostFacts,
        open_runner: OpenRunner,
        options: StudyOptions,
        *,
        on_event: OnEvent | None = None,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        neighbours: Look = tuple,
        shared: bool = False,
        hosts: RankHosts | None = None,
    ) -> None:
        """``hosts`` are those that plans run on, ``facts`` the first one's; None: this machine."""
        self._workload = workload
        self._facts = facts
        self._open_runner = open_runner
        self._options = options
        self._on_event: OnEvent = on_event or (lambda event: None)
        self._neighbours = neighbours
        self._shared = shared
        self._hosts = hosts
        self._named = () if hosts is None else hosts.names
        self._timer = Timer(
            clock=clock,
            started=clock() if started is None else started,
            most_seconds=options.max_time_seconds,
        )
        self._race = Race()
        self._findings = Findings()
        self._measuring = Measuring(
            facts=facts,
            race=self._race,
            findings=self._findings,
            timer=self._timer,
            on_event=self._on_event,
            shared=shared,
            steps_planned=options.steps_planned,
        )
        self._hopeless = False
        self._space: SearchSpace | None = None
        self._sampler: PlanSampler | None = None
        self._identity = identity_of(options, facts, workload, hosts)
        self._ledger = open_book(
            options,
            workload,
            self._identity,
            say=lambda text: self._on_event(Said(text=text)),
            out_of_time=partial(self._timer.up, 1.0),
        )
        self._learnt = Learnt(self._measuring, self._ledger)

    def run(self) -> Result:
        """Tune. Raises NoValidTrialError, and Interrupted (its ``result`` is what there is)."""
        try:
            with closing(self._ledger):
                return self._run()
        except (KeyboardInterrupt, Interrupted):  # it may also come when all is measured
            raise self._interrupted() from None

    def _run(self) -> Result:
        try:
            resumed = self._learnt.take_up(self._identity, self._options.study)
            self._workload = self._ledger.workload or self._workload
            with self._open_runner(self._workload, False) as runner:
                try:
                    self._search(runner, resumed)
                except LostDatabase as lost:
                    if not self._findings.trials:
                        raise
                    self._findings.notes.append(f"The search ended early: {lost}.")
            if self._sampler is not None and self._has_hosts:
                fresh = partial(self._open_runner, self._workload, True)
                assert self._space is not None
                confirm_best(self._measuring, self._space, self._sampler.believe(), fresh)
            result = self._with_profile(self._conclude())
            self._on_event(StudyEnded(result=result))
            return result
        except BaseException as error:
            self._ledger.abandon()
            interrupted = isinstance(error, (KeyboardInterrupt, Interrupted))
            if not interrupted and not self._findings.trials:
                self._ledger.discard()
            raise

    def _with_profile(self, result: Result) -> Result:
        """The result, and where the time of its best plan goes, where that can be seen."""
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
                else "the same command goes on: what was measured is in the database"
                if self._options.storage is not None
                else "--study FILE.db keeps what was measured, --resume goes on from there"
            ),
        )
        rounds = len(self._findings.confirm_runs)
        self._findings.notes.append(
            f"The study was interrupted after {rounds} runs of its confirmation."
            if rounds
            else "The study was interrupted; nothing was confirmed."
        )
        try:
            error.result = self._conclude()
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
            self._ledger.remember(self._workload)
        space = self._open_space(runner, resumed)
        self._measure_all(runner, space)

    def _measure_all(self, runner: Runner, space: SearchSpace) -> None:
        """Trial after trial, until the budget, the time or the plans are spent."""
        while True:
            self._learnt.hear_of_others(space)
            left = self._options.budget - self._learnt.spent
            if left <= 0:
                return
            if self._findings.cut_off is not None or self._timer.up(STUDY_SHARE):
                self._findings.notes.append("The search ended early: the time given was up.")
                return
            following = self._following(space) if left > len(self._learnt.history.claimed) else None
            if following is None and not self._learnt.history.claimed:
                self._findings.exhausted = True
                return
            if following is None:
                self._ledger.wait()  # one of those may die, and its plan be free again
                continue
            origin, plan = following
            begun = self._ledger.begin(space, plan)
            if begun is not None:
                self._trial(runner, begun, origin)
                self._end_what_cannot_work()
                if not self._has_hosts:
                    return

    def _following(self, space: SearchSpace) -> tuple[Origin, Plan | None] | None:
        """Who proposes the next plan, and which if it is known; None where there is none."""
        assert self._sampler is not None
        taken = self._learnt.history.tried | self._learnt.history.claimed
        suggested = next((pair for pair in space.suggestions if pair[1] not in taken), None)
        return suggested or (("sampler", None) if self._sampler.left() else None)

    def _measure_today(self, runner: Runner) -> None:
        """Today's launch on the first host; on the next one, where that is lost."""
        today = baseline_plan(self._facts, ranks=self._workload.launch_ranks)
        lost = True
        while lost and self._has_hosts:
            self._ledger.begin_baseline()
            self._trial(runner, today, "baseline")
            trials = self._findings.trials
            lost = bool(trials) and trials[-1].kind == HostLost.kind

    def _end_what_cannot_work(self) -> None:
        error = cannot_work(self._findings.trials, hopeless=self._hopeless)
        if error is not None:
            self._ledger.discard()
            raise error

    def _open_space(self, runner: Runner, resumed: int) -> SearchSpace:
        """The space, now that the baseline has shown what the script trains."""
        options = self._options
        space = build_space(
            self._facts,
            self._workload,
            vary=options.knobs,
            fix=options.fix,
            allow_slow_precision=options.allow_slow_precision,
            baseline=next((t.plan for t in self._findings.trials if t.plan.as_found), None),
            hosts=() if self._hosts is None else self._hosts.facts,
            interfaces=() if self._hosts is None else self._hosts.interfaces,
        )
        if not resumed and space.asks_for_profile:
            self._look_where_time_goes(runner)
            space = replace(space, workload=self._workload)
        self._space = space
        self._sampler = PlanSampler(space, self._learnt.history, seed=options.seed)
        self._ledger.guide(self._sampler)
        self._on_event(StudyStarted(space=space, budget=options.budget, resumed=resumed))
        return space

    def _look_where_time_goes(self, runner: Runner) -> None:
        """Of today's launch, where that can be seen: it says what is worth trying first."""
        today = self._findings.trials[0]
        if today.state == COMPLETED and isinstance(runner, ProfilingRunner):
            self._on_event(Said(text="looking where the time of today's launch goes"))
            shares = time_shares(runner, today.plan, partial(self._timer.left, STUDY_SHARE))
            self._workload = replace(self._workload, time_shares=shares)
            self._ledger.remember(self._workload)

    def _observed_workload(self, runner: Runner) -> Workload:
        workload = runner.workload if isinstance(runner, LearningRunner) else self._workload
        if workload.global_batch_size is None and workload.batch_per_rank is None:
            workload = replace(workload, global_batch_size=self._findings.samples_per_step)
        return workload

    def _trial(self, runner: Runner, plan: Plan, origin: Origin) -> None:
        number = self._learnt.next_number()
        self._on_event(TrialStarted(number=number, plan=plan, origin=origin))
        self._race.expected = self._belief().get(plan)
        begun = self._timer.used_seconds
        run, spent = self._measuring.quiet_run(runner, plan, number)
        if run.cut is not None:
            self._findings.cut_off = CutOff(
                number=number,
                plan=plan,
                when=run.cut,
                run=run,
                startup_seconds=max(0.0, self._timer.used_seconds - begun - run.step_seconds),
            )
            if not run.logs:  # it leaves nothing to write down, and may be tried again
                self._ledger.abandon()
                return
        self._hopeless = run.failure is not None and run.failure.hopeless
        seen = observed(runner)
        if plan.as_found and seen:
            plan = as_seen(plan, seen)
        trial = trial_of(
            run,
            self._race,
            number=number,
            plan=plan,
            origin=origin,
            step_seconds=spent,
            observed=seen,
        )
        if isinstance(runner, DataRunner):
            self._findings.data = runner.data or self._findings.data
        if run.samples is not None and plan.world_size == 1:
            self._findings.samples_per_step = run.samples
        self._ledger.end(trial, run)
        self._learnt.book(trial, run)
        self._on_event(TrialEnded(trial=trial))
        if isinstance(run.failure, HostLost):
            self._go_on_without(run.failure)

    def _go_on_without(self, lost: HostLost) -> None:
        """The plans that need more hosts than are left are not tried any more."""
        assert self._hosts is not None, "only hosts are lost"
        self._hosts.leave_out(lost.name)
        left = self._hosts.names
        with_them = "went on with " + ", ".join(left) if left else "ended: no host is left"
        self._findings.notes.append(f"{lost}; the study {with_them}.")
        self._on_event(
            Said(text=f"{lost}; {'going on with ' if left else 'no host is left'}{', '.join(left)}")
        )
        if self._space is not None:
            too_many = (plan for plan in self._space.plans() if plan.nodes > len(left))
            self._learnt.history.tried.update(too_many)

    @property
    def _has_hosts(self) -> bool:
        """Whether there is a machine left to run on."""
        return self._hosts is None or bool(self._hosts.names)

    def _belief(self) -> Mapping[Plan, tuple[float, float]]:
        return {} if self._sampler is None else self._sampler.believe()

    def _conclude(self) -> Result:
        if is_disturbed(self._findings) and not self._shared:
            raise not_measurable(how_disturbed(self._findings), self._neighbours())
        return conclude(
            self._findings,
            facts=self._facts,
            workload=self._workload,
            space=self._space,
            noise=self._race.noise.deviation,
            budget=self._options.budget,
            steps_planned=self._options.steps_planned,
            seed=self._options.seed,
            created=self._options.created,
            seconds=self._timer.used_seconds,
            hosts=self._named,
            interface=None if self._hosts is None else next(iter(self._hosts.interfaces), None),
        )


class StudyInterrupted(Interrupted):
    """Interrupted, with what was found: ``result`` is None where no trial was valid yet."""

    result: Result | None = None
