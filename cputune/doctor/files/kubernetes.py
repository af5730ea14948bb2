"""Judging PyTorchJob and TrainJob documents of Kubeflow: what stops or slows a training on CPUs.

What ``kubectl apply`` refuses in plain words (names, versions, counts) is left to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from cputune.doctor.files.accelerate import oversubscribed
from cputune.doctor.files.command import (
    judge_launch,
    judge_pod_variables,
    ranks_left_open,
    threads_unset,
)
from cputune.doctor.files.context import Context
from cputune.doctor.files.shell import read_launches, shell_line
from cputune.doctor.files.yaml_lines import Document, Path
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.training_command import number_of

KINDS = ("PyTorchJob", "TrainJob")


@fault("file-k8s-field", Severity.ERROR)
def job_field() -> None:
    """The operator refuses this job, or starts it wrongly

    Symptom: admission fails, or the pods wait for a master that never comes.

    Cause: nprocPerNode of a PyTorchJob is a string ("2"), numProcPerNode of a TrainJob a
    number. Values of env are strings. The container is called pytorch, and a job of workers
    alone has no MASTER_ADDR.

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


_REPLICAS: Path = ("spec", "pytorchReplicaSpecs")
_RANKS: dict[str, Path] = {
    "PyTorchJob": ("spec", "nprocPerNode"),
    "TrainJob": ("spec", "trainer", "numProcPerNode"),
}
Fault: TypeAlias = "tuple[Check, Path, str]"


def job_faults(document: Document) -> Iterator[Fault]:
    """What the operator refuses of a job, or does wrongly with it: fault, place and words."""
    kind = str(document.get("kind"))
    place = _RANKS[kind]
    ranks = document.get(*place)
    if _ranks(document) is None:
        shown = "is missing, which means auto" if ranks is None else f"is {ranks!r}"
        yield ranks_left_open, place, f"{place[-1]} {shown}: one rank for each CPU of the host"
    elif kind == "PyTorchJob" and not isinstance(ranks, str):
        text = f'nprocPerNode: {ranks} is a number; write nprocPerNode: "{ranks}"'
        yield job_field, place, text
    elif kind == "TrainJob" and isinstance(ranks, str):
        text = f'numProcPerNode: "{ranks}" is a string; write numProcPerNode: {ranks}'
        yield job_field, place, text
    if kind == "PyTorchJob":
        yield from _replica_faults(document)
    for at, resources in _containers(document):
        for number, entry in enumerate(document.items(*at, "env")):
            name, value = (Document(value=entry).get(key) for key in ("name", "value"))
            if value is not None and not isinstance(value, str):
                text = f'env {name}: {value!r} is no string; write "{value}"'
                yield job_field, (*at, "env", number, "value"), text
            if kind == "TrainJob" and str(name).startswith("PET_"):
                text = f"{name}: names that begin with PET_ belong to the trainer"
                yield job_field, (*at, "env", number), text
        yield from _resource_faults(document, resources)


def _replica_faults(document: Document) -> Iterator[Fault]:
    specs = document.mapping(*_REPLICAS)
    if "Master" not in specs and not document.mapping("spec", "elasticPolicy"):
        yield job_field, _REPLICAS, "pytorchReplicaSpecs without Master: nobody sets MASTER_ADDR"
    least: Path = ("spec", "elasticPolicy", "minReplicas")
    fewest, workers = document.get(*least), document.get(*_REPLICAS, "Worker", "replicas")
    if isinstance(fewest, int) and isinstance(workers, int) and fewest < workers:
        yield job_elastic, least, f"minReplicas: {fewest}, and {workers} workers are asked for"
    for role in specs:
        containers: Path = (*_REPLICAS, role, "template", "spec", "containers")
        names = [Document(value=one).get("name") for one in document.items(*containers)]
        if "pytorch" not in names:
            text = f"no container is called pytorch (found: {', '.join(map(str, names)) or 'none'})"
            yield job_field, containers, text


def _containers(document: Document) -> Iterator[tuple[Path, Path]]:
    """Where the containers that train stand, and where their resources."""
    if document.get("kind") == "TrainJob":
        yield ("spec", "trainer"), ("spec", "trainer", "resourcesPerNode")
        return
    for role in document.mapping(*_REPLICAS):
        listed: Path = (*_REPLICAS, role, "template", "spec", "containers")
        containers = document.items(*listed)
        for number in range(len(containers)):
            if len(containers) == 1 or document.get(*listed, number, "name") == "pytorch":
                yield (*listed, number), (*listed, number, "resources")


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
    cpus = _cpus_of(limits.get("cpu"))
    if cpus is not None and cpus != int(cpus):
        text = f"cpu: {limits.get('cpu')} is no whole number of CPUs"
        yield pod_resources, (*at, "limits", "cpu"), text


def judge_kubernetes(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one PyTorchJob or TrainJob."""
    there = replace(context, here=False)
    for fault_found, path, text in job_faults(document):
        yield fault_found.finding(there.at(document.line(*path), text))
    for at, resources in _containers(document):
        entries = (Document(value=entry) for entry in document.items(*at, "env"))
        variables = {
            str(entry.get("name")): str(entry.get("value"))
            for entry in entries
            if entry.get("value") is not None
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
    line, ranks = document.line(*at, "env"), _ranks(document) or 0
    asked = variables.get("OMP_NUM_THREADS")
    if ranks > 1 and not asked:
        text = f"{ranks} ranks in a pod and no OMP_NUM_THREADS: torchrun sets it to 1"
        yield threads_unset.finding(context.at(line, text))
    cpus, threads = _cpus_of(document.get(*resources, "limits", "cpu")), number_of(asked) or 0
    if cpus is not None and ranks * threads > cpus:
        text = f"{ranks} ranks × {threads} threads = {ranks * threads}, limits.cpu is {cpus:g}"
        yield oversubscribed.finding(context.at(line, text))


def _command(
    document: Document, context: Context, at: Path, variables: dict[str, str]
) -> Iterator[Finding]:
    """What the container starts, judged as a training command."""
    words = [str(word) for key in ("command", "args") for word in document.items(*at, key)]
    try:
        launches = read_launches(shell_line(words), context.name)
    except UsageError:
        return
    line = document.line(*at, "command") or document.line(*at, "args")
    workers = document.get(*_REPLICAS, "Worker", "replicas")
    nodes = document.get("spec", "trainer", "numNodes")
    several = _ranks(document) != 1 or bool(workers) or nodes not in (None, 1)
    for launch in launches:
        # Threads are the pod's business, judged above.
        told = {**variables, **launch.environment}
        environment = {**told, "OMP_NUM_THREADS": told.get("OMP_NUM_THREADS") or "1"}
        here = replace(launch, environment=environment, line=line or 0, part=several)
        yield from judge_launch(here, context)


def _shares_memory(document: Document, container: Path) -> bool:
    """Whether memory is mounted at /dev/shm."""
    volumes = [Document(value=one) for one in document.items(*container[:-2], "volumes")]
    memory = [one.get("name") for one in volumes if one.get("emptyDir", "medium") == "Memory"]
    mounts = [Document(value=one) for one in document.items(*container, "volumeMounts")]
    return any(m.get("mountPath") == "/dev/shm" and m.get("name") in memory for m in mounts)


def _cpus_of(quantity: object) -> float | None:
    """CPUs of a Kubernetes quantity: ``4``, ``"500m"``; None where it is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)", str(quantity).strip())
    if match is None:
        return None
    return float(match[1]) / (1000 if match[2] else 1)


CHECKS = checks_of(__name__)
