"""What the API server accepts of a job: keys, types, enumerations and limits, by kind.

The definitions (``operators.json``) are the operators' custom resource definitions, and for a Job
the OpenAPI document of Kubernetes; ``tools/operator_schemas.py`` writes them. They have no
enumerations of pods, which the API server checks in code: those are here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

from cputune.text.quantities import quantity_of
from cputune.verifier.records import Evidence

# Fields of ObjectMeta.
_METADATA = frozenset(
    [
        "name", "generateName", "namespace", "labels", "annotations", "finalizers",
        "ownerReferences", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink",
    ]
)  # fmt: skip

# Words that a key of this name may have, anywhere in a job
# (kubernetes/pkg/apis/core/types.go, training-operator/pkg/apis/kubeflow.org/v1/common_types.go).
_ONE_OF: Mapping[str, tuple[str, ...]] = {
    "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    "fsGroupChangePolicy": ("OnRootMismatch", "Always"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
    "cleanPodPolicy": ("All", "Running", "None"),
    "medium": ("", "Memory", "HugePages", "HugePages-2Mi", "HugePages-1Gi"),
    "protocol": ("TCP", "UDP", "SCTP"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "completionMode": ("NonIndexed", "Indexed"),
    "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
}

_NOT_NEGATIVE = frozenset(
    [
        "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished", "replicas",
        "minAvailable", "terminationGracePeriodSeconds", "parallelism", "completions", "numNodes",
        "runAsUser", "runAsGroup", "fsGroup",
    ]
)  # fmt: skip


@cache
def _table() -> Mapping[str, Any]:
    text = resources.files("cputune.verifier").joinpath("operators.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


def versions_of_kind(kind: str) -> tuple[str, ...]:
    """The API versions of a kind that are known here; none of an unknown kind."""
    return tuple(_table()["kinds"].get(kind, ()))


def schema_faults(job: Mapping[str, Any]) -> Iterator[Evidence]:
    """Every value of a job that the API server refuses, or drops because it has no such key."""
    kind, version = str(job.get("kind")), str(job.get("apiVersion"))
    versions = _table()["kinds"].get(kind, {})
    if version not in versions:
        yield Evidence(what="apiVersion", seen=version, expected=" or ".join(versions))
        return
    yield from _faults(job, versions[version], kind)
    metadata = job.get("metadata")
    yield from _metadata_faults(metadata if isinstance(metadata, Mapping) else {}, kind)


def refused_document(text: str, fixed: str) -> str | None:
    """What the API server would refuse of a fixed job, and not of the job before."""
    try:
        before, after = (list(yaml.safe_load_all(one)) for one in (text, fixed))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    earlier = set[Evidence]()
    for job in before:
        earlier.update(_faults_of(job))
    for job in after:
        for row in _faults_of(job):
            if row not in earlier:
                return f"the API server would refuse {row.what}: {row.seen}"
    return None


def _faults_of(job: object) -> Iterator[Evidence]:
    if isinstance(job, Mapping) and versions_of_kind(str(job.get("kind"))):
        yield from schema_faults(job)


def _metadata_faults(metadata: Mapping[str, Any], kind: str) -> Iterator[Evidence]:
    place = f"{kind}.metadata"
    for key in metadata:
        if key not in _METADATA:
            yield Evidence(what=f"{place}.{key}", seen="there is no such key")
    for kept in ("labels", "annotations"):
        values = metadata.get(kept)
        if not isinstance(values, Mapping | None):
            yield Evidence(what=f"{place}.{kept}", seen=repr(values), expected="a mapping")
            continue
        for key, value in (values or {}).items():
            if not isinstance(value, str):
                what = f"{place}.{kept}.{key}"
                yield Evidence(what=what, seen=repr(value), expected="a string, in quotes")


_NAMES = {
    "string": "a string, in quotes",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "quantity": "a quantity: 8, 64Gi",
    "int-or-string": "a number or a name",
}


def _is_a(value: object, type_: str) -> bool:
    match type_:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
        case "quantity":
            return isinstance(value, int | str) and quantity_of(value) is not None
        case _:
            return isinstance(value, int | str) and not isinstance(value, bool)


def _faults(value: object, number: int, place: str) -> Iterator[Evidence]:
    """``number`` is that of the definition. A null value counts as left out."""
    schema = _table()["definitions"][number]
    type_ = schema.get("type")
    if value is None:
        return
    if type_ is not None and not _is_a(value, type_):
        yield Evidence(what=place, seen=repr(value), expected=_NAMES[type_])
        return
    key = place.rpartition(".")[2]
    if isinstance(value, Mapping):
        yield from _of_mapping(value, schema, place)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _faults(item, schema["items"], f"{place}[{index}]")
    else:
        choices = schema.get("enum") or _ONE_OF.get(key, ())
        if choices and isinstance(value, str) and value not in choices:
            yield Evidence(
                what=place, seen=repr(value), expected=" or ".join(filter(None, choices))
            )
    length = None
    if isinstance(value, int | float):
        length = value
    least = schema.get("minimum", 0 if key in _NOT_NEGATIVE else -math.inf)
    if length is not None and not least <= length <= schema.get("maximum", math.inf):
        yield Evidence(what=place, seen=repr(value), expected=f"{least} or more")


def _of_mapping(
    value: Mapping[str, Any], schema: Mapping[str, Any], place: str
) -> Iterator[Evidence]:
    for needed in schema.get("required", ()):
        if value.get(needed) is None:
            yield Evidence(what=f"{place}.{needed}", seen="missing", expected="a value")
    properties = schema.get("properties")
    for key, inner in value.items():
        if properties is not None and key in properties:
            yield from _faults(inner, properties[key], f"{place}.{key}")
        elif "additionalProperties" in schema:
            yield from _faults(inner, schema["additionalProperties"], f"{place}.{key}")
        elif properties is not None:
            yield Evidence(what=f"{place}.{key}", seen="there is no such key")
