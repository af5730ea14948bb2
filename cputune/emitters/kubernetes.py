"""Shared by the Kubernetes formats: the pod, its resources, names, users, secrets and quoting.

CPU numbers mean nothing in a container, so nothing here promises any: a pod of the
Guaranteed class with whole CPUs may get some of its own (kubelet's static CPU manager),
and rank.py cuts those into shares; without them ranks are not bound. The security contexts are
those of the ``restricted`` Pod Security Standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/).
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from cputune.emitters import shell
from cputune.emitters.command import RANK_SCRIPT, READ
from cputune.emitters.format import Beside, LaunchJob, Output, Secret, Word
from cputune.emitters.job import job_name
from cputune.emitters.words import Manifest, VariableName, YamlScalar
from cputune.errors import UsageError
from cputune.options import Mounted, SecretKey, Toleration
from cputune.stack import Versions, oneccl_module
from cputune.stack.fit import pythons_for

USER = 1000
"""Of the image, too: torch asks for the name of its user, so the image has to know the number."""

TTL_SECONDS = 7 * 24 * 3600
"""After how long a job that is done is deleted."""

HUB_TOKEN = "HF_TOKEN"

WORKSPACE = "/workspace"
DATA = "/data"
"""Where the job's own claim is mounted, unless ``--mount`` says another place."""

PRELOAD = "/opt/preload"
"""Where the Dockerfile links the libraries that a plan preloads."""

BASE = "python:{python}-slim-bookworm"
PYTHON = "3.11"
"""The Python of an image, where all packages have wheels for it."""

UNPROMISED = (
    "CPU numbers mean nothing in a container: ranks are bound only where the kubelet gives the "
    "pod CPUs of its own (static CPU manager policy)."
)
WISHES = (
    "For CPUs of their own on as few NUMA nodes as can be, the kubelet wants cpuManagerPolicy: "
    "static with full-pcpus-only, memoryManagerPolicy: Static and topologyManagerPolicy: "
    "best-effort (single-numa-node refuses a pod that is larger than a node)."
)


def image(job: LaunchJob) -> str:
    """The image's reference, or a visible placeholder."""
    return job.cluster.image or f"<your-registry>/{job_name(job)}:latest"


def base_image(job: LaunchJob) -> str:
    """What the Dockerfile starts from: the usual Python, else the newest that has all wheels."""
    fitting = pythons_for(Versions.from_names(job.versions))
    usual = PYTHON if PYTHON in fitting or not fitting else fitting[-1]
    return job.cluster.base_image or BASE.format(python=usual)


def namespace(job: LaunchJob) -> str:
    return job.cluster.namespace or "default"


def claim(job: LaunchJob) -> str:
    """The name of the volume claim that holds data and output."""
    return job.cluster.pvc or f"{job_name(job)}-data"


def secret(job: LaunchJob) -> str:
    """The Secret that holds what was left out of the training command, and the hub's token."""
    return f"{job_name(job)}-secrets"


def user_id(job: LaunchJob) -> int:
    """The number of the user that trains. Raises UsageError for root."""
    given = job.cluster.user_id
    if given is not None and not 0 < given < 1 << 31:
        raise UsageError(
            f"no pod runs as the user {given}", hint="--user-id 1000, or another but 0"
        )
    return given or USER


def memory(job: LaunchJob) -> str:
    return job.cluster.memory or f"{8 * job.plan.processes_per_node}Gi"


def pod_cpus(job: LaunchJob) -> int:
    """CPUs that a pod asks for. A Kubernetes CPU is a hyperthread.

    A plan with one thread on each core asks for all siblings of its cores: two
    hyperthreads of one core would else be two of its "cores".
    """
    plan = job.plan
    threads = plan.threads_per_process * (1 if job.on_siblings else job.threads_per_core)
    workers = plan.ccl_workers * job.threads_per_core
    return plan.processes_per_node * (threads + workers)


def metadata(job: LaunchJob, name: str) -> Manifest:
    """Of a document."""
    return {
        "name": YamlScalar(name),
        "namespace": YamlScalar(namespace(job)),
        "labels": labels(job),
    }


def pod_metadata(job: LaunchJob) -> Manifest:
    """A mesh's sidecar would keep a finished pod running, and catches the ranks' traffic."""
    annotations = {"sidecar.istio.io/inject": YamlScalar("false")}
    return {"labels": labels(job), "annotations": annotations}


def labels(job: LaunchJob) -> dict[str, YamlScalar]:
    """Whose a thing is: the labels that Kubernetes recommends."""
    known = {"name": job_name(job), "component": "training", "managed-by": "cputune"}
    return {f"app.kubernetes.io/{key}": YamlScalar(value) for key, value in known.items()}


