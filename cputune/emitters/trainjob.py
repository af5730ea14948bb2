"""``trainjob``: a TrainJob of Kubeflow Trainer 2 on a torch runtime.

numProcPerNode is always written: unset it means one process for each CPU. Names that
begin with PET_ are the runtime's own. Volumes reach the pods through a runtime patch; the
torch runtimes call both their job and their container ``node``. The field that patches has another
name, and may say less, in 2.0 and 2.1 (``pkg/apis/trainer/v1alpha1/trainjob_types.go``).
"""

from __future__ import annotations

import re

from cputune.emitters import container, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.words import Manifest
from cputune.errors import UsageError

DEFAULT_RUNTIME = "torch-distributed"
NEWEST = 3
"""Minor versions of Kubeflow Trainer 2 whose TrainJobs are known: 0 to this."""


def notes(job: LaunchJob) -> tuple[str, ...]:
    """Those of every pod, and what an old Trainer cannot be told."""
    return (*k8s.notes(job), *_unsaid(job))


def document(job: LaunchJob) -> Manifest:
    """The TrainJob as data."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": k8s.metadata(job, job_name(job)),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": words.YamlScalar(job.cluster.runtime or DEFAULT_RUNTIME),
            },
            "trainer": {
                "image": words.YamlScalar(k8s.image(job)),
                "numNodes": job.plan.nodes,
                "numProcPerNode": job.plan.processes_per_node,
                **k8s.program(job),
                "resourcesPerNode": k8s.resources(job),
            },
            **_patches(job),
        },
    }


def trainer_version(job: LaunchJob) -> int:
    """The minor version of the cluster's Trainer 2. Raises UsageError."""
    given = job.cluster.trainer_version or f"2.{NEWEST}"
    match = re.fullmatch(r"v?2\.([0-9]{1,3})(\.[0-9]+)*", given)
    if match is None or int(match[1]) > NEWEST:
        raise UsageError(
            f"no TrainJob is known of Kubeflow Trainer {given}",
            hint=f"--trainer-version is one of 2.0 to 2.{NEWEST}",
        )
    return int(match[1])


def _patches(job: LaunchJob) -> Manifest:
    """What the pods get beside the trainer, in the field that this version has."""
    patch, minor = _pod_patch(job), trainer_version(job)
    target = {"targetJobs": [{"name": "node"}]}
    if minor >= 2:
        jobs = [{"name": "node", "template": {"spec": {"template": patch}}}]
        spec = {"template": {"spec": {"replicatedJobs": jobs}}}
        return {"runtimePatches": [{"manager": "cputune", "trainingRuntimeSpec": spec}]}
    known = {name: value for name, value in patch["spec"].items() if name != "securityContext"}
    known["containers"] = [{"name": "node", "volumeMounts": k8s.mounts(job)}]
    if minor == 1:
        of_pods = {"metadata": patch["metadata"], "spec": known}
        return {"podTemplateOverrides": [target | of_pods]}
    known.pop("imagePullSecrets", None)
    return {"podSpecOverrides": [target | known]}


def _unsaid(job: LaunchJob) -> tuple[str, ...]:
    """What an old Trainer cannot be told of the pods."""
    cluster, minor = job.cluster, trainer_version(job)
    left = ["security contexts"] * (minor < 2)
    if minor == 0:
        left += ["labels", "annotations"] + ["pull secrets"] * bool(cluster.pull_secrets)
    if not left:
        return ()
    return (
        f"A TrainJob of Kubeflow Trainer 2.{minor} cannot say {', '.join(left)} of its pods: "
        f"the ClusterTrainingRuntime {cluster.runtime or DEFAULT_RUNTIME} must.",
    )


def _pod_patch(job: LaunchJob) -> Manifest:
    node = {
        "name": "node",
        "volumeMounts": k8s.mounts(job),
        "securityContext": k8s.of_container(job),
    }
    spec: Manifest = {
        "securityContext": k8s.of_pod(job),
        "containers": [node],
        "volumes": k8s.volumes(job),
        **k8s.scheduling(job),
    }
    return {"metadata": k8s.pod_metadata(job), "spec": spec}


TRAINJOB = container.job_format(
    "TrainJob",
    document,
    "Kubeflow Trainer 2",
    first="-node-0-0",
    label="jobset.sigs.k8s.io/jobset-name",
    notes=notes,
)
