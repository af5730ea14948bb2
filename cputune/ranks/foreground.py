"""Runs a job in the foreground: it has the terminal, and its exit code becomes ours.

Nothing is measured and no output is redirected. A lone process takes the place of this one (exec).
Several ranks are children in our process group: they get the signals of the terminal directly, and
signals that are sent to us alone are passed on to them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

from cputune import cpulist
from cputune.carrier.command import carried, launch_command
from cputune.carrier.environment import base_environment
from cputune.facts import HostFacts
from cputune.host.children import below, end
from cputune.host.interpreter import training_python
from cputune.plan import Plan
from cputune.ranks import engines
from cputune.ranks.supervisor import WorkFolder
from cputune.ranks.supervisor_main import RankCommand, end_with
from cputune.workload import Workload

MILD = ("OMP_NUM_THREADS", "LD_PRELOAD", "MALLOC_CONF")
"""Variables that change none of the numbers of a training."""

GRACE_SECONDS = 10.0
"""After one rank has failed, the others have this time to end after SIGINT, and again after
SIGTERM."""

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
_WAITED_FOR = (*PASSED_ON, signal.SIGCHLD)


def typed_command(
    workload: Workload, plan: Plan, outer: Mapping[str, str], *, fill: bool = True
) -> RankCommand:
    """The command as typed, with the threads, the CPUs and the allocator of a plan (``mild_plan``).

    What was asked for by hand stays. A launch of several ranks binds and counts by itself: it is
    given the allocator alone. ``fill``: with the values of its secrets.
    """
    threads, *allocator = MILD
    names = [threads] if threads not in outer and not workload.launch else []
    names += allocator if "LD_PRELOAD" not in outer else []
    given = plan.environment()
    kept = {name: given[name] for name in names if name in given}
    environment = {**outer, **kept}
    words = workload.launch or (training_python(), *workload.argv)
    argv = workload.filled(words, outer) if fill else list(words)
    command = engines.as_activated(argv, environment)
    if threads in kept:
        command["cpus"] = list(plan.cpus[0])
    return command


def line_of(command: RankCommand, outer: Mapping[str, str]) -> str:
    """A rank as it would be typed here: what its environment changes, its CPUs, its words."""
    inner = command["env"]
    words = [f"-u {name}" for name in sorted(outer) if name not in inner]
    words = ["env", *words] if words else []
    for name in sorted(inner):
        if name != "PATH" and outer.get(name) != inner[name]:
            words.append(f"{name}={shlex.quote(inner[name])}")
    cpus = command.get("cpus")
    if cpus is not None:
        words.append(f"taskset -c {cpulist.render(cpus)}")
    return " ".join([*words, shlex.join(command["argv"])])


def lines(workload: Workload, plan: Plan, facts: HostFacts) -> list[str]:
    """What ``run`` would start, a line for each rank. Raises as ``run``."""
    versions = {p.name: p.version for p in facts.packages if p.version}
    way = carried(workload, plan, versions)
    base = base_environment(os.environ, plan, way.variables, offline=False)
    if plan.as_found and workload.launch:
        return [line_of(engines.as_activated(workload.launch, base), os.environ)]
    words = (training_python(), *launch_command(workload, way))
    with engines.held_port() as holder:
        ranks = engines.local_ranks(plan, words, {**base, **way.variables}, holder)
    return [line_of(rank, os.environ) for rank in ranks]


def run(workload: Workload, plan: Plan, facts: HostFacts) -> int:
    """Train with a plan, to the end of the script; its exit code, 128 + N for signal N.

    A plan that runs as found is the launch that was typed, and one of oneCCL the mpirun that is
    emitted for it. A launch of one process does not return. Raises ValueError where the batch
    cannot be divided over the ranks, Infeasible where a plan cannot be written down.
    """
    versions = {p.name: p.version for p in facts.packages if p.version}
    way = carried(workload, plan, versions)
    base = base_environment(os.environ, plan, way.variables, offline=False)
    if plan.as_found and workload.launch:
        become(engines.as_activated(workload.filled(workload.launch, os.environ), base))
    if engines.needs_mpirun(plan):
        with WorkFolder() as work:
            files = engines.render_for(engines.BY_MPIRUN, plan, workload, facts)
            for one in files:
                engines.write(work.path / one.name, one.text)
            script = ["bash", str(work.path / files[0].name)]
            return supervise([{"argv": script, "env": dict(os.environ)}])
    words = (training_python(), *workload.filled(launch_command(workload, way), os.environ))
    with engines.held_port() as holder:
        ranks = engines.local_ranks(plan, words, {**base, **way.variables}, holder)
        if plan.world_size == 1:
            become(ranks[0])
        return supervise(ranks)


def become(command: RankCommand) -> NoReturn:
    """Replace this process by the command."""
    _bind(command)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, exec keeps that
    os.execvpe(command["argv"][0], command["argv"], command["env"])


def supervise(ranks: Sequence[RankCommand]) -> int:
    """Start the ranks and wait; the first exit status that is not 0, else 0.

    When one fails, the others are ended: they would wait for it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    others = partial(below, os.getpid())
    try:
        running = [_start(rank) for rank in ranks]
        status = 0
        while running:
            told = signal.sigwaitinfo(_WAITED_FOR)
            if told.si_signo != signal.SIGCHLD:
                # SI_KERNEL (above 0): the terminal has sent the signal, to the whole process group.
                if told.si_code <= 0:
                    _pass_on(told.si_signo)
                continue
            ended = [rank for rank in running if rank.poll() is not None]
            running = [rank for rank in running if rank not in ended]
            codes = [rank.returncode for rank in ended]
            status = status or next((c if c > 0 else 128 - c for c in codes if c), 0)
            if status and running:
                end(others, grace_seconds=GRACE_SECONDS)
                break
        return status
    finally:
        end(others, grace_seconds=0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)


def _start(rank: RankCommand) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def prepare() -> None:
        end_with(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
        _bind(rank)

    return subprocess.Popen(rank["argv"], env=rank["env"], preexec_fn=prepare)


def _bind(rank: RankCommand) -> None:
    """Bind this process to the CPUs of a rank, where it has any."""
    cpus = rank.get("cpus")
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def _pass_on(number: int) -> None:
    """Pass a signal on to every process below: Intel MPI's ``mpirun`` is a script that does not."""
    for process in below(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
