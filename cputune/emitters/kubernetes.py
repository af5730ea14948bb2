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
from cputune.emitters.command import RANK_SCRIPT, READ, flag_of
from cputune.emitters.format import Beside, LaunchJob, Output, Secret, Word
from cputune.emitters.job import job_name
from cputune.emitters.words import Argument, Manifest, Variables, YamlScalar, typed
from cputune.errors import UsageError
from cputune.options import Mounted, SecretKey
from cputune.stack import Versions, oneccl_module
from cputune.stack.fit import pythons_for

USER = 1000
"""Of the image, too: torch asks for the name of its user, so the image has to know the number."""

TTL_SECONDS = 7 * 24 * 3600
HUB_TOKEN = "HF_TOKEN"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def user_id(job: LaunchJob) -> int:
    """The number of the user that trains. Raises UsageError for root."""
    given = job.cluster.user_id
    if given is not None and not 0 < given < 1 << 31:
        raise UsageError(
            f"no pod runs as the user {given}", hint="--user-id 1000, or another but 0"
        )
    return given or USER


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


def labels(job: LaunchJob) -> dict[str, str]:
    """Whose a thing is: the recommended labels, then those that were given."""
    found = {
        "app.kubernetes.io/name": YamlScalar(job_name(job)),
        "app.kubernetes.io/component": YamlScalar("training"),
        "app.kubernetes.io/managed-by": YamlScalar("cputune"),
    }
    return found | pairs(job.cluster.labels, "a label", "--label team=nlp")


def pairs(given: tuple[tuple[str, str], ...], what: str, example: str) -> dict[str, str]:
    """Labels of any kind. Raises UsageError for what Kubernetes would refuse."""
    found: dict[str, str] = {}
    for key, value in given:
        matching(_LABEL_KEY, key, what, example)
        if value:
            matching(_LABEL, value, f"the value of {what}", example)
        found[key] = YamlScalar(value)
    return found


def scheduling(job: LaunchJob) -> Manifest:
    """Account, priority, pull secrets, tolerations and node labels: only those that were given."""
    cluster = job.cluster
    found: Manifest = {}
    for key, name, what in (
        ("serviceAccountName", cluster.service_account, "a service account"),
        ("priorityClassName", cluster.priority_class, "a priority class"),
    ):
        if name is not None:
            found[key] = YamlScalar(matching(_DNS_NAME, name, what, "--service-account trainer"))
    if cluster.pull_secrets:
        found["imagePullSecrets"] = [
            {
                "name": YamlScalar(
                    matching(_DNS_NAME, name, "a Secret", "--image-pull-secret regcred")
                )
            }
            for name in cluster.pull_secrets
        ]
    if cluster.tolerations:
        found["tolerations"] = _tolerations(job)
    selector = pairs(cluster.node_selector, "a node label", "--node-selector name=value")
    if selector:
        found["nodeSelector"] = selector
    return found


def _tolerations(job: LaunchJob) -> list[Manifest]:
    example = "--toleration dedicated=training:NoSchedule"
    found = []
    for one in job.cluster.tolerations:
        key = YamlScalar(matching(_LABEL_KEY, one.key, "the key of a taint", example))
        entry: Manifest = {"key": key, "operator": "Exists"}
        if one.value is not None:
            value = matching(_LABEL, one.value, "the value of a taint", example)
            entry |= {"operator": "Equal", "value": YamlScalar(value)}
        if one.effect is not None:
            if one.effect not in EFFECTS:
                raise UsageError(
                    f"{one.effect!r} is no effect of a taint", hint=f"as in: {example}"
                )
            entry["effect"] = one.effect
        found.append(entry)
    return found


