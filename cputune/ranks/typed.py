"""Replaces this process by one that trains: as typed, or with a plan.

It imports nothing of what trials need, because ``cputune run`` has to start fast.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from cputune.launch.write import assigned, exact
from cputune.plans.delivery.delivery import delivery_of, launch_command
from cputune.plans.delivery.environment import base_environment
from cputune.text import cpulist

if TYPE_CHECKING:
    from cputune.host import Interpreter
    from cputune.host.facts import HostFacts
    from cputune.plans.plan import Plan
    from cputune.plans.workload import Workload
    from cputune.ranks.supervisor_main import RankCommand

THREADS = "OMP_NUM_THREADS"
ALLOCATOR = ("LD_PRELOAD", "MALLOC_CONF")
# Variables that change no number of a training.
MILD = (THREADS, *ALLOCATOR)


def as_activated(
    command: Sequence[str], environment: Mapping[str, str], python: Interpreter
) -> RankCommand:
    """A command as typed, as if the environment of this Python were activated."""
    beside = os.path.join(python.prefix, "bin")
    path = f"{beside}:{environment.get('PATH', os.defpath)}"
    return {"argv": list(command), "env": {**environment, "PATH": path}}


def typed_command(
    workload: Workload,
    plan: Plan,
    outer: Mapping[str, str],
    python: Interpreter,
    *,
    fill: bool = True,
) -> RankCommand:
    """The command as typed, with the threads, the CPUs and the allocator of a plan (``mild_plan``).

    What was set by hand stays. A launch of several ranks binds and counts by itself: it gets the
    allocator alone. ``fill``: with the values of its secrets.
    """
    names: list[str] = []
    if THREADS not in outer and not workload.launch:
        names.append(THREADS)
    if "LD_PRELOAD" not in outer:
        names += ALLOCATOR
    of_plan = plan.environment()
    added = {name: of_plan[name] for name in names if name in of_plan}
    argv = list(workload.launch or (python.executable, *workload.argv))
    if fill:
        argv = workload.filled(argv, outer)
    command = as_activated(argv, {**outer, **added}, python)
    if THREADS in added:
        command["cpus"] = list(plan.cpus[0])
    return command


def alone(
    workload: Workload, plan: Plan, facts: HostFacts, *, filled: bool = True, guard: bool = True
) -> RankCommand:
    """One process with a plan; for a plan as typed the current launch.

    ``filled``: with the values of its secrets. ``guard``: several ranks are compared. Raises
    ValueError if the batch cannot be divided over the ranks.
    """
    versions = {package.name: package.version for package in facts.packages if package.version}
    delivery = delivery_of(workload, plan, versions)
    environment = base_environment(os.environ, plan, delivery.variables, offline=False)
    by_launcher = plan.as_found and bool(workload.launch)
    argv = [facts.training_python.executable, *launch_command(workload, delivery, guard=guard)]
    if by_launcher:
        argv = list(workload.launch)
    if filled:
        argv = workload.filled(argv, os.environ)
    if by_launcher:
        return as_activated(argv, environment, facts.training_python)
    environment.update(delivery.variables)
    cpus = None if plan.as_found else list(plan.cpus[0])
    return {"argv": argv, "env": environment, "cpus": cpus}


def line_of(command: RankCommand, outer: Mapping[str, str]) -> str:
    """A rank as it would be typed here: what its environment changes, its CPUs, its words."""
    inner = command["env"]
    line = []
    for name in sorted(outer):
        if name not in inner:
            line += ["-u", name]
    if line:
        line.insert(0, "env")
    for name in sorted(inner):
        if name != "PATH" and outer.get(name) != inner[name]:
            line.append(assigned(name, inner[name]))
    cpus = command.get("cpus")
    if cpus is not None:
        line += ["taskset", "-c", cpulist.render(cpus)]
    line += command["argv"]
    return " ".join(map(exact, line))


def become(command: RankCommand) -> NoReturn:
    """Replace this process by the command."""
    bind(command)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, exec keeps that
    os.execvpe(command["argv"][0], command["argv"], command["env"])


def bind(rank: RankCommand) -> None:
    """Bind this process to the CPUs of a rank, if it has any."""
    cpus = rank.get("cpus")
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
