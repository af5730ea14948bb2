"""``tunejob``: a Job of Kubernetes that tunes in a pod of the shape that will train.

The pod is of the Guaranteed class, with the CPUs and memory of the plan's pods, so that what it
measures is what they get. The result stays on the volume claim. For one node the pod speaks to no
API: it has no token, and needs no rights. For several each trial is a TrainJob, which its service
account may create, look at and delete in its namespace, and nothing else
(https://kubernetes.io/docs/concepts/security/rbac-good-practices/). The image is one that can
train, with cputune in it.
"""

from __future__ import annotations

import json

from cputune.documents import plain
from cputune.emitters import container, header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.command import as_typed
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.words import Manifest
from cputune.errors import UsageError
from cputune.workload import recipe_names

NEEDS_CLIENT = "For several nodes it needs the kubernetes package, too (pip install kubernetes)."
MAY = (
    ("trainer.kubeflow.org", "trainjobs", ("create", "get", "delete")),
    ("", "pods", ("list",)),
    ("", "pods/log", ("get",)),
)
"""What the service account may do in its namespace."""

NEEDS = "The image needs cputune in it (pip install cputune), beside what trains."


def emit_tunejob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """One list for ``kubectl apply -f -``: claim, Job, and what this may do. Raises UsageError."""
    notes = (NEEDS, *([NEEDS_CLIENT] if job.plan.nodes > 1 else ()), *k8s.notes(job))
    title = f"Tunes {job.workload.name} in a pod of the shape that will train."
    content = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [container.claim_document(job), *rights(job), document(job)],
    }
    text = header.full(job, "tunejob", title, notes) + words.dump(content)
    return (EmittedFile(name="tunejob.yaml", text=text, notes=notes),)


def document(job: LaunchJob) -> Manifest:
    """The Job as data."""
    home = {"name": "HF_HOME", "value": words.YamlScalar(f"{k8s.data(job)}/huggingface")}
    folder = k8s.WORKSPACE if job.workload.recipe else f"{k8s.WORKSPACE}/project"
    program = {
        "workingDir": folder,
        "command": [words.YamlScalar("cputune"), words.YamlScalar("tune")],
        "args": arguments(job),
        "env": [home, *_own_names(job), *k8s.secret_variables(job)],
        "resources": k8s.resources(job),
    }
    more: Manifest = {"restartPolicy": "Never"}
    if job.plan.nodes > 1:
        more |= {"automountServiceAccountToken": True, "serviceAccountName": _account(job)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": k8s.metadata(job, f"{job_name(job)}-tune"),
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": k8s.TTL_SECONDS,
            "template": k8s.pod(job, "tune", program, **more),
        },
    }


def rights(job: LaunchJob) -> list[Manifest]:
    """Of several nodes: an account that may start TrainJobs here and read what they say."""
    if job.plan.nodes == 1:
        return []
    name = words.YamlScalar(f"{job_name(job)}-tune")
    meta = k8s.metadata(job, f"{job_name(job)}-tune")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    account = {
        "kind": "ServiceAccount",
        "name": _account(job),
        "namespace": words.YamlScalar(k8s.namespace(job)),
    }
    rules = [
        {"apiGroups": [words.YamlScalar(group)], "resources": [what], "verbs": list(verbs)}
        for group, what, verbs in MAY
    ]
    of = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    return [
        *([made] if job.cluster.service_account is None else ()),
        {**of, "kind": "Role", "rules": rules},
        {**of, "kind": "RoleBinding", "roleRef": role, "subjects": [account]},
    ]


def _account(job: LaunchJob) -> words.YamlScalar:
    return words.YamlScalar(job.cluster.service_account or f"{job_name(job)}-tune")


def _own_names(job: LaunchJob) -> list[Manifest]:
    """Who the pod is: it owns the TrainJobs, so that none outlives it."""
    own = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid"} if job.plan.nodes > 1 else {}
    return [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": at}}} for n, at in own.items()]


def arguments(job: LaunchJob) -> list[words.YamlScalar]:
    """Of ``cputune tune``; a second Job takes the place of what the first one has found."""
    place = k8s.data(job)
    results = ("--output", f"{place}/cputune.json", "--study", f"{place}/cputune.db")
    asked = json.dumps({"nodes": job.plan.nodes, "cluster": plain(job.cluster)})
    trials = ("--trainjobs", asked) if job.plan.nodes > 1 else ()
    kept = (*results, "--force", "--no-history", *trials)
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
