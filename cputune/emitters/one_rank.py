"""The script of one rank: what you would type, after the environment is cleared.

A lone process needs no launcher; accelerate starts its own all the same, and Slurm a batch script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from cputune.emitters import bash
from cputune.emitters.checked_words import WIDTH
from cputune.emitters.format import Beside, EmittedFile, LaunchJob
from cputune.emitters.hand import words
from cputune.launch.target import HERE, Target
from cputune.launch.write import LaunchLine, ShellText, start
from cputune.text import cpulist

_BOUND_IF_OFFERED = ShellText("$bind", '${bind[@]+"${bind[@]}"}')

# Makes the launch of a training from a job, the words that bind it, and its own.
Starting: TypeAlias = Callable[[LaunchJob, tuple[str, ...], tuple[str, ...]], LaunchLine]


def _beside(job: LaunchJob, *, batch: bool) -> str:
    """Lines that find the folder of the script, and report what is missing in it.

    Slurm runs a copy of a ``batch`` script, from another folder.
    """
    if batch:
        return bash.submitted(job, bash.beside(job)[0], '"${0%/*}" ')
    return bash.fill("here.sh", {"beside": bash.missed(bash.beside(job))})


def script_of_one(
    job: LaunchJob,
    format: str,
    *,
    launcher: str | None = None,
    directives: str = "",
    target: Target = HERE,
    offered: bool = False,
    starting: Starting | None = None,
) -> EmittedFile:
    """The script of one process.

    ``launcher`` is the usual program of this format, which one rank does without: the file and a
    note say so. ``offered``: if the process may not have the CPUs of the plan, it keeps those that
    it has. ``starting`` makes another launch than python's.
    """
    notes = []
    if launcher is not None:
        notes = [
            f"the plan has one rank, which needs no {launcher}: the script starts python itself"
        ]
        job = replace(job, notes=(*job.notes, *notes))
    command = words(job)
    here = any(isinstance(word, Beside) for word in command)
    bound = ("taskset", "-c", cpulist.render(job.plan.cpus[0]))
    started = (starting or _by_python)(job, bound, bash.trained(command))
    text = bash.literal(command)
    if offered:
        text += f"bind=({' '.join(bound)}) # where Slurm gives those\n"
        text += f'[[ $("${{bind[@]}}" nproc) == {len(job.plan.cpus[0])} ]] || bind=()\n'
        started = replace(started, words=(_BOUND_IF_OFFERED, *started.words[len(bound) :]))
    script = bash.launch_script(
        job,
        format,
        notes=notes,
        template="alone.sh",
        directives=directives,
        here_if_needed=_beside(job, batch=bool(directives)) if here else "",
        needs=bash.needs(job, bound=not offered),
        start=text + started.command(WIDTH),
        launches=(started.launch,),
    )
    return replace(script, target=target)


def _by_python(job: LaunchJob, bound: tuple[str, ...], trained: tuple[str, ...]) -> LaunchLine:
    return start(
        "python",
        (bash.PYTHON,),
        (),
        trained,
        before=bound,
        written=(*trained, bash.MORE),
        environment=bash.rank_variables(job),
        removed=bash.names_cleared(job),
    )
