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
from cputune.plans.delivery.applied_command import applied_command, launch_command
from cputune.plans.delivery.environment import base_environment
from cputune.text import cpulist

if TYPE_CHECKING:
    from cputune.host import Interpreter
    from cputune.host.facts import HostFacts
    from cputune.plans.plan import Plan
    from cputune.plans.workload import Workload
    from cputune.ranks.supervisor_main import RankCommand

MILD = ("OMP_NUM_THREADS", "LD_PRELOAD", "MALLOC_CONF")
"""Variables that change no number of a training."""


def as_activated(
    words: Sequence[str], environment: Mapping[str, str], python: Interpreter
) -> RankCommand:
    """A command as typed, as if the environment of this Python were activated."""
    beside = os.path.join(python.prefix, "bin")
    path = f"{beside}:{environment.get('PATH', os.defpath)}"
    return {"argv": list(words), "env": {**environment, "PATH": path}}


def typed_command(
    workload: Workload,
    plan: Plan,
    outer: Mapping[str, str],
    python: Interpreter,
    *,
    fill: bool = True,
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
    words = workload.launch or (python.executable, *workload.argv)
    argv = workload.filled(words, outer) if fill else list(words)
    command = as_activated(argv, environment, python)
    if threads in kept:
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
    way = applied_command(workload, plan, versions)
    environment = base_environment(os.environ, plan, way.variables, offline=False)
    words = (facts.training_python.executable, *launch_command(workload, way, guard=guard))
    if plan.as_found and workload.launch:
        words = workload.launch
    argv = workload.filled(words, os.environ) if filled else words
    if plan.as_found and workload.launch:
        return as_activated(argv, environment, facts.training_python)
    given = {**environment, **way.variables}
    cpus = None if plan.as_found else list(plan.cpus[0])
    return {"argv": list(argv), "env": given, "cpus": cpus}


def line_of(command: RankCommand, outer: Mapping[str, str]) -> str:
    """A rank as it would be typed here: what its environment changes, its CPUs, its words."""
    inner = command["env"]
    words = [word for name in sorted(outer) if name not in inner for word in ("-u", name)]
    words = ["env", *words] if words else []
    for name in sorted(inner):
        if name != "PATH" and outer.get(name) != inner[name]:
            words.append(assigned(name, inner[name]))
    cpus = command.get("cpus")
    if cpus is not None:
        words += ("taskset", "-c", cpulist.render(cpus))
    return " ".join(map(exact, (*words, *command["argv"])))


def become(command: RankCommand) -> NoReturn:
    """Replace this process by the command."""
    bind(command)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, exec keeps that
    os.execvpe(command["argv"][0], command["argv"], command["env"])


def bind(rank: RankCommand) -> None:
    """Bind this process to the CPUs of a rank, where it has any."""
    cpus = rank.get("cpus")
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
