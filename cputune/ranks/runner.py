"""The real runner: a plan becomes training processes, on this machine or over hosts.

An engine starts it (``engines``). The parent never imports torch. Ranks are forks of a process that
has imported the training stack once (``cputune.ranks.supervisor_main``), or new processes if that
would change what is measured.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cputune.doctor.hosts.network import Rate
from cputune.doctor.script_calls import require_possible
from cputune.host.facts import HostFacts
from cputune.host.hub import OFFLINE, hub_reachable
from cputune.inside import NUDGE_VARIABLE, STEPS_VARIABLE
from cputune.inside.applying.force import Force
from cputune.inside.asked_points import POINTS
from cputune.inside.first_steps import LOOKED_AT
from cputune.inside.messages import ModelAnswer, RankState
from cputune.plans.delivery import environment
from cputune.plans.delivery.delivery import Delivery, delivery_of, trial_command
from cputune.plans.equivalence import (
    NOT_ANSWERED,
    UNCHECKED,
    ModelAnswers,
    Training,
    equivalent,
    model_answers_of,
    unlike,
)
from cputune.plans.knobs import as_seen, keeps_mathematics, with_the_numbers_of
from cputune.plans.layout import baseline_plan
from cputune.plans.plan import Plan
from cputune.plans.script_settings import named, settings_of
from cputune.plans.training_command import require_trainable, script_text
from cputune.plans.workload import Workload
from cputune.ranks import compare, engines, rehearsal
from cputune.ranks.compare import fed_with, for_people, global_batch
from cputune.ranks.engines import Engine, Launch
from cputune.ranks.hosts import RankHosts
from cputune.ranks.job import STARTUP_SECONDS, Job
from cputune.ranks.listen import Inbox
from cputune.ranks.rehearsal import Rehearsed
from cputune.ranks.supervisor import Supervisors, WorkFolder, modules_of
from cputune.ranks.supervisor_main import RankCommand
from cputune.ranks.typed import as_activated
from cputune.records.steps import Infeasible, RehearsalEnd, Step, TimeUp, TrialError

# Their shares are alike, and profiling makes a step longer.
PROFILED_STEPS = 2

# Questions to the model while tuning: they decide which plans there are.
WHILE_TUNING = ("repeats", "ranks", "padding")

# Further questions for a script, whose data set and collator are not known.
OF_SCRIPTS = ("samples",)

# A rehearsal takes so many steps of a pass if a step of the current launch is shorter.
SHORT_STEP_SECONDS, STEPS_IF_SHORT = 0.03, 24

# Seconds between SIGINT, SIGTERM and SIGKILL for plain processes; forked ranks are killed at
# once.
GRACE_SECONDS = 0.5


class ProcessRunner:
    """Runs plans of one workload, each in separate processes.

    Args:
        workload: a recipe or the user's script.
        facts: the machine, for versions and launchers.
        hosts: those that plans run on, in the order in which they count their nodes; None is this
            machine alone. They stay open.
        fresh: start every rank as a plain new process, as an emitted launch does.
        on_note: gets notes on what is going on.
        offline: whether the model hub is out of reach; None finds out.

    Raises UsageError if the script does not exist, or cannot be run by python.
    """

    def __init__(
        self,
        workload: Workload,
        facts: HostFacts,
        *,
        hosts: RankHosts | None = None,
        fresh: bool = False,
        on_note: Callable[[str], None] | None = None,
        offline: bool | None = None,
    ) -> None:
        self._given = workload
        self.facts = facts
        self.python = facts.training_python
        self.hosts = hosts
        self.fresh = fresh
        self.on_note = on_note or (lambda text: None)
        self.versions = {p.name: p.version for p in facts.packages if p.version}
        self.source = ""
        if workload.recipe is None:
            require_trainable(workload.argv, python=facts.training_python)
            require_possible(workload.argv, facts)
            self.source = script_text(workload.argv, facts.training_python)
        self.work = WorkFolder()
        self.seconds_left: Callable[[], float] = lambda: math.inf
        self.start_seconds = STARTUP_SECONDS
        self._shown: list[tuple[Plan, Job]] = []
        self._rehearsed: rehearsal.Rehearsed | None = None
        self._step_seconds = math.inf
        self._model_answers: ModelAnswers | None = None
        self._checked_states: tuple[RankState, ...] = ()
        self.supervisors = Supervisors(self.work, self.on_note, self.python.executable)
        self._unseen: set[str] = set()
        self._offline = offline
        self._has_noted_cost = False
        self.lives: list[LivingPlan] = []
        """What holds processes; the runner closes it at the latest when it is closed itself."""
        self._last: LivingPlan | None = None
        self._running: LivingPlan | None = None

    def keep_to(self, seconds_left: Callable[[], float]) -> None:
        """End the steps by TimeUp when no time is left, imports and start-up included."""
        self.seconds_left = seconds_left

    def start_within(self, seconds: float) -> None:
        """End a plan by TimedOut that has no first step after so long."""
        self.start_seconds = seconds

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Start the plan and yield its steps; closing the iterator ends all of it.

        Raises TrialError and TimeUp. Starting another plan ends the one that is read.
        """
        self._end_what_runs()
        running = self._last = self._running = LivingPlan(self, plan)
        try:
            for step in running.steps():
                if plan.as_found:
                    self._step_seconds = min(self._step_seconds, step.seconds)
                yield step
        finally:
            if self._running is running:
                self._end_what_runs()

    def check_model(self, questions: Sequence[str] = WHILE_TUNING) -> None:
        """Start the current launch once more, and check with its model what plans would change.

        It is neither measured nor compared. ``workload`` then has the answers, unless it has shown
        nothing before, or fails before its first step. Without ``questions`` nothing is started.
        Then, and if the time limit is reached first, ranks stay as typed.
        """
        typed = next((job for plan, job in self._shown if plan.as_found), None)
        if typed is None or self._model_answers is not None:
            return
        if not questions:
            self._model_answers = UNCHECKED
            return
        self._end_what_runs()
        is_time_up = False
        to_model = tuple(questions)
        if self._given.recipe is None:
            to_model += OF_SCRIPTS
        model = LivingPlan(self, self.baseline_as_typed, questions=to_model)
        try:
            self._wait_for_answers(model)
        except TimeUp:
            is_time_up = True
            self.on_note("the time limit was reached while the model was checked")
        finally:
            self._model_answers = model.model_answers(typed.training())
            self._checked_states = model.observed
            model.close()
        if not self._model_answers.answered("ranks"):
            if is_time_up:
                self._model_answers = UNCHECKED
            else:
                answers = (*self._model_answers.answers, NOT_ANSWERED)
                self._model_answers = replace(self._model_answers, answers=answers)

    def _wait_for_answers(self, asking: LivingPlan) -> None:
        """Let a plan train until all questions are answered. Raises TimeUp."""
        try:
            for _ in zip(range(POINTS[-1] + 3), asking.steps(), strict=False):
                if asking.has_answered:
                    return
        except TrialError as error:
            if not asking.has_answered:
                self.on_note(f"your current launch failed while its model was checked: {error}")

    def rehearse(self, plan: Plan, seconds: float) -> RehearsalEnd | None:
        """Run the whole script with a plan, shortened.

        None: there is nothing to rehearse: the ranks of the current launch, a recipe, a plan on
        other hosts or started by an MPI.
        """
        workload, began = self.workload, time.monotonic()
        if workload.recipe is not None or plan.world_size == workload.launch_ranks:
            return None
        if self.hosts is not None:
            return RehearsalEnd(not_run="on several hosts")
        if engines.needs_mpirun(plan):
            return RehearsalEnd(not_run="under mpirun")
        self._end_what_runs()
        run = partial(rehearsal.rehearse, workload, facts=self.facts, more=self._of_rehearsals())
        try:
            ended = run(plan, seconds=seconds)
            if ended.failed:
                return RehearsalEnd(failed=ended.failed)
            if self._rehearsed is None:
                seconds_left = max(ended.seconds, seconds - (time.monotonic() - began))
                self._rehearsed = run(self.baseline_as_typed, seconds=seconds_left)
        except (TrialError, ValueError, OSError) as error:
            return RehearsalEnd(failed=workload.hide(str(error), os.environ))
        if self._rehearsed.failed:
            self.on_note(f"your current launch was not rehearsed: {self._rehearsed.failed}")
            return RehearsalEnd()
        # Other draws make other metrics and weights; dropout is off in a rehearsal.
        draws = workload.training is not None and workload.training.drawn
        differences, compared = rehearsal.compared(
            self._rehearsed, ended, ranks=plan.world_size, draws=draws
        )
        failed = "; ".join(differences)
        if not failed and not draws:
            apart = self._weights_apart(plan, self._rehearsed, ended, began + seconds)
            if apart is not None:
                failed, compared = apart, (*compared, "weights")
        return RehearsalEnd(failed=failed, compared=compared)

    def _of_rehearsals(self) -> Mapping[str, str]:
        """Variables of every rehearsal: a script with short steps takes more of them."""
        variables = dict(OFFLINE) if self.hub_offline() else {}
        if self._step_seconds < SHORT_STEP_SECONDS:
            variables[STEPS_VARIABLE] = str(STEPS_IF_SHORT)
        return variables

    def _weights_apart(
        self, plan: Plan, baseline: Rehearsed, ended: Rehearsed, until: float
    ) -> str | None:
        """How what a plan trains to its shortened end differs; None if it was not compared.

        A plan with fewer bits or other draws is rehearsed once more without them.
        """

        def run(other: Plan, **more: str) -> Rehearsed | None:
            seconds = until - time.monotonic()
            if seconds < ended.seconds:
                return None
            given = {**self._of_rehearsals(), **more}
            workload = self.workload
            done = rehearsal.rehearse(workload, other, self.facts, seconds=seconds, more=given)
            return None if done.failed else done

        exact = with_the_numbers_of(self.baseline, plan, self.facts)
        compared = ended if exact == plan else exact and run(exact)
        if not compared:
            return None
        nudged = partial(run, self.baseline_as_typed, **{NUDGE_VARIABLE: "1"})
        return rehearsal.weights_apart(baseline, compared, nudged)

    @property
    def baseline_as_typed(self) -> Plan:
        """The launch as typed, as it is started."""
        return baseline_plan(self.facts, ranks=self._given.launch_ranks)

    def keep(self) -> LivingPlan | None:
        """Keep the plan whose steps are being read: it is stopped, and the caller ends it.

        None if its steps have ended meanwhile, or its ranks are on other hosts.
        """
        running = self._running
        if running is None or self.hosts is not None or not running.pause():
            return None
        self._running = None
        return running

    def living(self, plan: Plan) -> LivingPlan:
        """The plan in new processes, which are stopped between their turns."""
        return LivingPlan(self, plan)

    @property
    def workload(self) -> Workload:
        """The workload, completed with what the trials have shown."""
        workload = self._given
        for plan, job in self._shown:
            workload = compare.as_shown(workload, plan, job.observed, job.training(), job.waits)
        return compare.with_model_answers(workload, self._model_answers, self._checked_states)

    @property
    def baseline(self) -> Plan:
        """The current launch; once it has run here, with the reports of its ranks."""
        ran = (as_seen(plan, job.observed) for plan, job in self._shown if plan.as_found)
        return next(ran, baseline_plan(self.facts, ranks=self.workload.launch_ranks))

    @property
    def training(self) -> Training | None:
        """What the ranks of the last plan train; None if they have not reported it."""
        job = None if self._last is None else self._last.job
        return None if job is None else job.training()

    def observed(self) -> tuple[Mapping[str, Any], ...]:
        """What each rank of the last trial saw; empty before its first step."""
        if self._last is None:
            return ()
        return self._last.reports()

    @property
    def data(self) -> str | None:
        """What the last trial was fed with, as a sentence; None before its first step."""
        return fed_with(self.workload.recipe) if self.observed() else None

    def close(self) -> None:
        """End what runs, and every process and file of this runner."""
        self._end_what_runs()
        while self.lives:
            self.lives[-1].close()
        self.supervisors.close()
        self.work.close()

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _end_what_runs(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def require_as_planned(self, plan: Plan, job: Job, states: Sequence[RankState]) -> None:
        """Raise Infeasible if the ranks do not run as the plan says."""
        compare.refuse_impossible(self.workload, states)
        different = list(compare.differences(plan, states))
        samples = global_batch(states)
        wanted = self.workload.global_batch_size
        per_rank = self.workload.batch_per_rank is not None
        if wanted and not per_rank and not plan.as_found and samples != wanted:
            different.append(f"a step takes {samples} samples, and plans are compared at {wanted}")
        if different:
            raise Infeasible("; ".join(map(self._with_its_line, different)))
        for text in compare.unseen(plan, states):
            if text not in self._unseen:
                self._unseen.add(text)
                self.on_note(text)
        if plan.as_found or not any(other.world_size == 1 for other, _ in self._shown):
            self._shown.append((plan, job))

    def _with_its_line(self, difference: str) -> str:
        """A difference in threads, with the line of the script that sets them."""
        if not difference.startswith("threads"):
            return difference
        lines = []
        for setting in settings_of(self.source):
            if setting.kind == "threads" and not setting.function:
                lines.append(named(setting, self._given.name))
        if lines:
            return f"{difference} ({', '.join(lines)})"
        return difference

    def note_cost_of_nodes(self, plan: Plan) -> None:
        """Before the first plan of several nodes: how long its gradients are on their way."""
        size = self.workload.gradient_bytes
        if plan.nodes == 1 or self.hosts is None or not size or self._has_noted_cost:
            return
        self._has_noted_cost = True
        if isinstance(self.hosts.rate, Rate):
            self.on_note(
                f"{plan.nodes} nodes send {size / 1e6:.3g} MB of gradients in each step, which "
                f"takes {self.hosts.rate.step_seconds(size):.2g} s at the measured rate"
            )

    def hub_offline(self) -> bool:
        """Whether the model hub is needed but out of reach; looked up once."""
        if self._offline is None:
            wanted = self.workload.recipe is None
            self._offline = wanted and not hub_reachable(os.environ)
            if self._offline:
                self.on_note("the model hub does not answer: only local caches are used")
        return self._offline


# How long the steps may take that a plan still has leave for when it is to be stopped.
LONGEST_REST_SECONDS = 10.0


class LivingPlan:
    """The processes of one plan, which run on, or take steps in turn with those of others.

    They are started at once; if that fails, the first step raises it. ``observed`` is what each of
    its ranks reported; empty before its first step.

    Between two turns the processes are stopped, so the machine affects all plans that take turns
    alike. A stopped process only costs its memory: OpenMP's threads do not spin, oneCCL's workers
    do not poll.
    """

    def __init__(self, runner: ProcessRunner, plan: Plan, *, questions: Sequence[str] = ()) -> None:
        """``questions``: to its model as it trains; then nothing else of it counts."""
        self._runner = runner
        self._plan = plan
        self._questions = tuple(questions)
        self._folder = Path(tempfile.mkdtemp(prefix="trial-", dir=runner.work.path))
        self._scratch = self._folder / "scratch"
        self.job: Job | None = None
        self._holder = engines.held_port()
        self._failed: TrialError | TimeUp | None = None
        self._steps = self._read()
        self.observed: tuple[RankState, ...] = ()
        runner.lives.append(self)
        try:
            self._start()
        except (TrialError, TimeUp) as error:
            self._failed = error

    def reports(self) -> tuple[Mapping[str, Any], ...]:
        """What each of its ranks reported; empty before its first step."""
        return tuple(for_people(state) for state in self.observed)

    def steps(self) -> Iterator[Step]:
        """Its steps; the first waits for its start.

        Raises TrialError if the plan fails, and TimeUp; nothing of it is left then.
        """
        if self.job is not None:
            self.job.run_on()
        return self._steps

    def pause(self) -> bool:
        """Stop it between two steps; False if it does not come to the end of one."""
        if self.job is None or not self.job.finish_steps(LONGEST_REST_SECONDS):
            return False
        self.job.pause()
        return True

    def turn(self, steps: int, *, profiled: int = 0) -> Sequence[Step]:
        """Let the plan take these steps, then stop it; the first turn waits for its start.

        Raises TrialError if the plan fails; nothing of it is left then.
        """
        if self.job is not None:
            self.job.turn(steps, profiled=profiled)
        taken = tuple([next(self._steps) for _ in range(steps)])
        if self.job is not None:
            self.job.pause()
        return taken

    def profile(self) -> tuple[Mapping[str, Any], ...]:
        """Where some steps of it spend their time, by rank; empty if one has not reported it.

        It has taken steps before. Raises TrialError and TimeUp.
        """
        # One step before them is not profiled. Once the step after them is heard, their profile is.
        self.turn(PROFILED_STEPS + 2, profiled=PROFILED_STEPS)
        states: list[Mapping[str, Any]] = []
        for rank in self.job.ranks.values() if self.job else ():
            if rank.profile is not None:
                states.append({**rank.profile, "host": (rank.state or {}).get("host")})
        if len(states) == self._plan.world_size:
            return tuple(states)
        return ()

    def close(self) -> None:
        """End every process of it, and remove their files; a second time does nothing."""
        if self not in self._runner.lives:
            return
        self._runner.lives.remove(self)
        self._steps.close()
        self._end_job()
        self._holder.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> Generator[Step]:
        runner = self._runner
        try:
            if self._failed is not None:
                raise self._failed
            assert self.job is not None, "it has started"
            # The limit may be set anew while the steps are read (``keep_to``).
            name, seconds_left = runner.workload.name, lambda: runner.seconds_left()
            for number, step in enumerate(self.job.steps(self._check_states, name, seconds_left)):
                if not self._questions:
                    if number < LOOKED_AT:
                        self._compare_training(self.job)
                    self._compare_ranks(self.job)
                yield step
        except TrialError as error:  # a failing script may print its arguments, secrets among them
            error.cleaned(lambda text: runner.workload.hide(text, os.environ))
            raise
        finally:
            self._end_job()

    @property
    def has_answered(self) -> bool:
        return any(answer["question"] == "" for answer in self.answers)

    @property
    def answers(self) -> list[ModelAnswer]:
        """What its first rank has answered."""
        if self.job is None or not self.job.ranks:
            return []
        return self.job.ranks[min(self.job.ranks)].answers

    def model_answers(self, typed: Training | None) -> ModelAnswers:
        """The answers of its model, and how this start of the current launch differs from another.

        The ranks of a current launch answer together; the first one reports.
        """
        job = self.job
        if job is None or not job.ranks:
            return ModelAnswers()
        training = job.training()
        answers = model_answers_of(self.answers, dtype=None if typed is None else typed.dtype)
        if typed is None or training is None or answers.refuses("repeats"):
            return answers
        return replace(answers, unlike=unlike(typed, training))

    def _check_states(self, states: Sequence[RankState]) -> None:
        assert self.job is not None, "its ranks have reported their states"
        self.observed = tuple(states)
        if self._questions:
            return
        self._runner.require_as_planned(self._plan, self.job, states)

    def _end_job(self) -> None:
        if self.job is not None:
            self.job.end()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self) -> None:
        """Start its processes. Raises TrialError if that fails, and TimeUp."""
        runner, plan, workload = self._runner, self._plan, self._runner.workload
        hosts = runner.hosts
        if hosts is None and plan.nodes > 1:
            raise Infeasible("trials run on this machine alone, the plan is for several nodes")
        if hosts is None and plan.backend == "mpi" and plan.world_size > 1:
            raise Infeasible("trials run over gloo or oneCCL, not over torch's own MPI backend")
        try:
            delivery = delivery_of(workload, plan, runner.versions)
        except ValueError as error:
            raise Infeasible(str(error)) from error
        runner.note_cost_of_nodes(plan)
        offline = runner.hub_offline()
        emitted = hosts is not None or engines.needs_mpirun(plan)
        base, modules = dict(os.environ), tuple[str, ...]()
        if not emitted:
            base = environment.base_environment(
                os.environ, plan, delivery.variables, offline=offline
            )
            if not runner.fresh and not (plan.as_found and workload.launch):
                modules = modules_of(plan, workload, runner.source)
        supervisor = runner.supervisors.ready(base, modules, runner.seconds_left())
        inbox = Inbox(self._folder)
        self.job = Job(
            supervisor=supervisor,
            inbox=inbox,
            world=plan.world_size,
            grace_seconds=0.0 if supervisor.fork else GRACE_SECONDS,
            hosts=() if hosts is None else hosts.names[: plan.nodes],
            start_seconds=runner.start_seconds,
            on_note=runner.on_note,
            clean=lambda text: runner.workload.hide(text, os.environ),
            versions=runner.facts.installed_versions,
        )
        if emitted:
            offline_variables = OFFLINE if offline else {}
            engine, launch = self._emitted(hosts, delivery, inbox.address, offline_variables)
            self.job.launch(engine, launch)
        else:
            self.job.start(self._here(delivery, inbox.address, base, fork=supervisor.fork))

    def _here(
        self, delivery: Delivery, report_to: str, base: Mapping[str, str], *, fork: bool
    ) -> list[RankCommand]:
        """The plan's processes on this machine; a current launch runs as it is."""
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        variables = engines.trial_variables(
            report_to, self._scratch, delivery.force or self._padding_check(), self._questions
        )
        environment = {**base, **delivery.variables, **variables}
        argv, typed = self._commands(delivery)
        if typed:
            return [as_activated(typed, engines.on_python_path(environment), self._runner.python)]
        if not fork:
            argv = engines.python_command(self._runner.python.executable, argv)
        return engines.local_ranks(self._plan, argv, environment, self._holder, fork=fork)

    def _emitted(
        self,
        hosts: RankHosts | None,
        delivery: Delivery,
        report_socket: str,
        variables: Mapping[str, str],
    ) -> tuple[Engine, Launch]:
        """The emitted launch of the plan on its hosts, started by their engine; None: on this one.

        Raises Infeasible if it cannot be emitted or there are too few hosts, and HostLost.
        """
        runner, plan, workload = self._runner, self._plan, self._runner.workload
        address = report_socket if hosts is None else engines.RELAYED
        of_trial = engines.trial_variables(
            address, f"{engines.HERE}/scratch", self._padding_check(), self._questions
        )
        launch = Launch(
            plan=plan,
            variables={**variables, **of_trial},
            report_socket=report_socket,
            environment=os.environ,
            folder=self._folder,
        )
        if hosts is None:
            files = engines.render_for(engines.BY_MPIRUN, plan, workload, runner.facts)
            return engines.BY_MPIRUN, replace(launch, files=files)
        there, engine = hosts.of(plan), engines.engine_of(hosts.reach, plan)
        launch = replace(launch, nodes=tuple(host.node for host in there))
        if plan.as_found:
            argv, typed = self._commands(delivery)
            command = tuple(typed or [runner.python.executable, *argv])
            activated = as_activated((), os.environ, runner.python)["env"]
            return engine, replace(launch, argv=command, environment=activated)
        files = engines.render_for(
            engine, plan, workload, there[0].facts, launch.nodes, hosts.interface
        )
        return engine, replace(launch, files=files)

    def _commands(self, delivery: Delivery) -> tuple[list[str], list[str]]:
        """The arguments of python; and for the current launch the command as typed, if a launcher
        starts the script.
        """
        workload = self._runner.workload
        argv = workload.filled(trial_command(workload, delivery), os.environ)
        if self._plan.as_found:
            return argv, workload.filled(workload.launch, os.environ)
        return argv, []

    def _padding_check(self) -> Force | None:
        """If its model is checked, also whether its padding may be cut."""
        return Force(torch={"padding": "ask"}) if "padding" in self._questions else None

    def _compare_ranks(self, job: Job) -> None:
        """Raise Infeasible if its ranks differ, and those of the current launch do not."""
        typed = self._runner.workload.training
        if job.drift and not self._plan.as_found and not (typed and typed.drift):
            raise Infeasible(f"its ranks differ: {job.drift}")

    def _compare_training(self, job: Job) -> None:
        """Raise Infeasible if the plan trains something else than the current launch."""
        workload, training = self._runner.workload, job.training()
        typed = workload.training
        model_answers = workload.model_answers
        if model_answers is not None and model_answers.unlike:
            return  # it does not repeat itself, so there is nothing to hold a plan against
        if typed and not self._plan.as_found and workload.keeps(typed):
            if training is None:
                raise Infeasible(
                    "its ranks do not report what they train, but those of your current launch do"
                )
            exact = keeps_mathematics(self._runner.baseline, self._plan)
            verdict = equivalent(typed, training, model_answers, exact=exact)
            if not verdict.same:
                raise Infeasible("it does not train the same: " + "; ".join(verdict.differs))
