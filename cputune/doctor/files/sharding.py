"""A configuration of DeepSpeed, and a file of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.doctor.files.arguments import sharded
from cputune.doctor.files.context import Context
from cputune.doctor.files.documents import Document
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.errors import UsageError

_KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer")


def is_deepspeed(document: Document) -> bool:
    """Whether a document is a configuration of DeepSpeed."""
    return any(key in document.mapping() for key in _KEYS)


def judge_deepspeed(document: Document, context: Context) -> Iterator[Finding]:
    """What of a configuration of DeepSpeed CPUs cannot follow."""
    stage = document.get("zero_optimization", "stage")
    if stage not in (None, 0):
        text = f"zero_optimization.stage {stage}: it divides a model over accelerators"
        line = document.line("zero_optimization", "stage")
        installed = context.facts.package("deepspeed") is not None
        severity = Severity.WARNING if installed else None
        yield sharded.finding(context.at(line, text), severity=severity)
    device = document.get("zero_optimization", "offload_optimizer", "device")
    if device == "cpu":
        text = "zero_optimization.offload_optimizer to the CPU: the ranks are on the CPU already"
        line = document.line("zero_optimization", "offload_optimizer")
        yield sharded.finding(context.at(line, text), severity=Severity.WARNING)


@fault("file-hosts", Severity.ERROR)
def hosts_wrong() -> None:
    """The launcher does not read this file of hosts as it was meant

    Symptom: "could not resolve slots", all ranks on one machine, or "There are not enough slots".

    Cause: Open MPI and DeepSpeed write HOST slots=N, Intel MPI and MPICH HOST:N, one host in a
    line. Each takes the words of the other for a part of the name, or ignores them.

    Remedy: Write each host once, in the form of the mpirun that reads the file.

    Source: https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html,
    https://www.mpich.org/static/docs/latest/www1/mpiexec.html
    """


_NAMED = re.compile(r"(?:^|.*[/._-])(?:hostfile|hosts?_?file|machinefile)(?:[._-][\w.-]*)?$")


def is_hostfile(name: str) -> bool:
    """Whether a file lists hosts, by its name."""
    return _NAMED.match(name.lower()) is not None


def judge_hosts(text: str, context: Context) -> Iterator[Finding]:
    """Every fault of a file of hosts. Raises UsageError if it names none."""
    rows = list[tuple[int, str, str]]()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            rows.append((number, words[0], " ".join(words[1:])))
    if not rows:
        raise UsageError(f"{context.name} names no host", hint="a line for each: node1 slots=2")
    names = [host.partition(":")[0] for _, host, _ in rows]
    for number, host, _ in rows:
        name = host.partition(":")[0]
        first = names.index(name)
        if rows[first][0] < number:
            text = f"{name} is also in line {rows[first][0]}"
            yield hosts_wrong.finding(context.at(number, text), severity=Severity.WARNING)
    loopback = [name for name in names if name in ("localhost", "127.0.0.1", "::1")]
    if loopback and len(set(names)) > 1:
        text = f"{loopback[0]} beside other hosts: on each of them it means that host itself"
        yield hosts_wrong.finding(context.at(rows[names.index(loopback[0])][0], text))
    dialects = {item.dialect or "" for item in context.facts.launchers if item.name == "mpirun"}
    dialect = next(iter(dialects), "")
    for number, host, more in rows:
        hydra = dialect in ("intelmpi", "mpich")
        if hydra and "slots" in more:
            text = f"{more}: {dialect}, which is the mpirun here, takes {host}:N"
            yield hosts_wrong.finding(context.at(number, text))
        elif dialect.startswith("openmpi") and re.fullmatch(r"[^:]+:\d+", host):
            count = host.rpartition(":")[2]
            text = f"{host}: {dialect}, which is the mpirun here, takes HOST slots={count}"
            yield hosts_wrong.finding(context.at(number, text))


CHECKS = checks_of(__name__)
