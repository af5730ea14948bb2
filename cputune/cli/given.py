"""What commands are given: hosts and the way to them, results, a machine, a script."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import click
import msgspec
from click.shell_completion import CompletionItem

from cputune.cli.output import tell
from cputune.cli.settings import option
from cputune.errors import CputuneError, ResultError, UsageError
from cputune.facts import HostFacts, Network
from cputune.host import LiveHost, read_document
from cputune.host.interpreter import (
    has_module,
    shebang,
    train_with,
    training_interpreter,
    training_python,
)
from cputune.probing.installed import MPI_PROGRAMS
from cputune.remote.named import (
    QUEUE_SECONDS,
    SLURM_NODES,
    Node,
    allocated_nodes,
    allocation,
    parse_distinct_hosts,
    parse_hostfile,
)
from cputune.remote.reach import Manner, Reach, find_reach
from cputune.words import TUNE_AGAIN

if TYPE_CHECKING:
    from cputune.result import Result
    from cputune.workload import Workload

DEFAULT_RESULT = Path("cputune.json")
SLURM, NONE = "slurm", "none"
"""In the place of names: the hosts of our Slurm allocation; no others than this machine."""

TASKS = "SLURM_STEP_NUM_TASKS"
"""Set inside of a step: one of several is a rank of it, which asks for no other hosts."""

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts that are meant, the way to them, and how long each may take, in seconds."""

    nodes: tuple[Node, ...]
    reach: Reach
    seconds: float


_NAMES_MACHINES = "it names machines that a launch starts processes on"
_HOST_OPTIONS = (
    option(
        "--hosts", metavar="A,B", help="Other machines; slurm: those of our allocation.",
        why_not=_NAMES_MACHINES,
    ),
    option(
        "--hostfile", metavar="FILE", help="A file of the hosts, as any MPI or Slurm writes it.",
        why_not=_NAMES_MACHINES,
    ),
    option(
        "--ssh", metavar="WORDS", help='Another ssh to the hosts: "ssh -F FILE".',
        why_not="it names a program that is started",
    ),
    option(
        "--through", type=click.Choice(get_args(Manner)),
        help="How hosts are reached; by default ssh, or srun in a Slurm allocation.",
        why_not="it names how processes are started on other machines",
    ),
    option(
        "--salloc", metavar="WORDS", help='Ask Slurm for nodes first, as salloc: "-N2 -p cpu".',
        why_not="it asks for other machines",
    ),
    option(
        "--host-timeout", type=click.FloatRange(min=1, max=86400), default=30.0, show_default=True,
        metavar="SECONDS", help="The most that one host may take.",
    ),
)  # fmt: skip


def host_options(command: Command) -> Command:
    """The options that name hosts, and how they are reached: what ``chosen_hosts`` takes."""
    for add in reversed(_HOST_OPTIONS):
        command = add(command)
    return command


_BATCH_OPTIONS = tuple(
    option(word, type=click.IntRange(min=1), metavar="N", folder=True, help=help)
    for word, help in (
        ("--batch-per-rank", "Samples of each rank per step."),
        ("--global-batch-size", "Samples of all ranks per step."),
    )
)


def batch_options(command: Command) -> Command:
    """The options that set the batch: what ``launched`` takes."""
    for add in reversed(_BATCH_OPTIONS):
        command = add(command)
    return command


def chosen_hosts(
    *,
    hosts: str | None,
    hostfile: str | None,
    through: Manner | None,
    ssh: str | None,
    host_timeout: float,
    allocation: bool = True,
) -> Hosts | None:
    """What the options say; None where this machine alone is meant.

    Without names those of the Slurm allocation that we are in, unless this machine is the only
    one of it, or ``allocation`` is false.

    Raises UsageError, and CannotError where no way leads to other hosts.
    """
    named = hosts is not None or hostfile is not None
    nodes = asked_hosts(hosts, hostfile) if named else _of_our_job() if allocation else ()
    if not nodes:
        if hosts != NONE and (through is not None or ssh is not None):
            raise UsageError("--through and --ssh say how hosts are reached", hint="--hosts a,b")
        return None
    if through not in (None, "ssh") and ssh is not None:
        raise UsageError(f"--ssh is no part of --through {through}", hint="leave one of them away")
    mpi = _mpirun() if through == "mpirun" or _nothing_else() else None
    allocated = hosts == SLURM or not named
    reach = find_reach(through, ssh=ssh, allocated=allocated, mpi=mpi)
    return Hosts(nodes=nodes, reach=reach, seconds=host_timeout)


