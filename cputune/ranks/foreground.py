"""Runs several ranks in the foreground: they have the terminal, their exit code becomes ours.

The ranks are in our process group, so they get the signals of the terminal; signals that are sent
to us alone are passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from functools import partial

from cputune.host.children import below, end
from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks import engines
from cputune.ranks.supervisor import WorkFolder
from cputune.ranks.supervisor_main import RankCommand, end_with
from cputune.ranks.typed import alone, bind, line_of

GRACE_SECONDS = 10.0
"""After one rank has failed, the others have this time to end after SIGINT, and again after
SIGTERM.
"""

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


def lines(workload: Workload, plan: Plan, facts: HostFacts, *, guard: bool = True) -> list[str]:
    """What ``run`` would start, a line for each rank. Raises as ``run``."""
    ranks = _ranks(workload, plan, facts, filled=False, guard=guard)
    return [line_of(rank, os.environ) for rank in ranks]


def run(workload: Workload, plan: Plan, facts: HostFacts, *, guard: bool = True) -> int:
    """Train with a plan of several ranks, to the end of the script.

    Returns its exit code, 128 + N for signal N. Ranks with oneCCL are started by the emitted
    mpirun. Raises ValueError if the batch cannot be divided over the ranks, Infeasible if a plan
    cannot be emitted.
    """
    if engines.needs_mpirun(plan):
        with WorkFolder() as work:
            files = engines.render_for(engines.BY_MPIRUN, plan, workload, facts, guard=guard)
            for file in files:
                engines.write(work.path / file.name, file.text)
            script = ["bash", str(work.path / files[0].name)]
            return supervise([{"argv": script, "env": dict(os.environ)}])
    return supervise(_ranks(workload, plan, facts, filled=True, guard=guard))


def _ranks(
    workload: Workload, plan: Plan, facts: HostFacts, *, filled: bool, guard: bool
) -> Sequence[RankCommand]:
    lone = alone(workload, plan, facts, filled=filled, guard=guard)
    with engines.held_port() as holder:
        return engines.local_ranks(plan, lone["argv"], lone["env"], holder)


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
            received = signal.sigwaitinfo(_WAITED_FOR)
            if received.si_signo != signal.SIGCHLD:
                # SI_KERNEL (above 0): the terminal has sent the signal, to the whole process group.
                if received.si_code <= 0:
                    _pass_on(received.si_signo)
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
        bind(rank)

    return subprocess.Popen(rank["argv"], env=rank["env"], preexec_fn=prepare)


def _pass_on(number: int) -> None:
    """Pass a signal on to every process below: Intel MPI's ``mpirun`` is a script that does not."""
    for process in below(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
