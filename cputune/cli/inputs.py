"""What several commands share: hosts, results, the machine, the script."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from cputune.cli import completing
from cputune.cli.option_defaults import all_of
from cputune.cli.output import print_line
from cputune.errors import CputuneError, ResultError, UsageError
from cputune.host import Interpreter, LiveHost, read_document, this_interpreter
from cputune.host.facts import HostFacts
from cputune.host.interpreter import other_interpreter, shebang
from cputune.host.probing.installed import MPI_PROGRAMS
from cputune.host.process import keep_secrets
from cputune.host.remote.named import Node, allocated_nodes, parse_distinct_hosts, parse_hostfile
from cputune.host.remote.reach import Manner, Reach, find_reach

if TYPE_CHECKING:
    from cputune.plans.workload import Workload
    from cputune.records.result import Result

DEFAULT_RESULT = Path("cputune.json")
# The hosts of the Slurm allocation; this machine alone.
SLURM, NONE = "slurm", "none"

HOST_SECONDS = 30.0  # default time limit for the answer of a host

# Set by Slurm inside a step: a command there is one of several ranks, and must not ask other
# hosts.
TASKS = "SLURM_STEP_NUM_TASKS"


# The options about hosts, for ``chosen_hosts``.
host_options = all_of(
    click.option(
        "--hosts",
        metavar="A,B",
        help="Other machines; slurm: those of the Slurm allocation.",
        shell_complete=completing.HOSTS,
    ),
    click.option(
        "--hostfile",
        metavar="FILE",
        help="A file of the hosts, as any MPI or Slurm writes it.",
        shell_complete=completing.files,
    ),
    click.option(
        "--ssh",
        metavar="WORDS",
        help='Another ssh command for the hosts: "ssh -F FILE".',
    ),
    click.option(
        "--through",
        type=click.Choice(get_args(Manner)),
        help="How hosts are reached; by default ssh, or srun in a Slurm allocation.",
    ),
    click.option(
        "--host-timeout",
        type=click.FloatRange(min=1, max=86400),
        default=HOST_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="Time limit for each host.",
    ),
)

# The options that set the batch, for ``launched``.
batch_options = all_of(
    click.option(
        "--batch-per-rank",
        type=click.IntRange(min=1),
        metavar="N",
        help="Samples of each rank per step.",
    ),
    click.option(
        "--global-batch-size",
        type=click.IntRange(min=1),
        metavar="N",
        help="Samples of all ranks per step.",
    ),
)

secret_option = click.option(
    "--secret",
    multiple=True,
    metavar="NAME",
    help="Another argument of the script that is a secret, besides tokens and passwords.",
)


def print_note(text: str) -> None:
    print_line(f"note: {text}")


def facts_of(
    root: str | None = None, *, watched: bool = True, python: Interpreter | None = None
) -> HostFacts:
    """The facts of this machine or of a recorded one, as ``probe`` returns them."""
    from cputune.host import RecordedHost
    from cputune.host.probing import probe

    if root is None:
        return probe(LiveHost(python), watched=watched)
    return probe(RecordedHost(root), watched=watched)


def chosen_hosts(
    typed: Mapping[str, Any], *, allocation: bool = True
) -> tuple[tuple[Node, ...], Reach] | None:
    """The hosts of the options, and how to reach them. None: only this machine.

    If no host is named, those of the Slurm allocation are used, unless this machine is the only one
    or ``allocation`` is false. Raises UsageError, and CannotError if hosts cannot be reached.
    """
    hosts, through, ssh = typed["hosts"], typed["through"], typed["ssh"]
    named = hosts is not None or typed["hostfile"] is not None
    nodes = typed_hosts(hosts, typed["hostfile"])
    if not named and allocation:
        nodes = _of_our_job()
    if not nodes:
        if hosts != NONE and (through is not None or ssh is not None):
            raise UsageError(
                "--through and --ssh need hosts", hint="--hosts a,b says which hosts to reach"
            )
        return None
    if through not in (None, "ssh") and ssh is not None:
        raise UsageError(
            f"--ssh cannot be combined with --through {through}", hint="remove one of them"
        )
    mpi = None
    if through == "mpirun" or not (shutil.which("ssh") or shutil.which("srun")):
        mpi = mpirun_here()
    reach = find_reach(through, ssh=ssh, allocated=hosts == SLURM or not named, mpi=mpi)
    return nodes, reach


def mpirun_here() -> tuple[str, str] | None:
    """Path and dialect of the mpirun of this machine."""
    for launcher in facts_of().launchers:
        if launcher.name in MPI_PROGRAMS and launcher.dialect:
            return launcher.path, launcher.dialect
    return None


def typed_hosts(
    hosts: str | None,
    hostfile: str | None,
    parse: Callable[[str], tuple[Node, ...]] = parse_distinct_hosts,
) -> tuple[Node, ...]:
    """The named hosts, empty if no option names any. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hostfile and --hosts exclude each other", hint="give one of them")
    if hostfile is not None:
        try:
            text = read_document(hostfile, most_bytes=1 << 24)
        except OSError as error:
            problem = f"cannot read {hostfile}: {error.strerror}"
            raise UsageError(problem, hint="--hostfile FILE, with one host per line") from error
        return parse_hostfile(text, where=hostfile)
    if hosts == SLURM:
        nodes = allocated_nodes(LiveHost())
        if not nodes:
            raise UsageError(
                "--hosts slurm works only inside a Slurm allocation",
                hint="run salloc first, or --hosts a,b",
            )
        return nodes
    if hosts in (None, NONE):
        return ()
    return parse(hosts or "")


