"""``command``: the launch as a person types it, in one to four lines.

    LD_PRELOAD=/usr/lib/libtcmalloc_minimal.so.4 OMP_NUM_THREADS=2 \\
      taskset -c 0-1 python train.py --use_cpu --bf16 True

Several ranks of one machine are started by torchrun, each bound by ``taskset`` in the same line.
What no variable and no flag carries (a part of ``carry.py``, a recipe's files, several nodes) is no
such line: then ``cputune run`` starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from cputune.emitters import shell
from cputune.emitters.command import (
    APPLY,
    OFF_HERE,
    SET_INSIDE,
    applied,
    companions,
    typed_batch,
)
from cputune.emitters.format import Beside, EmittedFile, Format, LaunchJob, Secret, Word
from cputune.emitters.planfile import applied_of
from cputune.emitters.shell import variables
from cputune.emitters.words import WIDTH, ShellWord
from cputune.errors import UsageError
from cputune.host import Host
from cputune.launch.launch import Launch
from cputune.launch.launchers.torchrun import on_this_machine
from cputune.launch.script import Script
from cputune.launch.write import LaunchLine, ShellText, assigned, exact, packed, start
from cputune.plans.carrier.environment import is_cleared
from cputune.text import cpulist

BY_VARIABLES = frozenset({"use_cpu", "fp16", "bf16"})
"""Arguments that ACCELERATE_USE_CPU and ACCELERATE_MIXED_PRECISION say."""


def typed_lines(job: LaunchJob) -> str:
    """The lines, ended. Raises UsageError for a plan that needs files and is of no result."""
    if is_typed(job):
        return as_lines(typed(job, python(job), shell.trained(words(job))))
    if job.named is None:
        raise UsageError(
            "a command line cannot hold this plan: part of it is set inside the training process",
            hint="--format torchrun writes its files; or `cputune tune`, then `cputune run`",
        )
    result = ShellWord(job.named)
    if job.plan.nodes > 1:
        return f"cputune emit --format mpirun -o launch {result} && sh launch/mpirun.sh\n"
    return f"cputune run {result}\n"


def is_typed(job: LaunchJob) -> bool:
    """Whether variables and flags say all of the plan, so that nothing lies beside the command."""
    beside = any(isinstance(word, Beside) for word in words(job))
    return not beside and job.plan.nodes == 1 and job.plan.backend != "ccl"


def words(job: LaunchJob) -> tuple[Word, ...]:
    """What python runs: the script, after what sets the plan inside if that is needed."""
    return (*applied(without_carried(job)), *job.command)


def _variables_say_it(job: LaunchJob) -> bool:
    """Whether variables say all of the plan to a lone process, and the script keeps its batch."""
    force, workload = job.force, job.workload
    if force is None or force.torch or force.by_flags:
        return False
    if force.world_size != 1 or force.other_ranks or force.batch_per_rank is not None:
        return False
    seen = workload.framework is not None
    own = workload.global_batch_size if seen else typed_batch(workload)
    if force.samples_per_rank not in (None, own):
        return False
    if force.accumulation not in (None, workload.accumulation):
        return False
    others = {name: value for name, value in force.arguments.items() if name not in BY_VARIABLES}
    return not any(others.values()) and _takes_precision(job)


def _takes_precision(job: LaunchJob) -> bool:
    """Whether the script trains in the precision of the plan without being changed."""
    if job.script is None:
        return False
    try:
        script = Script(text=(job.host or Host()).read_text(job.script))
    except (OSError, ValueError):
        return False
    workload = job.workload
    return script.takes_precision(job.plan.precision, workload.argv, workload.framework or "")


def without_carried(job: LaunchJob) -> LaunchJob:
    """The job without what is set inside the process, if variables say the same."""
    if job.force is None or not _variables_say_it(job):
        return job
    notes = tuple(note for note in job.notes if SET_INSIDE not in note)
    shorter = replace(job, force=None, notes=notes)
    return replace(shorter, companions=companions(shorter))


def typed(job: LaunchJob, python: str, trained: tuple[str, ...]) -> LaunchLine:
    """The command behind the variables of the plan; those of this shell that would change it go."""
    planned = variables(job)
    cleared = [name for name in sorted(job.surrounding) if is_cleared(name) and name not in planned]
    before = list[str](assigned(name, value) for name, value in planned.items())
    if cleared:
        before = ["env", *(word for name in cleared for word in ("-u", name)), *before]
    return bound(job, python, trained, before=before)


def bound(
    job: LaunchJob, python: str, trained: tuple[str, ...], *, before: Sequence[str] = ()
) -> LaunchLine:
    """The ranks of one machine, each on its CPUs. ``before``: words in front of the launcher."""
    lists = [cpulist.render(cpus) for cpus in job.plan.cpus]
    planned = dict[str, str](variables(job).items())
    if job.plan.world_size == 1:
        on_cpus = ("taskset", "-c", lists[0])
        return start(
            "python", (python,), (), trained, before=(*before, *on_cpus), environment=planned
        )
    if not job.self_contained:
        return start(
            "torchrun",
            ("torchrun",) if python == "python" else (python, "-m", "torch.distributed.run"),
            on_this_machine(job.plan.world_size),
            trained,
            before=before,
            through=("-m", APPLY, json.dumps(applied_of(job)), "--launcher", "torch", "--"),
            environment=planned,
        )
    itself = exact(python)
    each = f'c=({" ".join(lists)}); exec taskset -c ${{c[LOCAL_RANK]}} {itself} "$@"'
    # What is beside this python starts its ranks.
    program = ("torchrun",) if python == "python" else (python, "-m", "torch.distributed.run")
    return start(
        "torchrun",
        program,
        (*on_this_machine(job.plan.world_size), "--no-python"),
        trained,
        before=before,
        through=("bash", "-c", ShellText(each, _in_double_quotes(each)), "rank"),
        environment=planned,
    )


def as_lines(started: LaunchLine) -> str:
    """The command in one to four lines: variables, launcher, binding, training."""
    launch, written = started.launch, list(started.words)
    ends = [
        next((at for at, word in enumerate(written) if word in ("taskset", launch.program)), 0),
        next((at for at, word in enumerate(written) if word == "bash"), 0),
        len(written) - len(launch.argv),
    ]
    if launch.launcher == "python":
        ends = ends[:1]
    groups, at = list[str](), 0
    for end in (*ends, len(written)):
        if end > at:
            groups.append(" ".join(map(exact, written[at:end])))
            at = end
    return " \\\n  ".join(packed(groups, WIDTH)) + "\n"


def _in_double_quotes(text: str) -> str:
    """The text as one word: shellcheck takes ``$`` in single quotes for a mistake (SC2016)."""
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'


def python(job: LaunchJob) -> str:
    """How the interpreter of the tuning is called here."""
    if job.python is None:
        return "python3"
    found = None if job.host is None else job.host.which("python")
    return "python" if found == job.python else job.python


def emit_command(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The line."""
    secret = any(isinstance(word, Secret) for word in job.command)
    notes: tuple[str, ...] = ()
    if secret:
        notes = ("export the variables of your secrets before you run the command",)
    notes += tuple(note for note in job.notes if OFF_HERE in note)
    several = job.plan.world_size > 1 and job.named is None
    if several and job.self_contained and applied(without_carried(job)):
        job = replace(job, self_contained=False)
        notes += ("the line needs cputune in the Python that trains",)
    launches = tuple[Launch, ...]()
    if is_typed(job):
        launches = (typed(job, python(job), shell.trained(words(job))).launch,)
    return (
        EmittedFile(
            name="command.sh",
            text=typed_lines(job),
            executable=True,
            notes=notes,
            launches=launches,
        ),
    )


COMMAND = Format(
    name="command",
    write=emit_command,
    main="command.sh",
    printed=True,
)
