"""Judging PyTorchJob and TrainJob documents of Kubeflow: what stops or slows a training on CPUs.

What the operator and ``kubectl apply`` refuse in plain words (names, types, counts) is left to
them. The command of a pod is judged as any launch is, on a machine of which nothing is known but
the CPUs that it may use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from cputune.doctor.checks.limits import ranks_auto
from cputune.doctor.files.judge import Context, judge_launches
from cputune.doctor.files.shell import read_launches, shell_line
from cputune.doctor.files.yaml_lines import Document, Path
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.facts import Core, HostFacts, Network, Topology
from cputune.host import Host
from cputune.training_command import TrainingCommand, number_of

KINDS = ("PyTorchJob", "TrainJob")


@fault("file-k8s-field", Severity.ERROR)
def job_field() -> None:
    """The operator takes this job, and starts it wrongly

    Symptom: the pods wait for a master that never comes.

    Cause: a PyTorchJob of workers alone has no MASTER_ADDR, unless it is elastic.

    Remedy: Make one replica the Master.

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
    """What the operator does wrongly with a job: fault, place and words."""
    place = _RANKS[str(document.get("kind"))]
    if _ranks(document) is None:
        ranks = document.get(*place)
        shown = "is missing, which means auto" if ranks is None else f"is {ranks!r}"
        yield ranks_auto, place, f"{place[-1]} {shown}: one rank for each CPU of the host"
    of_workers = document.get("kind") == "PyTorchJob" and not document.get(*_REPLICAS, "Master")
    if of_workers and not document.mapping("spec", "elasticPolicy"):
        text = "pytorchReplicaSpecs without Master: nobody sets MASTER_ADDR"
        yield job_field, _REPLICAS, text
    least: Path = ("spec", "elasticPolicy", "minReplicas")
    fewest, workers = document.get(*least), document.get(*_REPLICAS, "Worker", "replicas")
    if isinstance(fewest, int) and isinstance(workers, int) and fewest < workers:
        yield job_elastic, least, f"minReplicas: {fewest}, and {workers} workers are asked for"
    for _, resources in _containers(document):
        limits = document.mapping(*resources, "limits")
        requests = document.mapping(*resources, "requests") or limits
        for what in ("cpu", "memory"):
            limit, request = limits.get(what), requests.get(what)
            if limit is None:
                yield pod_resources, resources, f"resources.limits.{what} is missing"
            elif str(limit) != str(request):
                text = f"{what}: requests {request}, limits {limit}"
                yield pod_resources, (*resources, "limits", what), text
        if _cpus_of(limits.get("cpu")) % 1:
            text = f"cpu: {limits.get('cpu')} is no whole number of CPUs"
            yield pod_resources, (*resources, "limits", "cpu"), text


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


def judge_kubernetes(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one PyTorchJob or TrainJob."""
    for found, path, text in job_faults(document):
        yield found.finding(context.at(document.line(*path), text))
    for at, resources in _containers(document):
        variables, lines = dict[str, str](), dict[str, int | None]()
        for number in range(len(document.items(*at, "env"))):
            name, value = (document.get(*at, "env", number, key) for key in ("name", "value"))
            if value is not None and name not in _OF_CPUS:
                variables[str(name)] = str(value)
                lines[str(name)] = document.line(*at, "env", number)
        cpus = _cpus_of(document.get(*resources, "limits", "cpu"))
        pod = replace(context, facts=_pod(context.facts, cpus), host=Host(), lines=lines)
        yield from judge_launches(_launches(document, at, variables), pod)
        if document.get("kind") == "PyTorchJob" and not _shares_memory(document, at):
            text = "no emptyDir of medium Memory is mounted at /dev/shm"
            yield pod_shm.finding(context.at(document.line(*at), text))


_OF_CPUS = ("CCL_WORKER_AFFINITY", "I_MPI_PIN_DOMAIN")
"""Variables that name CPUs: which ones a pod has only running shows."""


def _ranks(document: Document) -> int | None:
    """Ranks of a pod; None where that is left to the operator."""
    return number_of(str(document.get(*_RANKS[str(document.get("kind"))])))


def _pod(facts: HostFacts, cpus: float) -> HostFacts:
    """A machine with so many CPUs and these packages, of which nothing else is known."""
    numbers = tuple(range(math.ceil(cpus)))
    return replace(
        facts,
        cpu=replace(facts.cpu, isa=(), architecture=None),
        topology=Topology(
            cores=tuple(Core(cpus=(number,), socket=0, numa_node=None) for number in numbers),
            online=numbers,
            present=None,
            allowed=numbers,
            numa_nodes=(),
        ),
        limits=replace(facts.limits, cpu_quota=None, cpuset=None),
        libraries=(),
        launchers=(),
        environment={},
        network=Network(),
    )


def _launches(document: Document, at: Path, variables: dict[str, str]) -> Iterator[TrainingCommand]:
    """What the container starts, with the ranks and the variables that the operator gives it.

    Where its command shows no training, torchrun with a script that is not known.
    """
    words = [str(word) for key in ("command", "args") for word in document.items(*at, key)]
    try:
        found = read_launches(shell_line(words), "")
    except UsageError:
        found = ()
    unseen = TrainingCommand(
        launcher="torchrun",
        options=(),
        script="",
        arguments=(),
        words=(),
        environment={"ACCELERATE_USE_CPU": "true"},  # its script may ask for it
    )
    workers = number_of(str(document.get(*_REPLICAS, "Worker", "replicas"))) or 0
    nodes = number_of(str(document.get("spec", "trainer", "numNodes"))) or 1 + workers
    told = {"MASTER_ADDR": "the job's", "PET_MASTER_ADDR": "the job's"}
    told |= {"RANK": "0", "WORLD_SIZE": str(nodes)} if nodes > 1 else {}
    sizes = (f"--nproc_per_node={_ranks(document) or 1}", f"--nnodes={nodes}")
    for launch in found or (unseen,):
        yield replace(
            launch,
            options=(*sizes, *launch.options) if launch.launcher == "torchrun" else launch.options,
            environment={**told, **variables, **launch.environment},
            line=document.line(*at, "command") or document.line(*at, "args") or 0,
        )


def _shares_memory(document: Document, container: Path) -> bool:
    """Whether memory is mounted at /dev/shm."""
    volumes = [Document(value=one) for one in document.items(*container[:-2], "volumes")]
    memory = [one.get("name") for one in volumes if one.get("emptyDir", "medium") == "Memory"]
    mounts = [Document(value=one) for one in document.items(*container, "volumeMounts")]
    return any(m.get("mountPath") == "/dev/shm" and m.get("name") in memory for m in mounts)


def _cpus_of(quantity: object) -> float:
    """CPUs of a Kubernetes quantity: ``4``, ``"500m"``; 0 where it is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)", str(quantity).strip())
    return float(match[1]) / (1000 if match[2] else 1) if match else 0


CHECKS = checks_of(__name__)
