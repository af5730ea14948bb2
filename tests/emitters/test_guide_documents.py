"""The guides' documents beside ours: each feature of theirs is kept, or left out for a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from emitters.emit_machines import two_sockets_smt

from cputune import Cluster, emit
from cputune.verifier.schemas import schema_faults

CLUSTER = Cluster(
    image="registry.example/transformers:1",
    pvc="transformers-pvc",
    memory="128Gi",
    node_selector=(("node-type", "gnr"),),
)


def job(format: str, **cluster: object) -> tuple[dict[str, Any], dict[str, str]]:
    case, chosen = two_sockets_smt(), replace(CLUSTER, **cluster)  # type: ignore[arg-type]
    files = emit(case.result, format, facts=case.facts, nodes=3, cluster=chosen)
    texts = {file.name: file.text for file in files}
    return yaml.safe_load(files[0].text), texts | {"notes": " ".join(files[0].notes)}


def test_an_elastic_pytorchjob_keeps_what_the_guides_job_has() -> None:
    document, _ = job("pytorchjob", max_restarts=10)
    spec = document["spec"]
    assert "namespace" not in document["metadata"]
    elastic = {"rdzvBackend": "c10d", "minReplicas": 3, "maxReplicas": 3, "maxRestarts": 10}
    assert spec["elasticPolicy"] == elastic
    (role,) = spec["pytorchReplicaSpecs"]
    worker = spec["pytorchReplicaSpecs"][role]
    assert (role, worker["replicas"], worker["restartPolicy"]) == ("Worker", 3, "OnFailure")
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    given = container["resources"]
    assert given["requests"] == given["limits"]
    assert given["limits"]["memory"] == "128Gi"
    assert pod["nodeSelector"] == {"node-type": "gnr"}
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert "libiomp5" in str(variables["LD_PRELOAD"])
    assert variables["CCL_WORKER_COUNT"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    claim = volumes[mounted["/data"]]["persistentVolumeClaim"]["claimName"]
    assert claim == "transformers-pvc"
    assert list(schema_faults(document)) == []


@pytest.mark.parametrize(
    ("reserve", "cpus", "threads"), [(None, 108, 23), (0, 112, 24), (8, 104, 22)]
)
def test_pods_leave_cpus_to_the_kubelet(reserve: int | None, cpus: int, threads: int) -> None:
    document, files = job("trainjob", reserve_cpus=reserve)
    trainer = document["spec"]["trainer"]
    variables = {one["name"]: one.get("value") for one in trainer["env"]}
    assert int(trainer["resourcesPerNode"]["limits"]["cpu"]) == cpus
    assert int(variables["OMP_NUM_THREADS"]) == threads
    assert ("stay Pending" in files["notes"]) == (reserve == 0)
    assert ("in place of 24" in files["notes"]) == (reserve != 0)


def test_the_header_of_a_plan_that_was_not_measured_has_the_threads_that_are_left() -> None:
    case = two_sockets_smt()
    cluster = Cluster(image=CLUSTER.image, reserve_cpus=8)
    job = emit(None, "trainjob", facts=case.facts, workload=case.result.workload, cluster=cluster)
    (planned,) = (line for line in job[0].text.splitlines() if line.startswith("# Plan: "))
    assert "# NOTHING WAS MEASURED." in job[0].text
    assert "26 threads" in planned