def allocated(typed: Mapping[str, Any], most_seconds: float | None) -> None:
    """Be in the allocation that ``--salloc`` asks Slurm for, until the command ends.

    Raises UsageError, and CannotError where Slurm gives none.
    """
    if typed["salloc"] is None:
        return
    if typed["hosts"] is not None or typed["hostfile"] is not None:
        raise UsageError("--salloc brings its own hosts", hint='--salloc "-w node1,node2"')
    if SLURM_NODES in os.environ:
        raise UsageError("this is a Slurm allocation already", hint="leave out --salloc")
    try:
        words = shlex.split(typed["salloc"])
    except ValueError as error:
        raise UsageError(f"cannot read --salloc: {error}", hint='--salloc "-N2 -p cpu"') from error
    most = QUEUE_SECONDS if most_seconds is None else most_seconds
    granted = allocation(words, most_seconds=most, on_reason=say)
    os.environ.update(click.get_current_context().with_resource(granted))


def asked_hosts(hosts: str | None, hostfile: str | None) -> tuple[Node, ...]:
    """The hosts that were named; none where no option was given. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hostfile and --hosts exclude each other", hint="give one of them")
    if hostfile is not None:
        return read_hostfile(Path(hostfile))
    if hosts == SLURM:
        found = allocated_nodes(LiveHost())
        if not found:
            raise UsageError("this is no Slurm allocation", hint="salloc one, or --hosts a,b")
        return found
    return () if hosts in (None, NONE) else parse_distinct_hosts(hosts)


def read_hostfile(path: Path) -> tuple[Node, ...]:
    """The hosts of a file in any dialect. Raises UsageError."""
    try:
        text = read_document(path)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}",
            hint="one host on each line, `host slots=N`",
        ) from error
    return parse_hostfile(text, where=str(path))


def _of_our_job() -> tuple[Node, ...]:
    """The nodes of our Slurm allocation, where we are no rank in it and it is not this one alone.

    On a login node an allocation of one node means that node. So it does on the node itself where
    the job has fewer CPUs of it than this process may use: its steps are bound to those.
    """
    host = LiveHost()
    nodes = allocated_nodes(host) if host.environment().get(TASKS, "1") == "1" else ()
    if not nodes:
        return ()
    from cputune.ranks.engines import is_here

    (first, *others), usable = nodes, len(host.affinity() or ())
    if others or not is_here(first.name):
        return nodes
    if first.cpus is None or first.cpus >= usable:
        return ()
    tell(f"note: the job has {first.cpus} of {usable} CPUs of {first.name}, for its steps")
    return nodes


def _nothing_else() -> bool:
    return shutil.which("ssh") is None and shutil.which("srun") is None


def _mpirun() -> tuple[str, str] | None:
    """Path and dialect of the mpirun that is here; None where none speaks a known one."""
    from cputune.probing import probe

    launchers = (one for one in probe().launchers if one.name in MPI_PROGRAMS and one.dialect)
    return next(((one.path, one.dialect or "") for one in launchers), None)


MOST_HOSTS_BYTES = 256 << 20
"""Of such a document: one host of 1,024 CPUs has about 100 KiB."""

_HOW_TO_SEE = "cputune doctor --hosts node1,node2 --json > hosts.json"


_SEEN: Any = msgspec.defstruct("_Seen", [("network", Network)])
_NAMED: Any = msgspec.defstruct("_Named", [("name", str), ("host", _SEEN | None)])
_HOSTS_DOCUMENT: Any = msgspec.defstruct(
    "_Hosts", [("schema", Literal["cputune.hosts/1"]), ("hosts", tuple[_NAMED, ...])]
)
"""What the doctor saw of several hosts, as far as ``emit`` reads it; a host that was not reached
has no ``host``.
"""


def networks_seen(path: Path) -> dict[str, Network]:
    """The networks of the hosts that were reached, by name, in their order. Raises UsageError."""
    try:
        text = read_document(path, most_bytes=MOST_HOSTS_BYTES)
        document = msgspec.json.decode(text, type=_HOSTS_DOCUMENT)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HOW_TO_SEE) from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not what the doctor saw of several hosts: {error}", hint=_HOW_TO_SEE
        ) from error
    found = {one.name: one.host.network for one in document.hosts if one.host is not None}
    if not found:
        raise UsageError(f"{path}: no host was reached", hint=_HOW_TO_SEE)
    return found


python_option = option(
    "--python",
    metavar="ENV",
    help="The environment, or the Python, that trains; else the active one.",
    why_not="it names a program that is started",
)
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")


def choose_python(typed: str | None, script: Sequence[str] = ()) -> None:
    """Let the Python train that is meant. Raises UsageError for one that is none.

    As typed with --python, else before the script, else in the first line of its launcher, else,
    where ours has no torch (pipx, uv tool), that of the active environment or the first on PATH.
    """
    train_with(None)
    chosen, why = _meant(typed, script[0] if script else "", alone=find_spec("torch") is None)
    if chosen is None:
        return
    if typed is None and not os.path.exists(chosen):
        return
    train_with(chosen)
    if training_interpreter().prefix == sys.prefix or (why == _ON_PATH and not has_module("torch")):
        train_with(None)
    else:
        tell(f"note: {training_python()} trains ({why})")


_ON_PATH = "the first on PATH"


def _meant(typed: str | None, first: str, *, alone: bool) -> tuple[str | None, str]:
    """A Python, or its environment, and who says so. ``first`` is the word before the script."""
    if typed is not None:
        return typed, "--python"
    if first and (alone or "/" in first) and not first.endswith(".py"):
        program = shutil.which(first)
        if _PYTHON.fullmatch(first):
            return program, "as typed"
        if program is not None and (named := shebang(program)) is not None:
            return named, f"of {first}"
    for name in _ACTIVE if alone else ():
        folder = os.environ.get(name, "")
        if folder and os.path.exists(os.path.join(folder, "bin", "python")):
            return folder, name
    return (shutil.which("python3") if alone else None), _ON_PATH


def complete_result(
    ctx: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Ids of the history that begin so; files where none does."""
    from cputune.history import kept_results

    ids = [kept.id for kept in kept_results() if kept.id.startswith(typed)] if typed else []
    return [CompletionItem(id) for id in ids] or [CompletionItem(typed, type="file")]


