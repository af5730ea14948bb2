"""Job, MPIJob, Pod and compose files: the launch of each container, judged on its CPUs.

PyTorchJob and TrainJob, whose ranks an operator starts, are in ``kubeflow``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cputune.doctor.files import kubeflow
from cputune.doctor.files.context import Context
from cputune.doctor.files.ended import judge_sourced
from cputune.doctor.files.judge import judge_launches
from cputune.doctor.files.kubeflow import OF_CPUS, facts_of_pod, resource_faults
from cputune.doctor.files.quota import LimitedContainer, judge_quota, names_of
from cputune.doctor.files.yaml_spans import Document, Path
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.host import Host
from cputune.launch.launch import Launch
from cputune.launch.located_words import number_of
from cputune.launch.shell import read_words
from cputune.launch.target import Target
from cputune.text.quantities import cpus_of

_TEMPLATES: dict[str, Path] = {
    "Pod": ("spec",),
    "Job": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
_MPI: Path = ("spec", "mpiReplicaSpecs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Container:
    """One container: its path, its words, its variables, and what it may use."""

    at: Path
    words: list[str]
    resources: Path | None
    cpus: float
    nodes: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int | None] = field(default_factory=dict)


def is_workload(document: Document) -> bool:
    """Whether a document starts containers in a way that is read here."""
    kind = document.get("kind")
    if kind is None:
        services = document.mapping("services").values()
        return any(isinstance(one, dict) for one in services)
    return kind in _TEMPLATES or kind == "MPIJob" or any(_listed_in(document))


def judge_workload(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of the launches in the containers of a document."""
    yield from judge_sourced(context)
    for container in _containers(document):
        launches = list(_launches(container, document))
        if not launches:
            continue
        for check, path, text in _resources(document, container):
            yield check.finding(context.at(document.line(*path), text))
        target = Target(
            kind="pod",
            source="resources",
            nodes=container.nodes,
            cpus_per_node=math.ceil(container.cpus) or None,
        )
        facts = facts_of_pod(document, container.resources, context, container.cpus)
        inside = replace(context, facts=facts, host=Host(), target=target, lines=container.lines)
        yield from judge_launches(launches, inside)
        limited = _limited(document, container)
        yield from judge_quota(launches, limited, document, context)
        if document.get("kind") is None:
            yield from _shared_memory(launches, container, document, context)


def launches_of(document: Document) -> Iterator[Launch]:
    """The launches in its containers."""
    for container in _containers(document):
        yield from _launches(container, document)


def _limited(document: Document, container: _Container) -> LimitedContainer:
    values = document.mapping(*container.at)
    if document.get("kind") is not None:
        return LimitedContainer(
            at=container.at,
            cpus=container.cpus,
            limit="limits.cpu",
            key="env",
            named=names_of(values, "env", "envFrom"),
        )
    cpus = container.cpus
    if "cpuset" in values:
        cpus = 0.0
    return LimitedContainer(
        at=container.at,
        cpus=cpus,
        limit="a limit of cpus",
        key="environment",
        named=names_of(values, "environment", "env_file"),
    )


def _resources(document: Document, container: _Container) -> Iterator[tuple[Check, Path, str]]:
    if document.get("kind") is not None:
        yield from kubeflow.lost_args(document, container.at)
    if container.resources is not None:
        yield from resource_faults(document, container.resources)


def _launches(container: _Container, document: Document) -> Iterator[Launch]:
    line = document.line(*container.at, "command") or document.line(*container.at, "args")
    for launch in read_words(container.words):
        variables = {**container.variables, **launch.environment}
        if container.nodes > 1 and launch.launcher == "mpirun":
            variables = {"SLURM_NNODES": str(container.nodes), **variables}
        yield replace(launch, environment=variables, line=line or 0)


def _containers(document: Document) -> Iterator[_Container]:
    kind = document.get("kind")
    if kind is None:
        yield from _services(document)
    elif kind == "MPIJob" and document.mapping(*_MPI):
        yield from _of_mpi(document)
    else:
        for listed in _listed_in(document):
            yield from _of_pod(document, listed)


def _listed_in(document: Document) -> Iterator[Path]:
    """The lists of containers of a job, also of one whose kind is not known (Volcano, JobSet)."""
    kind = str(document.get("kind"))
    known = (*_TEMPLATES.get(kind, ()), "containers")
    if document.items(*known):
        yield known
        return
    if kind in kubeflow.RANKS:
        return
    for path in document.lines:
        if path[-1:] == ("containers",) and document.items(*path):
            yield path


