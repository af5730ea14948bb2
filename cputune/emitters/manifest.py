"""What decides in a job's document what its pods train, and how fast.

``emit`` writes it into the promise; ``verify`` reads it again from the document, which you or
kustomize may have changed. Names, namespace, labels, queue and nodes may change.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from cputune.text.documents import at

# The annotation with the promise: kustomize drops comments.
PLAN = "cputune-plan"

RANKS = "processes of a pod"
PODS = "pods"
NOTHING = "none"
_GIVEN = ("cpu", "memory")


def decided(job: Any) -> dict[str, str]:
    """What decides in a PyTorchJob or a TrainJob, as text by name."""
    facts = {"apiVersion": _as_text(at(job, "apiVersion")), "kind": _as_text(at(job, "kind"))}
    of_kind = _of_trainjob if facts["kind"] == "TrainJob" else _of_pytorchjob
    return facts | {name: _as_text(value) for name, value in of_kind(job)}


def _of_pytorchjob(job: Any) -> Iterator[tuple[str, Any]]:
    spec = at(job, "spec")
    replicas = _mapping(at(spec, "pytorchReplicaSpecs"))
    yield RANKS, at(spec, "nprocPerNode")
    yield "elastic policy", at(spec, "elasticPolicy")
    yield "tries again", at(spec, "runPolicy", "backoffLimit")
    pods = 0
    for replica in replicas.values():
        number = at(replica, "replicas")
        if number is None:
            pods += 1  # the operator's default
        elif isinstance(number, int):
            pods += number
    yield PODS, pods
    for role, replica in replicas.items():
        yield f"{role}: replicas", at(replica, "replicas")
        yield f"{role}: restartPolicy", at(replica, "restartPolicy")
        pod = at(replica, "template", "spec")
        containers = _items(at(pod, "containers")) or [None]
        # The operator trains in the container of this name; without one it refuses the job.
        trains = (one for one in containers if at(one, "name") == "pytorch")
        container = next(trains, containers[0])
        for name, value in _of_container(container, at(container, "resources")):
            yield f"{role}: {name}", value
        for path, kinds in _mounts(pod, container):
            yield f"{role}: {path}", kinds


def _of_trainjob(job: Any) -> Iterator[tuple[str, Any]]:
    trainer = at(job, "spec", "trainer")
    yield RANKS, at(trainer, "numProcPerNode")
    yield PODS, at(trainer, "numNodes")
    yield "runtime", at(job, "spec", "runtimeRef", "name")
    yield "kind of the runtime", at(job, "spec", "runtimeRef", "kind")
    yield from _of_container(trainer, at(trainer, "resourcesPerNode"))
    for patch in _items(at(job, "spec", "runtimePatches")):
        template = at(patch, "trainingRuntimeSpec", "template", "spec")
        for replicated in _items(at(template, "replicatedJobs")):
            pod = at(replicated, "template", "spec", "template", "spec")
            for container in _items(at(pod, "containers")):
                yield from _mounts(pod, container)
                for variable in _items(at(container, "env")):
                    yield f"patched {at(variable, 'name')}", _value(variable)


def _of_container(container: Any, resources: Any) -> Iterator[tuple[str, Any]]:
    yield "image", at(container, "image")
    for key in ("command", "args"):
        yield key, shlex.join(map(str, _items(at(container, key))))
    yield "workingDir", at(container, "workingDir")
    for variable in _items(at(container, "env")):
        yield str(at(variable, "name")), _value(variable)
    for kind in ("requests", "limits"):
        for what in _GIVEN:
            yield f"{kind}.{what}", at(resources, kind, what)


def _value(variable: Any) -> Any:
    """The value of a variable, or its source (``valueFrom``)."""
    value = at(variable, "value")
    return at(variable, "valueFrom") if value is None else value


def _mounts(pod: Any, container: Any) -> Iterator[tuple[str, Any]]:
    """What is mounted where; the name of a claim may change."""
    volumes = {str(at(volume, "name")): volume for volume in _items(at(pod, "volumes"))}
    for mount in _items(at(container, "volumeMounts")):
        volume = _mapping(volumes.get(str(at(mount, "name"))))
        kinds = [kind for kind in volume if kind != "name"]
        held = at(volume, "emptyDir") if kinds == ["emptyDir"] else ", ".join(kinds)
        yield str(at(mount, "mountPath")), held


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_text(value: Any) -> str:
    if value in (None, "", {}, []):
        return NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(value[name])}" for name in sorted(value))
    return str(value)
