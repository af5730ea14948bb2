"""Judging PyTorchJob and TrainJob documents of Kubeflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from cputune.doctor.files.accelerate import oversubscribed
from cputune.doctor.files.command import (
    judge_launch,
    judge_pod_variables,
    ranks_left_open,
    threads_unset,
)
from cputune.doctor.files.context import Context
from cputune.doctor.files.shell import TrainingCommand, number_of, read_launches, shell_line
from cputune.doctor.files.yaml_lines import Document, Path
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.errors import UsageError

KINDS = ("PyTorchJob", "TrainJob")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@fault("file-k8s-field", Severity.ERROR)
def job_field() -> None:
    """The operator refuses this job, or starts it wrongly

    Symptom: admission fails, or the pods wait for a master that never comes.

    Cause: nprocPerNode of a PyTorchJob is a string ("2"), numProcPerNode of a TrainJob a
    number. Values of env are strings. The container is called pytorch, the name begins with
    a letter, there is one Master, and a job of workers alone has no MASTER_ADDR.

    Remedy: Correct the field as the evidence says.

    Source: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
    """


@fault("file-k8s-resources", Severity.WARNING)
def pod_resources() -> None:
    """The pod is not given whole CPUs of its own

    Symptom: the speed of a pod changes from run to run, or it is evicted.

    Cause: only where requests equal limits is a pod of the Guaranteed class, and only with
    whole CPUs does the kubelet's static policy give it CPUs that nobody else uses.

    Remedy: Give cpu and memory as requests equal to limits, cpu as a whole number.

    Source: https://kubernetes.io/docs/tasks/configure-pod-container/quality-service-pod/,
    kubeflow/trainer#2407
    """


@fault("file-k8s-shm", Severity.WARNING)
def pod_shm() -> None:
    """The pod has the 64 MiB /dev/shm of the container runtime

    Symptom: "Bus error" in a DataLoader worker.

    Cause: DataLoader workers and ranks on one machine hand data over through /dev/shm.

    Remedy: Add a volume emptyDir with medium: Memory, mounted at /dev/shm.

    Source: pytorch/pytorch#16979
    """


@fault("file-k8s-elastic", Severity.WARNING)
def job_elastic() -> None:
    """An elastic job may train on fewer pods than it asks for

    Symptom: the job trains, slower, and the global batch is smaller than planned.

    Cause: after 30 seconds the rendezvous goes on with minReplicas pods.

    Remedy: Set minReplicas to the replicas, or leave elasticPolicy out.

    Source: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
    """


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_REPLICAS: Path = ("spec", "pytorchReplicaSpecs")
_RANKS: dict[str, Path] = {
    "PyTorchJob": ("spec", "nprocPerNode"),
    "TrainJob": ("spec", "trainer", "numProcPerNode"),
}
Row: TypeAlias = "tuple[Path, Callable[[Any], object], str]"
"""Of a field: where it stands, whether its value is right, and what is said where it is not."""


def _is_name(name: object) -> bool:
    return name is None or (isinstance(name, str) and _NAME.fullmatch(name) is not None)


def _is_count(count: object) -> bool:
    return count is None or (isinstance(count, int) and count is not True and count >= 1)


_NAMED: Row = (
    ("metadata", "name"), _is_name,
    "the name {0!r} is not of the form a-z, 0-9 and -, beginning with a letter",
)  # fmt: skip
_FIELDS: dict[str, tuple[Row, ...]] = {
    "PyTorchJob": (
        _NAMED,
        (("apiVersion",), lambda version: version in (None, "kubeflow.org/v1"),
         "apiVersion is {0!r}; a PyTorchJob is of kubeflow.org/v1"),
        (_RANKS["PyTorchJob"], lambda ranks: not _whole(ranks),
         'nprocPerNode: {0} is a number; write nprocPerNode: "{0}"'),
        ((*_REPLICAS, "Master", "replicas"), lambda count: count in (None, 1),
         "Master has {0} replicas; it is one"),
        ((*_REPLICAS, "Worker", "replicas"), _is_count,
         "Worker has {0!r} replicas; it is at least one, or not there"),
    ),
    "TrainJob": (
        _NAMED,
        (("apiVersion",), lambda version: version in (None, "trainer.kubeflow.org/v1alpha1"),
         "apiVersion is {0!r}; a TrainJob is of trainer.kubeflow.org/v1alpha1"),
        (_RANKS["TrainJob"], lambda ranks: not str(ranks).isdigit() or _whole(ranks),
         'numProcPerNode: "{0}" is a string; write numProcPerNode: {0}'),
        (("spec", "trainer", "numNodes"), _is_count,
         "numNodes is {0!r}; it is a whole number of at least 1"),
        (("spec", "runtimeRef", "kind"),
         lambda kind: kind in (None, "ClusterTrainingRuntime", "TrainingRuntime"),
         "runtimeRef.kind is {0!r}; it is ClusterTrainingRuntime or TrainingRuntime"),
        (("spec", "runtimeRef", "name"), lambda name: name is not None,
         "runtimeRef.name is missing, e.g. torch-distributed"),
    ),
}  # fmt: skip
"""What the operators' webhooks refuse: kubeflow/training-operator 1.9
``pkg/webhooks/pytorch/pytorchjob_webhook.go``, kubeflow/trainer 2 ``pkg/webhooks``."""

Fault: TypeAlias = "tuple[Check, Path, str]"


def job_faults(document: Document) -> Iterator[Fault]:
    """What the operator refuses of a job, or does wrongly with it: fault, place and words."""
    kind = str(document.get("kind"))
    for path, good, words in _FIELDS[kind]:
        if not good(document.get(*path)):
            yield job_field, path, words.format(document.get(*path))
    ranks = document.get(*_RANKS[kind])
    if _ranks(document) is None:
        shown = "is missing, which means auto" if ranks is None else f"is {ranks!r}"
        text = f"{_RANKS[kind][-1]} {shown}: one rank for each CPU of the host"
        yield ranks_left_open, _RANKS[kind], text
    if kind == "PyTorchJob":
        yield from _replica_faults(document)
    for at, resources in containers_of(document):
        yield from _variable_faults(document, at, reserved=kind == "TrainJob")
        yield from _resource_faults(document, resources)


def _replica_faults(document: Document) -> Iterator[Fault]:
    specs = document.mapping(*_REPLICAS)
    if "Master" not in specs and not document.mapping("spec", "elasticPolicy"):
        yield job_field, _REPLICAS, "pytorchReplicaSpecs without Master: nobody sets MASTER_ADDR"
    least = document.get("spec", "elasticPolicy", "minReplicas")
    workers = document.get(*_REPLICAS, "Worker", "replicas")
    if _whole(least) and _whole(workers) and least < workers:
        text = f"minReplicas: {least}, and {workers} workers are asked for"
        yield job_elastic, ("spec", "elasticPolicy", "minReplicas"), text
    for role in specs:
        if role not in ("Master", "Worker"):
            yield job_field, (*_REPLICAS, role), f"{role!r} is no replica of a PyTorchJob"
        pod: Path = (*_REPLICAS, role, "template", "spec")
        names = [c.get("name") for c in document.items(*pod, "containers") if isinstance(c, dict)]
        if "pytorch" not in names:
            text = f"no container is called pytorch (found: {', '.join(map(str, names)) or 'none'})"
            yield job_field, (*pod, "containers"), text


def containers_of(document: Document) -> Iterator[tuple[Path, Path]]:
    """Where the containers that train stand, and where their resources."""
    if document.get("kind") == "TrainJob":
        yield ("spec", "trainer"), ("spec", "trainer", "resourcesPerNode")
        return
    for role in document.mapping(*_REPLICAS):
        listed: Path = (*_REPLICAS, role, "template", "spec", "containers")
        containers = document.items(*listed)
        for number, container in enumerate(containers):
            if isinstance(container, dict) and (
                container.get("name") == "pytorch" or len(containers) == 1
            ):
                yield (*listed, number), (*listed, number, "resources")


def _variable_faults(document: Document, at: Path, *, reserved: bool) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, entry in enumerate(document.items(*at, "env")):
        name = str(entry.get("name")) if isinstance(entry, dict) else "(no name)"
        value = entry.get("value") if isinstance(entry, dict) else None
        place: Path = (*at, "env", number)
        if name in seen:
            yield job_field, place, f"env {name} is set twice"
        if value is not None and not isinstance(value, str):
            text = f'env {name}: {value!r} is no string; write "{value}"'
            yield job_field, (*place, "value"), text
        if reserved and name.startswith("PET_"):
            yield job_field, place, f"{name}: names that begin with PET_ belong to the trainer"
        seen.add(name)


def _resource_faults(document: Document, at: Path) -> Iterator[Fault]:
    limits = document.mapping(*at, "limits")
    requests = document.mapping(*at, "requests") or limits
    for what in ("cpu", "memory"):
        limit, request = limits.get(what), requests.get(what)
        if limit is None:
            yield pod_resources, at, f"resources.limits.{what} is missing"
        elif str(limit) != str(request):
            text = f"{what}: requests {request}, limits {limit}"
            yield pod_resources, (*at, "limits", what), text
    cpus = cpus_of(limits.get("cpu"))
    if cpus is not None and cpus != int(cpus):
        text = f"cpu: {limits.get('cpu')} is no whole number of CPUs"
        yield pod_resources, (*at, "limits", "cpu"), text


def judge_kubernetes(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one PyTorchJob or TrainJob."""
    there = replace(context, here=False)
    for fault_found, path, text in job_faults(document):
        yield fault_found.finding(there.at(document.line(*path), text))
    for at, resources in containers_of(document):
        variables = {
            str(entry.get("name")): str(entry["value"])
            for entry in document.items(*at, "env")
            if isinstance(entry, dict) and entry.get("value") is not None
        }
        yield from judge_pod_variables(variables, document.line(*at, "env"), there)
        yield from _threads(document, there, at, resources, variables)
        yield from _command(document, there, at, variables)
        if document.get("kind") == "PyTorchJob" and not _shares_memory(document, at):
            text = "no emptyDir of medium Memory is mounted at /dev/shm"
            yield pod_shm.finding(there.at(document.line(*at), text))


