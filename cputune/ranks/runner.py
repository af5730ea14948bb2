"""The real runner: a plan becomes training processes on this machine.

The parent never imports torch. Ranks are forks of a process that has imported the
training stack once (``cputune.ranks.keeper_main``), or plain new processes where that would
change what is measured.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cputune import cpulist
from cputune.carrier import environment
from cputune.carrier.command import trial_command
from cputune.errors import UsageError
from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.ranks import judge, launch
from cputune.ranks.keeper import Keeper
from cputune.ranks.listen import Post
from cputune.ranks.trial import Trial
from cputune.steps import Infeasible, Step
from cputune.workload import Workload

STARTUP_SECONDS = 1800.0
"""A script may download and tokenize before it trains: that is no hang."""

IDLE_SECONDS = 180.0
"""But one that computes nothing for so long before its first step is one."""

GRACE_SECONDS = 0.5
"""Between SIGINT, SIGTERM and SIGKILL for plain processes; forked ranks are killed at once."""

MOST_KEEPERS = 6
"""Parents of forks that are kept, one per set of preloaded libraries; about 300 MB each."""


class ProcessRunner:
    """Runs plans of one workload, one at a time.

    Args:
        workload: a recipe or the user's script.
        facts: the machine, for versions and launchers.
        fresh: start every rank as a plain new process, as an emitted launch does.
        allow_mpi: whether plans that need an MPI launcher (oneCCL) may be run.
        work_dir: where temporary files go; the system's default if None.
        step_timeout_seconds: how long one step may take; None adapts it to earlier ones.
        startup_timeout_seconds: how long the first step may take to come.
        idle_timeout_seconds: how long nothing may be computed before it comes.
        on_note: told what is going on, in words.

    Raises UsageError where the script does not exist.
    """

    def __init__(
        self,
        workload: Workload,
        facts: HostFacts,
        *,
        fresh: bool = False,
        allow_mpi: bool = True,
        work_dir: str | os.PathLike[str] | None = None,
        step_timeout_seconds: float | None = None,
        startup_timeout_seconds: float = STARTUP_SECONDS,
        idle_timeout_seconds: float = IDLE_SECONDS,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self.workload = workload
        self._facts = facts
        self._versions = {p.name: p.version for p in facts.packages if p.version}
        self._fresh = fresh
        self._allow_mpi = allow_mpi
        self._step_timeout = step_timeout_seconds
        self._startup_timeout = startup_timeout_seconds
        self._idle_timeout = idle_timeout_seconds
        self._on_note = on_note or (lambda text: None)
        self._source = _script_text(workload)
        self._directory = tempfile.TemporaryDirectory(
            prefix="cputune-", dir=work_dir, ignore_cleanup_errors=True
        )
        self._work = Path(self._directory.name)
        self._post = Post(self._directory.name)
        self._keepers: dict[frozenset[Any], Keeper] = {}
        self._observed: tuple[dict[str, Any], ...] = ()
        self._offline: bool | None = None
        self._trial: Trial | None = None

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Start the plan and yield its steps; closing the iterator ends all of it.

        Raises TrialError. Only one plan runs at a time: starting another ends the first.
        """
        self._end_trial()
        self._observed = ()
        trial = self._start(plan)
        self._trial = trial
        try:
            yield from trial.steps(lambda states: self._check(plan, states))
        finally:
            trial.end()
            self._empty_scratch()

    def observed(self) -> tuple[Mapping[str, Any], ...]:
        """What each rank of the last trial saw; empty before its first step."""
        return tuple(_for_people(state) for state in self._observed)

    @property
    def data(self) -> str | None:
        """What the last trial was fed with, as a sentence; None before its first step."""
        recipe = self.workload.recipe
        if recipe is None:
            return "the script's own data"
        if not self._observed:
            return None
        if self._observed[0].get("dataset") != "SyntheticTokens":
            return f"the data set {recipe.dataset}"
        if recipe.dataset is None:
            return "synthetic tokens: the recipe names no data set"
        return f"synthetic tokens of the same shape: {recipe.dataset} could not be reached"

    def close(self) -> None:
        """End what runs, and every process and file of this runner."""
        self._end_trial()
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers.clear()
        with contextlib.suppress(ValueError, OSError):
            self._post.close()
        self._directory.cleanup()

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self, plan: Plan) -> Trial:
        if plan.nodes > 1:
            raise Infeasible("trials run on this machine alone, the plan is for several nodes")
        if plan.backend == "mpi" and plan.world_size > 1:
            raise Infeasible("trials run over gloo or oneCCL, not over torch's own MPI backend")
        base = environment.base_environment(
            os.environ, plan, offline=self._hub_offline(), versions=self._versions
        )
        with_mpi = plan.backend == "ccl" and plan.world_size > 1
        if with_mpi and not self._allow_mpi:
            raise Infeasible("oneCCL needs an MPI launcher, and none may be used")
        force = launch.force_for(plan, self.workload, bind=with_mpi)
        keeper = self._keeper(base, self._modules(plan, with_mpi=with_mpi))
        scratch = self._empty_scratch()
        variables = launch.trial_variables(self._post.path, scratch, force)
        argv = trial_command(self.workload, plan, self._versions)
        trial = Trial(
            keeper,
            self._post,
            plan,
            script=self.workload.name,
            startup_seconds=self._startup_timeout,
            step_seconds=self._step_timeout,
            idle_seconds=self._idle_timeout,
            grace_seconds=0.0 if keeper.fork else GRACE_SECONDS,
            on_note=self._on_note,
        )
        with launch.held_port() as holder:
            port = holder.getsockname()[1]
            ranks = (
                launch.mpi_ranks(plan, argv, base, variables, self._facts, port=port)
                if with_mpi
                else launch.local_ranks(plan, argv, base, variables, fork=keeper.fork, port=port)
            )
            trial.start(ranks)
        return trial

    def _modules(self, plan: Plan, *, with_mpi: bool) -> tuple[str, ...]:
        """What the parent of forks imports; nothing where ranks must be new processes.

        A script that sets variables itself may mean some that are read at import. libgomp
        counts the CPUs that it may use when it is loaded, and waits differently with more
        threads than that (gomp_init_num_threads), so such plans are not forked either.
        """
        if self._fresh or with_mpi or plan.oversubscribed:
            return ()
        ipex = ("intel_extension_for_pytorch",) if plan.ipex else ()
        recipe = self.workload.recipe
        if recipe is not None:
            kind = recipe.model["model_type"].replace("-", "_")
            family = f"transformers.models.{kind}.modeling_{kind}"
            return ("torch", *ipex, "transformers.trainer", "transformers.hf_argparser", family)
        if re.search(r"\benviron\b|\bputenv\b", self._source):
            return ()
        found = ["torch", *ipex]
        found += ["transformers.trainer"] if "Trainer" in self._source else []
        for name in ("accelerate", "transformers", "datasets", "evaluate"):
            if re.search(rf"\b{name}\b", self._source):
                found.append(name)
        return tuple(found)

    def _keeper(self, base: Mapping[str, str], modules: Sequence[str]) -> Keeper:
        key = frozenset({*base.items(), ("modules", *modules)})
        keeper = self._keepers.pop(key, None)
        if keeper is not None and not keeper.alive:
            keeper.close()
            keeper = None
        if keeper is None:
            while len(self._keepers) >= MOST_KEEPERS:
                self._keepers.pop(next(iter(self._keepers))).close()
            if modules:
                self._on_note("importing " + ", ".join(m.split(".")[0] for m in modules[:2]))
            keeper = Keeper(base, modules, self._work)
            try:
                keeper.join(self._post)
            except BaseException:
                keeper.close()
                raise
            if keeper.unsafe_threads:
                self._on_note(
                    "ranks are started as new processes: importing the training stack starts "
                    "threads (" + ", ".join(keeper.unsafe_threads) + ")"
                )
        self._keepers[key] = keeper  # the last used is the last to go
        return keeper

    def _check(self, plan: Plan, states: Sequence[Mapping[str, Any]]) -> None:
        self._observed = tuple(dict(state) for state in states)
        different = list(judge.differences(plan, states))
        samples = self._global_batch(states)
        wanted = self.workload.global_batch_size
        per_rank = self.workload.batch_per_rank is not None
        if wanted and not per_rank and not plan.as_found and samples != wanted:
            different.append(f"samples of a step: {samples}, all plans are compared at {wanted}")
        if different:
            raise Infeasible("; ".join(different))
        first = states[0]
        self.workload = self.workload.observed(
            framework=first.get("framework"),
            global_batch_size=None if per_rank else samples,
            parses_arguments=first.get("parses_arguments"),
        )

    @staticmethod
    def _global_batch(states: Sequence[Mapping[str, Any]]) -> int:
        return sum(
            int(state["batch"]) * int(state["accumulation"])
            if state.get("batch") and state.get("accumulation")
            else int(state["samples"])
            for state in states
        )

    def _hub_offline(self) -> bool:
        if self._offline is None:
            wanted = self.workload.recipe is None or self.workload.recipe.hub_id is not None
            self._offline = wanted and not environment.hub_reachable(os.environ)
            if self._offline:
                self._on_note("the model hub does not answer: only local caches are used")
        return self._offline

    def _empty_scratch(self) -> Path:
        scratch = self._work / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            scratch.mkdir()
        return scratch

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.end()
            self._trial = None


def _script_text(workload: Workload) -> str:
    if workload.recipe is not None:
        return ""
    script = Path(workload.argv[0])
    try:
        return script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"cannot read the script {str(script)!r}: {error.strerror}",
            hint="after -- comes the script itself, then its arguments: -- train.py --epochs 3",
        ) from error


def _for_people(state: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's state as it stands in a result: plain values, CPUs as a list's text."""
    kept = (
        "rank", "local_rank", "world_size", "backend", "threads", "dtype", "openmp", "allocator",
        "preload", "ipex", "framework", "parses_arguments", "batch", "accumulation", "samples",
        "learning_rate", "dataset", "optimizer", "python", "pid",
    )  # fmt: skip
    record = {name: state[name] for name in kept if name in state}
    record["affinity"] = cpulist.render(state["affinity"])
    record.update(state.get("versions", {}))
    return record
