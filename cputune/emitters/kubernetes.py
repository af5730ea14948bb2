"""``pytorchjob`` and ``trainjob``: a document for an operator of Kubeflow, and the files next to
it.

CPU numbers mean nothing in a container: a pod of the Guaranteed class with whole CPUs may get
dedicated ones (kubelet's static CPU manager), which place.py divides; otherwise ranks are not
bound. The security contexts are those of the ``restricted`` Pod Security Standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/).

A script with one word for each step follows
https://huggingface.co/docs/transformers/perf_train_cpu_many: build, submit, watch, fetch, delete.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from cputune.emitters import bash, checked_words, header
from cputune.emitters.checked_words import Manifest, ShellWord, VariableName, YamlScalar, comment
from cputune.emitters.command import RANK_SCRIPT, READ, applied, of_ranks
from cputune.emitters.container import (
    CONSTRAINTS,
    PLACE_SCRIPT,
    PRELOAD,
    WORKSPACE,
    constraints,
    dockerfile,
    preloads,
    user_id,
)
from cputune.emitters.folder import kept_lines
from cputune.emitters.format import Beside, EmittedFile, Format, LaunchJob, Output, Secret, Word
from cputune.emitters.manifest import PLAN, decided
from cputune.emitters.prepared import job_name
from cputune.emitters.promise import Promise
from cputune.emitters.reserve import note_of_reserve, pod_cpus, with_reserve
from cputune.errors import UsageError
from cputune.records.options import SecretKey
from cputune.stack import Versions, oneccl_module
from cputune.text.documents import at, packaged_text
from cputune.text.plain import GIB, count

# The Master of a PyTorchJob and, on several nodes, its Worker.
REPLICAS = ".spec.pytorchReplicaSpecs"


def merged(document: Manifest, patch: Mapping[str, Any] | None) -> Manifest:
    """The document with these fields; unchanged if the patch is of another kind.

    Raises UsageError if the document does not have the field or replica; kustomize fails, too.
    """
    if patch is None or patch.get("kind", document["kind"]) != document["kind"]:
        return document
    result = _as_placed(_merged(document, dict(patch), ""))
    assert isinstance(result, dict)
    return result


def _as_placed(value: Any) -> Any:
    """The document with place.py's number of CPUs as each container has them after a patch."""
    if isinstance(value, list):
        return [_as_placed(item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {key: _as_placed(item) for key, item in value.items()}
    arguments = fields.get("args") or []
    resources = fields.get("resources") or fields.get("resourcesPerNode")
    cpus = str(at(resources, "limits", "cpu"))
    placed = str(at(arguments, 0)).endswith(f"/{PLACE_SCRIPT}")
    if placed and cpus.isdigit():
        fields["args"] = [arguments[0], YamlScalar(cpus), *arguments[2:]]
    return fields


def _merged(ours: Any, theirs: Any, where: str) -> Any:
    if isinstance(theirs, dict):
        fields = dict(ours) if isinstance(ours, dict) else {}
        for key, value in theirs.items():
            there = f"{where}.{key}"
            if key not in fields and (value is None or where == REPLICAS):
                names = ", ".join(map(str, fields)) or "nothing"
                raise UsageError(
                    f"the job has no {there.lstrip('.')}, which the patch changes",
                    hint=f"{where.lstrip('.') or 'the job'} has: {names}",
                )
            if value is None:
                del fields[key]
            else:
                fields[key] = _merged(fields.get(key), value, there)
        return fields
    if isinstance(theirs, list):
        named = all(isinstance(item, dict) and "name" in item for item in theirs)
        if named and isinstance(ours, list):
            return _by_name(ours, theirs, where)
        return [_merged(None, item, where) for item in theirs]
    return YamlScalar(theirs) if isinstance(theirs, str) else theirs


def _by_name(ours: list[Any], theirs: list[Any], where: str) -> list[Any]:
    items = {str(item["name"]): item for item in ours if isinstance(item, dict) and "name" in item}
    for item in theirs:
        name = str(item["name"])
        items[name] = _merged(items.get(name), item, f"{where}[{name}]")
    return list(items.values())


# A finished PyTorchJob is deleted after this time.
TTL_SECONDS = 7 * 24 * 3600

HUB_TOKEN = "HF_TOKEN"
# Where pods have the job's volume claim.
DATA = "/data"

UNPROMISED = (
    "CPU numbers mean nothing in a container: ranks are bound only where the kubelet gives the "
    "pod CPUs of its own (static CPU manager policy)."
)
WISHES = (
    "For CPUs of their own on as few NUMA nodes as can be, the kubelet wants cpuManagerPolicy: "
    "static with full-pcpus-only, memoryManagerPolicy: Static and topologyManagerPolicy: "
    "best-effort (single-numa-node refuses a pod that is larger than a node)."
)


def pytorchjob(job: LaunchJob) -> Manifest:
    """A PyTorchJob of Kubeflow's training operator 1.9, as data.

    nprocPerNode is always written, as a string: unset means "auto", one process for each CPU.
    Master and workers, without an elastic policy: worker-only jobs have no MASTER_ADDR, and
    ``minReplicas: 1`` trains on a subset after 30 s without a message. With ``--max-restarts`` the
    job is elastic, only has workers, and has a fixed size.
    """
    program = {
        "image": YamlScalar(image(job)),
        "imagePullPolicy": "IfNotPresent",
        **program_of(job),
        "resources": resources(job),
    }
    template = pod(job, "pytorch", program, automountServiceAccountToken=False)
    nodes, restarts = job.plan.nodes, job.site.cluster.max_restarts
    spec: Manifest = {
        "nprocPerNode": YamlScalar(job.plan.processes_per_node),
        "runPolicy": {
            "cleanPodPolicy": "None",
            "backoffLimit": restarts or 0,
            "ttlSecondsAfterFinished": TTL_SECONDS,
        },
    }
    if restarts:
        spec["elasticPolicy"] = {
            "rdzvBackend": "c10d",
            "minReplicas": nodes,
            "maxReplicas": nodes,
            "maxRestarts": restarts,
        }
        replicas = {"Worker": nodes}
    else:
        replicas = {"Master": 1} | ({"Worker": nodes - 1} if nodes > 1 else {})
    again = "OnFailure" if restarts else "Never"
    specs = {}
    for kind, number in replicas.items():
        specs[kind] = {"replicas": number, "restartPolicy": again, "template": template}
    spec["pytorchReplicaSpecs"] = specs
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(job, job_name(job)),
        "spec": spec,
    }


def trainjob(job: LaunchJob) -> Manifest:
    """A TrainJob of Kubeflow Trainer 2.2 or later on a torch runtime, as data.

    numProcPerNode is always written: unset means one process for each CPU. Names that begin with
    PET_ belong to the runtime. Volumes reach the pods through a runtime patch; the torch runtimes
    call both their job and their container ``node``
    (``pkg/apis/trainer/v1alpha1/trainjob_types.go``).
    """
    patched = [{"name": "node", "template": {"spec": {"template": pod(job, "node", {})}}}]
    spec = {"template": {"spec": {"replicatedJobs": patched}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, job_name(job)),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": YamlScalar(job.site.cluster.runtime or "torch-distributed"),
            },
            "trainer": {
                "image": YamlScalar(image(job)),
                "numNodes": job.plan.nodes,
                "numProcPerNode": job.plan.processes_per_node,
                **program_of(job),
                "resourcesPerNode": resources(job),
            },
            "runtimePatches": [{"manager": "cputune", "trainingRuntimeSpec": spec}],
        },
    }


