"""What commands are given: hosts and the way to them, results, a machine, a script."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from cputune.cli import completing
from cputune.cli.output import tell
from cputune.cli.settings import all_of
from cputune.errors import CputuneError, ResultError, UsageError
from cputune.host import LiveHost, read_document
from cputune.host.facts import HostFacts
from cputune.host.interpreter import (
    has_module,
    shebang,
    train_with,
    training_interpreter,
    training_python,
)
from cputune.host.probing.installed import MPI_PROGRAMS
from cputune.host.process import keep_secrets
from cputune.host.remote.named import Node, allocated_nodes, parse_distinct_hosts, parse_hostfile
from cputune.host.remote.reach import Manner, Reach, find_reach

if TYPE_CHECKING:
    from cputune.plans.workload import Workload
    from cputune.records.result import Result

DEFAULT_RESULT = Path("cputune.json")
SLURM, NONE = "slurm", "none"
"""The word that stands for hosts: those of the Slurm allocation; none where this machine is the
only one."""

HOST_SECONDS = 30.0
"""How long a host may take to answer, unless --host-timeout says otherwise."""

TASKS = "SLURM_STEP_NUM_TASKS"
"""A variable that Slurm sets inside a step. A command there is one rank of several, and asks for no
other hosts."""


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
        help='Another ssh to the hosts: "ssh -F FILE".',
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
"""The options that name hosts, and how they are reached: what ``chosen_hosts`` takes."""

batch_options = all_of(
    *(
        click.option(word, type=click.IntRange(min=1), metavar="N", help=help)
        for word, help in (
            ("--batch-per-rank", "Samples of each rank per step."),
            ("--global-batch-size", "Samples of all ranks per step."),
        )
    )
)
"""The options that set the batch: what ``launched`` takes."""

secret_option = click.option(
    "--secret",
    multiple=True,
    metavar="NAME",
    help="Another argument of the script that is a secret, besides tokens and passwords.",
)


def say(text: str) -> None:
    """A note on stderr."""
    tell(f"note: {text}")


def facts_of(root: str | None = None, *, watched: bool = True) -> HostFacts:
    """The facts of this machine, or of a recorded one; see ``probe``."""
    from cputune.host import RecordedHost
    from cputune.host.probing import probe

    return probe(None if root is None else RecordedHost(root), watched=watched)


def chosen_hosts(
    typed: Mapping[str, Any], *, allocation: bool = True
) -> tuple[tuple[Node, ...], Reach] | None:
    """The hosts that the options name, and the way to them; None: this machine alone is meant.

    Where none are named, the hosts of the Slurm allocation are meant, unless this machine is the
    only one of it, or ``allocation`` is false. Raises UsageError, and CannotError where no way
    leads to other hosts.
    """
    hosts, through, ssh = typed["hosts"], typed["through"], typed["ssh"]
    named = hosts is not None or typed["hostfile"] is not None
    nodes = asked_hosts(hosts, typed["hostfile"])
    if not named and allocation:
        nodes = _of_our_job()
    if not nodes:
        if hosts != NONE and (through is not None or ssh is not None):
            raise UsageError("--through and --ssh say how hosts are reached", hint="--hosts a,b")
        return None
    if through not in (None, "ssh") and ssh is not None:
        raise UsageError(f"--ssh is no part of --through {through}", hint="leave one of them away")
    mpi = None
    if through == "mpirun" or not (shutil.which("ssh") or shutil.which("srun")):
        known = (
            launcher
            for launcher in facts_of().launchers
            if launcher.name in MPI_PROGRAMS and launcher.dialect
        )
        mpi = next(((launcher.path, launcher.dialect or "") for launcher in known), None)
    reach = find_reach(through, ssh=ssh, allocated=hosts == SLURM or not named, mpi=mpi)
    return nodes, reach


def asked_hosts(
    hosts: str | None,
    hostfile: str | None,
    parse: Callable[[str], tuple[Node, ...]] = parse_distinct_hosts,
) -> tuple[Node, ...]:
    """The hosts that were named; none where no option was given. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hostfile and --hosts exclude each other", hint="give one of them")
    if hostfile is not None:
        try:
            text = read_document(hostfile, most_bytes=1 << 24)
        except OSError as error:
            said, hint = f"cannot read {hostfile}: {error.strerror}", "one host on each line"
            raise UsageError(said, hint=hint) from error
        return parse_hostfile(text, where=hostfile)
    if hosts == SLURM:
        found = allocated_nodes(LiveHost())
        if not found:
            raise UsageError("this is no Slurm allocation", hint="salloc one, or --hosts a,b")
        return found
    return () if hosts in (None, NONE) else parse(hosts or "")


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


python_option = click.option(
    "--python",
    metavar="ENV",
    help="Python, or its environment, that trains. Default: the active one.",
    shell_complete=completing.PYTHONS,
)
_BATCH_FLAGS = (
    "--per_device_train_batch_size",
    "--per_gpu_train_batch_size",
    "--gradient_accumulation_steps",
)
_ON_PATH = "the first on PATH"
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")


def choose_python(typed: str | None, script: Sequence[str] = ()) -> None:
    """Choose the Python that trains. Raises UsageError for one that is none.

    The first of these that is given: --python, the word before the script, the first line of its
    launcher. Without any, and where our own Python has no torch (pipx, uv tool): that of the active
    environment, or the first on PATH.
    """
    train_with(None)
    meant = _meant(typed, script[0] if script else "", alone=find_spec("torch") is None)
    chosen, why = next(((meaning, why) for meaning, why in meant if meaning), (None, ""))
    if chosen is None or (typed is None and not os.path.exists(chosen)):
        return
    train_with(chosen)
    if training_interpreter().prefix == sys.prefix or (why == _ON_PATH and not has_module("torch")):
        train_with(None)
    else:
        say(f"{training_python()} trains ({why})")