def secret(job: LaunchJob) -> str:
    """The Secret that holds what was left out of the training command, and the hub's token."""
    return f"{job_name(job)}-secrets"


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
    example = "--secret-env HF_TOKEN=my-secret/token"
    reference: Manifest = {
        "name": YamlScalar(matching(_DNS_NAME, one.secret, "a Secret", example)),
        "key": YamlScalar(matching(_SECRET_KEY, one.key, "a key of a Secret", example)),
    }
    if optional:
        reference["optional"] = True
    name = matching(_VARIABLE, one.variable, "a variable", example)
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def ttl_seconds(job: LaunchJob) -> int:
    """After how long a job that is done is deleted. Raises UsageError."""
    given = job.cluster.ttl_seconds
    if given is not None and not 0 <= given < 1 << 31:
        raise UsageError(f"a job cannot stay {given} seconds", hint="--ttl 86400, for a day")
    return TTL_SECONDS if given is None else given


def matching(pattern: re.Pattern[str], text: str, what: str, example: str) -> str:
    """The text where it is one. Raises UsageError."""
    if not pattern.fullmatch(text):
        raise UsageError(f"{text!r} is not {what}", hint=f"as in: {example}")
    return text


WORKSPACE = "/workspace"
DATA = "/data"
"""Where the job's own claim is mounted, unless ``--mount`` says another place."""

QUEUE = "kueue.x-k8s.io/queue-name"
"""https://kueue.sigs.k8s.io/docs/tasks/run/kubeflow/pytorchjobs/"""
PRELOAD = "/opt/preload"
"""Where the Dockerfile links the libraries that a plan preloads."""

BASE = "python:{python}-slim-bookworm"
PYTHON = "3.11"
"""The Python of an image, where all packages have wheels for it."""

_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+/?")
_IMAGE = re.compile(r"[a-z0-9.:_/<>@-]+", re.IGNORECASE)
_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

UNPROMISED = (
    "CPU numbers mean nothing in a container: ranks are bound only where the kubelet gives the "
    "pod CPUs of its own (static CPU manager policy)."
)


def image(job: LaunchJob) -> str:
    """The image's reference, or a visible placeholder."""
    given = job.cluster.image
    if given is None:
        return f"<your-registry>/{job_name(job)}:latest"
    return matching(_IMAGE, given, "an image", "REGISTRY/NAME:TAG")


def base_image(job: LaunchJob) -> str:
    """What the Dockerfile starts from."""
    return job.cluster.base_image or BASE.format(python=_python(job))


def _python(job: LaunchJob) -> str:
    """The Python of the image: the usual one, else the newest with wheels of all packages."""
    fitting = pythons_for(Versions.from_names(job.versions))
    return PYTHON if PYTHON in fitting or not fitting else fitting[-1]


def namespace(job: LaunchJob) -> str:
    return matching(
        _DNS_LABEL, job.cluster.namespace or "default", "a namespace", "--namespace default"
    )


def claim(job: LaunchJob) -> str:
    """The name of the volume claim that holds data and output."""
    return matching(
        _DNS_NAME, job.cluster.pvc or f"{job_name(job)}-data", "a volume claim", "--pvc my-data"
    )


def dns_name(given: str, what: str, example: str) -> str:
    return matching(_DNS_NAME, given, what, example)


def storage_class(job: LaunchJob) -> str | None:
    given = job.cluster.storage_class
    return given and matching(_DNS_NAME, given, "a storage class", "--storage-class standard")


def quantity(given: str | None, default: str, option: str) -> str:
    return matching(_QUANTITY, given or default, "a quantity", f"{option} {default}")


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
    if not _PATH.fullmatch(path) or any(f"{path}/".startswith(f"{one}/") for one in taken):
        raise UsageError(f"no volume can be mounted at {path!r}", hint="--mount /mnt/data")
    return path.rstrip("/")


def stays(job: LaunchJob, path: str) -> bool:
    """Whether what is written there outlives the pod."""
    kept = [data(job), *(m.path for m in job.cluster.mounts if m.claim and not m.read_only)]
    return any(f"{path}/".startswith(f"{_mountable(one)}/") for one in kept)


def written(job: LaunchJob, path: str) -> str:
    """Where a pod writes what was to be written to this path: it dies with the pod elsewhere."""
    if stays(job, path):
        return path
    place = PurePosixPath(path)
    parts = [part for part in place.parts if part not in ("/", ".", "..", "~")]
    kept = parts[-1:] if place.is_absolute() or len(parts) < len(place.parts) else parts
    return "/".join([data(job), *kept])


