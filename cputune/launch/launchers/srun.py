"""``srun`` of Slurm, which starts what follows it once for each task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cputune.launch.located_words import number_of
from cputune.launch.option import Launcher, Option

SRUN = Launcher(
    name="srun",
    programs=("srun",),
    options=(
        Option(names=("--ntasks", "-n"), means="ranks"),
        Option(names=("--ntasks-per-node",), means="ranks per node"),
        Option(names=("--nodes", "-N"), means="nodes"),
        Option(names=("--cpus-per-task", "-c"), means="cpus"),
        Option(names=("--cpu-bind", "--cpu_bind"), means="bind"),
        Option(names=("--mem-bind", "--mem")),
        Option(names=("--hint",)),
        Option(names=("--mpi",), means="mpi"),
        Option(names=("--distribution", "-m")),
        Option(names=("--partition", "-p")),
        Option(names=("--account", "-A")),
        Option(names=("--qos", "-q")),
        Option(names=("--time", "-t")),
        Option(names=("--job-name", "-J")),
        Option(names=("--nodelist", "-w")),
        Option(names=("--exclude", "-x")),
        Option(names=("--output", "-o")),
        Option(names=("--error", "-e")),
        Option(names=("--chdir", "-D")),
        Option(names=("--constraint", "-C")),
        Option(names=("--gres", "--gpus", "-G", "--gpus-per-task", "--gpus-per-node")),
        Option(names=("--label", "-l", "--unbuffered", "-u", "--exclusive", "--overlap"), takes=0),
        Option(names=("--kill-on-bad-exit", "-K", "--pty", "--exact", "--verbose", "-v"), takes=0),
    ),
)


def one_task_each(*, nodes: int, ranks: int, ranks_per_node: int, cpus: str) -> tuple[str, ...]:
    """The options of a step with a task for each rank, which ends as soon as one of them fails.

    A step requests its own nodes, CPUs and binding, because srun reads variables of salloc, sbatch
    or an outer step, which would cut a node to one CPU.
    """
    return (
        *(f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={ranks_per_node}"),
        *("--cpus-per-task", cpus, "--cpu-bind=cores", "--distribution=block:block"),
        *("--export=ALL", "--kill-on-bad-exit=1"),
    )


_GLUED = re.compile(r"-([A-Za-z])(\d[\w.:,]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The tasks, nodes and CPUs of an srun; None for what it leaves to the job.

    ``unknown`` is set if a number is a variable that only running shows.
    """

    tasks: int | None = None
    tasks_per_node: int | None = None
    nodes: int | None = None
    cpus_per_task: int | None = None
    asks_cpus: bool = False
    unknown: bool = False


def step_of(before: Sequence[str]) -> Step | None:
    """The srun among the words in front of a launcher, or None."""
    names = [word.rpartition("/")[2] for word in before]
    if "srun" not in names:
        return None
    options = list[str]()
    for word in before[names.index("srun") + 1 :]:
        glued = _GLUED.fullmatch(word)
        if glued is not None:
            options += [f"-{glued[1]}", glued[2]]
        else:
            options.append(word)
    values = {}
    for one in SRUN.given(SRUN.leading(options)):
        if one.option:
            values[one.option.means] = one.value
    numbers = {}
    for name in ("ranks", "ranks per node", "nodes", "cpus"):
        if name in values:
            numbers[name] = number_of(values[name].partition("-")[0])
    return Step(
        tasks=numbers.get("ranks"),
        tasks_per_node=numbers.get("ranks per node"),
        nodes=numbers.get("nodes"),
        cpus_per_task=numbers.get("cpus"),
        asks_cpus="cpus" in values,
        unknown=any(number is None for number in numbers.values()),
    )
