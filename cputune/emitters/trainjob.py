"""``trainjob``: a TrainJob of Kubeflow Trainer 2.3 on a torch runtime.

numProcPerNode is always written: unset it means one process for each CPU. Names that
begin with PET_ are the runtime's own. Volumes reach the pods through a runtime patch; the
torch runtimes call both their job and their container ``node``.
"""

from __future__ import annotations

from typing import Any

from cputune.emitters import container, header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name

DEFAULT_RUNTIME = "torch-distributed"


def emit_trainjob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The YAML, and the files to build, feed and drive it. Raises UsageError."""
    notes = k8s.notes(job)
    if job.cluster.ttl_seconds is not None:
        notes += ("A TrainJob has no TTL: it stays until somebody deletes it.",)
    title = f"Launch of {job.workload.name} as a TrainJob."
    text = header.full(job, "trainjob", title, notes) + words.dump(document(job))
    return (
        EmittedFile(name="trainjob.yaml", text=text, notes=notes),
        *container.files(job, "trainjob"),
    )


def document(job: LaunchJob) -> dict[str, Any]:
    """The TrainJob as data."""
    runtime = k8s.dns_name(job.cluster.runtime or DEFAULT_RUNTIME, "a runtime", DEFAULT_RUNTIME)
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": k8s.metadata(job, job_name(job)),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": words.Quoted(runtime),
            },
            "trainer": {
                "image": words.Quoted(k8s.image(job)),
                "numNodes": job.plan.nodes,
                "numProcPerNode": job.plan.processes_per_node,
                "command": k8s.command(job),
                "args": k8s.arguments(job),
                "env": k8s.environment(job),
                "resourcesPerNode": k8s.resources(job),
            },
            "runtimePatches": [
                {
                    "manager": "cputune",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {
                                        "name": "node",
                                        "template": {"spec": {"template": _pod_patch(job)}},
                                    }
                                ]
                            }
                        }
                    },
                }
            ],
        },
    }


def _pod_patch(job: LaunchJob) -> dict[str, Any]:
    node = {
        "name": "node",
        "volumeMounts": k8s.mounts(),
        "securityContext": k8s.of_container(),
    }
    spec: dict[str, Any] = {
        "securityContext": k8s.of_pod(job),
        "containers": [node],
        "volumes": k8s.volumes(job),
        **k8s.scheduling(job),
    }
    return {"metadata": k8s.pod_metadata(job), "spec": spec}


TRAINJOB = Format(
    name="trainjob",
    write=emit_trainjob,
    main="trainjob.yaml",
    beside="`trainjob.kubectl.sh`, `Dockerfile`, `pvc.yaml`",
    fits="Kubernetes, with Kubeflow Trainer 2",
    start="`launch/trainjob.kubectl.sh submit`",
    known_by=r"""^kind:\s*["']?TrainJob\b""",
    consumers=("kubernetes", "pods"),
)