def memory(job: LaunchJob) -> str:
    return quantity(job.cluster.memory, f"{8 * job.plan.processes_per_node}Gi", "--memory")


def shared_memory(job: LaunchJob) -> str:
    return quantity(job.cluster.shm, f"{job.plan.processes_per_node}Gi", "--shm")


def pod_cpus(job: LaunchJob) -> int:
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


def escape(word: str) -> YamlScalar:
    """A word of a command or value of a variable: the kubelet expands ``$(NAME)``, ``$$`` is $.

    io/kubernetes/third_party/forked/golang/expansion.
    """
    return YamlScalar(word.replace("$", "$$"))


def environment(job: LaunchJob) -> list[Manifest]:
    """The plan's variables; no CPU numbers. Secrets come from a Secret."""
    found: list[Manifest] = [
        {"name": name, "value": escape(value)}
        for name, value in image_variables(job).items()
        if name != "CCL_WORKER_AFFINITY"  # rank.py knows the pod's CPUs
    ]
    return [*found, *secret_variables(job)]


def image_variables(job: LaunchJob) -> Variables:
    """The plan's variables, libraries by their places in the image.

    What is downloaded from the hub stays on the volume.
    """
    values: dict[str, str] = dict(shell.variables(job, pods=True).items())
    values["HF_HOME"] = f"{data(job)}/huggingface"
    if job.cluster.read_only_root:
        values["HOME"] = "/tmp"
    if "LD_PRELOAD" in values:
        values["LD_PRELOAD"] = ":".join(f"{PRELOAD}/{name}.so" for name in preloads(job))
    return typed(values)


def preloads(job: LaunchJob) -> tuple[str, ...]:
    """What the plan preloads, by name."""
    names = (job.plan.allocator, job.plan.openmp)
    return tuple(name for name in names if name != "default")


def command(job: LaunchJob) -> list[YamlScalar]:
    """torchrun; where oneCCL is used, after its setvars.sh."""
    return [escape(word) for word in torchrun_words(job)]


def torchrun_words(job: LaunchJob) -> list[Argument]:
    """The same, as the process gets it."""
    if job.plan.backend != "ccl":
        return [Argument("torchrun")]
    module = oneccl_module(Versions.from_names(job.versions))
    find = shlex.quote(shell.FIND_SETVARS.format(module=module))
    source = f'source "$(python3 -c {find})" && exec torchrun "$@"'
    return [*map(Argument, ("bash", "-c", source, "torchrun"))]


def arguments(job: LaunchJob) -> list[YamlScalar]:
    """rank.py with its binding, then the training command."""
    words = [f"{WORKSPACE}/{RANK_SCRIPT}", "--launcher", "torch"]
    words += ["--bind", f"pod={pod_cpus(job)}", "--"]
    return [YamlScalar(word) for word in words] + [inside(job, word) for word in job.command]


def inside(job: LaunchJob, word: Word) -> YamlScalar:
    """A word of a command as it is in the pod."""
    if isinstance(word, Secret):
        return YamlScalar(escape(word.before) + f"$({word.variable})")
    return escape(placed(job, word))


def placed(job: LaunchJob, word: Argument | Beside | Output) -> Argument:
    """A word with the path that it names in the image, or on the volume."""
    if isinstance(word, Beside):
        return Argument(f"{WORKSPACE}/{word.name}")
    if isinstance(word, Output):
        return Argument(word.before + written(job, word.name))
    return word


def resources(job: LaunchJob) -> Manifest:
    """Requests equal to limits, whole CPUs: the Guaranteed class."""
    amount = {"cpu": YamlScalar(pod_cpus(job)), "memory": YamlScalar(memory(job))}
    if job.cluster.ephemeral_storage is not None:
        disk = quantity(job.cluster.ephemeral_storage, "20Gi", "--ephemeral-storage")
        amount["ephemeral-storage"] = YamlScalar(disk)
    return {"requests": amount, "limits": dict(amount)}


