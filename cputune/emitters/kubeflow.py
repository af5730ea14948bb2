"""``pytorchjob`` and ``mpijob``: the jobs of Kubeflow's operators.

A PyTorchJob of the training operator 1.9. nprocPerNode is always written, as a string: unset means
"auto", one process for each CPU. Master and workers, without an elastic policy: worker-only jobs
have no MASTER_ADDR, and ``minReplicas: 1`` trains on a subset after 30 s, silently.

An MPIJob (v2beta1) of the MPI Operator 0.4 and later, with Open MPI. The operator names the workers
in /etc/mpi/hostfile and hands all pods one key; the launcher reaches them by ssh, as the user that
trains (https://github.com/kubeflow/mpi-operator/tree/master/build/base). The ranks are bound by
rank.py.
"""

from __future__ import annotations

from collections.abc import Callable

from cputune.emitters import container, header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.command import RANK_SCRIPT
from cputune.emitters.format import EmittedFile, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.mpirun import refuse_colon
from cputune.emitters.words import Manifest
from cputune.errors import UsageError


def emit_pytorchjob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The YAML, and the files to build, feed and drive it. Raises UsageError."""
    return _emitted(job, "pytorchjob", f"Launch of {job.workload.name} as a PyTorchJob.", _torch)


def emit_mpijob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The same. Raises UsageError for what Open MPI cannot start, too."""
    refuse_colon(job)
    if job.plan.backend == "ccl":
        raise UsageError(
            "an mpijob is written for Open MPI, and oneCCL wants Intel MPI",
            hint="--format mpirun, or tune with --fix backend=gloo",
        )
    return _emitted(job, "mpijob", f"Launch of {job.workload.name} as an MPIJob.", _mpi)


def _emitted(
    job: LaunchJob, format: str, title: str, document: Callable[[LaunchJob], Manifest]
) -> tuple[EmittedFile, ...]:
    notes = k8s.notes(job)
    text = header.full(job, format, title, notes) + words.dump(document(job))
    main = EmittedFile(name=f"{format}.yaml", text=text, notes=notes)
    return (main, *container.files(job, format))


def _torch(job: LaunchJob) -> Manifest:
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


HOME = container.SSH_HOME
START = """\
first=$(head -n 1 /etc/mpi/hostfile | cut -d ' ' -f 1 | cut -d : -f 1)
export MASTER_ADDR=$first MASTER_PORT=29500 LOCAL_WORLD_SIZE={ranks}
exec mpirun -n {world} --map-by ppr:{ranks}:node --bind-to none {passed} \\
  "$(command -v python3)" "$@"
"""


def _mpi(job: LaunchJob) -> Manifest:
    """The MPIJob as data."""
    plan = job.plan
    policy: Manifest = {
        "cleanPodPolicy": "Running",
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": k8s.ttl_seconds(job),
    }
    if job.cluster.gang:
        policy["schedulingPolicy"] = {"minAvailable": plan.nodes + 1}
    names = [*(str(entry["name"]) for entry in k8s.environment(job))]
    names += ["MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "PATH"]
    script = START.format(
        ranks=plan.processes_per_node,
        world=plan.world_size,
        passed=" ".join(f"-x {name}" for name in names),
    )
    bound = ["--launcher", "mpi", "--bind", f"pod={k8s.pod_cpus(job)}", "--"]
    launcher = {
        "command": [words.YamlScalar("bash"), words.YamlScalar("-c"), k8s.escape(script)],
        "args": [
            *map(words.YamlScalar, ("mpirun", f"{k8s.WORKSPACE}/{RANK_SCRIPT}", *bound)),
            *(k8s.inside(job, word) for word in job.command),
        ],
        "resources": {what: {"cpu": "1", "memory": "1Gi"} for what in ("requests", "limits")},
    }
    worker = {
        "command": ["/usr/sbin/sshd"],
        "args": ["-De", "-f", f"{HOME}/.sshd_config"],
        "resources": k8s.resources(job),
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": k8s.metadata(job, job_name(job), queued=True),
        "spec": {
            "slotsPerWorker": plan.processes_per_node,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": f"{HOME}/.ssh",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": policy,
            "mpiReplicaSpecs": {
                "Launcher": _replica(job, 1, launcher),
                "Worker": _replica(job, plan.nodes, worker),
            },
        },
    }


def _replica(job: LaunchJob, count: int, program: Manifest) -> Manifest:
    program = {**program, "env": k8s.environment(job)}
    return {"replicas": count, "restartPolicy": "Never", "template": k8s.pod(job, "mpi", program)}


PYTORCHJOB = container.job_format(
    "PyTorchJob",
    emit_pytorchjob,
    "the Kubeflow training operator",
    consumers=("kubernetes",),
)
MPIJOB = container.job_format(
    "MPIJob",
    emit_mpijob,
    "the MPI Operator",
    untried="its pods are held against the Pod schema, it was once against the CRD; no cluster",
)
