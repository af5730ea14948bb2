"""Shared by the Kubernetes formats: the container, its resources, names and quoting.

CPU numbers mean nothing in a container, so nothing here promises any: a pod of the
Guaranteed class with whole CPUs may get some of its own (kubelet's static CPU manager),
and rank.py cuts those into shares; without them ranks are not bound.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from cputune.emitters import security, shell
from cputune.emitters.interface import Beside, Job, Output, Secret, Word
from cputune.emitters.job import RANK_SCRIPT, job_name
from cputune.emitters.yamltext import Quoted
from cputune.stack import Versions, oneccl_module
from cputune.stack.fit import pythons_for

WORKSPACE = "/workspace"
DATA = "/data"
PRELOAD = "/opt/preload"
"""Where the Dockerfile links the libraries that a plan preloads."""

BASE = "python:{python}-slim-bookworm"
PYTHON = "3.11"
"""The Python of an image, where all packages have wheels for it."""

_IMAGE = re.compile(r"[a-z0-9.:_/<>@-]+", re.IGNORECASE)
_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

UNPROMISED = (
    "CPU numbers mean nothing in a container: ranks are bound only where the kubelet gives the "
    "pod CPUs of its own (static CPU manager policy)."
)


def image(job: Job) -> str:
    """The image's reference, or a visible placeholder."""
    given = job.cluster.image
    if given is None:
        return f"<your-registry>/{job_name(job)}:latest"
    return security.matching(_IMAGE, given, "an image", "REGISTRY/NAME:TAG")


def base_image(job: Job) -> str:
    """What the Dockerfile starts from."""
    return job.cluster.base_image or BASE.format(python=_python(job))


def _python(job: Job) -> str:
    """The Python of the image: the usual one, else the newest with wheels of all packages."""
    fitting = pythons_for(Versions.from_names(job.versions))
    return PYTHON if PYTHON in fitting or not fitting else fitting[-1]


def namespace(job: Job) -> str:
    return security.matching(
        _DNS_LABEL, job.cluster.namespace or "default", "a namespace", "--namespace default"
    )


def claim(job: Job) -> str:
    """The name of the volume claim that holds data and output."""
    return security.matching(
        _DNS_NAME, job.cluster.pvc or f"{job_name(job)}-data", "a volume claim", "--pvc my-data"
    )


def dns_name(given: str, what: str, example: str) -> str:
    return security.matching(_DNS_NAME, given, what, example)


def storage_class(job: Job) -> str | None:
    given = job.cluster.storage_class
    return given and security.matching(
        _DNS_NAME, given, "a storage class", "--storage-class standard"
    )


def quantity(given: str | None, default: str, option: str) -> str:
    return security.matching(_QUANTITY, given or default, "a quantity", f"{option} {default}")


def memory(job: Job) -> str:
    return quantity(job.cluster.memory, f"{8 * job.plan.processes_per_node}Gi", "--memory")


def shared_memory(job: Job) -> str:
    return quantity(job.cluster.shm, f"{job.plan.processes_per_node}Gi", "--shm")


def pod_cpus(job: Job) -> int:
    """CPUs that a pod asks for. A Kubernetes CPU is a hyperthread.

    A plan with one thread on each core asks for all siblings of its cores: two
    hyperthreads of one core would else be two of its "cores".
    """
    plan = job.plan
    threads = plan.processes_per_node * plan.threads_per_process
    workers = plan.processes_per_node * plan.ccl_workers
    return (threads if job.on_siblings else threads * job.threads_per_core) + (
        workers * job.threads_per_core
    )


def escape(word: str) -> Quoted:
    """A word of a command or value of a variable: the kubelet expands ``$(NAME)``, ``$$`` is $.

    k8s.io/kubernetes/third_party/forked/golang/expansion.
    """
    return Quoted(word.replace("$", "$$"))


def environment(job: Job) -> list[dict[str, Any]]:
    """The plan's variables; libraries by their places in the image, no CPU numbers.

    What is downloaded from the hub stays on the volume; secrets come from a Secret.
    """
    values = shell.variables(job, pods=True)
    values.pop("CCL_WORKER_AFFINITY", None)  # rank.py knows the pod's CPUs
    values["HF_HOME"] = f"{DATA}/huggingface"
    if "LD_PRELOAD" in values:
        values["LD_PRELOAD"] = ":".join(f"{PRELOAD}/{name}.so" for name in preloads(job))
    found: list[dict[str, Any]] = [
        {"name": name, "value": escape(value)} for name, value in values.items()
    ]
    return [*found, *security.secret_variables(job)]


def preloads(job: Job) -> tuple[str, ...]:
    """What the plan preloads, by name."""
    names = (job.plan.allocator, job.plan.openmp)
    return tuple(name for name in names if name != "default")


