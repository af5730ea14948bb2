"""The bash scripts: the texts of ``texts/``, filled with words that are quoted here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from cputune.emitters import header
from cputune.emitters.checked_words import WIDTH, Argument, ShellWord, Variables, typed
from cputune.emitters.command import APPLY, PLAN_FILE, RANK_SCRIPT, applied, of_ranks
from cputune.emitters.format import Beside, EmittedFile, LaunchJob, Output, Secret, Word
from cputune.errors import UsageError
from cputune.launch.launch import Launch
from cputune.launch.write import ShellText, array, assigned, exact, packed
from cputune.plans.delivery.environment import is_cleared
from cputune.plans.delivery.network_interface import interface_variables
from cputune.stack import Versions, oneccl_module
from cputune.text import cpulist
from cputune.text.documents import packaged_text


def fill(name: str, values: Mapping[str, str]) -> str:
    """A text of ``texts/`` with its ``{{names}}`` filled in, by words that are quoted already.

    A name alone in its line stands for whole lines, or for none. A name without a value is that of
    another text. What was filled in is not read again.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return values[name] if name in values else fill(f"{name}.sh", values)

    text = packaged_text("cputune.emitters", f"texts/{name}")
    return re.sub(r"(?m)^\{\{(\w+)\}\}\n|\{\{(\w+)\}\}", value, text)


def launch_script(
    job: LaunchJob,
    format: str,
    title: str = "",
    notes: Iterable[str] = (),
    *,
    launches: tuple[Launch, ...],
    template: str | None = None,
    **values: str,
) -> EmittedFile:
    """The script of a format: its text, with what all of them say of the job. Raises UsageError."""
    notes = tuple(notes)
    heading = f"Launch of {job.workload.name}{title and f' with {title}'}."
    filled = {
        "header": header.header_of(job, format, heading) + header.promised(job, format),
        "tuned": python(job),
        "clear": clear(job),
        "installed": installed(job),
        "oneccl": oneccl(job),
        "needs": needs(job, bound=job.plan.nodes == 1 or format == "torchrun"),
        "training": training(job),
        "exports": exports(variables(job)),
        "beside": missed(beside(job)),
        **values,
    }
    text = fill(template or f"{format}.sh", filled)
    return EmittedFile(
        name=f"{format}.sh",
        text=text,
        executable=True,
        notes=notes,
        launches=launches,
    )


def beside(job: LaunchJob) -> list[str]:
    """The files beside a launch that its training command names, or that one of those imports."""
    names = [file.name for file in job.companions]
    for word in applied(job) + job.command:
        if isinstance(word, Beside):
            names.append(word.name)
    if not job.self_contained and job.plan.world_size > 1:
        names.append(PLAN_FILE)
    return list(dict.fromkeys(names))


def installed(job: LaunchJob) -> str:
    """A line that ends the script if it needs cputune, and the interpreter does not find it."""
    if job.self_contained or PLAN_FILE not in beside(job):
        return ""
    imports = f'"$python" -c "import {APPLY}" 2>/dev/null'
    return or_else(imports, 'fail "$python has no cputune" "install it there"')


def or_else(condition: str, then: str) -> str:
    """``condition || then``, in one line if it has room."""
    between = " "
    if len(condition) + len(then) > LONGEST - 4:
        between = "\n  "
    return f"{condition} ||{between}{then}\n"


# The longest line of those that need no change by hand.
LONGEST = 100


def missed(names: Sequence[str], hint: str = "copy it here") -> str:
    """Lines that end the script if one of these files is missing."""
    if len(names) == 1:
        (name,) = names
        return or_else(f"[[ -f $here/{name} ]]", f'fail "{name} is not beside ${{0##*/}}" "{hint}"')
    first = f"for file in {' '.join(names)}; do"
    then = f'[[ -f $here/$file ]] || fail "$file is not beside ${{0##*/}}" "{hint}"; done'
    between = " " if len(first) + len(then) < LONGEST else "\n  "
    return f"{first}{between}{then}\n"


def submitted(job: LaunchJob, wanted: str = "rank.py", started: str = "") -> str:
    """Lines that find the folder of a batch script, in which ``wanted`` is.

    ``started``: a folder to look in first.
    """
    beside_it = missed(beside(job), "LAUNCH_DIR=DIR sbatch slurm.sh")
    return fill("submitted.sh", {"beside": beside_it, "wanted": wanted, "started": started})