def _meant(typed: str | None, first: str, *, alone: bool) -> Iterator[tuple[str | None, str]]:
    """Candidates for the Python that trains, and who names each. ``first``: the script's Python."""
    yield typed, "--python"
    if first and (alone or "/" in first) and not first.endswith(".py"):
        program = shutil.which(first)
        if _PYTHON.fullmatch(first):
            yield program, "as typed"
        elif program is not None:
            yield shebang(program), f"of {first}"
    if alone:
        for name in _ACTIVE:
            folder = os.environ.get(name)
            yield folder if folder and os.path.exists(f"{folder}/bin/python") else None, name
        yield shutil.which("python3"), _ON_PATH


def opened(word: str | None) -> tuple[Result, str]:
    """A result, and the word by which commands refer to it. Raises CputuneError."""
    from cputune.records.history import result_path
    from cputune.records.result import Result

    if word is None and not DEFAULT_RESULT.exists():
        raise ResultError(
            f"there is no {DEFAULT_RESULT} here",
            hint="`cputune tune` makes one, `cputune history` lists earlier ones",
        )
    if word is not None and word.endswith(".py"):
        hint = f"a script comes after --: -- {word}"
        if click.get_current_context().info_name not in ("run", "emit"):
            hint = f"`cputune tune -- {word}` makes a result"
        raise UsageError(f"{word} is a script, not a result", hint=hint)
    path = DEFAULT_RESULT if word is None else result_path(word)
    kept = word is not None and path != Path(word)
    return Result.load(path), path.stem if kept else str(path)


def facts_or_none() -> HostFacts | None:
    """The facts of this machine; None where it cannot be read: a result can be shown without."""
    try:
        return facts_of()
    except CputuneError:
        return None


def tuned(word: str | None, facts: HostFacts, *, other_machine: bool) -> Result | None:
    """The result to launch, of this machine; None, and a note, where nothing was tuned yet."""
    from cputune.records.words import changed_since, machine_difference, missing_cpus

    # cputune.json of this folder was measured here, not on the recorded machine.
    if word is None and (facts.recorded or not DEFAULT_RESULT.exists()):
        say(
            "nothing was measured: this is a default plan for this machine "
            "(`cputune tune` measures)"
        )
        return None
    result, name = opened(word)
    difference = machine_difference(result.host, facts)
    missing = missing_cpus(result.best.plan, facts)
    if missing and not difference:
        difference = f"its plan uses CPUs {missing}, which are not allowed here"
    if difference and not other_machine:
        raise ResultError(
            f"{name} was measured on another machine: {difference}",
            hint="tune here, or give --other-machine to take it all the same",
        )
    if difference:
        say(f"the plan was measured on another machine: {difference}")
    elif changes := changed_since(result, facts):
        from cputune.records.words import TUNE_AGAIN

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
    secret: Sequence[str] = (),
) -> Workload:
    """What is launched: the words after ``--``, else what was tuned, else a recipe.

    For a script that was tuned, what the trials have shown is known, whatever its arguments. A loop
    of the script's own has a batch that cannot be set; on several nodes the user has to say what it
    is there. ``secret`` are arguments whose values are left out; those of what was tuned are, too.
    Raises UsageError.
    """
    from cputune.plans.training_command import read_typed, require_trainable
    from cputune.plans.workload import DEFAULT_RECIPE, Workload

    asked = batch_per_rank is not None or global_batch_size is not None
    if batch_per_rank is not None and global_batch_size is not None:
        raise UsageError(
            "--batch-per-rank and --global-batch-size exclude each other", hint="give one of them"
        )
    if script is not None:
        for note in read_typed(script).notes:
            say(note)
        known = result.workload if result is not None else None
        before = () if known is None else known.hidden_arguments
        workload = Workload.script(script, secret=(*secret, *before))
        keep_secrets(script, secret=(*secret, *before))
        if os.path.exists(workload.argv[0]):  # the script may not be on this machine
            require_trainable(workload.argv)
        if known is not None and known.program == workload.program:
            if not asked:
                _refuse_other_batch(known, workload)
            names = ("argv", "secrets", "launch", "launch_ranks")
            workload = replace(known, **{name: getattr(workload, name) for name in names})
    elif result is not None:
        workload = result.workload
    else:
        workload = Workload.from_recipe(recipe or DEFAULT_RECIPE)
    if workload.framework == "pytorch" and asked and (nodes == 1 or global_batch_size is not None):
        raise UsageError(
            f"{workload.name} trains by a loop of its own, in which no batch can be set",
            hint="leave out the batch, and change the script's own",
        )
    if global_batch_size is not None:
        return replace(workload, global_batch_size=global_batch_size, batch_per_rank=None)
    return replace(workload, batch_per_rank=batch_per_rank) if asked else workload


def _refuse_other_batch(known: Workload, typed: Workload) -> None:
    """Raise UsageError where the words to launch ask for another batch than was tuned.

    The launch would keep the tuned global batch all the same.
    """
    if known.global_batch_size is None:
        return
    for flag in _BATCH_FLAGS:
        before, now = known.argument(flag), typed.argument(flag)
        if now not in (None, before):
            raise UsageError(
                f"{flag} {now} is another batch than was tuned: {known.name} was tuned with "
                f"{known.global_batch_size} samples in a step of all ranks",
                hint="--global-batch-size N says how many samples all ranks take",
            )