def command(job: Job) -> list[Quoted]:
    """torchrun; where oneCCL is used, after its setvars.sh."""
    if job.plan.backend != "ccl":
        return [Quoted("torchrun")]
    module = oneccl_module(Versions.from_names(job.versions))
    find = shlex.quote(shell.FIND_SETVARS.format(module=module))
    source = f'source "$(python3 -c {find})" && exec torchrun "$@"'
    return [Quoted("bash"), Quoted("-c"), escape(source), Quoted("torchrun")]


def arguments(job: Job) -> list[Quoted]:
    """rank.py with its binding, then the training command."""
    words = [f"{WORKSPACE}/{RANK_SCRIPT}", "--launcher", "torch"]
    words += ["--bind", f"pod={pod_cpus(job)}", "--"]
    return [Quoted(word) for word in words] + [_inside(word) for word in job.command]


def _inside(word: Word) -> Quoted:
    if isinstance(word, Secret):
        return Quoted(escape(word.before) + f"$({word.variable})")
    if isinstance(word, Beside):
        return escape(f"{WORKSPACE}/{word.name}")
    return escape(f"{DATA}/{word.name}" if isinstance(word, Output) else word)


def resources(job: Job) -> dict[str, Any]:
    """Requests equal to limits, whole CPUs: the Guaranteed class."""
    amount = {"cpu": Quoted(pod_cpus(job)), "memory": Quoted(memory(job))}
    return {"requests": amount, "limits": dict(amount)}


def volumes(job: Job) -> list[dict[str, Any]]:
    return [
        {"name": "data", "persistentVolumeClaim": {"claimName": Quoted(claim(job))}},
        {
            "name": "dshm",
            "emptyDir": {"medium": "Memory", "sizeLimit": Quoted(shared_memory(job))},
        },
    ]


def mounts() -> list[dict[str, str]]:
    return [{"name": "data", "mountPath": DATA}, {"name": "dshm", "mountPath": "/dev/shm"}]


def pod_metadata(job: Job) -> dict[str, Any]:
    """Labels and annotations of a pod."""
    return {"labels": security.labels(job), "annotations": pod_annotations()}


def metadata(job: Job, name: str) -> dict[str, Any]:
    """Of a document."""
    return {
        "name": Quoted(name),
        "namespace": Quoted(namespace(job)),
        "labels": security.labels(job),
    }


def pod_annotations() -> dict[str, str]:
    """A mesh's sidecar would keep a finished pod running, and catches the ranks' traffic."""
    return {"sidecar.istio.io/inject": Quoted("false")}


def notes(job: Job) -> tuple[str, ...]:
    """What nobody but the user knows, and what nobody can promise."""
    said = [UNPROMISED]
    if job.plan.node_cpus:
        said.append(
            "The hosts that were tuned differ in their CPUs, and a container cannot be told "
            "CPUs: every pod asks for as many, and its ranks take theirs from those."
        )
    if job.cluster.image is None:
        said.append(f"placeholder: the image {image(job)} (--image)")
    given = {one.variable for one in job.cluster.secret_variables}
    left = [name for name in job.workload.secrets if name not in given]
    if left:
        values = " ".join(f"--from-literal={name}=…" for name in left)
        said.append(f"first: kubectl create secret generic {security.secret(job)} {values}")
    elif security.HUB_TOKEN not in given:
        said.append(
            "A private model or data set needs first: kubectl create secret generic "
            f"{security.secret(job)} --from-literal={security.HUB_TOKEN}=…"
        )
    if job.plan.nodes > 1:
        said.append(
            f"The volume claim {claim(job)} is mounted by {job.plan.nodes} nodes, so it is "
            "ReadWriteMany: its storage class must offer that, which many do not (--storage-class)."
        )
    if "@sha256:" not in base_image(job):
        said.append(
            f"The base image {base_image(job)} is named by a tag, which may move; its digest is "
            "not known here (--base-image NAME@sha256:…)."
        )
    if job.cluster.memory is None:
        said.append(f"a guess: {memory(job)} of memory for each pod (--memory)")
    if job.threads_per_core > 1:
        said.append(
            f"A Kubernetes CPU is a hyperthread, so each pod asks for {pod_cpus(job)} CPUs."
        )
    if job.physical_cores and pod_cpus(job) >= job.physical_cores * job.threads_per_core:
        said.append(
            f"Each pod asks for all {pod_cpus(job)} CPUs of such a machine, and a node keeps some "
            "for itself: without a larger node the pods stay Pending; tune with fewer threads."
        )
    if job.script is not None and job.script.startswith("/"):
        said.append(f"{job.script} must be in the image at that path.")
    return tuple(said)
