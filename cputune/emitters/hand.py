"""``command``: the launch as a person types it, in one to four lines.

    LD_PRELOAD=/usr/lib/libtcmalloc_minimal.so.4 OMP_NUM_THREADS=2 \\
      taskset -c 0-1 python train.py --use_cpu --bf16 True

Several ranks of one machine are started by torchrun, each bound by ``taskset`` in the same line.
What no variable and no flag carries (a part of ``carry.py``, a recipe's files, several nodes) is no
such line: then ``cputune run`` starts it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cputune.emitters.command import typed_batch
from cputune.emitters.format import Beside, EmittedFile, Format, LaunchJob, Secret, Word
from cputune.emitters.shell import packed, quote, variables
from cputune.emitters.words import ShellWord
from cputune.errors import UsageError
from cputune.host import Host
from cputune.plans.carrier.environment import is_cleared
from cputune.text import cpulist

BY_VARIABLES = frozenset({"use_cpu", "fp16", "bf16"})
"""Arguments that ACCELERATE_USE_CPU and ACCELERATE_MIXED_PRECISION say."""


def typed_lines(job: LaunchJob) -> str:
    """The lines, ended. Raises UsageError for a plan that needs files and is of no result."""
    if is_typed(job):
        return " \\\n  ".join(parts(job, _python(job), words(job))) + "\n"
    if job.named is None:
        raise UsageError(
            "no line says all of this plan: a part of it is set inside the training process",
            hint="--format torchrun writes what it needs, `cputune tune` a result to run",
        )
    result = ShellWord(job.named)
    if job.plan.nodes > 1:
        return f"cputune emit --format mpirun -o launch {result} && sh launch/mpirun.sh\n"
    return f"cputune run {result}\n"


def is_typed(job: LaunchJob) -> bool:
    """Whether variables and flags say all of the plan, so that nothing lies beside the command."""
    recipe = any(isinstance(word, Beside) for word in words(job))
    return not recipe and job.plan.nodes == 1 and job.plan.backend != "ccl"


def words(job: LaunchJob) -> tuple[Word, ...]:
    """What python is told to run: without ``carry.py`` where its part can be left out."""
    first, *rest = job.command
    carried = first == Beside("carry.py")
    if carried and (job.force is None or _variables_say_it(job)):
        return tuple(rest)
    return job.command


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
    """Whether the script trains in the precision of the plan without being changed.

    An Accelerator reads ACCELERATE_MIXED_PRECISION where the script says none. A Trainer trains in
    fp32 where nobody says another; those of TRL train in bf16.
    """
    if job.script is None:
        return False
    try:
        text = (job.host or Host()).read_text(job.script)
    except (OSError, ValueError):
        return False
    said = " ".join([text, *job.workload.argv])
    if "mixed_precision" in said:
        return False
    if job.workload.framework == "accelerate":
        return True
    if job.plan.precision == "fp32":
        return not re.search(r"bf16|fp16|\btrl\b", said)
    return "Accelerator(" in text and "Trainer" not in text


def is_left_out(job: LaunchJob, name: str) -> bool:
    """Whether a lone process that is started so needs no such file beside it."""
    return name == "rank.py" or (name == "carry.py" and Beside(name) not in words(job))


def without_carried(job: LaunchJob) -> LaunchJob:
    """The job of a lone process; its notes say nothing of a ``carry.py`` that is left out."""
    if not is_left_out(job, "carry.py"):
        return job
    return replace(job, notes=tuple(note for note in job.notes if "carry.py" not in note))


def parts(job: LaunchJob, python: str, command: tuple[Word, ...]) -> list[str]:
    """The command in pieces that a line ends after: variables, binding, the training."""
    found = [f"{name}={ShellWord(value)}" for name, value in variables(job).items()]
    cleared = [f"-u {name}" for name in sorted(job.surrounding) if is_cleared(name)]
    cleared = [words for words in cleared if words[3:] not in variables(job)]
    if cleared:
        found = ["env", *cleared, *found]
    lines = [" ".join(found)] if found else []
    trained = " ".join(quote(word) for word in command)
    lists = [cpulist.render(cpus) for cpus in job.plan.cpus]
    if job.plan.world_size == 1:
        return packed([*lines, f"taskset -c {lists[0]} {python} {trained}"])
    bound = f'c=({" ".join(lists)}); exec taskset -c ${{c[LOCAL_RANK]}} {python} "$@"'
    launcher = (
        f"{_torchrun(python)} --standalone --nproc-per-node {job.plan.world_size} --no-python"
    )
    return packed([*lines, launcher, f"bash -c {_in_double_quotes(bound)} rank", trained])


def _in_double_quotes(text: str) -> str:
    """The text as one word: shellcheck takes ``$`` in single quotes for a mistake (SC2016)."""
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'


def _python(job: LaunchJob) -> str:
    """How the interpreter of the tuning is called here."""
    if job.python is None:
        return "python3"
    found = None if job.host is None else job.host.which("python")
    return "python" if found == job.python else ShellWord(job.python)


def _torchrun(python: str) -> str:
    """What lies beside this python starts its ranks."""
    return "torchrun" if python == "python" else f"{python} -m torch.distributed.run"


def emit_command(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The line."""
    secret = any(isinstance(word, Secret) for word in job.command)
    notes = ("export the variables that stand for secrets before it",) if secret else ()
    return (EmittedFile(name="command.sh", text=typed_lines(job), executable=True, notes=notes),)


COMMAND = Format(
    name="command",
    write=emit_command,
    main="command.sh",
    printed=True,
)