def _ranks(document: Document) -> int | None:
    """Ranks of a pod; None where that is left to the operator."""
    return number_of(str(document.get(*_RANKS[str(document.get("kind"))])))


def _threads(
    document: Document,
    context: Context,
    at: Path,
    resources: Path,
    variables: dict[str, str],
) -> Iterator[Finding]:
    line, ranks = document.line(*at, "env"), _ranks(document)
    threads = number_of(variables.get("OMP_NUM_THREADS"))
    if ranks is not None and ranks > 1 and not variables.get("OMP_NUM_THREADS"):
        text = f"{ranks} ranks in a pod and no OMP_NUM_THREADS: torchrun sets it to 1"
        yield threads_unset.finding(context.at(line, text))
    cpus = cpus_of(document.get(*resources, "limits", "cpu"))
    if ranks is not None and cpus is not None and threads and ranks * threads > cpus:
        text = f"{ranks} ranks × {threads} threads = {ranks * threads}, limits.cpu is {cpus:g}"
        yield oversubscribed.finding(context.at(line, text))


def _command(
    document: Document, context: Context, at: Path, variables: dict[str, str]
) -> Iterator[Finding]:
    """What the container starts, judged as a training command."""
    for launch in launches_of(document, at, context.name):
        environment = {**variables, "OMP_NUM_THREADS": "", **launch.environment}
        # Threads and addresses are the operator's and the pod's business, judged above.
        environment = {"MASTER_ADDR": "operator", **environment}
        environment["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"] or "1"
        yield from judge_launch(replace(launch, environment=environment), context)


