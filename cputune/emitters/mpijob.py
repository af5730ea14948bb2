"""``mpijob``: an MPIJob (v2beta1) of Kubeflow's MPI Operator 0.4 and later, with Open MPI.

The operator names the workers in /etc/mpi/hostfile and hands all pods one key; the launcher reaches
them by ssh, as the user that trains
(https://github.com/kubeflow/mpi-operator/tree/master/build/base). The ranks are bound by rank.py.
"""

from __future__ import annotations

from typing import Any

from cputune.emitters import container, header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.command import RANK_SCRIPT
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.mpirun import refuse_colon
from cputune.errors import UsageError

HOME = container.SSH_HOME
START = """\
first=$(head -n 1 /etc/mpi/hostfile | cut -d ' ' -f 1 | cut -d : -f 1)
export MASTER_ADDR=$first MASTER_PORT=29500 LOCAL_WORLD_SIZE={ranks}
exec mpirun -n {world} --map-by ppr:{ranks}:node --bind-to none {passed} \\
  "$(command -v python3)" "$@"
"""


def emit_mpijob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The YAML, and the files to build, feed and drive it. Raises UsageError."""
    refuse_colon(job)
    if job.plan.backend == "ccl":
        raise UsageError(
            "an mpijob is written for Open MPI, and oneCCL wants Intel MPI",
            hint="--format mpirun, or tune with --fix backend=gloo",
        )
    notes = k8s.notes(job)
    title = f"Launch of {job.workload.name} as an MPIJob."
    text = header.full(job, "mpijob", title, notes) + words.dump(document(job))
    return (
        EmittedFile(name="mpijob.yaml", text=text, notes=notes),
        *container.files(job, "mpijob"),
    )


def document(job: LaunchJob) -> dict[str, Any]:
    """The MPIJob as data."""
    plan = job.plan
    policy: dict[str, Any] = {
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


def _replica(job: LaunchJob, count: int, program: dict[str, Any]) -> dict[str, Any]:
    program = {**program, "env": k8s.environment(job)}
    return {"replicas": count, "restartPolicy": "Never", "template": k8s.pod(job, "mpi", program)}


MPIJOB = Format(
    name="mpijob",
    write=emit_mpijob,
    main="mpijob.yaml",
    beside="`mpijob.kubectl.sh`, `Dockerfile`, `pvc.yaml`",
    fits="Kubernetes, with the MPI Operator",
    start="`launch/mpijob.kubectl.sh submit`",
    known_by=r"""^kind:\s*["']?MPIJob\b""",
    untried="its pods are held against the Pod schema, it was once against the CRD; no cluster",
)
