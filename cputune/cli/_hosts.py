"""Which hosts are meant, and how they are reached: the options that commands over hosts share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from cputune.errors import UsageError
from cputune.host import LiveHost, read_document
from cputune.nodes.named import Node, allocated_nodes, parse_distinct_hosts, parse_hostfile
from cputune.nodes.reach import Manner, Reach, find_reach
from cputune.probing.launchers import MPI_PROGRAMS

SLURM, NONE = "slurm", "none"
"""In the place of names: the hosts of our Slurm allocation; no others than this machine."""

STEP = "SLURM_STEP_ID"
"""Set inside of a step: there each rank is a process of its own, which asks for no other hosts."""

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts that are meant, the way to them, and how long each may take, in seconds."""

    nodes: tuple[Node, ...]
    reach: Reach
    seconds: float


def host_options(command: Command) -> Command:
    """The options that name hosts, and the way to them: ``hosts``, ``hostfile``, ``ssh``."""
    for option in (
        click.option("--ssh", metavar="WORDS", help='Another ssh to the hosts: "ssh -F FILE".'),
        click.option("--hostfile", metavar="FILE", help="The hosts, in any launcher's form."),
        click.option(
            "--hosts", metavar="A,B", help="Other machines; slurm: those of our allocation."
        ),
    ):
        command = option(command)
    return command


def reach_options(command: Command) -> Command:
    """How hosts are reached, and how long one may take: ``through``, ``host_timeout``."""
    for option in (
        click.option(
            "--host-timeout",
            type=click.FloatRange(min=1, max=86400),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="The most that one host may take.",
        ),
        click.option(
            "--through",
            type=click.Choice(get_args(Manner)),
            help="The way to the hosts; ssh, or srun inside an allocation.",
        ),
    ):
        command = option(command)
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

    Without names those of the Slurm allocation that we are in, where it has several and
    ``allocation``. Raises UsageError, and CannotError where no way leads to other hosts.
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
    """The nodes of our Slurm allocation, where it has several and we are no rank in it."""
    host = LiveHost()
    nodes = () if STEP in host.environment() else allocated_nodes(host)
    return nodes if len(nodes) > 1 else ()


def _nothing_else() -> bool:
    return shutil.which("ssh") is None and shutil.which("srun") is None


def _mpirun() -> tuple[str, str] | None:
    """Path and dialect of the mpirun that is here; None where none speaks a known one."""
    from cputune.probing import probe

    launchers = (one for one in probe().launchers if one.name in MPI_PROGRAMS and one.dialect)
    return next(((one.path, one.dialect or "") for one in launchers), None)
