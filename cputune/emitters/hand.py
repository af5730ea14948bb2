"""``command``: the launch as a person types it, in one to four lines.

    LD_PRELOAD=/usr/lib/libtcmalloc_minimal.so.4 OMP_NUM_THREADS=2 \\
      taskset -c 0-1 python train.py --use_cpu --bf16 True

Several ranks are started by torchrun, with ``--mpi NAME`` by mpirun, each bound by ``taskset`` in
the same line. On several nodes there is a line of torchrun for each, and one of mpirun for all.
What no variable and no flag sets (a part of ``apply_plan.py``, a recipe's files, oneCCL) is no such
line: then ``cputune run`` starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cputune.emitters import bash
from cputune.emitters.bash import variables
from cputune.emitters.checked_words import WIDTH, ShellWord
from cputune.emitters.command import APPLY, SET_INSIDE, applied, companions
from cputune.emitters.format import Beside, EmittedFile, Format, LaunchJob, Secret, Word
from cputune.emitters.planfile import applied_of
from cputune.emitters.prepared import usual_format
from cputune.emitters.turned_off import OFF_HERE
from cputune.errors import UsageError
from cputune.host import Host
from cputune.launch.launch import Launch
from cputune.launch.launchers.mpirun import interface_arguments, is_openmpi, unbound
from cputune.launch.launchers.torchrun import on_nodes, on_this_machine
from cputune.launch.script import Script
from cputune.launch.write import LaunchLine, ShellText, assigned, exact, packed, start
from cputune.plans.delivery.environment import is_cleared
from cputune.text import cpulist

# At which the ranks of a typed line meet: no script can look for a free one.
PORT = 29500
# Arguments that ACCELERATE_USE_CPU and ACCELERATE_MIXED_PRECISION say.
BY_VARIABLES = frozenset({"use_cpu", "fp16", "bf16"})


def typed_lines(job: LaunchJob) -> str:
    """The lines, ended. Raises UsageError for a plan that needs files and is of no result."""
    if is_typed(job):
        text = ""
        for where, started in typed_each(job):
            text += where + as_lines(started)
        return text
    if job.speed.named is None:
        raise UsageError(
            "this plan has no command line: part of it is set inside the training process",
            hint="--format torchrun writes its files; or `cputune tune`, then `cputune run`",
        )
    result = ShellWord(job.speed.named)
    if job.plan.nodes > 1:
        usual = usual_format(job.machine.target, job.plan.world_size)
        then = ""
        if usual == "mpirun":
            then = " && sh launch/mpirun.sh"
        return f"cputune emit --format {usual} -o launch {result}{then}\n"
    return f"cputune run {result}\n"


def is_typed(job: LaunchJob) -> bool:
    """Whether variables and flags say all of the plan, so that the command needs no files."""
    if any(isinstance(word, Beside) for word in words(job)) or job.plan.backend == "ccl":
        return False
    return job.plan.nodes == 1 or bool(job.site.nodes)


def words(job: LaunchJob) -> tuple[Word, ...]:
    """What python runs: the script, after what sets the plan inside if that is needed."""
    return (*applied(without_code(job)), *job.command)


def _variables_say_it(job: LaunchJob) -> bool:
    """Whether variables say all of the plan to a lone process, and the script keeps its batch."""
    force, workload = job.force, job.workload
    if force is None or force.torch or force.by_flags:
        return False
    if force.world_size != 1 or force.other_ranks or force.batch_per_rank is not None:
        return False
    script_batch = workload.global_batch_size
    if workload.framework is None:
        script_batch = workload.typed_global_batch
    if force.samples_per_rank not in (None, script_batch):
        return False
    if force.accumulation not in (None, workload.accumulation):
        return False
    for name, value in force.arguments.items():
        if value and name not in BY_VARIABLES:
            return False
    return _takes_precision(job)


def _takes_precision(job: LaunchJob) -> bool:
    """Whether the script trains in the precision of the plan without being changed."""
    if job.script is None:
        return False
    try:
        script = Script(text=(job.machine.host or Host()).read_text(job.script))
    except (OSError, ValueError):
        return False
    workload = job.workload
    return script.takes_precision(job.plan.precision, workload.argv, workload.framework or "")


def without_code(job: LaunchJob) -> LaunchJob:
    """The job without what is set inside the process, if variables say the same."""
    if job.force is None or not _variables_say_it(job):
        return job
    notes = tuple(note for note in job.notes if SET_INSIDE not in note)
    shorter = replace(job, force=None, notes=notes)
    return replace(shorter, companions=companions(shorter))


def typed_each(job: LaunchJob) -> list[tuple[str, LaunchLine]]:
    """The lines to type, each under a comment if it is for one of several machines."""
    program, trained = python(job), bash.trained(words(job))
    if job.plan.world_size > 1 and job.site.mpi_asked:
        return [("", by_mpirun(job, program, trained))]
    if job.plan.nodes == 1:
        return [("", typed(job, program, trained))]
    lines = []
    for rank in range(job.plan.nodes):
        where = f"# on {job.site.nodes[rank].name}\n"
        lines.append((where, typed(job, program, trained, node_rank=rank)))
    return lines


def by_mpirun(job: LaunchJob, python: str, trained: tuple[str, ...]) -> LaunchLine:
    """The ranks of all machines, started by the mpirun that was asked for.

    Open MPI passes no variable to another host unasked, and finds itself there by an absolute path.
    """
    plan, dialect = job.plan, str(job.site.mpi)
    several = plan.nodes > 1
    names = [node.name for node in job.site.nodes] if several else []
    address = names[0] if several else "127.0.0.1"
    given: dict[str, str] = dict(variables(job).items())
    given.update(MASTER_ADDR=address, MASTER_PORT=str(PORT))
    options = unbound(
        dialect,
        ranks=plan.world_size,
        ranks_per_node=plan.processes_per_node,
        hosts="",
        names=names,
    )
    if several and job.site.interface is not None:
        options += interface_arguments(dialect, job.site.interface)
    program: str = "mpirun"
    if several and is_openmpi(dialect):
        program = ShellText("mpirun", '"$(command -v mpirun)"')
    before = _cleared(job, given)
    if dialect == "intelmpi":
        before.append("I_MPI_PIN=off")
    through: list[str] = [assigned(name, value) for name, value in given.items()]
    if job.self_contained:
        hydra = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
        open_mpi = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
        rank, world, local = open_mpi if is_openmpi(dialect) else hydra
        numbers = f"export RANK=${rank} WORLD_SIZE=${world} LOCAL_RANK=${local}"
        through += _bound_by_bash(job, python, f"{numbers}; ")
    else:
        through += (python, "-m", APPLY, json.dumps(applied_of(job)), "--launcher", "mpi", "--")
    return start(
        "mpirun",
        (program,),
        options,
        trained,
        before=before,
        through=("env", *through),
        environment=given,
    )


def _cleared(job: LaunchJob, planned: Mapping[str, str]) -> list[str]:
    """What removes the variables of this shell that would change the plan."""
    cleared = []
    for name in sorted(job.machine.surrounding):
        if is_cleared(name) and name not in planned:
            cleared += ["-u", name]
    if not cleared:
        return []
    return ["env", *cleared]


def _bound_by_bash(job: LaunchJob, python: str, first: str = "") -> tuple[str, ...]:
    """Words by which a rank binds itself: ``bash -c '…' rank``."""
    lists = [cpulist.render(cpus) for cpus in job.plan.cpus]
    each = f'{first}c=({" ".join(lists)}); exec taskset -c ${{c[LOCAL_RANK]}} {exact(python)} "$@"'
    return ("bash", "-c", ShellText(each, _in_double_quotes(each)), "rank")


def typed(
    job: LaunchJob, python: str, trained: tuple[str, ...], *, node_rank: int = 0
) -> LaunchLine:
    """The command behind the variables of the plan; those of this shell that would change it go."""
    planned: dict[str, str] = dict(variables(job).items())
    before = _cleared(job, planned)
    before += [assigned(name, value) for name, value in planned.items()]
    return bound(job, python, trained, before=before, node_rank=node_rank)


def bound(
    job: LaunchJob,
    python: str,
    trained: tuple[str, ...],
    *,
    before: Sequence[str] = (),
    node_rank: int = 0,
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
    # What is beside this python starts its ranks.
    program = ("torchrun",) if python == "python" else (python, "-m", "torch.distributed.run")
    options = on_this_machine(job.plan.world_size)
    if job.plan.nodes > 1:
        options = on_nodes(
            nodes=job.plan.nodes,
            ranks=job.plan.processes_per_node,
            node_rank=str(node_rank),
            address=job.site.nodes[0].name,
            port=str(PORT),
        )
    return start(
        "torchrun",
        program,
        (*options, "--no-python"),
        trained,
        before=before,
        through=_bound_by_bash(job, python),
        environment=planned,
    )


def as_lines(started: LaunchLine) -> str:
    """The command in one to four lines: variables, launcher, binding, training."""
    launch, written = started.launch, list(started.words)
    through = 0
    if "bash" in written:
        through = written.index("bash")
    elif APPLY in written:
        through = written.index(APPLY) - 1
    first = next((at for at, word in enumerate(written) if word in ("taskset", launch.program)), 0)
    ends = [first, through, len(written) - len(launch.argv)]
    if launch.launcher == "mpirun":
        ends.insert(1, written.index("env", ends[0]))
    if launch.launcher == "python":
        ends = ends[:1]
    ends.append(len(written))
    groups, begin = list[str](), 0
    for end in ends:
        if end > begin:
            groups.append(" ".join(map(exact, written[begin:end])))
            begin = end
    return " \\\n  ".join(packed(groups, WIDTH)) + "\n"


def _in_double_quotes(text: str) -> str:
    """The text as one word: shellcheck takes ``$`` in single quotes for a mistake (SC2016)."""
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'


def python(job: LaunchJob) -> str:
    """How the interpreter of the tuning is called here."""
    if job.machine.python is None:
        return "python3"
    if job.machine.host is not None and job.machine.host.which("python") == job.machine.python:
        return "python"
    return job.machine.python


def emit_command(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The line."""
    secret = any(isinstance(word, Secret) for word in job.command)
    notes: tuple[str, ...] = ()
    if secret:
        notes = ("export the variables of your secrets before you run the command",)
    notes += tuple(note for note in job.notes if OFF_HERE in note)
    several = job.plan.world_size > 1 and job.speed.named is None
    if several and job.self_contained and applied(without_code(job)):
        job = replace(job, self_contained=False)
        notes += ("the line needs cputune in the Python that trains",)
    if job.plan.world_size > 1 and is_typed(job):
        notes += _of_ranks(job)
    launches = tuple[Launch, ...]()
    if is_typed(job):
        launches = tuple(started.launch for _, started in typed_each(job))
    return (
        EmittedFile(
            name="command.sh",
            text=typed_lines(job),
            executable=True,
            notes=notes,
            launches=launches,
        ),
    )


def _of_ranks(job: LaunchJob) -> tuple[str, ...]:
    """What the lines of several ranks do not do, and which others there are."""
    notes = []
    if job.self_contained:
        alike = "draw the same numbers for dropout, and " if job.inside.draws_apart else ""
        notes.append(
            f"the ranks of such a line {alike}are not compared: --format torchrun or mpirun does so"
        )
    if not job.site.mpi_asked:
        notes.append("--mpi mpich, openmpi5 or intelmpi prints the line of mpirun")
    return tuple(notes)


COMMAND = Format(
    name="command",
    write=emit_command,
    main="command.sh",
    printed=True,
)
