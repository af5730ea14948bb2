"""The parts of an emitted job, whichever kind it is."""

from __future__ import annotations

from typing import Any

Job = dict[str, Any]


def pod(job: Job, role: str = "Master") -> Job:
    if job["kind"] == "TrainJob":
        (patch,) = job["spec"]["runtimePatches"]
        (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        return node["template"]["spec"]["template"]["spec"]
    return job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]


def container(job: Job, role: str = "Master") -> Job:
    return job["spec"]["trainer"] if job["kind"] == "TrainJob" else pod(job, role)["containers"][0]


def variable(job: Job, name: str, role: str = "Master") -> Job:
    return next(one for one in container(job, role)["env"] if one["name"] == name)
