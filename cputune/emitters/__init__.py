"""Write a plan down as the files that launch it. Text only: nothing is touched.

``cputune.emit(result, "mpirun", nodes=2, hosts=parse_hosts("a,b"))``. One file per format;
``FORMATS`` is their register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cputune.emitters.accelerate import emit_accelerate
from cputune.emitters.env import emit_env
from cputune.emitters.interface import (
    MPI_DIALECTS,
    Cluster,
    EmittedFile,
    Format,
    Job,
    SecretKey,
    Toleration,
)
from cputune.emitters.job import make_job
from cputune.emitters.mpirun import emit_mpirun
from cputune.emitters.pytorchjob import emit_pytorchjob
from cputune.emitters.slurm import emit_slurm
from cputune.emitters.torchrun import emit_torchrun
from cputune.emitters.trainjob import emit_trainjob
from cputune.errors import UsageError
from cputune.facts import HostFacts, Network
from cputune.nodes.named import Node, parse_hostfile, parse_hosts
from cputune.result import Result
from cputune.workload import Workload

__all__ = [
    "FORMATS",
    "MPI_DIALECTS",
    "PRINTED_FORMATS",
    "Cluster",
    "EmittedFile",
    "Job",
    "Node",
    "SecretKey",
    "Toleration",
    "emit",
    "make_job",
    "parse_hostfile",
    "parse_hosts",
]

FORMATS: dict[str, Format] = {
    "mpirun": emit_mpirun,
    "accelerate": emit_accelerate,
    "torchrun": emit_torchrun,
    "pytorchjob": emit_pytorchjob,
    "trainjob": emit_trainjob,
    "slurm": emit_slurm,
}


PRINTED_FORMATS: dict[str, Format] = {"env": emit_env}
"""Formats that are read from the output, and are no files to launch: not part of ``all``."""


def emit(
    result: Result | None,
    format: str,
    *,
    facts: HostFacts | None = None,
    workload: Workload | None = None,
    nodes: int | None = None,
    hosts: tuple[Node, ...] = (),
    mpi: str | None = None,
    python: str | None = None,
    versions: Mapping[str, str] | None = None,
    cluster: Cluster | None = None,
    networks: Mapping[str, Network] | None = None,
    carrier: bool = True,
) -> tuple[EmittedFile, ...]:
    """The files of one format; the first is the one to start or submit.

    Args:
        result: what was tuned; None for the guide's plan on ``facts``.
        format: a name in ``FORMATS`` or ``PRINTED_FORMATS``, or "all".
        facts: the machine: needed without a result, and tells which ``mpirun`` there is.
        workload: what to launch, where it is not what was tuned.
        nodes: machines to run on; by default as many as ``hosts``, else the plan's.
        hosts: their names and slots, from ``parse_hostfile`` or ``parse_hosts``.
        mpi: the dialect of ``mpirun``; by default the one of ``facts``, else the script
            finds out when it runs.
        python: path of the interpreter that trains; the scripts take it where it exists
            and PYTHON names no other. By default ``python3``.
        versions: distribution versions where the job runs, over those of the result.
        cluster: what only the user knows: names, images, volumes, queues.
        networks: of the hosts by name, as ``doctor --hosts`` saw them: the interface between
            them is chosen by these, where ``cluster`` names none.
        carrier: whether ``carry.py`` may run a script that takes no flags of a plan; without
            it, what no flag carries is refused.

    Raises:
        UsageError: for what cannot be written down as asked.
    """
    formats = {**FORMATS, **PRINTED_FORMATS}
    if format != "all" and format not in formats:
        raise UsageError(
            f"no format is called {format!r}", hint="formats: " + ", ".join((*formats, "all"))
        )
    job = make_job(
        result,
        facts=facts,
        workload=workload,
        nodes=nodes,
        hosts=hosts,
        mpi=mpi,
        python=python,
        versions=versions,
        cluster=cluster,
        networks=networks,
        carrier=carrier,
    )
    names = tuple(FORMATS) if format == "all" else (format,)
    notes = (*job.aloud, *(() if format in PRINTED_FORMATS else job.notes))
    files: dict[str, EmittedFile] = {}
    for name in names:
        main, *others = formats[name](job)
        for file in (replace(main, notes=(*notes, *main.notes)), *others):
            files.setdefault(file.name, file)
    for file in job.companions if format not in PRINTED_FORMATS else ():
        files.setdefault(file.name, file)
    return tuple(files.values())
