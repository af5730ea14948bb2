"""Hostfiles of MPI launchers and DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from cputune.doctor.files.context import Context
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.host.remote.named import parse_hostfile
from cputune.launch.launchers.mpirun import refused_slots


@fault("file-hosts", Severity.ERROR)
def hosts_wrong() -> None:
    """The launcher reads this hostfile in another way

    Symptom: "could not resolve slots", all ranks on one machine, or "There are not enough slots".

    Cause: Open MPI and DeepSpeed write HOST slots=N, Intel MPI and MPICH HOST:N, one host per line.
    Each ignores the other form, or takes it as part of the name. localhost is another machine on
    each host.

    Remedy: Write the hosts in the form of your mpirun.

    Source: https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html,
    https://www.mpich.org/static/docs/latest/www1/mpiexec.html
    """


_NAMED = re.compile(
    r"(?:^|.*[/._-])(?:(?:hostfile|hosts?_?file|machinefile)(?:[._-][\w.-]*)?"
    r"|hosts\.(?:hydra|openmpi|txt))$"
)


def is_hostfile(name: str) -> bool:
    """Whether a file lists hosts, by its name."""
    return _NAMED.match(name.lower()) is not None


def judge_hosts(text: str, context: Context) -> Iterator[Finding]:
    """Every fault of a hostfile. Raises UsageError if it names no host, or cannot be read."""
    if not parse_hostfile(text, where=context.name):
        raise UsageError(f"{context.name} names no host", hint="a line for each: node1 slots=2")
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    named = dict[int, list[str]]()
    for number, fields in enumerate(lines, start=1):
        if fields:
            named[number] = [node.name for node in parse_hostfile(fields[0])]
    every = set(chain.from_iterable(named.values()))
    for number, names in named.items():
        loopback = next((name for name in names if name in _LOOPBACK), None)
        if loopback is not None and len(every) > 1:
            text = f"{loopback} together with other hosts: on each of them it is that host itself"
            yield hosts_wrong.finding(context.at(number, text))
    dialects = (item.dialect for item in context.facts.launchers if item.name == "mpirun")
    dialect = next(filter(None, dialects), "")
    if context.name.endswith((".hydra", ".openmpi")):
        return  # emitted: the launch takes the file of the mpirun that it finds
    for number in named:
        refused = refused_slots(dialect, lines[number - 1])
        if refused is not None:
            text = f"{refused[0]}: {dialect}, the installed mpirun, takes {refused[1]}"
            yield hosts_wrong.finding(context.at(number, text))


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


CHECKS = checks_of(__name__)