def clear(job: LaunchJob) -> str:
    """A line that removes what is set in this shell and would change the plan; usually none."""
    names = names_cleared(job)
    if not names:
        return ""
    lines = packed([f"unset {names[0]}", *names[1:]], WIDTH)
    return " \\\n  ".join(lines) + " # set where this was written; they change the plan\n"


def word(written: Word) -> str:
    """A word of the training for a script: itself, or what the shell fills in for it."""
    if isinstance(written, Beside):
        return ShellText(f"$here/{written.name}")
    if isinstance(written, Output):
        return written.before + written.name
    if isinstance(written, Secret):
        filled = f"${{{written.variable}}}"
        before = exact(written.before) if written.before else ""
        return ShellText(f"{written.before}{filled}", f'{before}"{filled}"')
    return written


def trained(command: Iterable[Word]) -> tuple[str, ...]:
    """The words of a training for a script."""
    return tuple(map(word, command))


# The training as the array ``train``, behind what starts it.
ALL_TRAINED = (ShellText("--", "--"), ShellText("${train[@]}"))
# What is given to the script behind its name.
MORE = ShellText("$@")
# The interpreter that trains.
PYTHON = ShellText("$python")
# rank.py and its options.
RANK = ShellText("${rank[@]}")


def names_cleared(job: LaunchJob) -> tuple[str, ...]:
    """Names of the variables that a script removes: those of this shell that change the plan.

    The plan exports its own anyway.
    """
    planned = variables(job)
    return tuple(n for n in sorted(job.machine.surrounding) if is_cleared(n) and n not in planned)


def python(job: LaunchJob) -> str:
    """Take the interpreter of the tuning, if it is there and PYTHON names no other."""
    if job.machine.python is None:
        return "python=${PYTHON:-python3}\n"
    tuned = f"tuned={ShellWord(job.machine.python)}"
    chosen = "[[ -x $tuned ]] || tuned=python3; python=${PYTHON:-$tuned}"
    between = "; " if len(tuned) + len(chosen) < LONGEST else "\n"
    return f"{tuned}{between}{chosen}\n"


_LOOKS_LIKE_CODE = re.compile(r"[$`\\‘’“”]")
LITERAL = "# shellcheck disable=SC1003,SC1111,SC1112,SC2016 # words are meant as they stand\n"


def literal(command: Iterable[Word]) -> str:
    """A comment for shellcheck, before words that look like code; else nothing."""
    for word in command:
        text = word.name if isinstance(word, Output) else word
        if isinstance(text, str) and _LOOKS_LIKE_CODE.search(text):
            return LITERAL
    return ""


def training(job: LaunchJob) -> str:
    """The training command as the array ``train``."""
    command = (*applied(job), *job.command)
    return literal(command) + array("train", trained(command), WIDTH) + "\n"


def needs(job: LaunchJob, *, bound: bool) -> str:
    """What is looked at before anything starts, because its own message would come late or never.

    The kernel takes those CPUs of a list that are there without a word. Of a library that cannot
    be preloaded the dynamic linker only warns; of several ranks each looks by itself (rank.py).
    ``bound``: the ranks run on the machine that runs the script.
    """
    lines = list[tuple[str, str, str]]()
    if bound:
        cpus = set[int]().union(*job.plan.cpus)
        listed = cpulist.render(tuple(sorted(cpus)))
        # Where OMP_NUM_THREADS is set, nproc prints it and counts nothing.
        counted = f"env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT taskset -c {listed} nproc"
        all_there = f"$({counted} 2>/dev/null) == {len(cpus)}"
        lines.append(
            (all_there, f"CPUs {listed} are not all on this machine", "tune where it runs")
        )
    for library in job.plan.preload if job.plan.world_size == 1 else ():
        missing = f"the plan preloads {library}, which is not here"
        lines.append((f"-f {ShellWord(library)}", missing, "install it here too"))
    if job.script is not None:
        hint = "start it in the directory of the tuning"
        lines.append((f"-f {ShellWord(job.script)}", f"{job.script} is not here", hint))
    for name in job.workload.secrets:
        lines.append((f"-n ${{{name}:-}}", f"{name} is not set", "export it"))
    text = literal([Argument(job.script or "")])
    where = '"$HOSTNAME: "' if job.plan.nodes > 1 else ""
    for condition, problem, hint in lines:
        text += or_else(f"[[ {condition} ]]", f"fail {where}{shlex.quote(problem)} '{hint}'")
    return text


