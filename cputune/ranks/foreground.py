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
from pathlib import Path

from cputune.host.children import below, end
from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks import engines
from cputune.ranks.hosts import RankHosts
from cputune.ranks.relay import BEAT_SECONDS
from cputune.ranks.supervisor import WorkFolder
from cputune.ranks.supervisor_main import RankCommand, end_with
from cputune.ranks.typed import alone, bind, line_of

# After one rank has failed, the others have this time to end after SIGINT, and again after
# SIGTERM.
GRACE_SECONDS = 10.0

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


def run_on_hosts(workload: Workload, plan: Plan, hosts: RankHosts, *, guard: bool = True) -> int:
    """Train with a plan over hosts, as its trials ran there; returns its exit code.

    What is started there ends if this process ends. Raises Infeasible if the plan cannot be written
    down or there are too few hosts, HostLost.
    """
    with WorkFolder() as work:
        engine, launch = _launch_on_hosts(workload, plan, hosts, work.path, guard=guard)
        try:
            return supervise(engine.start(launch))
        finally:
            engine.end(launch)


def lines_on_hosts(workload: Workload, plan: Plan, hosts: RankHosts) -> list[str]:
    """What ``run_on_hosts`` would start: the launch script, and where."""
    with WorkFolder() as work:
        _, launch = _launch_on_hosts(workload, plan, hosts, work.path, guard=True)
        names = ", ".join(node.name for node in launch.nodes)
        return [f"# through {hosts.reach.typed}, on {names}", launch.files[0].text]


def _launch_on_hosts(
    workload: Workload, plan: Plan, hosts: RankHosts, folder: Path, *, guard: bool
) -> tuple[engines.Engine, engines.Launch]:
    there, engine = hosts.of(plan), engines.engine_of(hosts.reach, plan)
    nodes = tuple(host.node for host in there)
    files = engines.render_for(
        engine, plan, workload, there[0].facts, nodes, hosts.interface, guard=guard
    )
    launch = engines.Launch(
        plan=plan,
        nodes=nodes,
        files=files,
        variables={},
        environment=dict(os.environ),
        folder=folder / "launch",
    )
    return engine, launch


def _ranks(
    workload: Workload, plan: Plan, facts: HostFacts, *, filled: bool, guard: bool
) -> Sequence[RankCommand]:
    """Each rank as ``alone`` has it, on CPUs of its own and with a number."""
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
            received = signal.sigtimedwait(_WAITED_FOR, BEAT_SECONDS)
            if received is None:  # shows every host that we are here
                for rank in running:
                    _give(rank, b"\n")
                continue
            if received.si_signo != signal.SIGCHLD:
                # SI_KERNEL (above 0): the terminal has sent the signal, to the whole process group.
                if received.si_code <= 0:
                    _pass_on(received.si_signo)
                continue
            still_running = []
            for rank in running:
                code = rank.poll()
                if code is None:
                    still_running.append(rank)
                elif code and not status:
                    status = code if code > 0 else 128 - code
            running = still_running
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

    text = rank.get("input")
    started = subprocess.Popen(
        rank["argv"],
        env=rank["env"],
        stdin=None if text is None else subprocess.PIPE,
        bufsize=0,
        preexec_fn=prepare,
    )
    if text is not None:
        _give(started, text.encode())
    return started


def _give(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to the standard input of a process, if it has one of its own and still lives."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(process.stdin.fileno(), data) :]


def _pass_on(number: int) -> None:
    """Pass a signal on to every process below: Intel MPI's ``mpirun`` is a script that does not."""
    for process in below(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