def _of_our_job() -> tuple[Node, ...]:
    """The nodes of our Slurm allocation. Empty if we are a rank in it, or if it is only this
    machine.

    On a login node an allocation of one node means that node. The same is true on the node itself
    if the job has fewer of its CPUs than this process, because its steps are bound to those.
    """
    host = LiveHost()
    if host.environment().get(TASKS, "1") != "1":
        return ()
    nodes = allocated_nodes(host)
    if not nodes:
        return ()
    from cputune.ranks.engines import is_here

    (first, *others), usable = nodes, len(host.affinity() or ())
    if others or not is_here(first.name):
        return nodes
    if first.cpus is None or first.cpus >= usable:
        return ()
    print_line(f"note: the job has {first.cpus} of {usable} CPUs of {first.name}, for its steps")
    return nodes


python_option = click.option(
    "--python",
    metavar="ENV",
    help="Python, or its environment, that trains. Default: the active one.",
    shell_complete=completing.PYTHONS,
)
_ON_PATH = "the first on PATH"
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")


def choose_python(typed: str | None, script: Sequence[str] = ()) -> Interpreter:
    """Choose the Python of the training, and name it if it is not ours. Raises UsageError if it is
    not a Python.

    The first of these: --python, the word before the script, the first line of its launcher; if our
    own Python has no torch (pipx, uv tool), that of the active environment, or the first on PATH.
    """
    ours = this_interpreter()
    first = ""
    if script:
        first = script[0]
    chosen, chosen_by = None, ""
    for candidate, reason in _meant(typed, first, alone=find_spec("torch") is None):
        if candidate:
            chosen, chosen_by = candidate, reason
            break
    if chosen is None or (typed is None and not os.path.exists(chosen)):
        return ours
    python = other_interpreter(chosen)
    if python.prefix == ours.prefix or (chosen_by == _ON_PATH and not python.has_module("torch")):
        return ours
    print_note(f"{python.executable} trains ({chosen_by})")
    return python


def _meant(typed: str | None, first: str, *, alone: bool) -> Iterator[tuple[str | None, str]]:
    """Yield candidates for the Python of the training with their source. ``first`` is the first
    word.
    """
    from cputune.launch.launch import is_python

    yield typed, "--python"
    if first and (alone or "/" in first) and not first.endswith(".py"):
        program = shutil.which(first)
        if is_python(first):
            yield program, "as typed"
        elif program is not None:
            yield shebang(program), f"of {first}"
    if alone:
        for name in _ACTIVE:
            folder = os.environ.get(name)
            if folder and os.path.exists(f"{folder}/bin/python"):
                yield folder, name
        yield shutil.which("python3"), _ON_PATH


def opened(word: str | None) -> tuple[Result, str]:
    """A result, and its name in commands. Raises CputuneError."""
    from cputune.records.history import result_path
    from cputune.records.result import Result

    if word is None and not DEFAULT_RESULT.exists():
        raise ResultError(
            f"there is no {DEFAULT_RESULT} here",
            hint="run `cputune tune` first, or choose an id of `cputune history`",
        )
    if word is None:
        return Result.load(DEFAULT_RESULT), str(DEFAULT_RESULT)
    if word.endswith(".py"):
        hint = f"a script comes after --: -- {word}"
        if click.get_current_context().info_name not in ("run", "emit"):
            hint = f"`cputune tune -- {word}` makes a result"
        raise UsageError(f"{word} is a script, not a result", hint=hint)
    path = result_path(word)
    if path != Path(word):
        return Result.load(path), path.stem
    return Result.load(path), str(path)


def facts_or_none() -> HostFacts | None:
    """The facts of this machine; None if it cannot be examined."""
    try:
        return facts_of()
    except CputuneError:
        return None