def exports(environment: Variables) -> str:
    """Export the variables of every rank."""
    given = [f"{name}={ShellWord(value)}" for name, value in environment.items()]
    return " \\\n  ".join(packed(["export", *given], WIDTH)) + "\n" if given else ""


def rank_words(job: LaunchJob, launcher: str, *, offered: bool = False) -> tuple[str, ...]:
    """What makes a process a rank: rank.py, or ``cputune.apply``, which has the CPUs of its plan.

    ``offered``: it keeps the CPUs that it has if it may not have those of the plan.
    """
    bind = ("--bind", "offered") if offered else ()
    if not job.self_contained:
        return ("-m", APPLY, ShellText(f"$here/{PLAN_FILE}"), "--launcher", launcher, *bind)
    cpus = "/".join(map(cpulist.render, job.plan.cpus))
    program = ShellText(f"$here/{RANK_SCRIPT}")
    return (program, "--launcher", launcher, "--cpus", cpus, *bind, *of_ranks(job))


def rank(command: Iterable[str]) -> str:
    """What starts the training in each rank, as the array ``rank``."""
    return array("rank", command, WIDTH) + "\n"


def rank_variables(job: LaunchJob, *, intel_mpi: bool = False) -> dict[str, str]:
    """``variables`` as a launch has them."""
    return dict(variables(job, intel_mpi=intel_mpi).items())


def mpi_variables(job: LaunchJob) -> dict[str, str]:
    """The variables of a rank that an mpirun starts."""
    address = job.site.nodes[0].name if job.plan.nodes > 1 else "127.0.0.1"
    given = rank_variables(job, intel_mpi=job.site.mpi == "intelmpi")
    return {**given, "MASTER_ADDR": address, "MASTER_PORT": ShellText("$port")}


def mpi_rank(job: LaunchJob, *taken_back: str) -> tuple[str, ...]:
    """``rank_words`` for an mpirun, with the variables of the plan in its own words.

    Open MPI hands no variables to other nodes unasked, and accelerate, which sets some by itself
    (``taken_back``), does not ask.
    """
    given = [assigned(name, value) for name, value in mpi_variables(job).items()]
    return ("env", *taken_back, *given, PYTHON, *rank_words(job, "mpi"))


FIND_SETVARS = """import importlib.util as found
print(found.find_spec("{module}").submodule_search_locations[0] + "/env/setvars.sh")"""


def oneccl(job: LaunchJob) -> str:
    """Lines that source the setvars.sh of the oneCCL bindings, with oneCCL and Intel MPI."""
    if job.plan.backend != "ccl":
        return ""
    module = oneccl_module(Versions.from_names(job.machine.versions))
    values = {"module": module, "find_setvars": FIND_SETVARS.format(module=module)}
    return fill("oneccl.sh", values)


def require_hosts(job: LaunchJob) -> None:
    """Raise UsageError if a launch on several nodes does not know them."""
    if job.plan.nodes > 1 and not job.site.nodes:
        raise UsageError(
            f"a launch on {job.plan.nodes} nodes needs their names",
            hint="give --hostfile FILE or --hosts a,b",
        )


def variables(job: LaunchJob, *, intel_mpi: bool = False, pods: bool = False) -> Variables:
    """The variables of every rank: the plan's, and what its network needs.

    ``pods`` have interfaces of their own, so they get only the one that the user names.

    If Intel MPI does not start the ranks, oneCCL uses no launcher, over OFI, and rank.py adds the
    local numbers (CCL_PROCESS_LAUNCHER in the oneCCL documentation).
    """
    environment: dict[str, str] = dict(job.environment.items())
    interface = job.site.cluster.interface if pods else job.site.interface
    if interface is not None:
        environment.update(interface_variables(interface, backend=job.plan.backend))
    if job.plan.backend == "ccl" and not intel_mpi:
        environment.update(CCL_PROCESS_LAUNCHER="none", CCL_ATL_TRANSPORT="ofi")
    return typed(environment)