def with_promise(
    job: LaunchJob, format: str, document: Manifest, files: Sequence[EmittedFile] = ()
) -> Manifest:
    """The document with the promise for `cputune verify` as an annotation.

    The command in it says what is trained; kustomize drops the comment above it.
    """
    promise = Promise(
        format=format, plan=job.plan, document=decided(document), folder=kept_lines(files)
    )
    fields = document["metadata"]
    annotations = {**fields.get("annotations", {}), PLAN: YamlScalar(promise.text())}
    return {**document, "metadata": {**fields, "annotations": annotations}}


def image(job: LaunchJob) -> str:
    """The image's reference, or a visible placeholder."""
    return job.site.cluster.image or f"<your-registry>/{job_name(job)}:latest"


def claim(job: LaunchJob) -> str:
    """The name of the volume claim that holds data and output."""
    return job.site.cluster.pvc or f"{job_name(job)}-data"


def secret(job: LaunchJob) -> str:
    """The Secret for values that were left out of the training command, and for the hub's token."""
    return f"{job_name(job)}-secrets"


# The request over the peak in trials, which end before the evaluation and the first checkpoint;
# /dev/shm and the page cache of written files count for the pod (cgroup v2, Documentation/admin-
# guide/cgroup-v2.rst, memory.current). Assumed.
MEMORY_MARGIN = 1.5


