"""``pytorchjob``: a PyTorchJob of Kubeflow's training operator 1.9.

nprocPerNode is always written, as a string: unset means "auto", one process for each CPU. Master
and workers, without an elastic policy: worker-only jobs have no MASTER_ADDR, and ``minReplicas: 1``
trains on a subset after 30 s, silently.
"""

from __future__ import annotations

from cputune.emitters import container, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.words import Manifest


def document(job: LaunchJob) -> Manifest:
    """The PyTorchJob as data."""
    plan = job.plan
    pod = k8s.pod(job, "pytorch", {**k8s.program(job), "resources": k8s.resources(job)})
    replicas = {"Master": 1}
    if plan.nodes > 1:
        replicas["Worker"] = plan.nodes - 1
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": k8s.metadata(job, job_name(job)),
        "spec": {
            "nprocPerNode": words.YamlScalar(plan.processes_per_node),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": k8s.TTL_SECONDS,
            },
            "pytorchReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": pod}
                for kind, count in replicas.items()
            },
        },
    }


PYTORCHJOB = container.job_format(
    "PyTorchJob",
    document,
    "the Kubeflow training operator",
    first="-master-0",
    label="training.kubeflow.org/job-name",
)
