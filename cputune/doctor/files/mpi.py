"""Judging what an mpirun line says to the mpirun that is here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.doctor.files.context import Context
from cputune.doctor.finding import Check, Finding, Severity
from cputune.doctor.reading.launches import Launch

_NOT_HYDRA = (
    *("-x", "--allow-run-as-root", "--mca", "-mca", "--npernode", "-npernode"),
    *("--oversubscribe", "--rankfile"),
)
_NOT_OPENMPI = ("-f", "-ppn", "-perhost", "-genv", "-genvall", "-genvlist", "-env")
REFUSED = {
    "intelmpi": (*_NOT_HYDRA, "--report-bindings"),
    "mpich": (*_NOT_HYDRA, "-perhost"),
    "openmpi4": _NOT_OPENMPI,
    "openmpi5": (*_NOT_OPENMPI, "-bind-to", "-map-by"),
}
"""Options that each dialect refuses; every one was tried with Intel MPI 2021.18, MPICH 5.0,
Open MPI 4.1 and 5.0."""
_NAMES = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}

DIALECT = Check(
    code="file-mpi-dialect",
    severity=Severity.ERROR,
    title="The mpirun that is here does not know these options",
    remedy="Write them in its dialect; `cputune emit --format mpirun` does.",
    source="https://www.mpich.org/static/docs/latest/www1/mpiexec.html, "
    "https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html",
    story="""Symptom: "unrecognized argument x", or "mpirun was unable to find the specified
executable file" with a name that is an option.

Cause: Intel MPI and MPICH take -genv K V, -ppn P and -f FILE; Open MPI takes -x K=V,
--map-by ppr:P:node and --hostfile FILE. Each refuses the words of the other, and all of
them call their launcher mpirun.""",
)
ONE_CORE = Check(
    code="file-openmpi-one-core",
    severity=Severity.WARNING,
    title="Open MPI binds each of these ranks to one core",
    remedy="Add --bind-to none, or --map-by ppr:P:node:pe=T for T cores each.",
    source="open-mpi/ompi#13009, open-mpi/ompi#12900",
    story="""Symptom: two ranks, both as slow as one thread.

Cause: with at most two ranks Open MPI binds to a core unless told otherwise, and all
the threads of a rank share it.""",
)
PIN_MASK = Check(
    code="file-pin-mask",
    severity=Severity.WARNING,
    title="Intel MPI does not read these masks",
    remedy="Write each mask with 0x.",
    source="geopm/geopm#614",
    story="""Symptom: "IPL2 Error" on stderr, or ranks on all CPUs.

Cause: the masks of I_MPI_PIN_DOMAIN=[…] must begin with 0x. Wrong ones are dropped, the
exit code stays 0, and the ranks run with the default pinning.""",
)
BOUND_TWICE = Check(
    code="file-bound-twice",
    severity=Severity.WARNING,
    title="Ranks are bound twice",
    remedy="Keep one binder: mpirun's pinning, or numactl for each rank.",
    source="deepspeedai/DeepSpeed#4531",
    story="""Symptom: all ranks share a few cores, or the second binding is refused.

Cause: numactl behind mpirun binds every rank to the same CPUs, inside what mpirun has
given it already.""",
)


def judge_mpirun(launch: Launch, context: Context) -> Iterator[Finding]:
    """Every fault of an mpirun line."""
    dialect = _dialect(context)
    options = _own_options(launch)
    if not launch.open_choice:
        yield from _dialect_words(launch, context, dialect, options)
    openmpi = (dialect or "").startswith("openmpi") or any(o in options for o in ("-x", "--mca"))
    total = launch.option("-n", "-np", "-c", "--n", "--np")
    if openmpi and total in ("1", "2") and not _binds(launch):
        text = f"mpirun -n {total} without --bind-to"
        yield ONE_CORE.finding(context.at(launch.line, text))
    domain = launch.environment.get("I_MPI_PIN_DOMAIN", "")
    masks = domain[1:-1].split(",") if domain.startswith("[") else []
    bare = [mask for mask in masks if re.fullmatch(r"[0-9a-fA-F]+", mask.strip())]
    if bare:
        text = f"I_MPI_PIN_DOMAIN={domain}: {bare[0]} has no 0x"
        yield PIN_MASK.finding(context.at(launch.line, text))
    behind = [word.rpartition("/")[2] for word in launch.words]
    binder = next((name for name in behind[1:] if name in ("numactl", "taskset")), None)
    if binder and behind[0] in ("mpirun", "mpiexec", "mpiexec.hydra"):
        text = f"{binder} behind mpirun binds every rank to the same CPUs"
        if domain or _binds(launch):
            text += ", and mpirun binds them too"
        yield BOUND_TWICE.finding(context.at(launch.line, text))


def _dialect(context: Context) -> str | None:
    found = (item.dialect for item in context.facts.launchers if item.name in ("mpirun", "mpiexec"))
    return next((dialect for dialect in found if dialect), None) if context.here else None


def _own_options(launch: Launch) -> tuple[str, ...]:
    return tuple(word.partition("=")[0] for word in launch.options if word.startswith("-"))


def _dialect_words(
    launch: Launch, context: Context, dialect: str | None, options: tuple[str, ...]
) -> Iterator[Finding]:
    if dialect in REFUSED:
        wrong = [option for option in options if option in REFUSED[dialect]]
        if wrong:
            said = ", ".join(dict.fromkeys(wrong))
            text = f"{said}: refused by {_NAMES[dialect]}, which is the mpirun here"
            yield DIALECT.finding(context.at(launch.line, text))
        return
    hydra = [option for option in options if option in _NOT_OPENMPI]
    open_mpi = [option for option in options if option in _NOT_HYDRA]
    if hydra and open_mpi:
        text = f"{hydra[0]} is Intel MPI's and MPICH's, {open_mpi[0]} Open MPI's; none takes both"
        yield DIALECT.finding(context.at(launch.line, text))


def _binds(launch: Launch) -> bool:
    if launch.option("--bind-to", "-bind-to", "--rankfile", "-rf", "--cpu-set") is not None:
        return True
    return ":pe=" in (launch.option("--map-by", "-map-by") or "").lower()


CHECKS: tuple[Check, ...] = (DIALECT, ONE_CORE, PIN_MASK, BOUND_TWICE)
