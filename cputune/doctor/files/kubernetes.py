"""Judging PyTorchJob and TrainJob documents of Kubeflow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.accelerate import oversubscribed
from cputune.doctor.files.command import (
    judge_launch,
    judge_pod_variables,
    ranks_left_open,
    threads_unset,
)
from cputune.doctor.files.context import Context
from cputune.doctor.files.shell import read_launches
from cputune.doctor.files.yaml_lines import Document, Path
from cputune.doctor.finding import Check, Finding, Severity, fault
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


def judge_kubernetes(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one PyTorchJob or TrainJob."""
    there = replace(context, here=False)
    name = document.get("metadata", "name")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        text = f"the name {name!r} is not of the form a-z, 0-9 and -, beginning with a letter"
        yield job_field.finding(there.at(document.line("metadata", "name"), text))
    if document.get("kind") == "PyTorchJob":
        yield from _pytorch_job(document, there)
    else:
        yield from _train_job(document, there)


def _pytorch_job(document: Document, context: Context) -> Iterator[Finding]:
    ranks = document.get("spec", "nprocPerNode")
    line = document.line("spec", "nprocPerNode")
    if isinstance(ranks, int) and not isinstance(ranks, bool):
        text = f'nprocPerNode: {ranks} is a number; write nprocPerNode: "{ranks}"'
        yield job_field.finding(context.at(line, text))
    elif ranks is None or not re.fullmatch(r"[0-9]+", str(ranks)):
        shown = "is missing, which means auto" if ranks is None else f"is {ranks!r}"
        text = f"nprocPerNode {shown}: one rank for each CPU of the host"
        yield ranks_left_open.finding(context.at(line, text))
    specs = document.mapping("spec", "pytorchReplicaSpecs")
    elastic = document.get("spec", "elasticPolicy")
    at = document.line("spec", "pytorchReplicaSpecs")
    if "Master" not in specs and not isinstance(elastic, dict):
        text = "pytorchReplicaSpecs without Master: nobody sets MASTER_ADDR"
        yield job_field.finding(context.at(at, text))
    masters = document.get("spec", "pytorchReplicaSpecs", "Master", "replicas")
    if masters not in (None, 1):
        text = f"Master has {masters} replicas; it is one"
        line = document.line("spec", "pytorchReplicaSpecs", "Master", "replicas")
        yield job_field.finding(context.at(line, text))
    least = document.get("spec", "elasticPolicy", "minReplicas")
    workers = document.get("spec", "pytorchReplicaSpecs", "Worker", "replicas")
    if isinstance(least, int) and isinstance(workers, int) and least < workers:
        text = f"minReplicas: {least}, and {workers} workers are asked for"
        line = document.line("spec", "elasticPolicy", "minReplicas")
        yield job_elastic.finding(context.at(line, text))
    count = int(ranks) if re.fullmatch(r"[0-9]{1,6}", str(ranks)) else None
    for role in specs:
        pod: Path = ("spec", "pytorchReplicaSpecs", role, "template", "spec")
        yield from _pod(document, context, pod, count)


def _train_job(document: Document, context: Context) -> Iterator[Finding]:
    ranks = document.get("spec", "trainer", "numProcPerNode")
    line = document.line("spec", "trainer", "numProcPerNode")
    count = ranks if isinstance(ranks, int) and not isinstance(ranks, bool) else None
    if isinstance(ranks, str) and re.fullmatch(r"[0-9]{1,6}", ranks):
        text = f'numProcPerNode: "{ranks}" is a string; write numProcPerNode: {ranks}'
        yield job_field.finding(context.at(line, text))
        count = int(ranks)
    elif count is None:
        shown = "is missing, which means auto" if ranks is None else f"is {ranks!r}"
        text = f"numProcPerNode {shown}: one rank for each CPU"
        yield ranks_left_open.finding(context.at(line, text))
    if document.get("spec", "runtimeRef", "name") is None:
        line = document.line("spec", "runtimeRef")
        yield job_field.finding(
            context.at(line, "runtimeRef.name is missing, e.g. torch-distributed")
        )
    for number, entry in enumerate(document.items("spec", "trainer", "env")):
        name = str(entry.get("name")) if isinstance(entry, dict) else ""
        if name.startswith("PET_"):
            line = document.line("spec", "trainer", "env", number)
            text = f"{name}: names that begin with PET_ belong to the trainer"
            yield job_field.finding(context.at(line, text))
    yield from _container(
        document, context, ("spec", "trainer"), ("spec", "trainer", "resourcesPerNode"), count
    )


def _pod(document: Document, context: Context, pod: Path, ranks: int | None) -> Iterator[Finding]:
    containers = document.items(*pod, "containers")
    names = [item.get("name") for item in containers if isinstance(item, dict)]
    if "pytorch" not in names:
        text = f"no container is called pytorch (found: {', '.join(map(str, names)) or 'none'})"
        yield job_field.finding(context.at(document.line(*pod, "containers"), text))
    for number, container in enumerate(containers):
        if not isinstance(container, dict) or (
            container.get("name") != "pytorch" and len(names) > 1
        ):
            continue
        at: Path = (*pod, "containers", number)
        yield from _container(document, context, at, (*at, "resources"), ranks)
        if not _shares_memory(document, pod, at):
            text = "no emptyDir of medium Memory is mounted at /dev/shm"
            yield pod_shm.finding(context.at(document.line(*at), text))