def memory(job: LaunchJob) -> str:
    """A pod's memory in whole GiB: the requested one, else the measured peak of its ranks and a
    margin.

    Without a measurement it is a guess of 8 GiB for each rank.
    """
    ranks = job.plan.processes_per_node
    guess = 8 * ranks
    if job.machine.rank_bytes:
        guess = math.ceil(MEMORY_MARGIN * ranks * job.machine.rank_bytes / GIB)
    return job.site.cluster.memory or f"{guess}Gi"


def _note_of_memory(job: LaunchJob) -> str:
    if not job.machine.rank_bytes:
        return f"a guess: {memory(job)} of memory for each pod (--memory)"
    held, ranks = job.machine.rank_bytes / GIB, job.plan.processes_per_node
    return (
        f"{memory(job)} of memory for each pod: {count(ranks, 'rank')} that held {held:.2f} GiB at "
        f"most while they were measured, times {MEMORY_MARGIN} for evaluation, checkpoints and "
        "/dev/shm (--memory)"
    )


def metadata(job: LaunchJob, name: str) -> Manifest:
    """Name, labels and namespace of a document.

    ``kubectl create -n NS`` refuses a document that names another namespace.
    """
    space = job.site.cluster.namespace
    named = {} if space is None else {"namespace": YamlScalar(space)}
    return {"name": YamlScalar(name), **named, "labels": labels(job)}


def labels(job: LaunchJob) -> dict[str, YamlScalar]:
    """The labels that Kubernetes recommends: application, component, and the tool that wrote it."""
    values = {"name": job_name(job), "component": "training", "managed-by": "cputune"}
    return {f"app.kubernetes.io/{key}": YamlScalar(value) for key, value in values.items()}


def pod(job: LaunchJob, name: str, program: Manifest, **more: object) -> Manifest:
    """The template of a pod that trains in one container: its volumes, its user, its nodes.

    ``program`` is what the container starts; ``more`` are fields of the pod. A mesh's sidecar would
    keep a finished pod running, and catches the ranks' traffic. Volumes are the claim, and a
    /dev/shm up to the pod's memory.
    """
    cluster = job.site.cluster
    container = {
        "name": name,
        **program,
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "dshm", "mountPath": "/dev/shm"},
        ],
        "securityContext": SECURITY_OF_CONTAINER,
    }
    spec: Manifest = {
        **more,
        "securityContext": security_of_pod(job),
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": YamlScalar(claim(job))}},
            {"name": "dshm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": YamlScalar(name)} for name in cluster.pull_secrets]
    if cluster.node_selector:
        spec["nodeSelector"] = {key: YamlScalar(value) for key, value in cluster.node_selector}
    annotations = {"sidecar.istio.io/inject": YamlScalar("false")}
    return {"metadata": {"labels": labels(job), "annotations": annotations}, "spec": spec}


def security_of_pod(job: LaunchJob) -> Manifest:
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


SECURITY_OF_CONTAINER: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def resources(job: LaunchJob) -> Manifest:
    """Requests equal to limits, whole CPUs: the Guaranteed class."""
    amount = {"cpu": YamlScalar(pod_cpus(job)), "memory": YamlScalar(memory(job))}
    return {"requests": amount, "limits": dict(amount)}


def program_of(job: LaunchJob) -> Manifest:
    """What a pod is started with: torchrun, which starts place.py for each rank, after oneCCL's
    setvars.sh.
    """
    command = [YamlScalar("torchrun")]
    if job.plan.backend == "ccl":
        module = oneccl_module(Versions.from_names(job.machine.versions))
        find = shlex.quote(bash.FIND_SETVARS.format(module=module))
        source = f'source "$(python3 -c {find})" && exec torchrun "$@"'
        command = [escape(word) for word in ("bash", "-c", source, "torchrun")]
    rank = [f"{WORKSPACE}/{PLACE_SCRIPT}", str(pod_cpus(job)), "--"]
    if job.plan.world_size > 1:
        rank += [f"{WORKSPACE}/{RANK_SCRIPT}", *of_ranks(job), "--"]
    arguments = [YamlScalar(word) for word in rank]
    arguments += map(_inside, applied(job) + job.command)
    return {"command": command, "args": arguments, "env": environment(job)}


def escape(word: str) -> YamlScalar:
    """A word of a command or value of a variable: the kubelet expands ``$(NAME)``, ``$$`` is $
    (io/kubernetes/third_party/forked/golang/expansion).
    """
    return YamlScalar(word.replace("$", "$$"))