def tuned(word: str | None, facts: HostFacts, *, other_machine: bool) -> Result | None:
    """The result to launch, if it is of this machine. None, with a note, if nothing was tuned
    yet.
    """
    from cputune.records.shared_texts import changed_since, machine_difference, missing_cpus

    # cputune.json in this folder is of this machine, not of the recorded one.
    if word is None and (facts.recorded or not DEFAULT_RESULT.exists()):
        print_note(
            "nothing was measured: this is a default plan for this machine "
            "(`cputune tune` measures)"
        )
        return None
    result, name = opened(word)
    difference = machine_difference(result.host, facts)
    missing = missing_cpus(result.best.plan, facts)
    if missing and not difference:
        difference = f"its plan uses CPUs {missing}, which may not be used here"
    if difference and not other_machine:
        raise ResultError(
            f"{name} was measured on another machine: {difference}",
            hint="tune on this machine, or use it with --other-machine",
        )
    if difference:
        print_note(f"the plan was measured on another machine: {difference}")
        return result
    changes = changed_since(result, facts)
    if changes:
        from cputune.records.shared_texts import TUNE_AGAIN

        print_note(f"{'; '.join(changes)}: {TUNE_AGAIN}")
    return result


def launched(
    result: Result | None,
    script: tuple[str, ...] | None,
    batch_per_rank: int | None = None,
    global_batch_size: int | None = None,
    *,
    nodes: int = 1,
    recipe: str | None = None,
    secret: Sequence[str] = (),
    python: Interpreter | None = None,
) -> Workload:
    """The workload to launch: the words after ``--``, or what was tuned, or a recipe.

    A script that was tuned keeps the facts from its trials, whatever its arguments. If a script has
    its own training loop, the user states its batch on several nodes. The values of ``secret``
    arguments are left out. Raises UsageError.
    """
    from cputune.plans.training_command import read_typed
    from cputune.plans.workload import DEFAULT_RECIPE, Workload

    batch_given = batch_per_rank is not None or global_batch_size is not None
    if batch_per_rank is not None and global_batch_size is not None:
        raise UsageError(
            "--batch-per-rank and --global-batch-size exclude each other", hint="give one of them"
        )
    if script is not None:
        for note in read_typed(script, python).notes:
            print_note(note)
        workload = _of_script(script, result, secret, keeps_batch=not batch_given, python=python)
    elif result is not None:
        workload = result.workload
    else:
        workload = Workload.from_recipe(recipe or DEFAULT_RECIPE)
    if (
        workload.framework == "pytorch"
        and batch_given
        and (nodes == 1 or global_batch_size is not None)
    ):
        raise UsageError(
            f"{workload.name} has its own training loop, so its batch cannot be set",
            hint="leave out the batch options, and change the batch in the script",
        )
    if global_batch_size is not None:
        return replace(workload, global_batch_size=global_batch_size, batch_per_rank=None)
    if batch_given:
        return replace(workload, batch_per_rank=batch_per_rank)
    return workload


def _of_script(
    script: tuple[str, ...],
    result: Result | None,
    secret: Sequence[str],
    *,
    keeps_batch: bool,
    python: Interpreter | None,
) -> Workload:
    """The workload of a script, with what its trials have shown if it was tuned."""
    from cputune.plans.training_command import require_trainable
    from cputune.plans.workload import Workload

    hidden = list(secret)
    if result is not None:
        hidden += result.workload.hidden_arguments
    typed = Workload.script(script, secret=tuple(hidden), python=python)
    keep_secrets(script, secret=tuple(hidden))
    if os.path.exists(typed.argv[0]):  # the script may not be on this machine
        require_trainable(typed.argv, python=python)
    if result is None or not _is_tuned(result.workload, typed):
        return typed
    if keeps_batch:
        _refuse_other_batch(result.workload, typed)
    names = ("argv", "secrets", "launch", "launch_ranks")
    return replace(result.workload, **{name: getattr(typed, name) for name in names})


def _is_tuned(tuned_job: Workload, typed: Workload) -> bool:
    """Whether a script is the tuned one: by its path, or by its name if it is in an image."""
    if tuned_job.program == typed.program:
        return True
    there, tuned_script = typed.argv[0], tuned_job.argv[:1]
    same_name = [os.path.basename(there)] == [os.path.basename(one) for one in tuned_script]
    if typed.argv[0] == "-m" or os.path.exists(there) or not same_name:
        return False
    print_note(f"{there} is not on this machine: it is taken for the tuned {tuned_script[0]}")
    return True


def _refuse_other_batch(tuned_job: Workload, typed: Workload) -> None:
    """Raise UsageError if the words to launch have another batch than the tuned ones."""
    if tuned_job.global_batch_size is None:
        return
    from cputune.launch.script import BATCH_ARGUMENTS

    for flag in BATCH_ARGUMENTS:
        before, now = tuned_job.argument(flag), typed.argument(flag)
        if now not in (None, before):
            raise UsageError(
                f"{flag} {now} differs from the tuned batch: {tuned_job.name} was tuned with "
                f"{tuned_job.global_batch_size} samples per step of all ranks",
                hint="--global-batch-size N sets the samples per step of all ranks",
            )