def opened(word: str | None) -> tuple[Result, str]:
    """A result, and the word by which commands name it. Raises CputuneError."""
    from cputune.history import result_path
    from cputune.result import Result

    if word is None and not DEFAULT_RESULT.exists():
        raise ResultError(
            f"there is no {DEFAULT_RESULT} here",
            hint="`cputune tune` makes one, `cputune history` lists earlier ones",
        )
    path = DEFAULT_RESULT if word is None else result_path(word)
    kept = word is not None and path != Path(word)
    return Result.load(path), path.stem if kept else str(path)


def facts_or_none(root: str | None) -> HostFacts | None:
    """The machine to draw plans on; None where this one cannot be read: a result needs none."""
    try:
        return facts_of(root)
    except CputuneError:
        if root is not None:
            raise
        return None


def remember(result: Result, destination: Path | None) -> None:
    """Keep a result in the history. Never fails: what tune found does not hang on it."""
    from cputune.emitters.header import machine
    from cputune.history import keep

    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    keep(result, machine=machine(result.host), file=destination, now=now)


def say(text: str) -> None:
    """A note on stderr."""
    tell(f"note: {text}")


def facts_of(root: str | None = None) -> HostFacts:
    """The facts of this machine, or of a recorded one."""
    from cputune.host import RecordedHost
    from cputune.probing import probe

    return probe(None if root is None else RecordedHost(root))


