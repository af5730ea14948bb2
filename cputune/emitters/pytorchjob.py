"""``pytorchjob``: a PyTorchJob of the Kubeflow training operator 1.9.

nprocPerNode is always written, as a string: unset means "auto", one process for each CPU.
Master and workers, without an elastic policy: worker-only jobs have no MASTER_ADDR, and
``minReplicas: 1`` trains on a subset after 30 s, silently.
"""

from __future__ import annotations

from typing import Any

from cputune.emitters import container, header, yamltext
from cputune.emitters import kubernetes as k8s
from cputune.emitters.interface import EmittedFile, Job
from cputune.emitters.job import job_name


def emit_pytorchjob(job: Job) -> tuple[EmittedFile, ...]:
    """The YAML, and the files to build, feed and drive it. Raises UsageError."""
    notes = k8s.notes(job)
    title = f"Launch of {job.workload.name} as a PyTorchJob."
    text = header.full(job, "pytorchjob", title, notes) + yamltext.dump(document(job))
    return (
        EmittedFile(name="pytorchjob.yaml", text=text, notes=notes),
        *container.files(job, "pytorchjob"),
    )


def document(job: Job) -> dict[str, Any]:
    """The PyTorchJob as data."""
    plan = job.plan
    replicas = {"Master": 1}
    if plan.nodes > 1:
        replicas["Worker"] = plan.nodes - 1
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": yamltext.Quoted(job_name(job)),
            "namespace": yamltext.Quoted(k8s.namespace(job)),
        },
        "spec": {
            "nprocPerNode": yamltext.Quoted(plan.processes_per_node),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "pytorchReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": _pod(job)}
                for kind, count in replicas.items()
            },
        },
    }


def _pod(job: Job) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "pytorch",
                "image": yamltext.Quoted(k8s.image(job)),
                "imagePullPolicy": "IfNotPresent",
                "command": k8s.command(job),
                "args": k8s.arguments(job),
                "env": k8s.environment(job),
                "resources": k8s.resources(job),
                "volumeMounts": k8s.mounts(),
            }
        ],
        "volumes": k8s.volumes(job),
    }
    selector = k8s.node_selector(job)
    if selector:
        spec["nodeSelector"] = selector
    return {
        "metadata": {"annotations": k8s.pod_annotations()},
        "spec": spec,
    }
