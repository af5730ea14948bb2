"""Which hosts are meant, and how they are reached: the options that commands over hosts share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cputune.errors import UsageError
from cputune.nodes.named import (
    Node,
    allocated_nodes,
    parse_distinct_hosts,
    parse_hostfile,
)
from cputune.nodes.reach import Reach, find_reach

SLURM = "slurm"
"""In the place of names: the hosts of the Slurm allocation that we are in."""

Command = TypeVar("Command", bound=Callable[..., Any])


def host_options(command: Command) -> Command:
    """The options that name hosts, and the way to them."""
    for option in (
        click.option("--ssh", metavar="WORDS", help='Another ssh to the hosts: "ssh -F FILE".'),
        click.option("--hostfile", metavar="FILE", help="The hosts, one a line."),
        click.option(
            "--hosts", metavar="A,B", help="Run on these hosts; slurm: those of the allocation."
        ),
    ):
        command = option(command)
    return command


def asked_hosts(hosts: str | None, hostfile: str | None) -> tuple[Node, ...]:
    """The hosts that were named; none where no option was given. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hostfile and --hosts exclude each other", hint="give one of them")
    if hostfile is not None:
        try:
            text = Path(hostfile).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {hostfile}: {error}", hint="--hosts a,b") from error
        return parse_hostfile(text, where=hostfile)
    if hosts == SLURM:
        from cputune.host import LiveHost

        found = allocated_nodes(LiveHost())
        if not found:
            raise UsageError("we are in no Slurm allocation", hint="salloc first, or --hosts a,b")
        return found
    return () if hosts is None else parse_distinct_hosts(hosts)


def way_to(hosts: str | None, ssh: str | None) -> Reach:
    """How they are reached: by srun inside the allocation, else by ssh. Raises CannotError."""
    return find_reach(ssh=ssh, allocated=hosts == SLURM)