def _inside(word: Word) -> YamlScalar:
    """A word of a command with its path in the image, or on the volume."""
    if isinstance(word, Secret):
        return YamlScalar(escape(word.before) + f"$({word.variable})")
    if isinstance(word, Beside):
        return escape(f"{WORKSPACE}/{word.name}")
    if isinstance(word, Output):
        return escape(word.before + written(word.name))
    return escape(word)


def environment(job: LaunchJob) -> list[Manifest]:
    """The plan's variables, with libraries by their places in the image and secrets from a Secret.

    Downloads from the hub stay on the volume. place.py finds the CPU numbers. Public models need no
    token, so the pod also starts without it.
    """
    values: dict[str, str] = dict(bash.variables(job, pods=True).items())
    values["HF_HOME"] = f"{DATA}/huggingface"
    if "LD_PRELOAD" in values:
        values["LD_PRELOAD"] = ":".join(f"{PRELOAD}/{name}.so" for name in preloads(job))
    values.pop("CCL_WORKER_AFFINITY", None)
    variables: list[Manifest] = []
    for name, text in values.items():
        variables.append({"name": VariableName(name), "value": escape(text)})
    keys = {key.variable: key for key in job.site.cluster.secret_variables}
    is_token_optional = HUB_TOKEN not in keys
    for name in (*job.workload.secrets, HUB_TOKEN):
        keys.setdefault(name, SecretKey(variable=name, secret=secret(job), key=name))
    for name, key in keys.items():
        variables.append(_from_secret(key, optional=name == HUB_TOKEN and is_token_optional))
    return variables


def _from_secret(key: SecretKey, *, optional: bool) -> Manifest:
    reference: Manifest = {"name": YamlScalar(key.secret), "key": YamlScalar(key.key)}
    if optional:
        reference["optional"] = True
    return {"name": VariableName(key.variable), "valueFrom": {"secretKeyRef": reference}}


def _on_volume(path: str) -> bool:
    return f"{path}/".startswith(f"{DATA}/")


def written(path: str) -> str:
    """The place on the volume for an output path, which would be lost with the pod."""
    if _on_volume(path):
        return path
    place = PurePosixPath(path)
    parts = [part for part in place.parts if part not in ("/", ".", "..", "~")]
    kept = parts[-1:] if place.is_absolute() or len(parts) < len(place.parts) else parts
    return "/".join([DATA, *kept])


def _notes_of_paths(job: LaunchJob) -> list[str]:
    """What is written elsewhere than it was typed, and what a pod will not find."""
    if job.workload.recipe is not None:
        return []
    notes = []
    for word in job.command:
        if isinstance(word, Output) and written(word.name) != word.name:
            notes.append(
                f"The output goes to {written(word.name)}: {word.name} would die with the pod."
            )
    for flag in READ:
        path = job.workload.argument(flag) or ""
        if path.startswith(("/", "~", "..")) and not _on_volume(path):
            notes.append(
                f"{flag} {path} is not on a volume of the pod: copy it to {DATA}, or put it into "
                "the image there."
            )
    return notes


def notes(job: LaunchJob) -> tuple[str, ...]:
    """What the user has to fill in or bring, and what a cluster may not grant."""
    lines = [UNPROMISED, WISHES, *_notes_of_paths(job)]
    if job.site.cluster.image is None:
        lines.append(f"placeholder: the image {image(job)} (--image)")
    given = {key.variable for key in job.site.cluster.secret_variables}
    missing = [name for name in job.workload.secrets if name not in given]
    if missing:
        values = " ".join(f"--from-literal={name}=…" for name in missing)
        lines.append(f"first: kubectl create secret generic {secret(job)} {values}")
    elif HUB_TOKEN not in given:
        lines.append(
            "A private model or data set needs first: kubectl create secret generic "
            f"{secret(job)} --from-literal={HUB_TOKEN}=…"
        )
    if job.plan.nodes > 1:
        lines.append(
            f"The volume claim {claim(job)} is mounted by {job.plan.nodes} nodes, so it is "
            "ReadWriteMany: its storage class must offer that, which many do not."
        )
    if job.site.cluster.memory is None:
        lines.append(_note_of_memory(job))
    if job.machine.threads_per_core > 1:
        lines.append(
            f"A Kubernetes CPU is a hyperthread, so each pod asks for {pod_cpus(job)} CPUs."
        )
    if job.script is not None and job.script.startswith("/"):
        lines.append(f"{job.script} must be in the image at that path.")
    return tuple(lines)