def pod(job: LaunchJob, name: str, program: Manifest) -> Manifest:
    """The template of a pod that trains in one container: what is started in it, and its limits.

    ``program`` are its command, arguments, variables and resources.
    """
    container = {
        "name": name,
        "image": YamlScalar(image(job)),
        "imagePullPolicy": "IfNotPresent",
        **program,
        "volumeMounts": mounts(job),
        "securityContext": of_container(job),
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": of_pod(job),
        "containers": [container],
        "volumes": volumes(job),
        **scheduling(job),
    }
    return {"metadata": pod_metadata(job), "spec": spec}


def of_pod(job: LaunchJob) -> Manifest:
    """Not root; the volume belongs to the group of the user."""
    user = user_id(job)
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def of_container(job: LaunchJob) -> Manifest:
    """Nothing that a training needs."""
    found: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return found | ({"readOnlyRootFilesystem": True} if job.cluster.read_only_root else {})


def scheduling(job: LaunchJob) -> Manifest:
    """Account, pull secrets, tolerations and node labels: only those that were given."""
    cluster = job.cluster
    found: Manifest = {}
    if cluster.service_account is not None:
        found["serviceAccountName"] = YamlScalar(cluster.service_account)
    if cluster.pull_secrets:
        found["imagePullSecrets"] = [{"name": YamlScalar(name)} for name in cluster.pull_secrets]
    if cluster.tolerations:
        found["tolerations"] = [_toleration(one) for one in cluster.tolerations]
    if cluster.node_selector:
        found["nodeSelector"] = {key: YamlScalar(value) for key, value in cluster.node_selector}
    return found


def _toleration(one: Toleration) -> Manifest:
    entry: Manifest = {"key": YamlScalar(one.key), "operator": "Exists"}
    if one.value is not None:
        entry |= {"operator": "Equal", "value": YamlScalar(one.value)}
    return entry | ({"effect": YamlScalar(one.effect)} if one.effect is not None else {})


def resources(job: LaunchJob) -> Manifest:
    """Requests equal to limits, whole CPUs: the Guaranteed class."""
    amount = {"cpu": YamlScalar(pod_cpus(job)), "memory": YamlScalar(memory(job))}
    return {"requests": amount, "limits": dict(amount)}


def escape(word: str) -> YamlScalar:
    """A word of a command or value of a variable: the kubelet expands ``$(NAME)``, ``$$`` is $.

    io/kubernetes/third_party/forked/golang/expansion.
    """
    return YamlScalar(word.replace("$", "$$"))


def environment(job: LaunchJob) -> list[Manifest]:
    """The plan's variables, libraries by their places in the image; secrets come from a Secret.

    What is downloaded from the hub stays on the volume. CPU numbers rank.py finds out.
    """
    values: dict[str, str] = dict(shell.variables(job, pods=True).items())
    values["HF_HOME"] = f"{data(job)}/huggingface"
    if job.cluster.read_only_root:
        values["HOME"] = "/tmp"
    if "LD_PRELOAD" in values:
        values["LD_PRELOAD"] = ":".join(f"{PRELOAD}/{name}.so" for name in preloads(job))
    values.pop("CCL_WORKER_AFFINITY", None)
    plain = [{"name": VariableName(name), "value": escape(text)} for name, text in values.items()]
    return [*plain, *secret_variables(job)]


def preloads(job: LaunchJob) -> tuple[str, ...]:
    """What the plan preloads, by name."""
    names = (job.plan.allocator, job.plan.openmp)
    return tuple(name for name in names if name != "default")


def secret_variables(job: LaunchJob) -> list[Manifest]:
    """Variables from Secrets: those of the command, those that were named, the hub's token.

    The pod starts without the token where the Secret has none: public models need it not.
    """
    named = {one.variable: one for one in job.cluster.secret_variables}
    for name in job.workload.secrets:
        named.setdefault(name, SecretKey(variable=name, secret=secret(job), key=name))
    token = SecretKey(variable=HUB_TOKEN, secret=secret(job), key=HUB_TOKEN)
    found = [_from_secret(one) for one in named.values()]
    return found if HUB_TOKEN in named else [*found, _from_secret(token, optional=True)]


def _from_secret(one: SecretKey, *, optional: bool = False) -> Manifest:
    reference: Manifest = {"name": YamlScalar(one.secret), "key": YamlScalar(one.key)}
    if optional:
        reference["optional"] = True
    return {"name": VariableName(one.variable), "valueFrom": {"secretKeyRef": reference}}


def program(job: LaunchJob) -> Manifest:
    """What a pod that trains is started with: torchrun, which starts rank.py for each rank."""
    words = [f"{WORKSPACE}/{RANK_SCRIPT}", "--launcher", "torch"]
    words += ["--bind", f"pod={pod_cpus(job)}", "--"]
    arguments = [*map(YamlScalar, words), *(inside(job, word) for word in job.command)]
    return {"command": _command(job), "args": arguments, "env": environment(job)}


