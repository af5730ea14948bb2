"""``pytorchjob``: a PyTorchJob of Kubeflow's training operator 1.9.

nprocPerNode is always written, as a string: unset means "auto", one process for each CPU. Master
and workers, without an elastic policy: worker-only jobs have no MASTER_ADDR, and ``minReplicas: 1``
trains on a subset after 30 s, silently.
"""

from __future__ import annotations

from cputune.emitters import container, header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import EmittedFile, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.words import Manifest


def emit_pytorchjob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The YAML, and the files to build, feed and drive it. Raises UsageError."""
    notes = k8s.notes(job)
    title = f"Launch of {job.workload.name} as a PyTorchJob."
    text = header.full(job, "pytorchjob", title, notes) + words.dump(document(job))
    main = EmittedFile(name="pytorchjob.yaml", text=text, notes=notes)
    return (main, *container.files(job, "pytorchjob"))


def document(job: LaunchJob) -> Manifest:
    """The PyTorchJob as data."""
    plan = job.plan
    replicas = {"Master": 1}
    if plan.nodes > 1:
        replicas["Worker"] = plan.nodes - 1
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": k8s.metadata(job, job_name(job), queued=True),
        "spec": {
            "nprocPerNode": words.YamlScalar(plan.processes_per_node),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": k8s.ttl_seconds(job),
                **_gang(job),
            },
            "pytorchReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": _pod(job)}
                for kind, count in replicas.items()
            },
        },
    }


def _gang(job: LaunchJob) -> Manifest:
    """All pods or none, for Volcano and the scheduler plugins."""
    if not job.cluster.gang:
        return {}
    policy: Manifest = {"minAvailable": job.plan.nodes}
    if job.cluster.priority_class is not None:
        policy["priorityClass"] = words.YamlScalar(job.cluster.priority_class)
    return {"schedulingPolicy": policy}


def _pod(job: LaunchJob) -> Manifest:
    program = {
        "command": k8s.command(job),
        "args": k8s.arguments(job),
        "env": k8s.environment(job),
        "resources": k8s.resources(job),
    }
    return k8s.pod(job, "pytorch", program)


PYTORCHJOB = container.job_format(
    "PyTorchJob",
    emit_pytorchjob,
    "the Kubeflow training operator",
    consumers=("kubernetes",),
)
