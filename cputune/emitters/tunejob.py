"""``tunejob``: a Job of Kubernetes that tunes in one pod of the shape that will train.

The pod is of the Guaranteed class, with the CPUs and memory of the plan's pods, so that what it
measures is what they get. The result stays on the volume claim. The pod speaks to no API: it has no
token, and needs no rights (https://kubernetes.io/docs/concepts/security/rbac-good-practices/).
The image is one that can train, with cputune in it.
"""

from __future__ import annotations

from typing import Any

from cputune.emitters import container, header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.command import as_typed
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.errors import UsageError
from cputune.workload import recipe_names

NEEDS = "The image needs cputune in it (pip install cputune), beside what trains."


def emit_tunejob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """One list of the claim and the Job, for ``kubectl apply -f -``. Raises UsageError."""
    if job.plan.nodes > 1:
        raise UsageError(
            "a tunejob tunes in one pod, and the plan is for several nodes",
            hint="--nodes 1; what it finds runs on more: --format trainjob --nodes N",
        )
    notes = (NEEDS, *k8s.notes(job))
    title = f"Tunes {job.workload.name} in a pod of the shape that will train."
    content = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [container.claim_document(job), document(job)],
    }
    text = header.full(job, "tunejob", title, notes) + words.dump(content)
    return (EmittedFile(name="tunejob.yaml", text=text, notes=notes),)


def document(job: LaunchJob) -> dict[str, Any]:
    """The Job as data."""
    home = {"name": "HF_HOME", "value": words.YamlScalar(f"{k8s.data(job)}/huggingface")}
    folder = k8s.WORKSPACE if job.workload.recipe else f"{k8s.WORKSPACE}/project"
    pod = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": k8s.of_pod(job),
        "containers": [
            {
                "name": "tune",
                "image": words.YamlScalar(k8s.image(job)),
                "workingDir": folder,
                "command": [words.YamlScalar("cputune"), words.YamlScalar("tune")],
                "args": arguments(job),
                "env": [home, *k8s.secret_variables(job)],
                "resources": k8s.resources(job),
                "volumeMounts": k8s.mounts(job),
                "securityContext": k8s.of_container(job),
            }
        ],
        "volumes": k8s.volumes(job),
        **k8s.scheduling(job),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": k8s.metadata(job, f"{job_name(job)}-tune", queued=True),
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": k8s.ttl_seconds(job),
            "template": {"metadata": k8s.pod_metadata(job), "spec": pod},
        },
    }


def arguments(job: LaunchJob) -> list[words.YamlScalar]:
    """Of ``cputune tune``; a second Job takes the place of what the first one has found."""
    place = k8s.data(job)
    results = ("--output", f"{place}/cputune.json", "--study", f"{place}/cputune.db")
    kept = (*results, "--force", "--no-history")
    recipe = job.workload.recipe
    if recipe is None:
        return [
            *map(k8s.escape, (*kept, "--")),
            *(k8s.inside(job, word) for word in as_typed(job.workload)),
        ]
    if job.workload.name not in recipe_names():
        raise UsageError(
            f"the recipe {job.workload.name} is a file of yours, which is in no image",
            hint="name a shipped recipe, or the script: -- train.py …",
        )
    return [*map(k8s.escape, (*kept, "--recipe", job.workload.name))]


TUNEJOB = Format(
    name="tunejob",
    write=emit_tunejob,
    main="tunejob.yaml",
    beside="nothing",
    fits="Kubernetes, where nothing was tuned yet",
    start="`cputune emit -f tunejob … | kubectl apply -f -`",
    printed=True,
)