def tuned(path: Path | None, facts: HostFacts, *, other_machine: bool) -> Result | None:
    """The result to launch, of this machine; None, and a note, where nothing was tuned yet."""
    from cputune.result import Result

    if path is None:
        # cputune.json of this folder was measured here, not on the recorded machine.
        if facts.recorded or not DEFAULT_RESULT.exists():
            say(
                "nothing was measured: this is the guides' default plan for this machine "
                "(`cputune tune` measures)"
            )
            return None
        path = DEFAULT_RESULT
    else:
        from cputune.history import result_path

        path = result_path(str(path))
    result = Result.load(path)
    from cputune.emitters.header import changed_since, machine_difference, missing_cpus

    difference = machine_difference(result.host, facts)
    missing = missing_cpus(result.best.plan, facts)
    if missing and not difference:
        difference = f"its plan uses CPUs {missing}, which are not allowed here"
    if difference and not other_machine:
        raise ResultError(
            f"{path} was measured on another machine: {difference}",
            hint="tune here, or give --other-machine to take it all the same",
        )
    if difference:
        say(f"the plan was measured on another machine: {difference}")
    elif changes := changed_since(result, facts):
        say(f"{'; '.join(changes)}: {TUNE_AGAIN}")
    return result


def launched(
    result: Result | None,
    script: tuple[str, ...] | None,
    batch_per_rank: int | None = None,
    global_batch_size: int | None = None,
    *,
    nodes: int = 1,
    recipe: str | None = None,
) -> Workload:
    """What is launched: the words after ``--``, else what was tuned, else a recipe.

    Of a script that was tuned it is known what the trials have shown, whatever its arguments.
    In a loop of the script's own no batch can be set; on several nodes the user says what it
    has there.
    """
    from cputune.script import read_typed, require_trainable
    from cputune.workload import DEFAULT_RECIPE, Workload

    if script is not None:
        known = result.workload if result is not None else None
        for note in read_typed(script).notes:
            say(note)
        workload = Workload.script(script)
        if os.path.exists(workload.argv[0]):  # the script may be on another machine
            require_trainable(workload.argv)
        if known is not None and known.program == workload.program:
            if batch_per_rank is None and global_batch_size is None:
                _refuse_other_batch(known, workload)
            workload = replace(
                known,
                argv=workload.argv,
                secrets=workload.secrets,
                launch=workload.launch,
                launch_ranks=workload.launch_ranks,
                variables=workload.variables,
            )
    elif result is not None:
        workload = result.workload
    else:
        workload = Workload.from_recipe(recipe or DEFAULT_RECIPE)
    return _with_batch(workload, batch_per_rank, global_batch_size, nodes)


BATCH_FLAGS = (
    "--per_device_train_batch_size",
    "--per_gpu_train_batch_size",
    "--gradient_accumulation_steps",
)
"""Words that say how many samples a rank takes."""


def _refuse_other_batch(known: Workload, typed: Workload) -> None:
    """Raise UsageError where the words that are launched ask for another batch than was tuned.

    The launch would keep the tuned global batch, whatever they say.
    """
    for flag in BATCH_FLAGS:
        before, now = known.argument(flag), typed.argument(flag)
        if now is not None and now != before and known.global_batch_size is not None:
            tuned = "without it" if before is None else f"with {before}"
            raise UsageError(
                f"{flag} {now} is another batch than was tuned: {known.name} was tuned {tuned}, "
                f"and {known.global_batch_size} samples in a step of all ranks",
                hint="--global-batch-size N says how many samples all ranks take, "
                "--batch-per-rank N how many each",
            )


def _with_batch(
    workload: Workload, batch_per_rank: int | None, global_batch_size: int | None, nodes: int
) -> Workload:
    """The workload with the batch that the user asks for. Raises UsageError."""
    if batch_per_rank is not None and global_batch_size is not None:
        raise UsageError(
            "--batch-per-rank and --global-batch-size exclude each other", hint="give one of them"
        )
    if global_batch_size is not None:
        if workload.framework == "pytorch":
            raise UsageError(
                f"{workload.name} trains by a loop of its own, in which no batch can be set",
                hint="leave out --global-batch-size, and change the script's own batch",
            )
        return replace(workload, global_batch_size=global_batch_size, batch_per_rank=None)
    if batch_per_rank is not None:
        if workload.framework == "pytorch" and nodes == 1:
            raise UsageError(
                f"{workload.name} trains by a loop of its own, in which no batch can be set",
                hint="leave out --batch-per-rank, and change the script's own batch",
            )
        workload = replace(workload, batch_per_rank=batch_per_rank)
    return workload
