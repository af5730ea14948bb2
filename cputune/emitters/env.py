"""``env``: the variables of one rank, as lines that a shell evaluates.

    eval "$(cputune emit --format env)"

For people who start ranks in a way of their own. Variables bind nothing and set no flags of
the script: what is left to do is said in a comment.
"""

from __future__ import annotations

from cputune import cpulist
from cputune.carrier.environment import CLEARED
from cputune.emitters import shell
from cputune.emitters.format import Beside, EmittedFile, Format, LaunchJob
from cputune.emitters.words import comment

NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def emit_env(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """One text, in words that every POSIX shell knows. Raises UsageError for several nodes."""
    shell.require_hosts(job)
    several = job.plan.world_size > 1
    text = comment([f"Variables of one rank of {job.workload.name}.", *job.header, "", *_rest(job)])
    removed = [
        name
        for group in CLEARED
        for name in group.names
        if not name.endswith("*") and not (several and name in NUMBERS)
    ]
    text += f"unset {' '.join(removed)}\n"
    if several:
        first = job.nodes[0].name if job.plan.nodes > 1 else "127.0.0.1"
        text += (
            'export RANK="${RANK:-0}"\n'
            'export LOCAL_RANK="${LOCAL_RANK:-$RANK}"\n'
            f"export WORLD_SIZE={job.plan.world_size}\n"
            f"export LOCAL_WORLD_SIZE={job.plan.processes_per_node}\n"
            f'export MASTER_ADDR="${{MASTER_ADDR:-{first}}}"\n'
            'export MASTER_PORT="${MASTER_PORT:-29500}"\n'
        )
    text += shell.exports(shell.variables(job))
    note = (
        "variables alone do not carry the whole plan: `cputune run` does, and so do the files "
        "of the other formats"
    )
    return (EmittedFile(name="env.sh", text=text, notes=(note,) if _by_file(job) else ()),)


def _rest(job: LaunchJob) -> list[str]:
    """What no variable carries: the CPUs, and the flags of the script."""
    plan = job.plan
    lines = [
        f"Local rank {number} is for CPUs {cpulist.render(cpus)} (taskset -c)."
        for number, cpus in enumerate(plan.cpus)
    ]
    if job.plan.world_size > 1:
        lines.append("Set RANK (0, 1, ...) before this is evaluated.")
    if not _by_file(job):
        words = " ".join(shell.quote(word) for word in job.command)
        lines += ["The script with the flags of the plan:", "", f"  {words}"]
    return lines


def _by_file(job: LaunchJob) -> bool:
    """Whether files beside the launch carry a part of the plan."""
    return any(isinstance(word, Beside) for word in job.command)


ENV = Format(
    name="env",
    write=emit_env,
    main="env.sh",
    printed=True,
)
