"""Jobs that cputune has not written: read by their definitions, without a plan to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from rows import every_row

from cputune import UsageError, verify

Job = dict[str, Any]
AMOUNTS = {"cpu": "8", "memory": "16Gi"}
CONTAINER: Job = {
    "name": "pytorch",
    "image": "registry.example/bert:1",
    "command": ["torchrun", "train.py"],
    "resources": {"requests": AMOUNTS, "limits": AMOUNTS},
}


def template(**more: object) -> Job:
    return {"spec": {"restartPolicy": "Never", "containers": [{**CONTAINER, **more}]}}


def replica(count: int, **more: object) -> Job:
    return {"replicas": count, "template": template(**more)}


def job(kind: str, version: str, **spec: object) -> Job:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "bert"}, "spec": spec}


JOBS: dict[str, Job] = {
    "Job": job("Job", "batch/v1", template=template(), backoffLimit=0),
    "MPIJob": job(
        "MPIJob",
        "kubeflow.org/v2beta1",
        slotsPerWorker=1,
        mpiReplicaSpecs={"Launcher": replica(1, resources={}), "Worker": replica(2)},
    ),
    "PyTorchJob": job(
        "PyTorchJob",
        "kubeflow.org/v1",
        nprocPerNode="1",
        runPolicy={"cleanPodPolicy": "None"},
        pytorchReplicaSpecs={"Master": replica(1), "Worker": replica(3)},
    ),
    "TrainJob": job(
        "TrainJob",
        "trainer.kubeflow.org/v1alpha1",
        runtimeRef={"name": "torch-distributed"},
        trainer={
            "numNodes": 2,
            "numProcPerNode": 1,
            "resourcesPerNode": {"requests": AMOUNTS, "limits": AMOUNTS},
        },
    ),
}


def failed(document: Job, folder: Path) -> set[str]:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    (verdict,) = verify([path], run=False)
    assert verdict.format == "document"
    return {check.name for check in verdict.checks if check.state == "failed"}


@every_row("kind", JOBS)
@every_row(
    ("change", "check"),
    [
        ({"metadata": {"name": "Bert"}}, "names"),
        ({"metadata": {"name": "bert", "label": {}}}, "schema"),
        ({"apiVersion": "kubeflow.org/v9"}, "schema"),
        ({"metadata": {}}, "names"),
    ],
)
def test_a_fault_of_each_kind_fails(kind: str, change: Job, check: str, tmp_path: Path) -> None:
    assert check in failed({**JOBS[kind], **change}, tmp_path)


@pytest.mark.parametrize("text", ["kind: Pod\n", "kind: [", "a: 1\n", "#!/bin/bash\npython a.py\n"])
def test_what_is_no_job_is_still_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        verify([path], run=False)


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_of_each_kind_passes(kind: str, tmp_path: Path) -> None:
    assert failed(JOBS[kind], tmp_path) == set()


@every_row(
    ("kind", "more", "check"),
    [
        ("Job", {"suspend": True}, "lifetime"),
        ("Job", {"activeDeadlineSeconds": 1}, "lifetime"),
        ("Job", {"template": template(resources={})}, "quality of service"),
        ("Job", {"template": template(volumeMounts=[{"name": "x", "mountPath": "/x"}])}, "volumes"),
        ("Job", {"completionMode": "indexed"}, "schema"),
        ("MPIJob", {"slotsPerWorker": "1"}, "schema"),
        ("MPIJob", {"mpiImplementation": "openmpi"}, "schema"),
        ("MPIJob", {"runPolicy": {"cleanPodPolicy": "all"}}, "schema"),
        ("TrainJob", {"runtimeRef": {"name": "torch", "kind": "Runtime"}}, "names"),
        ("TrainJob", {"suspend": True}, "lifetime"),
        ("PyTorchJob", {"runPolicy": {"suspend": True}}, "lifetime"),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": replica(1, name="main")}}, "names"),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": replica(4)}}, "admission rules"),
    ],
)
def test_a_field_of_one_kind(kind: str, more: Job, check: str, tmp_path: Path) -> None:
    document = {**JOBS[kind], "spec": {**JOBS[kind]["spec"], **more}}
    assert check in failed(document, tmp_path)