def _container(
    document: Document, context: Context, at: Path, resources: Path, ranks: int | None
) -> Iterator[Finding]:
    yield from _resources(document, context, resources)
    variables: dict[str, str] = {}
    for number, entry in enumerate(document.items(*at, "env")):
        value = entry.get("value") if isinstance(entry, dict) else None
        if value is None:
            continue
        if not isinstance(value, str):
            text = f'env {entry.get("name")}: {value!r} is no string; write "{value}"'
            yield job_field.finding(context.at(document.line(*at, "env", number, "value"), text))
        variables[str(entry.get("name"))] = str(value)
    yield from judge_pod_variables(variables, document.line(*at, "env"), context)
    yield from _threads(document, context, at, resources, ranks, variables)
    yield from _command(document, context, at, variables)


def _resources(document: Document, context: Context, at: Path) -> Iterator[Finding]:
    line = document.line(*at)
    limits = document.mapping(*at, "limits")
    requests = document.mapping(*at, "requests") or limits
    for what in ("cpu", "memory"):
        limit, request = limits.get(what), requests.get(what)
        if limit is None:
            text = f"resources.limits.{what} is missing"
            yield pod_resources.finding(context.at(line, text))
        elif str(limit) != str(request):
            text = f"{what}: requests {request}, limits {limit}"
            yield pod_resources.finding(context.at(document.line(*at, "limits", what), text))
    cpus = cpus_of(limits.get("cpu"))
    if cpus is not None and cpus != int(cpus):
        text = f"cpu: {limits.get('cpu')} is no whole number of CPUs"
        yield pod_resources.finding(context.at(document.line(*at, "limits", "cpu"), text))


def _threads(
    document: Document,
    context: Context,
    at: Path,
    resources: Path,
    ranks: int | None,
    variables: dict[str, str],
) -> Iterator[Finding]:
    line = document.line(*at, "env")
    threads = variables.get("OMP_NUM_THREADS", "")
    if ranks is not None and ranks > 1 and not threads:
        text = f"{ranks} ranks in a pod and no OMP_NUM_THREADS: torchrun sets it to 1"
        yield threads_unset.finding(context.at(line, text))
    cpus = cpus_of(document.get(*resources, "limits", "cpu"))
    if ranks is None or cpus is None or not re.fullmatch(r"[0-9]{1,6}", threads):
        return
    if ranks * int(threads) > cpus:
        text = f"{ranks} ranks × {threads} threads = {ranks * int(threads)}, limits.cpu is {cpus:g}"
        yield oversubscribed.finding(context.at(line, text))


def _command(
    document: Document, context: Context, at: Path, variables: dict[str, str]
) -> Iterator[Finding]:
    """What the container starts, judged as a training command."""
    words = [str(w) for key in ("command", "args") for w in document.items(*at, key)]
    if not words:
        return
    shell = words[0].rpartition("/")[2] in ("sh", "bash") and "-c" in words[1:3]
    text = " ".join(words[words.index("-c") + 1 :]) if shell else shlex.join(words)
    line = document.line(*at, "command") or document.line(*at, "args")
    try:
        launches = read_launches(text, context.name)
    except UsageError:
        return
    for launch in launches:
        environment = {**variables, "OMP_NUM_THREADS": "", **launch.environment}
        # Threads and addresses are the operator's and the pod's business, judged above.
        environment = {"MASTER_ADDR": "operator", **environment}
        environment["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"] or "1"
        placed = replace(
            launch, line=line or launch.line, environment=environment, part=_several(document)
        )
        yield from judge_launch(placed, context)


def _several(document: Document) -> bool:
    """Whether the job has more than one rank, as far as it says."""
    ranks = document.get("spec", "nprocPerNode") or document.get(
        "spec", "trainer", "numProcPerNode"
    )
    workers = document.get("spec", "pytorchReplicaSpecs", "Worker", "replicas")
    nodes = document.get("spec", "trainer", "numNodes")
    many = isinstance(nodes, int) and nodes > 1
    return str(ranks) != "1" or many or (isinstance(workers, int) and workers > 0)


def _shares_memory(document: Document, pod: Path, container: Path) -> bool:
    memory = {
        volume.get("name")
        for volume in document.items(*pod, "volumes")
        if isinstance(volume, dict)
        and isinstance(volume.get("emptyDir"), dict)
        and volume["emptyDir"].get("medium") == "Memory"
    }
    return any(
        isinstance(mount, dict)
        and mount.get("mountPath") == "/dev/shm"
        and mount.get("name") in memory
        for mount in document.items(*container, "volumeMounts")
    )


def cpus_of(quantity: object) -> float | None:
    """CPUs of a Kubernetes quantity: ``4``, ``"500m"``; None where it is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)", str(quantity).strip())
    if match is None or isinstance(quantity, bool):
        return None
    return float(match[1]) / (1000 if match[2] else 1)


CHECKS: tuple[Check, ...] = (job_field, pod_resources, pod_shm, job_elastic)
