"""The real runner: a plan becomes training processes on this machine.

The parent never imports torch. Ranks are forks of a process that has imported the
training stack once (``cputune.ranks.supervisor_main``), or plain new processes where that
would change what is measured.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

from cputune.carrier import environment
from cputune.carrier.command import carried, trial_command
from cputune.facts import HostFacts
from cputune.inside.messages import RankState
from cputune.inside.where_time_goes import SETTLED
from cputune.knobs.optimizer import optimizer_of
from cputune.plan import Plan
from cputune.ranks import batch, commands, compare
from cputune.ranks.hosts import AT_HOME, Meeting, RankHosts
from cputune.ranks.idle import Patience
from cputune.ranks.job import Job
from cputune.ranks.listen import Post
from cputune.ranks.living import LivingPlan
from cputune.ranks.messages import RankCommand
from cputune.ranks.place import Here, Place
from cputune.ranks.shown import fed_with, for_people, global_batch
from cputune.ranks.supervisors import Supervisors, modules_of
from cputune.ranks.there import There
from cputune.ranks.work_folder import WorkFolder
from cputune.script import require_trainable, script_text
from cputune.steps import Infeasible, Step, TimeUp, TrialError
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
    ) -> None:
        self.workload = workload
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
        self._post = Post(self._work.socket_folder)
        self._here = Here(self._post.path, self._work.path, self._kernels)
        self._there: dict[str, There] = {}
        self._supervisors = Supervisors(self._post, self._work, self._on_note)
        self._observed: tuple[RankState, ...] = ()
        self._offline: bool | None = None
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
            yield from job.steps(
                lambda states: self._check(plan, states),
                self.workload.name,
                self._patience,
                self._seconds_left,
            )
        except TrialError as error:  # a script may print its arguments as it fails
            error.cleaned(lambda text: self.workload.hide(text, os.environ))
            raise
        finally:
            job.end()
            if plan.as_found and len(job.waits) > 2:
                share = min(1.0, median(job.waits[1:]))  # the first waits for workers to start
                self.workload = replace(self.workload, loading_share=round(share, 4))

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
        )
        own._offline = self._hub_offline()
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
        places, meeting = self._places(plan)
        if plan.backend == "mpi" and plan.world_size > 1:
            raise Infeasible("trials run over gloo or oneCCL, not over torch's own MPI backend")
        with_mpi = plan.backend == "ccl" and plan.world_size > 1
        if with_mpi and not self._allow_mpi:
            raise Infeasible("oneCCL needs an MPI launcher, and none may be used")
        if with_mpi and self._hosts is not None:
            raise Infeasible("trials over several hosts add up gradients over gloo, not oneCCL")
        try:
            ways = [
                carried(self.workload, plan.of_node(node), self._versions)
                for node in range(plan.nodes)
            ]
        except ValueError as error:
            raise Infeasible(str(error)) from error
        offline = self._hub_offline()
        bases = [
            place.environment(
                environment.base_environment(os.environ, plan, way.variables, offline=offline)
            )
            for place, way in zip(places, ways, strict=True)
        ]
        typed = self.workload.filled(self.workload.launch, os.environ) if plan.as_found else []
        plain = self._fresh or with_mpi or bool(typed)
        modules = () if plain else modules_of(plan, self.workload, self._source)
        wanted = tuple(zip(places, bases, strict=True))
        supervisors = self._supervisors.ready(wanted, modules, self._seconds_left())
        fork = all(supervisor.fork for supervisor in supervisors)
        job = Job(
            supervisors,
            self._post,
            ranks=plan.world_size,
            grace_seconds=0.0 if fork else GRACE_SECONDS,
            in_turns=self._in_turns,
            on_note=self._on_note,
        )
        job.turn(self._turn)
        port = supervisors[0].free_port()
        ranks: list[RankCommand] = []
        for node, (place, base, way) in enumerate(zip(places, bases, ways, strict=True)):
            variables = {
                **way.variables,
                **commands.trial_variables(
                    place.post,
                    place.scratch,
                    way.force,
                    plan.cpus if with_mpi else None,
                    in_turns=self._in_turns,
                    profiled=self._profiled,
                    kernels=place.kernels,
                ),
                **meeting.variables,
            }
            command = self.workload.filled(trial_command(self.workload, way), os.environ)
            if not fork:
                command = commands.python_command(command, place.root)
            started = (
                commands.typed_launch(typed, base, variables)
                if typed
                else commands.mpi_ranks(plan, command, base, variables, self._facts, port=port)
                if with_mpi
                else commands.local_ranks(
                    plan,
                    command,
                    base,
                    variables,
                    fork=fork,
                    port=port,
                    node=node,
                    address=meeting.address,
                )
            )
            ranks += [place.command(rank) for rank in started]
        job.start(ranks, scratch=[place.scratch for place in places])
        return job

    def _places(self, plan: Plan) -> tuple[tuple[Place, ...], Meeting]:
        """Where the ranks of each node run, and how they find each other.

        Raises Infeasible where there are too few hosts, HostLost where one is gone.
        """
        if self._hosts is None:
            if plan.nodes > 1:
                raise Infeasible("trials run on this machine alone, the plan is for several nodes")
            return (self._here,), AT_HOME
        hosts = self._hosts.of(plan)
        for host in hosts:
            if host.name not in self._there:
                self._there[host.name] = There(host, self._post)
        return tuple(self._there[host.name] for host in hosts), self._hosts.meeting(plan)

    def _check(self, plan: Plan, states: Sequence[RankState]) -> None:
        self._observed = tuple(states)
        batch.refuse_impossible(self.workload, states)
        different = list(compare.differences(plan, states))
        samples = global_batch(states)
        wanted = self.workload.global_batch_size
        per_rank = self.workload.batch_per_rank is not None
        if wanted and not per_rank and not plan.as_found and samples != wanted:
            different.append(f"samples of a step: {samples}, all plans are compared at {wanted}")
        if different:
            raise Infeasible("; ".join(different))
        first, own = states[0], plan.as_found or plan.world_size == 1
        self.workload = self.workload.observed(
            framework=first.get("framework"),
            global_batch_size=None if per_rank else samples,
            parses_arguments=first.get("parses_arguments"),
            accumulation=first.get("accumulation") if own else None,
            optimizer=optimizer_of(first) if plan.as_found else None,
        )

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