def volume_claim(job: LaunchJob) -> str:
    """The claim for data and output; every node of a job mounts it."""
    lines = [f"Volume for data and output of {job.workload.name}.", "", *job.header]
    several = job.plan.nodes > 1
    if several:
        lines.append("Every node of the job mounts it: the storage class must offer ReadWriteMany.")
    content = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, claim(job)),
        "spec": {
            "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
            "resources": {"requests": {"storage": YamlScalar("20Gi")}},
        },
    }
    return checked_words.document(content, lines)


CONFIGURATION = "kustomizeconfig.yaml"
PATCHED = (
    "Fields of your own: a kustomization in a folder beside this one. A patch that names its job "
    "(apiVersion, kind, metadata.name) and has no target fails where there is no such job."
)


def kustomization(name: str, others: Sequence[str] = ()) -> EmittedFile:
    """The kustomization of a folder: ``kubectl apply -k`` starts the job of this format only.

    ``others`` are formats in the folder whose jobs train the same.
    """
    content = {
        "resources": ["pvc.yaml", f"{name}.yaml"],
        "configurations": [f"{name}.{CONFIGURATION}"],
    }
    lines = ["kubectl apply -k .", PATCHED]
    for other in others:
        lines.append(
            f"{other}.yaml trains the same: to start it instead, write {other} for {name} here."
        )
    return EmittedFile(name="kustomization.yaml", text=checked_words.document(content, lines))


def _format(
    kind: str, document: Callable[[LaunchJob], Manifest], *, first: str, label: str
) -> Format:
    """A format that is one Kubernetes document, and the files next to it.

    ``first`` ends the name of the first pod; ``label`` has the job's name on all of them.
    """
    name = kind.lower()

    def write(measured: LaunchJob) -> tuple[EmittedFile, ...]:
        job = with_reserve(measured)
        reader_notes = notes(job)
        reserve = note_of_reserve(job, measured)
        if reserve is not None:
            reader_notes = (reserve, *reader_notes)  # it says that the plan is another one
        recipe = job.workload.recipe is not None
        title = f"Launch of {job.workload.name} as a {kind}."
        values = {
            "kind": name,
            "first": "-worker-0"
            if job.site.cluster.max_restarts and kind == "PyTorchJob"
            else first,
            "label": label,
            "header": comment(job.header),
            "image": ShellWord(image(job)),
            "namespace": ShellWord(job.site.cluster.namespace or ""),
            "job": ShellWord(job_name(job)),
            "claim": ShellWord(claim(job)),
            "context": '"$here"' if recipe else '"$PWD"',
            "data": DATA,
            "output": "out" if recipe else ".",
            "pod": json.dumps(security_of_pod(job)),
            "container": json.dumps(SECURITY_OF_CONTAINER),
        }
        files = [kustomization(name)]
        others = {
            "Dockerfile": dockerfile(job),
            "Dockerfile.dockerignore": bash.fill("dockerignore", {}),
            CONSTRAINTS: constraints(job),
            "pvc.yaml": volume_claim(job),
            # kustomize knows the fields of no custom resource: a prefix would rename the claim,
            # and not its use (its docs: builtins, NameReferenceTransformer).
            f"{name}.{CONFIGURATION}": bash.fill(f"{name}.{CONFIGURATION}", {}),
            PLACE_SCRIPT: packaged_text("cputune.plans", "placing.py"),
        }
        for other, text in others.items():
            files.append(EmittedFile(name=other, text=text))
        steps = bash.fill("kubectl.sh", values)
        files.append(EmittedFile(name=f"{name}.kubectl.sh", text=steps, executable=True))
        in_folder = files + list(job.companions)
        content = with_promise(job, name, merged(document(job), job.site.patch), in_folder)
        text = header.full(job, name, title, reader_notes) + checked_words.dump(content)
        main = EmittedFile(name=f"{name}.yaml", text=text, notes=reader_notes, document=content)
        return (main, *files)

    return Format(
        name=name,
        write=write,
        main=f"{name}.yaml",
        elsewhere=True,
        consumers=("kubernetes",),
    )


PYTORCHJOB = _format(
    "PyTorchJob",
    pytorchjob,
    first="-master-0",
    label="training.kubeflow.org/job-name",
)
TRAINJOB = _format(
    "TrainJob",
    trainjob,
    first="-node-0-0",
    label="jobset.sigs.k8s.io/jobset-name",
)
