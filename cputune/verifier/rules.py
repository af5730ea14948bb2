"""What the operators' admission webhooks refuse, and what they take and then do wrong.

Pure functions from a document to complaints; an empty tuple is a document that is let in.
Sources: ``pkg/webhooks/pytorch/pytorchjob_webhook.go`` and ``pkg/webhooks/utils/utils.go``
of kubeflow/training-operator 1.9, ``pkg/runtime/framework/plugins/torch/torch.go`` of
kubeflow/trainer 2; names after ``NameIsDNS1035Label`` of k8s.io/apimachinery.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
RESERVED_BY_TRAINER = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
)

Document = Mapping[str, Any]


def at(document: Any, *path: str | int) -> Any:
    """What lies at a path of keys and indexes, None where there is nothing."""
    for key in path:
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and isinstance(key, int) and key < len(document):
            document = document[key]
        else:
            return None
    return document


def pytorchjob_complaints(job: Document) -> tuple[str, ...]:
    """Why the training operator would not take a PyTorchJob, or would not run what it says."""
    return (*_head(job, "kubeflow.org/v1", "PyTorchJob"), *_pytorchjob(job))


def trainjob_complaints(job: Document) -> tuple[str, ...]:
    """Why Kubeflow Trainer would not take a TrainJob, or would not run what it says."""
    return (*_head(job, "trainer.kubeflow.org/v1alpha1", "TrainJob"), *_trainjob(job))


def resource_complaints(resources: Any, where: str) -> tuple[str, ...]:
    """Why a container with these resources is not of the Guaranteed class with whole CPUs.

    Only such a container gets CPUs of its own from the static CPU manager
    (kubernetes.io, "Control CPU Management Policies on the Node").
    """
    limits, requests = at(resources, "limits"), at(resources, "requests")
    found = []
    if not isinstance(limits, Mapping) or not {"cpu", "memory"} <= set(limits):
        found.append(f"{where}: limits need cpu and memory for the Guaranteed class")
    elif requests is not None and requests != limits:
        found.append(f"{where}: requests are not the limits, so the class is Burstable")
    elif not str(limits["cpu"]).isdigit():
        found.append(f"{where}: {limits['cpu']!r} CPUs are not whole ones")
    return tuple(found)


def environment_complaints(env: Any, where: str) -> tuple[str, ...]:
    """Why a list of variables is none that a Pod takes."""
    if env is None:
        return ()
    if not isinstance(env, list):
        return (f"{where}: env is no list",)
    found, names = [], set()
    for entry in env:
        name, value = at(entry, "name"), at(entry, "value")
        if not isinstance(name, str) or not name:
            found.append(f"{where}: a variable without a name")
        elif name in names:
            found.append(f"{where}: {name} is set twice")
        elif at(entry, "valueFrom") is None and not isinstance(value, str):
            found.append(f"{where}: the value of {name} is {value!r}, not a string")
        names.add(name)
    return tuple(found)


def _head(document: Document, api_version: str, kind: str) -> Iterator[str]:
    if document.get("apiVersion") != api_version or document.get("kind") != kind:
        yield f"this is no {kind} of {api_version}"
    name = at(document, "metadata", "name")
    if not isinstance(name, str) or len(name) > 63 or not DNS_1035.fullmatch(name):
        yield f"metadata.name {name!r} is no DNS-1035 label"


def _pytorchjob(job: Document) -> Iterator[str]:
    spec = at(job, "spec") or {}
    processes = at(spec, "nprocPerNode")
    if processes is None:
        yield "spec.nprocPerNode is not set: torchrun then starts one process for each CPU"
    elif not isinstance(processes, str) or not processes.isdigit() or int(processes) < 1:
        yield f"spec.nprocPerNode is {processes!r}, not a number in quotes"
    elastic = at(spec, "elasticPolicy")
    if elastic is not None:
        yield "spec.elasticPolicy lets the job train on a part of its nodes"
    if at(spec, "runPolicy") is None:
        yield "spec.runPolicy is missing"
    replicas = at(spec, "pytorchReplicaSpecs")
    if not isinstance(replicas, Mapping) or not replicas:
        yield "spec.pytorchReplicaSpecs is missing"
        return
    if "Master" not in replicas:
        yield "without a Master the operator sets no MASTER_ADDR"
    for role, replica in replicas.items():
        yield from _replica(role, replica)


def _replica(role: str, replica: Any) -> Iterator[str]:
    if role not in ("Master", "Worker"):
        yield f"{role!r} is no replica type of a PyTorchJob"
    count = at(replica, "replicas")
    if role == "Master" and count != 1:
        yield f"Master.replicas must be 1, not {count!r}"
    if role == "Worker" and (not isinstance(count, int) or count < 1):
        yield f"Worker.replicas must be at least 1, not {count!r}"
    if at(replica, "restartPolicy") not in RESTART_POLICIES:
        yield f"{role}.restartPolicy is {at(replica, 'restartPolicy')!r}"
    containers = at(replica, "template", "spec", "containers")
    if not isinstance(containers, list) or not containers:
        yield f"{role} has no containers"
        return
    if "pytorch" not in [at(container, "name") for container in containers]:
        yield f"{role} has no container named pytorch"
    for container in containers:
        where = f"{role}/{at(container, 'name')}"
        if not at(container, "image"):
            yield f"{where} has no image"
        yield from environment_complaints(at(container, "env"), where)
        if at(container, "name") == "pytorch":
            yield from resource_complaints(at(container, "resources"), where)


def _trainjob(job: Document) -> Iterator[str]:
    spec = at(job, "spec") or {}
    reference = at(spec, "runtimeRef") or {}
    if reference.get("apiGroup", "trainer.kubeflow.org") != "trainer.kubeflow.org":
        yield f"spec.runtimeRef.apiGroup is {reference.get('apiGroup')!r}"
    if reference.get("kind") not in ("ClusterTrainingRuntime", "TrainingRuntime"):
        yield f"spec.runtimeRef.kind is {reference.get('kind')!r}"
    if not reference.get("name"):
        yield "spec.runtimeRef.name is missing"
    trainer = at(spec, "trainer")
    if not isinstance(trainer, Mapping):
        yield "spec.trainer is missing"
        return
    for key in ("numNodes", "numProcPerNode"):
        value = trainer.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            default = "one process for each CPU" if key == "numProcPerNode" else "the runtime's"
            yield f"spec.trainer.{key} is {value!r}; without a number it is {default}"
    yield from environment_complaints(trainer.get("env"), "spec.trainer")
    for entry in trainer.get("env") or ():
        if at(entry, "name") in RESERVED_BY_TRAINER:
            yield f"{at(entry, 'name')} is reserved for the operator"
    yield from resource_complaints(trainer.get("resourcesPerNode"), "spec.trainer")
