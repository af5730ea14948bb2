"""The real runner: a plan becomes training processes, on this machine or over hosts.

On this machine its ranks are started directly; over hosts a trial is the emitted launch, started by
the engine that leads there (``engines``).

The parent never imports torch. Ranks are forks of a process that has imported the
training stack once (``cputune.ranks.supervisor_main``), or plain new processes where that
would change what is measured.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

from cputune.carrier import environment
from cputune.carrier.command import Carried, carried, trial_command
from cputune.emitters.format import EmittedFile
from cputune.equivalence import equivalent
from cputune.facts import HostFacts
from cputune.host.interpreter import training_python
from cputune.inside.carry import Force
from cputune.inside.first_steps import LOOKED_AT
from cputune.inside.messages import RankState
from cputune.inside.where_time_goes import SETTLED
from cputune.plan import Plan
from cputune.ranks import commands, compare, engines
from cputune.ranks.compare import fed_with, for_people, global_batch
from cputune.ranks.hosts import RankHosts
from cputune.ranks.job import Job, Patience
from cputune.ranks.listen import Post
from cputune.ranks.supervisor import Supervisor, Supervisors, modules_of
from cputune.ranks.work_folder import WorkFolder
from cputune.script import require_trainable, script_text
from cputune.steps import HostLost, Infeasible, Step, TimeUp, TrialError
from cputune.workload import Workload

PROFILED_STEPS = 4
TOLD_BY_STEP = SETTLED + PROFILED_STEPS + 4
"""By this step every rank that can be profiled has told what was seen."""

GRACE_SECONDS = 0.5
"""Between SIGINT, SIGTERM and SIGKILL for plain processes; forked ranks are killed at once."""


class ProcessRunner:
    """Runs plans of one workload, one at a time.

    Args:
        workload: a recipe or the user's script.
        facts: the machine, for versions and launchers.
        hosts: those that plans run on, in the order in which they count their nodes; None is this
            machine alone. They stay open.
        fresh: start every rank as a plain new process, as an emitted launch does.
        in_turns: let the ranks wait after each step until they are let go on (``living``).
        allow_mpi: whether plans that need an MPI launcher (oneCCL) may be run.
        work_dir: where temporary files go; the system's default if None.
        within: the folder of the runner that this one is a part of.
        patience: how long is waited for steps.
        on_note: told what is going on, in words.
        offline: whether the model hub is out of reach; None finds out.

    Raises UsageError where the script is none, or cannot be run by python.
    """

    def __init__(
        self,
        workload: Workload,
        facts: HostFacts,
        *,
        hosts: RankHosts | None = None,
        fresh: bool = False,
        in_turns: bool = False,
        allow_mpi: bool = True,
        work_dir: str | os.PathLike[str] | None = None,
        within: WorkFolder | None = None,
        patience: Patience | None = None,
        on_note: Callable[[str], None] | None = None,
        offline: bool | None = None,
    ) -> None:
        self._given = workload
        self._shown: list[tuple[Plan, Job]] = []
        self._facts = facts
        self._hosts = hosts
        self._versions = {p.name: p.version for p in facts.packages if p.version}
        self._fresh = fresh
        self._in_turns = in_turns
        self._turn = 1
        self._profiled = 0
        self._ahead = False
        self._allow_mpi = allow_mpi
        self._patience = patience or Patience()
        self._on_note = on_note or (lambda text: None)
        self._source = _script_text(workload)
        self._work = WorkFolder(work_dir, within=within)
        self._kernels = (within or self._work).path / "kernels"
        home = None if hosts is None else engines.own_address(hosts.addresses)
        self._post = Post(self._work.socket_folder, host=home)
        self._numbers = count(1)
        self._supervisors = Supervisors(self._post, self._work, self._on_note)
        self._observed: tuple[RankState, ...] = ()
        self._unseen: set[str] = set()
        self._offline = offline
        self._job: Job | None = None
        self._seconds_left: Callable[[], float] = lambda: math.inf

    def keep_to(self, seconds_left: Callable[[], float]) -> None:
        """End the steps by TimeUp where no time is left: imports and start-up take of it too."""
        self._seconds_left = seconds_left

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Start the plan and yield its steps; closing the iterator ends all of it.

        Raises TrialError and TimeUp. Only one plan runs at a time: starting another ends the first.
        """
        if not self._ahead:
            self._begin(plan)
        self._ahead = False
        job = self._job
        assert job is not None
        try:
            for number, step in enumerate(
                job.steps(
                    lambda states: self._check(plan, job, states),
                    self.workload.name,
                    self._patience,
                    self._seconds_left,
                )
            ):
                if number < LOOKED_AT:
                    self._compare_training(plan, job)
                yield step
        except TrialError as error:  # a script may print its arguments as it fails
            if isinstance(error, HostLost) and self._hosts is not None:
                self._hosts.lost[error.name] = error
            error.cleaned(lambda text: self.workload.hide(text, os.environ))
            raise
        finally:
            job.end()

    def begin(self, plan: Plan) -> None:
        """Start the plan whose steps are read next, and do not wait for it.

        What fails here is tried again, and told, when they are read.
        """
        with contextlib.suppress(TrialError, TimeUp):
            self._begin(plan)
            self._ahead = True

    def _begin(self, plan: Plan) -> None:
        self._end_job()
        self._observed = ()
        self._job = self._start(plan)

    def living(self, plan: Plan) -> LivingPlan:
        """The plan in processes of its own, which stand still between their turns."""
        own = ProcessRunner(
            self.workload,
            self._facts,
            hosts=self._hosts,
            fresh=self._fresh,
            in_turns=True,
            allow_mpi=self._allow_mpi,
            within=self._work,
            patience=self._patience,
            on_note=self._on_note,
            offline=self._hub_offline(),
        )
        own.keep_to(lambda: self._seconds_left())
        return LivingPlan(own, plan)

    def profile(self, plan: Plan) -> tuple[Mapping[str, Any], ...]:
        """Where some steps of a plan spend their time: what each rank tells of it.

        The plan runs for these steps alone; empty where a rank has not told by then. Raises
        TrialError and TimeUp.
        """
        self._profiled = PROFILED_STEPS
        told: tuple[Mapping[str, Any], ...] = ()
        try:
            for _ in islice(self.steps(plan), TOLD_BY_STEP):
                told = tuple(map(dict, self._job.profiles.values() if self._job else ()))
                if len(told) == plan.world_size:
                    return told
            return ()
        finally:
            self._profiled = 0
            self._end_job()

    def turn(self, steps: int) -> None:
        """Of a runner in turns: so many steps are about to be read of its plan."""
        self._turn = steps
        if self._job is not None:
            self._job.turn(steps)
            self._job.go_on()

    def stand_still(self) -> None:
        """Stop what runs, with every thread and worker, until the next turn."""
        if self._job is not None:
            self._job.stand_still()

    @property
    def workload(self) -> Workload:
        """The workload, with what the trials so far have shown of it filled in."""
        workload = self._given
        for plan, job in self._shown:
            workload = compare.as_shown(workload, plan, job.observed, job.training(), job.waits)
        return workload

    def observed(self) -> tuple[Mapping[str, Any], ...]:
        """What each rank of the last trial saw; empty before its first step."""
        return tuple(for_people(state) for state in self._observed)

    @property
    def trained(self) -> Mapping[str, Any]:
        """What the first rank of the last trial trains, as it told; empty before its first step."""
        return dict(self._observed[0]) if self._observed else {}

    @property
    def data(self) -> str | None:
        """What the last trial was fed with, as a sentence; None before its first step."""
        return fed_with(self.workload.recipe, self._observed)

    def close(self) -> None:
        """End what runs, and every process and file of this runner."""
        self._end_job()
        self._supervisors.close()
        with contextlib.suppress(ValueError, OSError):
            self._post.close()
        self._work.close()

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self, plan: Plan) -> Job:
        if self._hosts is not None:
            return self._launch(plan, self._hosts)
        if plan.nodes > 1:
            raise Infeasible("trials run on this machine alone, the plan is for several nodes")
        if plan.backend == "mpi" and plan.world_size > 1:
            raise Infeasible("trials run over gloo or oneCCL, not over torch's own MPI backend")
        with_mpi = plan.backend == "ccl" and plan.world_size > 1
        if with_mpi and not self._allow_mpi:
            raise Infeasible("oneCCL needs an MPI launcher, and none may be used")
        way = self._carried(plan)
        offline = self._hub_offline()
        base = environment.base_environment(os.environ, plan, way.variables, offline=offline)
        typed = self.workload.filled(self.workload.launch, os.environ) if plan.as_found else []
        plain = self._fresh or with_mpi or bool(typed)
        modules = () if plain else modules_of(plan, self.workload, self._source)
        supervisor = self._supervisors.ready(base, modules, self._seconds_left())
        job = self._job_below(supervisor, plan)
        held = commands.held_port()
        job.on_end, port = held.close, int(held.getsockname()[1])
        scratch = str(self._work.path / "scratch")
        variables = {
            **way.variables,
            **self._reporting(scratch, str(self._kernels), way.force or self._question(plan)),
        }
        command = self.workload.filled(trial_command(self.workload, way), os.environ)
        if not supervisor.fork:
            command = commands.python_command(command)
        if typed:
            ranks = commands.typed_launch(typed, base, variables)
        elif with_mpi:
            ranks = commands.mpi_ranks(plan, command, base, variables, self._facts, port=port)
        else:
            ranks = commands.local_ranks(
                plan, command, base, variables, fork=supervisor.fork, port=port
            )
        job.start(ranks, scratch=scratch)
        return job

    def _launch(self, plan: Plan, hosts: RankHosts) -> Job:
        """The emitted launch of a plan on its hosts, started by their engine.

        Raises Infeasible where it cannot be written down or there are too few hosts, HostLost.
        """
        there = hosts.of(plan)
        way = self._carried(plan)
        folder = f"launch-{next(self._numbers)}"
        offline = environment.OFFLINE if self._hub_offline() else {}
        told = self._reporting(
            f"{engines.HERE}/scratch", f"{engines.HERE}/kernels", self._question(plan)
        )
        nodes = tuple(host.node for host in there)
        files: tuple[EmittedFile, ...] = ()
        argv: list[str] = []
        if plan.as_found:
            argv = self.workload.filled(self.workload.launch, os.environ) or [
                training_python(),
                *self.workload.filled(trial_command(self.workload, way), os.environ),
            ]
        else:
            files = engines.render_for(
                hosts.reach, plan, self.workload, there[0].facts, nodes, hosts.interface(plan)
            )
        launch = engines.Launch(
            plan=plan,
            nodes=nodes,
            files=files,
            argv=tuple(argv),
            variables={**offline, **told},
            environment=commands.as_activated((), os.environ)["env"] if argv else os.environ,
            home=self._post.address,
            folder=self._work.path / folder,
        )
        supervisor = self._supervisors.ready(dict(os.environ), (), self._seconds_left())
        job = self._job_below(supervisor, plan, hosts=[node.name for node in nodes])
        engine = engines.engine_of(hosts.reach, plan)
        job.on_end = lambda: engine.end(launch)
        job.say_why = lambda exits: engine.why(launch, exits)
        job.waits_for = lambda: engine.watch(launch)
        job.start(engine.start(launch))
        return job

    def _job_below(self, supervisor: Supervisor, plan: Plan, hosts: Sequence[str] = ()) -> Job:
        job = Job(
            supervisor,
            self._post,
            ranks=plan.world_size,
            grace_seconds=0.0 if supervisor.fork else GRACE_SECONDS,
            in_turns=self._in_turns,
            hosts=hosts,
            on_note=self._on_note,
        )
        job.turn(self._turn)
        job.clean = lambda text: self.workload.hide(text, os.environ)
        return job

    def _question(self, plan: Plan) -> Force | None:
        """Today's launch, once: whether its padding may be cut."""
        asked = plan.as_found and self.workload.padding is None
        return Force(torch={"padding": "ask"}) if asked else None

    def _carried(self, plan: Plan) -> Carried:
        try:
            return carried(self.workload, plan, self._versions)
        except ValueError as error:
            raise Infeasible(str(error)) from error

    def _reporting(self, scratch: str, kernels: str, force: Force | None) -> dict[str, str]:
        return commands.trial_variables(
            self._post.address,
            scratch,
            force,
            in_turns=self._in_turns,
            profiled=self._profiled,
            kernels=kernels,
        )

    def _check(self, plan: Plan, job: Job, states: Sequence[RankState]) -> None:
        """Raise Infeasible where the ranks do not run as the plan says; else they are believed."""
        self._observed = tuple(states)
        compare.refuse_impossible(self.workload, states)
        different = list(compare.differences(plan, states))
        samples = global_batch(states)
        wanted = self.workload.global_batch_size
        per_rank = self.workload.batch_per_rank is not None
        if wanted and not per_rank and not plan.as_found and samples != wanted:
            different.append(f"samples of a step: {samples}, all plans are compared at {wanted}")
        if different:
            raise Infeasible("; ".join(different))
        for text in compare.unseen(plan, states):
            if text not in self._unseen:
                self._unseen.add(text)
                self._on_note(text)
        if plan.as_found or not any(seen.world_size == 1 for seen, _ in self._shown):
            self._shown.append((plan, job))

    def _compare_training(self, plan: Plan, job: Job) -> None:
        """Raise Infeasible where a plan trains something else than today's launch."""
        workload, seen = self.workload, job.training()
        typed = workload.training
        if seen and typed and not plan.as_found and workload.keeps(typed):
            verdict = equivalent(typed, seen)
            if not verdict.same:
                raise Infeasible("it does not train the same: " + "; ".join(verdict.differs))

    def _hub_offline(self) -> bool:
        if self._offline is None:
            wanted = self.workload.recipe is None or self.workload.recipe.hub_id is not None
            self._offline = wanted and not environment.hub_reachable(os.environ)
            if self._offline:
                self._on_note("the model hub does not answer: only local caches are used")
        return self._offline

    def _end_job(self) -> None:
        if self._job is not None:
            self._job.end()
            self._job = None


def _script_text(workload: Workload) -> str:
    if workload.recipe is not None:
        return ""
    require_trainable(workload.argv)
    return script_text(workload.argv)


class LivingPlan:
    """The processes of one plan; they start at once, and stand still after each turn.

    They live beside those of other plans and take steps in turn. Whatever the machine does then
    hits all plans alike, and a ratio within one round of turns says what of it is the plans'. A
    stopped process costs its memory alone: OpenMP's threads do not spin, oneCCL's workers do not
    poll.
    """

    def __init__(self, runner: ProcessRunner, plan: Plan) -> None:
        self._runner = runner
        self._closed = False
        runner.begin(plan)
        self._steps = runner.steps(plan)

    def turn(self, steps: int) -> Sequence[Step]:
        """Let the plan take so many steps, then stop it; the first turn waits for its start.

        The ranks wait between two steps when they are stopped. Raises TrialError where the
        plan fails; nothing of it is left then.
        """
        self._runner.turn(steps)
        taken = tuple([next(self._steps) for _ in range(steps)])
        self._runner.stand_still()
        return taken

    def close(self) -> None:
        """End every process of it, and remove their files; a second time does nothing."""
        if not self._closed:
            self._closed = True
            self._runner.close()
