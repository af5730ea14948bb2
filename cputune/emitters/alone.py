"""The script of one rank: what a person would type, with the environment cleared before it.

The same for every launcher, because a lone process needs none; accelerate's is started by it all
the same, and a batch script by Slurm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cputune.emitters import shell
from cputune.emitters.format import Beside, EmittedFile, LaunchJob
from cputune.emitters.hand import words
from cputune.text import cpulist

_HERE = 'here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")\n'


def script_of_one(
    job: LaunchJob,
    format: str,
    *,
    launcher: str | None = None,
    directives: str = "",
    offered: bool = False,
    before: Sequence[str] = (),
) -> EmittedFile:
    """The script; ``before`` are words in front of those that bind the process.

    ``launcher`` is the program of which people expect a command in this format, and which one rank
    does without: the file and a note say so. ``offered``: where the process may not have the CPUs
    of the plan it keeps those that it has.
    """
    notes = []
    if launcher is not None:
        notes = [
            f"the plan has one rank, which needs no {launcher}: the script starts python itself"
        ]
        job = replace(job, notes=(*job.notes, *notes))
    command = words(job)
    here = any(isinstance(word, Beside) for word in command)
    cpus = cpulist.render(job.plan.cpus[0])
    bound = f"taskset -c {cpus}"
    start = shell.literal(command)
    if offered:
        start += f"bind=({bound}) # where Slurm gives those\n"
        start += f'[[ $("${{bind[@]}}" nproc) == {len(job.plan.cpus[0])} ]] || bind=()\n'
        bound = '${bind[@]+"${bind[@]}"}'
    pieces = ["exec", *before, f'{bound} "$python"', *shell.units(command), '"$@"']
    start += " \\\n  ".join(shell.packed(pieces)) + "\n"
    return shell.launch_script(
        job,
        format,
        notes=notes,
        template="alone.sh",
        directives=directives,
        here_if_needed=_HERE if here else "",
        needs=shell.needs(job, bound=not offered),
        start=start,
    )