def launches_of(document: Document, at: Path, name: str) -> tuple[TrainingCommand, ...]:
    """The training commands of one container of a job; none where they cannot be read."""
    words = [str(w) for key in ("command", "args") for w in document.items(*at, key)]
    if not words:
        return ()
    line = document.line(*at, "command") or document.line(*at, "args")
    try:
        launches = read_launches(shell_line(words), name)
    except UsageError:
        return ()
    several = _several(document)
    return tuple(replace(one, line=line or one.line, part=several) for one in launches)


def _several(document: Document) -> bool:
    """Whether the job has more than one rank, as far as it says."""
    workers = document.get("spec", "pytorchReplicaSpecs", "Worker", "replicas")
    nodes = document.get("spec", "trainer", "numNodes")
    many = isinstance(nodes, int) and nodes > 1
    return _ranks(document) != 1 or many or (isinstance(workers, int) and workers > 0)


def _shares_memory(document: Document, container: Path) -> bool:
    """Whether memory is mounted at /dev/shm."""
    memory = {
        volume.get("name")
        for volume in document.items(*container[:-2], "volumes")
        if isinstance(volume, dict) and Document(value=volume).get("emptyDir", "medium") == "Memory"
    }
    mounts = document.items(*container, "volumeMounts")
    return any(
        isinstance(mount, dict)
        and mount.get("mountPath") == "/dev/shm"
        and mount.get("name") in memory
        for mount in mounts
    )


def cpus_of(quantity: object) -> float | None:
    """CPUs of a Kubernetes quantity: ``4``, ``"500m"``; None where it is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)", str(quantity).strip())
    if match is None or isinstance(quantity, bool):
        return None
    return float(match[1]) / (1000 if match[2] else 1)


CHECKS = checks_of(__name__)