def pod(job: LaunchJob, name: str, program: Manifest, **more: object) -> Manifest:
    """The template of a pod that trains in one container: what is started in it, and its limits.

    ``program`` are its command, arguments, variables and resources; ``more`` are fields of the pod.
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
        **more,
    }
    return {"metadata": pod_metadata(job), "spec": spec}


def volumes(job: LaunchJob) -> list[Manifest]:
    """The job's own claim, those of the user, /dev/shm, and /tmp where the rest is read-only."""
    memory = {"medium": "Memory", "sizeLimit": YamlScalar(shared_memory(job))}
    found: list[Manifest] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": YamlScalar(claim(job))}},
        *(
            {"name": name, "persistentVolumeClaim": {"claimName": YamlScalar(one.claim or "")}}
            for name, one in _others(job)
        ),
        {"name": "dshm", "emptyDir": memory},
    ]
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
    for one in named:
        matching(_DNS_NAME, one.claim or "", "a volume claim", "--mount my-data:/squad:ro")
    return [(f"mount-{number}", one) for number, one in enumerate(named)]


def pod_metadata(job: LaunchJob) -> Manifest:
    """Labels and annotations of a pod."""
    return {"labels": labels(job), "annotations": pod_annotations()}


def metadata(job: LaunchJob, name: str, *, queued: bool = False) -> Manifest:
    """Of a document; ``queued``: of one that Kueue admits."""
    queue: dict[str, str] = {}
    if queued and job.cluster.queue is not None:
        queue = {
            QUEUE: YamlScalar(matching(_DNS_LABEL, job.cluster.queue, "a queue", "--queue team"))
        }
    return {
        "name": YamlScalar(name),
        "namespace": YamlScalar(namespace(job)),
        "labels": labels(job) | queue,
    }


def pod_annotations() -> dict[str, str]:
    """A mesh's sidecar would keep a finished pod running, and catches the ranks' traffic."""
    return {"sidecar.istio.io/inject": YamlScalar("false")}


WISHES = (
    "For CPUs of their own on as few NUMA nodes as can be, the kubelet wants cpuManagerPolicy: "
    "static with full-pcpus-only, memoryManagerPolicy: Static and topologyManagerPolicy: "
    "best-effort (single-numa-node refuses a pod that is larger than a node)."
)


def notes_of_paths(job: LaunchJob) -> tuple[str, ...]:
    """What is written elsewhere than it was typed, and what a pod will not find."""
    said: list[str] = []
    flag = ""
    for word in job.command if job.workload.recipe is None else ():
        text = word if isinstance(word, str) else ""
        name, equals, value = text.partition("=")
        if isinstance(word, Output):
            place = written(job, word.name)
            if place != word.name:
                said.append(f"The output goes to {place}: {word.name} would die with the pod.")
        elif flag_of(name) in READ and equals:
            said += _unfound(job, name, value)
        elif flag_of(flag) in READ:
            said += _unfound(job, flag, text)
        flag = text
    return tuple(said)


def _unfound(job: LaunchJob, flag: str, path: str) -> list[str]:
    at = [data(job), *(mount.path for mount in job.cluster.mounts if mount.claim)]
    if any(f"{path}/".startswith(f"{one}/") for one in at):
        return []
    if path.startswith(("/", "~", "..")):
        return [
            f"{flag} {path} is on no volume of the pod: bring it to {data(job)}, name the claim "
            "that holds it (--mount CLAIM:PATH:ro), or build it into the image at that path."
        ]
    if "." in PurePosixPath(path).name and flag_of(flag).endswith(("_file", "_dir")):
        return [f"{flag} {path} goes into the image, with the folder that it is built from."]
    return []


def notes(job: LaunchJob) -> tuple[str, ...]:
    """What nobody but the user knows, and what nobody can promise."""
    said = [UNPROMISED, WISHES, *notes_of_paths(job)]
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
