"""A study: it measures the baseline, then other plans, and confirms the best of them.

Trial 0 is the current launch, the baseline. Suggested plans follow, then those of the sampler, then
the confirmation. The search ends early if no further plan is worth a trial.

A busy machine gives no result: there even ratios measured side by side are false. One thread ran at
0.62 of the speed of two on a quiet machine, and at 1.73 of it next to one busy process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from cputune.errors import Interrupted, NotMeasurableError, NoValidTrialError
from cputune.host.facts import HostFacts
from cputune.inside.first_steps import LOOKED_AT
from cputune.plans.equivalence import UNCHECKED
from cputune.plans.knobs import as_seen
from cputune.plans.knobs.record import LeftOut
from cputune.plans.layout import baseline_plan
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks.compare import runs_alike
from cputune.records.next_command import NextStep, command_of, time_limit
from cputune.records.options import DEFAULT_LIMIT_SECONDS, TuneOptions
from cputune.records.result import (
    COMPLETED,
    FAILED,
    PRUNED,
    Origin,
    Result,
    Trial,
)
from cputune.records.shared_texts import OTHERS_MAY_BE_FASTER, RESUME, duration, exactly
from cputune.records.steps import (
    CheckingRunner,
    Contended,
    HostLost,
    LearningRunner,
    LivingRunner,
    ObservingRunner,
    OutOfMemory,
    Runner,
    TimeUp,
    TrialError,
)
from cputune.text.plain import count
from cputune.tuner import rehearsals
from cputune.tuner.conclusion import cannot_work, conclude
from cputune.tuner.earlier import since_earlier, with_earlier
from cputune.tuner.events import (
    Message,
    OnEvent,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialStarted,
)
from cputune.tuner.exclusive import Neighbours
from cputune.tuner.finalists import confirm_best
from cputune.tuner.layouts import UNDIVIDED
from cputune.tuner.measuring import (
    Findings,
    Measuring,
    Timer,
    most_living,
    not_measurable,
    trial_of,
    was_disturbed,
)
from cputune.tuner.race import WANDER, Race
from cputune.tuner.reading import Run
from cputune.tuner.refusals import refusals
from cputune.tuner.sampler import History, PlanSampler
from cputune.tuner.space import SearchSpace, space_of
from cputune.tuner.spending import (
    UNTIL_PROFILE,
    USUAL_TRIALS,
    checking_seconds,
    limit_for_usual_study,
    reserved_seconds,
    trial_seconds,
    trials_in_time,
)
from cputune.tuner.storage import (
    StudyStorage,
    identity_of,
)

if TYPE_CHECKING:
    from cputune.ranks.hosts import RankHosts


def _first_choice(space: SearchSpace, sampler: PlanSampler) -> Plan | None:
    """The plan to compare if no trial had the time: an earlier one, the topology's, the guide's."""
    first = None
    for origin, plan in space.suggestions:
        if not sampler.may_run(plan):
            continue
        if origin in ("earlier", "topology"):
            return plan
        if first is None:
            first = plan
    return first


def _equal_to_baseline(count: int) -> str:
    """The note that some plans of the space are the current launch, as its ranks show."""
    if count == 1:
        return "One plan equals your current launch, so it was not measured twice."
    return f"{count} plans equal your current launch, so they were not measured twice."


NOBODY = Neighbours()

# If the time holds fewer trials than this before the comparison, the guide's plan is not tried
# first: the topology's has a faster allocator too.
FEW_TRIALS = 10

# If the time holds fewer trials than this, it is not spent on checking the model.
FEWEST_TRIALS = 4


# Opens a runner for a workload. True requests new processes.
OpenRunner = Callable[[Workload, bool], AbstractContextManager[Runner]]


class TuningStudy:
    """One study. ``run()`` is called once."""

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
        neighbours: Neighbours = NOBODY,
        taken_away: Callable[[], str | None] = lambda: None,
        hosts: RankHosts | None = None,
        limited: bool = False,
        command: Sequence[str] = (),
        earlier: Result | None = None,
    ) -> None:
        """``hosts`` are those that plans run on, None: this machine; ``facts`` the first one's.

        ``taken_away`` says which CPUs may no longer be used. ``limited``: a study without a given
        time has the default limit. ``command`` is what the user typed. ``earlier`` is a result of
        the same command: its plan is tried first.
        """
        self._workload = workload
        self._facts = facts
        self._open_runner = open_runner
        self._options = options
        self._created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._on_event: OnEvent = on_event or (lambda event: None)
        self._neighbours = neighbours
        self._taken_away = taken_away
        self._command = tuple(command)
        self._earlier = earlier
        self._hosts = hosts
        self._named = () if hosts is None else hosts.names
        if limited and options.max_time_seconds is None:
            options = replace(options, max_time_seconds=DEFAULT_LIMIT_SECONDS)
            self._options = options
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
        self._space: SearchSpace | None = None
        self._few_trials = False
        self._storage = StudyStorage(
            options.study,
            resume=options.resume,
            private=bool(workload.argv),
            name=options.study_name,
        )
        self._unwritten: str | None = None

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
                self._search_and_confirm(runner, resumed)
            if self._findings.disturbed and not self._options.share_machine:
                raise self._disturbed()
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
        """The result of what is known so far; a disturbed study's says that it is."""
        self._write_down()
        if self._unwritten is not None:
            note = f"Not all trials are kept for --resume: {self._unwritten}."
            self._findings.notes = [kept for kept in self._findings.notes if kept != note] + [note]
        findings = self._findings
        delayed = findings.never_quiet or findings.contended_runs > 0 or findings.delayed_turns > 0
        busy: Sequence[str] = ()
        if delayed or findings.cut_off is not None:
            busy = self._neighbours.look()
        result = replace(self._conclusion(busy), command=self._command)
        if self._earlier is not None and not findings.disturbed:
            since = since_earlier(
                result,
                self._earlier,
                space=self._space,
                findings=findings,
                facts=self._facts,
                noise=self._race.noise.deviation,
            )
            result = replace(result, earlier=since)
        if findings.search_cut and self._space is not None and not findings.interrupted:
            note = self._note_of_time(result, len(self._space))
            result = replace(result, notes=(*result.notes, note))
        return result

    def _note_of_time(self, result: Result, plans: int) -> str:
        """How many plans the time was enough for, and the command that tries more."""
        tried = len({trial.plan for trial in result.trials if not trial.plan.as_found})
        seconds = max(2 * self._timer.used_seconds, self._findings.usual_seconds)
        command = command_of(NextStep(kind="tune", seconds=seconds), result)
        return f"The time was enough to try {tried} of {plans} plans{OTHERS_MAY_BE_FASTER}{command}"

    def _conclusion(self, busy: Sequence[str]) -> Result:
        return conclude(
            self._findings,
            facts=self._facts,
            workload=self._workload,
            left_out=self._left_out(),
            options=self._options,
            created=self._created,
            noise=self._race.noise.deviation,
            seconds=self._timer.used_seconds,
            hosts=self._named,
            interface=None if self._hosts is None else self._hosts.interface,
            through=None if self._hosts is None else self._hosts.reach.typed,
            busy=busy,
        )

    def _left_out(self) -> tuple[LeftOut, ...]:
        """What was not tried: it is not possible here, or trials showed that it does not work."""
        refused = tuple(refusal.left_out for refusal in self._history.refused)
        refused += rehearsals.left_out(self._findings)
        if self._space is None:
            return refused
        return (*self._space.left_out, *refused)

    def _write_down(self) -> None:
        """Write the trials to the database. Report once if it fails, and once if it works again."""
        lost, before = self._storage.write_down(), self._unwritten
        self._unwritten = lost
        if lost is not None and before is None:
            text = f"warning: {lost}. The study continues; its result will contain all trials"
            self._on_event(Message(text=text, warns=True))
        elif lost is None and before is not None:
            self._on_event(Message(text="the study is writable again", warns=True))

    def _disturbed(self) -> NotMeasurableError:
        error = not_measurable(self._findings.how_disturbed, self._neighbours.look())
        with suppress(NoValidTrialError):
            error.result = self._concluded()
        return error

    def _require_cpus(self) -> None:
        """Raise NotMeasurableError if CPUs were taken away: the last run is not reliable then."""
        gone = self._findings.taken_away = self._taken_away()
        if gone is None:
            return
        error = NotMeasurableError(
            f"measuring stopped: {gone}",
            hint="once they are given back, --resume continues with what was measured before; "
            "without it a new study starts with those that are left",
        )
        with suppress(NoValidTrialError):
            error.result = self._concluded()
        raise error

    def _interrupted(self) -> Interrupted:
        findings = self._findings
        hint = "--study FILE.db keeps the trials, --resume continues them"
        if self._options.study is not None:
            hint = f"{RESUME} continues"
        trials = count(len(findings.trials), "trial")
        error = Interrupted(f"interrupted after {trials}", hint=hint)
        rounds = len(findings.confirm_runs)
        after = ", before the confirmation"
        if rounds:
            after = f" after {rounds} runs of its confirmation"
        findings.notes.append(f"The study was interrupted{after}.")
        findings.interrupted = True
        if findings.disturbed:
            findings.notes.append(f"Its numbers are not reliable: {findings.how_disturbed}.")
        with suppress(NoValidTrialError):
            error.result = self._concluded()
        return error

    # What is on record

    def _take_up(self) -> int:
        """Continue from the trials on record; returns how many there are.

        Those that other processes disturbed, or that lost a host, are run again. Raises CannotError
        if the record is of another study.
        """
        self._storage.claim(identity_of(self._options, self._facts, self._workload, self._named))
        for trial, run in self._storage.past():
            self._next = max(self._next, trial.number + 1)
            if not was_disturbed(trial) and trial.kind != HostLost.kind:
                self._learn(trial, run)
            if run.logs:
                self._measuring.saw_start(run.start_seconds)
                self._measuring.recall(trial)
        self._timer.step_seconds = 0.0  # spent by an earlier command
        return len(self._findings.trials)

    def _learn(self, trial: Trial, run: Run) -> None:
        """Learn from a trial: its speed, its failure, its memory."""
        past, race, findings = self._history, self._race, self._findings
        findings.trials.append(trial)
        self._timer.step_seconds += trial.step_seconds
        past.tried.add(trial.plan)
        if trial.plan.as_found:
            self._measuring.reference = tuple(run.losses)
        if trial.state == FAILED:
            if trial.kind not in (Contended.kind, HostLost.kind):
                past.failed.append(trial.plan)
            if trial.kind == OutOfMemory.kind:
                past.too_large.append(trial.plan)
            return
        findings.saw_quiet |= not findings.never_quiet
        for rank in trial.observed:
            past.rank_bytes = max(past.rank_bytes, int(rank.get("peak_bytes") or 0))
        if trial.state == PRUNED:
            guess = race.lost(run.logs)
        else:
            guess = race.estimate(run.logs)
        race.learn(run.logs, guess, completed=trial.state == COMPLETED)
        past.plans.append(trial.plan)
        past.logs.append(guess.center)
        past.errors.append(max(guess.error, WANDER if was_disturbed(trial) else 0.0))

    def _learn_refusals(self) -> None:
        """Learn what does not work here, and report each value once."""
        if self._space is None:
            return
        reported = {refusal.what for refusal in self._history.refused}
        self._history.refused = refusals(self._findings.trials, self._space)
        for refusal in self._history.refused:
            if refusal.what not in reported:
                text = f"{refusal.what} is left out from now on; {refusal.reason}"
                self._on_event(Message(text=text, warns=True))

    # The search

    def _check_model(self, runner: CheckingRunner) -> None:
        """Check the model, unless the comparison of two plans needs the time."""
        before = checking_seconds(self._measuring)
        if self._timer.limited and trials_in_time(self._measuring, before) < FEWEST_TRIALS:
            runner.check_model(())
            return
        text = "checking what can be changed without changing what the model learns"
        self._on_event(Message(text=text))
        runner.check_model()

    def _check_model_now(self, runner: CheckingRunner) -> None:
        """Ask what an earlier run had no time for; the baseline is started first."""
        baseline = baseline_plan(self._facts, ranks=self._workload.launch_ranks)
        with suppress(TrialError, TimeUp):
            for _ in islice(runner.steps(baseline), LOOKED_AT):
                pass
            self._check_model(runner)
        self._workload = self._observed_workload(runner)
        self._storage.remember(self._workload)

    def _search_and_confirm(self, runner: Runner, resumed: int) -> None:
        trials = self._findings.trials
        if not trials:
            self._storage.begin_baseline()
            baseline = baseline_plan(self._facts, ranks=self._workload.launch_ranks)
            self._measure(runner, baseline, "baseline")
            self._findings.baseline_seconds = self._timer.used_seconds
            measured = any(trial.state == COMPLETED for trial in trials)
            if self._findings.host_lost or (self._findings.cut_off and not measured):
                return
            if isinstance(runner, CheckingRunner) and self._options.keep != "numbers":
                self._check_model(runner)
            self._workload = self._observed_workload(runner)
            self._storage.remember(self._workload)
            self._write_down()
        elif self._workload.model_answers == UNCHECKED and isinstance(runner, CheckingRunner):
            self._check_model_now(runner)
        space = self._open_space(resumed)
        sampler = PlanSampler(space, self._history, seed=self._options.seed)
        self._storage.guide(sampler)
        self._measure_all(runner, space, sampler)
        if not self._findings.host_lost:
            fresh = partial(self._open_runner, self._workload, True)
            untried = _first_choice(space, sampler)
            confirm_best(self._measuring, space, sampler.believe(), runner, fresh, untried)
            self._require_cpus()
            self._findings.time_up |= self._timer.up(1.0)

    def _observed_workload(self, runner: Runner) -> Workload:
        if isinstance(runner, LearningRunner):
            workload = runner.workload
        else:
            workload = self._workload
        if workload.global_batch_size is None and workload.batch_per_rank is None:
            workload = replace(workload, global_batch_size=self._findings.samples_per_step)
        return workload

    def _open_space(self, resumed: int) -> SearchSpace:
        """Build the space of plans, now that the baseline has shown what the script trains."""
        options, timer = self._options, self._timer
        first = next((trial for trial in self._findings.trials if trial.plan.as_found), None)
        baseline = None
        if first is not None:
            baseline = first.plan
        space = space_of(options, self._facts, self._workload, self._hosts, baseline=baseline)
        if self._earlier is not None:
            space = with_earlier(space, self._earlier)
        self._space = space
        in_time = FEW_TRIALS
        if timer.limited:
            in_time = trials_in_time(self._measuring)
        self._few_trials = in_time < FEW_TRIALS
        self._learn_refusals()
        if first is not None and first.observed and first.state == COMPLETED:
            same = [plan for plan in space.plans() if runs_alike(plan, first.observed)]
            self._history.tried.update(same)
            if same:
                self._findings.notes.append(_equal_to_baseline(len(same)))
        for out in space.left_out:
            if UNDIVIDED in out.why:  # often the best plan, and the user alone can bring it in
                self._on_event(Message(text=f"not tried: {out.why}"))
        start = None
        if not resumed:
            start = self._measuring.start_seconds
        most = timer.most_seconds
        measured = any(trial.state == COMPLETED for trial in self._findings.trials)
        if self._few_trials and measured and not resumed:
            self._warn_of_few_trials(in_time)
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

    def _warn_of_few_trials(self, in_time: int) -> None:
        """Say what the time is enough for, and which limit is enough for a usual study."""
        measuring, most = self._measuring, self._timer.most_seconds
        usual = limit_for_usual_study(measuring)
        self._findings.usual_seconds = usual
        if most is None or usual <= most:
            return
        start, step = measuring.slowest_start_seconds, measuring.step_seconds
        enough = f"about {count(in_time, 'other plan')} can be tried"
        if in_time < 1:
            enough = "it can be compared with one other plan at most"
        text = (
            f"a start of your launch takes {duration(start)} and a step {duration(step)}: in "
            f"{exactly(most)} {enough}; --max-time {time_limit(usual)} tries {USUAL_TRIALS} and "
            "compares the best"
        )
        self._on_event(Message(text=text, warns=True))

    def _measure_all(self, runner: Runner, space: SearchSpace, sampler: PlanSampler) -> None:
        """Measure one plan after another until the budget, the time or the plans are spent."""
        findings = self._findings
        stands_still = isinstance(runner, LivingRunner)
        while len(findings.trials) < self._options.budget and not findings.host_lost:
            alive = most_living(self._facts, findings.trials * 2)  # another one is like these
            self._measuring.runs_alone = not stands_still or alive < 2
            if self._timer.up(1.0):
                findings.notes.append("The search ended early: the time limit was reached.")
                findings.time_up = True
                return
            if findings.cut_off is not None:
                findings.search_cut = True
                return
            following = self._following(space, sampler)
            if following is None:
                tried = len({trial.plan for trial in findings.trials} & set(space.values))
                findings.notes.append(
                    f"The search ended after {tried} of {len(space)} plans: none of the "
                    "others is expected to be faster."
                )
                return
            origin, plan = following
            if self._timer.limited and not self._has_time_for(plan, sampler):
                findings.search_cut = True
                return
            begun = self._storage.begin(space, None if origin == "sampler" else plan)
            self._measure(runner, begun, origin)

    def _has_time_for(self, plan: Plan, sampler: PlanSampler) -> bool:
        """Whether this plan can be tried, and the best one still be compared with the baseline.

        Keeps the time of the comparison from the trial.
        """
        belief, measuring = sampler.believe(), self._measuring
        baseline = belief[sampler.baseline][0]
        measured = [belief[other][0] for other in self._history.plans]
        if not self._findings.has_rival:
            measured.append(belief[plan][0])
        best = min(measured)
        gain = baseline - best
        fastest_seconds = measuring.step_seconds * math.exp(-gain)
        reserved = reserved_seconds(measuring, gain, fastest_seconds)
        measuring.reserved_seconds = reserved
        samples = 1.0
        if self._workload.batch_per_rank is not None:  # more ranks, more samples of a step
            samples = plan.world_size / sampler.baseline.world_size
        seconds = samples * measuring.step_seconds * math.exp(belief[plan][0] - baseline)
        return self._timer.left(UNTIL_PROFILE) >= reserved + trial_seconds(measuring, seconds)

    def _following(self, space: SearchSpace, sampler: PlanSampler) -> tuple[Origin, Plan] | None:
        """The next plan and its origin, if any."""
        suggestions = space.suggestions
        if self._few_trials:
            suggestions = tuple(one for one in suggestions if one[0] in ("earlier", "topology"))
        for origin, plan in suggestions:
            if plan not in self._history.tried and sampler.may_run(plan):
                return origin, plan
        proposed = sampler.next_plan()
        if proposed is None:
            return None
        return ("sampler", proposed)

    def _measure(self, runner: Runner, plan: Plan, origin: Origin) -> None:
        """Run a plan as the next trial. Raises NoValidTrialError if no further plan can work."""
        findings, measuring = self._findings, self._measuring
        number, self._next = self._next, self._next + 1
        self._on_event(TrialStarted(number=number, plan=plan, origin=origin))
        measuring.living.make_room(self._history.rank_bytes * plan.processes_per_node)
        run, seconds = measuring.quiet_run(
            runner, plan, number, others=self._neighbours.still_there
        )
        self._require_cpus()
        if run.cut is not None:
            findings.cut_off = run.cut
            findings.notes.append(f"Trial {number} ({plan.describe()}) was cut short {run.cut}.")
            if not run.logs and run.failure is None:  # it may be tried again
                self._storage.abandon()
                return
        if isinstance(runner, ObservingRunner):
            observed = tuple(runner.observed())
        else:
            observed = ()
        tried = plan
        if plan.as_found and observed:
            tried = as_seen(plan, observed)
        trial = trial_of(
            run,
            self._race,
            number=number,
            plan=tried,
            origin=origin,
            step_seconds=seconds,
            observed=observed,
        )
        if isinstance(runner, LearningRunner):
            findings.data = runner.data or findings.data
        if run.samples is not None and plan.world_size == 1:
            findings.samples_per_step = run.samples
        self._storage.end(trial, run)
        self._write_down()
        self._learn(trial, run)
        self._learn_refusals()
        if run.living is not None:
            measuring.living.add(trial, run, self._race.estimate(run.logs).center)
        self._on_event(TrialEnded(trial=trial))
        if isinstance(run.failure, HostLost):
            findings.host_lost = True
            text = (
                f"{run.failure}; the study ends here, and --resume continues it when the host "
                "is reachable"
            )
            findings.notes.append(f"{text}.")
            self._on_event(Message(text=text, warns=True))
            return
        hopeless = run.failure is not None and run.failure.hopeless
        error = cannot_work(findings.trials, hopeless=hopeless)
        if error is not None:
            self._storage.discard()
            raise error
