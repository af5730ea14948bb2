"""Write a plan as the files that launch it. Text only: nothing is touched.

``cputune.emit(result, "mpirun", nodes=2, hosts=parse_hosts("a,b"))``. One module per format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cputune.emitters.accelerate import ACCELERATE
from cputune.emitters.command import PLAN_FILE, judged, standing_alone
from cputune.emitters.format import Emission, EmittedFile, Format, LaunchJob
from cputune.emitters.hand import COMMAND, without_code
from cputune.emitters.kubernetes import PYTORCHJOB, TRAINJOB, kustomization
from cputune.emitters.mpirun import MPIRUN
from cputune.emitters.planfile import plan_file
from cputune.emitters.prepared import make_job, plan_job
from cputune.emitters.slurm import SLURM
from cputune.emitters.torchrun import TORCHRUN
from cputune.emitters.tuning_jobs import SLURM_TUNE
from cputune.errors import UsageError
from cputune.host.remote.named import Node, parse_hostfile, parse_hosts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.ladder import keeping
from cputune.records.options import Cluster, SecretKey, keywords_of
from cputune.records.result import Result

__all__ = [
    "FORMATS",
    "PRINTED_FORMATS",
    "Cluster",
    "Emission",
    "EmittedFile",
    "Format",
    "Node",
    "SecretKey",
    "emit",
    "parse_hostfile",
    "parse_hosts",
    "render",
]

_ALL = (MPIRUN, ACCELERATE, TORCHRUN, PYTORCHJOB, TRAINJOB, SLURM, COMMAND)

FORMATS: Mapping[str, Format] = {written.name: written for written in _ALL if not written.printed}
# Formats that are only printed: not part of ``all``.
PRINTED_FORMATS: Mapping[str, Format] = {
    written.name: written for written in _ALL if written.printed
}


@keywords_of(Emission)
def emit(result: Result | None, format: str, options: Emission) -> tuple[EmittedFile, ...]:
    """The files of one format; the first is the one to start or submit.

    ``result`` is what was tuned; None for the guide's plan on ``facts``. ``format`` is a name in
    ``FORMATS`` or ``PRINTED_FORMATS``, or "all". The keywords are the options of
    ``cputune.EmitOptions``, and ``facts``, ``workload``, ``hosts`` and ``python``.

    Raises UsageError for a combination that cannot be written, and for what the doctor would reject
    (``doctor --check-file``) on the machine of the job.
    """
    formats = _named(format)
    if result is not None:
        result = keeping(result, options.keep)
    job = make_job(result, options)
    kind = None if options.patch is None else options.patch.get("kind")
    if kind is not None and str(kind).lower() not in [chosen.name for chosen in formats]:
        raise UsageError(
            f"the patch is for a {kind}, but this format writes none",
            hint="--format pytorchjob, or trainjob, or leave kind and apiVersion out",
        )
    if job.site.cluster.tune:
        if formats != (SLURM,):
            raise UsageError(
                f"--tune is for Slurm, not for {format}",
                hint="--format slurm --tune; on Kubernetes run cputune tune in a pod",
            )
        formats = (SLURM_TUNE,)
    files = _written(job, formats)
    # Scripts name plan.json; the document of a job has an annotation instead.
    if any(chosen.main.endswith(".sh") and not chosen.printed for chosen in formats):
        files = (*files, EmittedFile(name=PLAN_FILE, text=plan_file(job, files)))
    return judged(job, files)


def render(
    plan: Plan, workload: Workload, format: str, options: Emission
) -> tuple[EmittedFile, ...]:
    """The files of a plan that was not measured yet, as a trial starts it. Raises UsageError."""
    return _written(plan_job(plan, workload, options), _named(format))


def _named(format: str) -> tuple[Format, ...]:
    if format == "all":
        return tuple(FORMATS.values())
    formats = {**FORMATS, **PRINTED_FORMATS}
    if format not in formats:
        raise UsageError(
            f"no format is called {format!r}", hint="formats: " + ", ".join((*formats, "all"))
        )
    return (formats[format],)


def _written(job: LaunchJob, formats: tuple[Format, ...]) -> tuple[EmittedFile, ...]:
    files: dict[str, EmittedFile] = {}
    for chosen in formats:
        written = standing_alone(job) if chosen.elsewhere else job
        if chosen.alone and job.plan.world_size == 1:
            written = without_code(written)
        main, *others = chosen.write(written)
        notes = job.speed.printed_notes
        if not chosen.printed:
            notes += written.notes
            others += written.companions
        files.setdefault(main.name, replace(main, notes=notes + main.notes))
        for file in others:
            files.setdefault(file.name, file)
    jobs = [chosen.name for chosen in formats if chosen in (PYTORCHJOB, TRAINJOB)]
    if len(jobs) > 1:  # one folder starts one job
        files["kustomization.yaml"] = kustomization(jobs[0], jobs[1:])
    return tuple(files.values())