def _command(job: LaunchJob) -> list[YamlScalar]:
    """torchrun; where oneCCL is used, after its setvars.sh."""
    if job.plan.backend != "ccl":
        return [YamlScalar("torchrun")]
    module = oneccl_module(Versions.from_names(job.versions))
    find = shlex.quote(shell.FIND_SETVARS.format(module=module))
    source = f'source "$(python3 -c {find})" && exec torchrun "$@"'
    return [escape(word) for word in ("bash", "-c", source, "torchrun")]


def inside(job: LaunchJob, word: Word) -> YamlScalar:
    """A word of a command with the path that it names in the image, or on the volume."""
    if isinstance(word, Secret):
        return YamlScalar(escape(word.before) + f"$({word.variable})")
    if isinstance(word, Beside):
        return escape(f"{WORKSPACE}/{word.name}")
    if isinstance(word, Output):
        return escape(word.before + written(job, word.name))
    return escape(word)


def volumes(job: LaunchJob) -> list[Manifest]:
    """The job's own claim, those of the user, /dev/shm, and /tmp where the rest is read-only."""
    shm = job.cluster.shm or f"{job.plan.processes_per_node}Gi"
    claims = {"data": claim(job), **{name: one.claim or "" for name, one in _others(job)}}
    found: list[Manifest] = [
        {"name": name, "persistentVolumeClaim": {"claimName": YamlScalar(of)}}
        for name, of in claims.items()
    ]
    found.append({"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": YamlScalar(shm)}})
    return [*found, {"name": "tmp", "emptyDir": {}}] if job.cluster.read_only_root else found


def mounts(job: LaunchJob) -> list[Manifest]:
    """Where the container has its volumes."""
    found: list[Manifest] = [{"name": "data", "mountPath": data(job)}]
    for name, one in _others(job):
        found.append({"name": name, "mountPath": _mountable(one.path)})
        if one.read_only:
            found[-1]["readOnly"] = True
    found.append({"name": "dshm", "mountPath": "/dev/shm"})
    return [*found, {"name": "tmp", "mountPath": "/tmp"}] if job.cluster.read_only_root else found


def _others(job: LaunchJob) -> list[tuple[str, Mounted]]:
    """The user's own claims, by the name of their volume."""
    named = [one for one in job.cluster.mounts if one.claim is not None]
    return [(f"mount-{number}", one) for number, one in enumerate(named)]


def data(job: LaunchJob) -> str:
    """Where pods have the job's own claim. Raises UsageError for a path that cannot be one."""
    own = [mount.path for mount in job.cluster.mounts if mount.claim is None]
    if len(own) > 1:
        raise UsageError(
            f"the claim {claim(job)} cannot be at {own[0]} and at {own[1]}",
            hint="name the claim of the other: --mount CLAIM:PATH",
        )
    return _mountable(own[0]) if own else DATA


def _mountable(path: str) -> str:
    taken = ("/dev/shm", "/tmp", WORKSPACE, PRELOAD)
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+/?", path) or _within(path, taken):
        raise UsageError(f"no volume can be mounted at {path!r}", hint="--mount /mnt/data")
    return path.rstrip("/")


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def written(job: LaunchJob, path: str) -> str:
    """Where a pod writes what was to be written to this path: it dies with the pod elsewhere."""
    others = (one.path for _, one in _others(job) if not one.read_only)
    if _within(path, (data(job), *others)):
        return path
    place = PurePosixPath(path)
    parts = [part for part in place.parts if part not in ("/", ".", "..", "~")]
    kept = parts[-1:] if place.is_absolute() or len(parts) < len(place.parts) else parts
    return "/".join([data(job), *kept])


def _notes_of_paths(job: LaunchJob) -> list[str]:
    """What is written elsewhere than it was typed, and what a pod will not find."""
    if job.workload.recipe is not None:
        return []
    said = [
        f"The output goes to {written(job, word.name)}: {word.name} would die with the pod."
        for word in job.command
        if isinstance(word, Output) and written(job, word.name) != word.name
    ]
    volumes = (data(job), *(one.path for _, one in _others(job)))
    for flag in READ:
        path = job.workload.argument(flag) or ""
        if path.startswith(("/", "~", "..")) and not _within(path, volumes):
            said.append(
                f"{flag} {path} is on no volume of the pod: bring it to {data(job)}, name the "
                "claim that holds it (--mount CLAIM:PATH:ro), or build it into the image there."
            )
    return said


def notes(job: LaunchJob) -> tuple[str, ...]:
    """What nobody but the user knows, and what nobody can promise."""
    said = [UNPROMISED, WISHES, *_notes_of_paths(job)]
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
        said.append(f"first: kubectl create secret generic {secret(job)} {values}")
    elif HUB_TOKEN not in given:
        said.append(
            "A private model or data set needs first: kubectl create secret generic "
            f"{secret(job)} --from-literal={HUB_TOKEN}=…"
        )
    if job.plan.nodes > 1:
        said.append(
            f"The volume claim {claim(job)} is mounted by {job.plan.nodes} nodes, so it is "
            "ReadWriteMany: its storage class must offer that, which many do not."
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