def _of_pod(document: Document, listed: Path) -> Iterator[_Container]:
    for number in range(len(document.items(*listed))):
        at = (*listed, number)
        cpus = cpus_of(document.get(*at, "resources", "limits", "cpu"))
        container = _container(document, at, (*at, "resources"), cpus, 1)
        if any(map(_starts_elsewhere, read_words(container.words))):
            container = replace(container, resources=None, cpus=0.0)
        yield container


def _starts_elsewhere(launch: Launch) -> bool:
    """Whether the ranks of an mpirun run in other pods than itself."""
    return launch.launcher == "mpirun" and launch.meant("hosts", "host file") is not None


def _of_mpi(document: Document) -> Iterator[_Container]:
    """The mpirun of the launcher, which starts ranks on the CPUs of the workers."""
    workers: Path = (*_MPI, "Worker", "template", "spec", "containers", 0, "resources")
    count = number_of(str(document.get(*_MPI, "Worker", "replicas"))) or 1
    cpus = cpus_of(document.get(*workers, "limits", "cpu"))
    listed: Path = (*_MPI, "Launcher", "template", "spec", "containers")
    for number in range(len(document.items(*listed))):
        yield _container(document, (*listed, number), workers, cpus, count)


def _container(
    document: Document, at: Path, resources: Path, cpus: float, nodes: int
) -> _Container:
    variables, lines = dict[str, str](), dict[str, int | None]()
    for number in range(len(document.items(*at, "env"))):
        name = document.get(*at, "env", number, "name")
        value = document.get(*at, "env", number, "value")
        if value is not None and name not in OF_CPUS:
            variables[str(name)] = str(value)
            lines[str(name)] = document.line(*at, "env", number)
    return _Container(
        at=at,
        words=[*document.command(*at, "command"), *document.command(*at, "args")],
        resources=resources,
        cpus=cpus,
        nodes=nodes,
        variables=variables,
        lines=lines,
    )


# --- compose ----------------------------------------------------------------------------


def _services(document: Document) -> Iterator[_Container]:
    for name in document.mapping("services"):
        at: Path = ("services", str(name))
        command = list[str]()
        for key in ("entrypoint", "command"):
            listed = document.command(*at, key)
            text = document.get(*at, key)
            if listed:
                command += listed
            elif isinstance(text, str):
                command += ["sh", "-c", document.words.get((*at, key), text)]
        variables = dict[str, str]()
        for item, value in document.mapping(*at, "environment").items():
            if value is not None:
                variables[str(item)] = str(value)
        for pair in document.items(*at, "environment"):
            item, equals, value = str(pair).partition("=")
            if equals:
                variables[item] = value
        yield _Container(
            at=at,
            words=command,
            resources=None,
            cpus=_service_cpus(document, at),
            variables=variables,
            lines={name: document.line(*at, "environment", name) for name in variables},
        )


def _service_cpus(document: Document, at: Path) -> float:
    """CPUs of a service; 0 if it may use all of its machine."""
    limit = document.get(*at, "deploy", "resources", "limits", "cpus")
    if limit is None:
        limit = document.get(*at, "cpus")
    if limit is not None:
        return cpus_of(limit)
    return 0.0


@fault("file-compose-shm", Severity.WARNING)
def compose_shm() -> None:
    """The service has the 64 MiB /dev/shm of Docker

    Symptom: "Bus error" in a DataLoader worker.

    Cause: loader workers pass batches through /dev/shm; Docker's default is 64 MiB.

    Remedy: Write shm_size: 2gb, or ipc: host.

    Source: pytorch/pytorch#16979, https://docs.docker.com/reference/compose-file/services/#shm_size
    """


def _shared_memory(
    launches: list[Launch], container: _Container, document: Document, context: Context
) -> Iterator[Finding]:
    workers = [launch.number("--dataloader_num_workers") for launch in launches]
    is_set = any(document.get(*container.at, key) is not None for key in ("shm_size", "ipc"))
    if max(workers, default=0) > 0 and not is_set:
        text = f"{container.at[-1]}: {max(workers)} loader workers, and no shm_size"
        yield compose_shm.finding(context.at(document.line(*container.at), text))


CHECKS = checks_of(__name__)
