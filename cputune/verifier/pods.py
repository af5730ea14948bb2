"""The pods of a job: their names, volumes, quality of service, and how long they may live.

What is refused or goes wrong here is not in a schema: the API server and the kubelet check it in
code, or not at all. Sources: kubernetes/pkg/apis/core/validation/validation.go and
apimachinery/pkg/util/validation (names), kubernetes.io/docs/concepts/workloads/pods/pod-qos,
training-operator/pkg/webhooks/pytorch (the container ``pytorch``),
jobset/pkg/webhooks/jobset_webhook.go (the length of names), kueue.sigs.k8s.io (``suspend``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cputune.text.documents import at
from cputune.text.quantities import quantity_of
from cputune.verifier.records import Evidence

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# A reference as containerd reads it (distribution/reference/regexp.go).
_IMAGE = re.compile(
    r"[a-zA-Z0-9][-a-zA-Z0-9.]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[\w][\w.-]{0,127})?"
    r"(@sha256:[0-9a-f]{64})?"
    r"|[a-z0-9]+([._-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)

# The longest name of a pod or a service, which is a label of DNS.
MOST_LETTERS = 63

# A deadline below this ends a job before its image is pulled and its model is loaded.
LEAST_SECONDS = 600

# Kinds of volumes that keep what was written after the pod has gone.
PERSISTENT = frozenset(
    [
        "persistentVolumeClaim", "nfs", "csi", "hostPath", "cephfs", "glusterfs", "iscsi", "fc",
        "azureFile", "azureDisk", "awsElasticBlockStore", "gcePersistentDisk", "ephemeral",
        "flexVolume", "rbd", "portworxVolume",
    ]
)  # fmt: skip

_QUEUES = ("kueue.x-k8s.io/queue-name", "scheduling.volcano.sh/queue-name")
_SIDECAR = "sidecar.istio.io/inject"
# Variables that name a folder that a training writes to.
_WRITTEN = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TMPDIR")
_OUTPUTS = ("--output_dir", "--output-dir", "--logging_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """The pods of one role of a job.

    Attributes:
        place: the path of the template in the document.
        trains: the name of the container that trains; None: the first.
        program: of a TrainJob the ``trainer``, whose fields its container gets.
    """

    place: str
    count: int
    spec: Mapping[str, Any]
    metadata: Mapping[str, Any]
    trains: str | None = None
    program: Mapping[str, Any] | None = None

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Those that run at the same time, with what the ``trainer`` gives one of them."""
        containers = _mappings(at(self.spec, "containers"))
        if self.program is None:
            return containers
        trainer = {**self.program, "resources": self.program.get("resourcesPerNode")}
        training: Mapping[str, Any] | None = None
        others: list[Mapping[str, Any]] = []
        for container in containers:
            if container.get("name") != self.trains:
                others.append(container)
            elif training is None:
                training = container
        if training is None:
            training = {"name": self.trains}
        return [{**trainer, **training, "env": _env(trainer, training)}, *others]

    @property
    def first(self) -> Sequence[Mapping[str, Any]]:
        """Containers that run before the others."""
        return _mappings(at(self.spec, "initContainers"))

    @property
    def training(self) -> Mapping[str, Any] | None:
        containers = self.containers
        if self.trains is not None:
            return next((one for one in containers if one.get("name") == self.trains), None)
        if containers:
            return containers[0]
        return None


def _env(trainer: Mapping[str, Any], container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _mappings(trainer.get("env")) + _mappings(container.get("env"))


def _mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings of a list; another type is a fault of the schema."""
    if not isinstance(value, list):
        return []
    mappings: list[Mapping[str, Any]] = []
    for one in value:
        if isinstance(one, Mapping):
            mappings.append(one)
    return mappings


def _strings(value: object) -> list[str]:
    if isinstance(value, list):
        texts: list[str] = []
        for one in value:
            if isinstance(one, str):
                texts.append(one)
        return texts
    return []


def _mapping(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


def templates_of(job: Mapping[str, Any]) -> Iterator[PodTemplate]:
    """The pod templates of a PyTorchJob, MPIJob, TrainJob or Job."""
    kind, spec = str(job.get("kind")), _mapping(job.get("spec"))
    if kind in ("PyTorchJob", "MPIJob"):
        name = "mpiReplicaSpecs"
        if kind == "PyTorchJob":
            name = "pytorchReplicaSpecs"
        for role, replica in _mapping(spec.get(name)).items():
            template = _mapping(at(replica, "template"))
            yield PodTemplate(
                place=f"{role}",
                count=_number(at(replica, "replicas"), 1),
                spec=_mapping(template.get("spec")),
                metadata=_mapping(template.get("metadata")),
                trains="pytorch" if kind == "PyTorchJob" else None,
            )
    elif kind == "TrainJob":
        trainer = _mapping(spec.get("trainer"))
        patched = list(_patched_pods(spec)) or [{}]
        for template in patched:
            yield PodTemplate(
                place="runtimePatches",
                count=_number(trainer.get("numNodes"), 1),
                spec=_mapping(template.get("spec")),
                metadata=_mapping(template.get("metadata")),
                trains="node",
                program=trainer,
            )
    elif kind == "Job":
        template = _mapping(spec.get("template"))
        yield PodTemplate(
            place="template",
            count=_number(spec.get("parallelism"), 1),
            spec=_mapping(template.get("spec")),
            metadata=_mapping(template.get("metadata")),
        )


def _patched_pods(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for patch in _mappings(spec.get("runtimePatches")):
        jobs = at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for replicated in _mappings(jobs):
            yield _mapping(at(replicated, "template", "spec", "template"))


def _number(value: object, otherwise: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return otherwise


# --- names ------------------------------------------------------------------------------


def name_faults(job: Mapping[str, Any]) -> Iterator[Evidence]:
    """Names that are refused, or that get too long with the operator's suffix."""
    kind, metadata = str(job.get("kind")), _mapping(job.get("metadata"))
    name, begins = metadata.get("name"), metadata.get("generateName")
    if name is None and begins is None:
        yield Evidence(what="metadata.name", seen="missing", expected="a name")
    if isinstance(name, str):
        yield from _job_name(name, job)
    if isinstance(begins, str):
        yield from _job_name(f"{begins}abcde", job)
    yield from _one("metadata.namespace", metadata.get("namespace"), _LABEL, "DNS label")
    yield from _labels("metadata", metadata)
    for template in templates_of(job):
        yield from _labels(f"{template.place}.metadata", template.metadata)
        yield from _names_of_pod(template, kind)
    if kind == "TrainJob":
        yield from _runtime(_mapping(at(job, "spec", "runtimeRef")))
        managers = list[object]()
        for patch in _mappings(at(job, "spec", "runtimePatches")):
            if patch.get("manager") in managers:  # the key of this list in the definition
                seen = f"two of the manager {patch.get('manager')}"
                yield Evidence(what="runtimePatches", seen=seen, expected="one of each manager")
            managers.append(patch.get("manager"))


def _job_name(name: str, job: Mapping[str, Any]) -> Iterator[Evidence]:
    kind = job.get("kind")
    pattern, allowed = (_SUBDOMAIN, "small letters, digits, - and .")
    if kind != "Job":
        pattern, allowed = (_LABEL_1035, "small letters, digits and -, a letter first, at most 63")
    if not pattern.fullmatch(name):
        yield Evidence(what="metadata.name", seen=name, expected=allowed)
        return
    longest = max((f"{name}{rest}" for rest in _appended(job)), key=len, default=name)
    if len(longest) > MOST_LETTERS:
        problem = f"{longest} has {len(longest)} letters"
        yield Evidence(what="metadata.name", seen=problem, expected=f"at most {MOST_LETTERS}")


def _appended(job: Mapping[str, Any]) -> Iterator[str]:
    """What is appended to a job's name for its pods and services."""
    for template in templates_of(job):
        last = max(template.count - 1, 0)
        match job.get("kind"):
            case "TrainJob":
                yield f"-node-0-{last}-abcde"
            case "Job":
                yield "-abcde"
            case _:
                yield f"-{template.place.lower()}-{last}"


def _one(place: str, value: object, pattern: re.Pattern[str], kind: str) -> Iterator[Evidence]:
    """A name that is no string is a fault of the schema."""
    if isinstance(value, str) and not pattern.fullmatch(value):
        yield Evidence(what=place, seen=value or "empty", expected=f"a {kind}")


def _labels(place: str, metadata: Mapping[str, Any]) -> Iterator[Evidence]:
    for key in (*_mapping(metadata.get("labels")), *_mapping(metadata.get("annotations"))):
        yield from _label_key(place, str(key))
    for key, value in _mapping(metadata.get("labels")).items():
        if value != "":
            yield from _one(f"{place}.labels.{key}", value, _QUALIFIED, "label of at most 63")


def _label_key(place: str, key: str) -> Iterator[Evidence]:
    prefix, slash, name = key.rpartition("/")
    if not _QUALIFIED.fullmatch(name) or (slash and not _SUBDOMAIN.fullmatch(prefix)):
        yield Evidence(what=f"{place}.{key}", seen=key, expected="a key: example.com/name")


def _names_of_pod(template: PodTemplate, kind: str) -> Iterator[Evidence]:
    place, names = template.place, list[object]()
    if kind == "PyTorchJob" and template.training is None:
        yield Evidence(
            what=f"{place}.containers",
            seen=", ".join(str(one.get("name")) for one in template.containers) or "none",
            expected="one that is called pytorch: the operator trains in that one",
        )
    if not template.containers:
        yield Evidence(what=f"{place}.containers", seen="none", expected="a container")
    for container in (*template.containers, *template.first):
        name = container.get("name")
        yield from _one(f"{place}.containers.{name}", name, _LABEL, "DNS label of at most 63")
        if name in names:
            yield Evidence(what=f"{place}.containers", seen=f"two are called {name}")
        if kind == "TrainJob" and name != template.trains:
            text = f"the torch runtimes have no container {name}"
            yield Evidence(what=f"{place}.containers", seen=text, expected=template.trains)
        names.append(name)
        image = container.get("image")
        if isinstance(image, str) and "<" not in image and not _IMAGE.fullmatch(image):
            yield Evidence(what=f"{place}.{name}.image", seen=image or "empty", expected="an image")
        yield from _variables(f"{place}.{name}", container)
        claimed = {str(one.get("name")) for one in _mappings(template.spec.get("resourceClaims"))}
        for claim in _mappings(at(container, "resources", "claims")):
            if str(claim.get("name")) not in claimed:
                seen = f"{claim.get('name')}: the pod has no resource claim of this name"
                yield Evidence(what=f"{place}.{name}.resources.claims", seen=seen)
    yield from _names_beside(template)


def _names_beside(template: PodTemplate) -> Iterator[Evidence]:
    """Names of a pod beside its containers': volumes, nodes, accounts and secrets."""
    place = template.place
    for volume in _mappings(template.spec.get("volumes")):
        name = volume.get("name")
        yield from _one(f"{place}.volumes.{name}", name, _LABEL, "DNS label of at most 63")
        claim = at(volume, "persistentVolumeClaim", "claimName")
        yield from _one(f"{place}.volumes.{name}.claimName", claim, _SUBDOMAIN, "name of a claim")
    for key, value in _mapping(template.spec.get("nodeSelector")).items():
        yield from _label_key(f"{place}.nodeSelector", str(key))
        if value != "":
            yield from _one(f"{place}.nodeSelector.{key}", value, _QUALIFIED, "label of at most 63")
    for field in ("serviceAccountName", "priorityClassName", "schedulerName", "runtimeClassName"):
        yield from _one(f"{place}.{field}", template.spec.get(field), _SUBDOMAIN, "name")
    for secret in _mappings(template.spec.get("imagePullSecrets")):
        yield from _one(f"{place}.imagePullSecrets", secret.get("name"), _SUBDOMAIN, "name")


def _variables(place: str, container: Mapping[str, Any]) -> Iterator[Evidence]:
    for variable in _mappings(container.get("env")):
        name = variable.get("name")
        yield from _one(f"{place}.env.{name}", name, _VARIABLE, "name of a variable")
        if variable.get("value") and variable.get("valueFrom"):
            yield Evidence(what=f"{place}.env.{name}", seen="value and valueFrom", expected="one")
        secret = at(variable, "valueFrom", "secretKeyRef")
        yield from _one(f"{place}.env.{name}", at(secret, "name"), _SUBDOMAIN, "name of a Secret")


def _runtime(reference: Mapping[str, Any]) -> Iterator[Evidence]:
    place = "runtimeRef"
    kind, group = reference.get("kind"), reference.get("apiGroup")
    if kind not in (None, "ClusterTrainingRuntime", "TrainingRuntime"):
        kinds = "ClusterTrainingRuntime or TrainingRuntime"
        yield Evidence(what=f"{place}.kind", seen=str(kind), expected=kinds)
    if group not in (None, "trainer.kubeflow.org"):
        yield Evidence(what=f"{place}.apiGroup", seen=str(group), expected="trainer.kubeflow.org")
    yield from _one(f"{place}.name", reference.get("name"), _SUBDOMAIN, "name of a runtime")


# --- volumes ----------------------------------------------------------------------------


def volume_faults(
    job: Mapping[str, Any], claims: Mapping[str, Mapping[str, Any]]
) -> Iterator[Evidence]:
    """Mounts without a volume, volumes without a source, and places that cannot be written to.

    ``claims`` are the volume claims that are known, by their names.
    """
    templates = list(templates_of(job))
    for template in templates:
        volumes = _mappings(template.spec.get("volumes"))
        names = [volume.get("name") for volume in volumes]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield Evidence(what=f"{template.place}.volumes", seen=f"two are called {name}")
        for volume in volumes:
            yield from _source(template.place, volume)
        for container in (*template.containers, *template.first):
            yield from _mount_faults(template.place, container, names)
        if template.training is not None:
            yield from _read_only(template, template.training)
    for name, count in _claimed(templates).items():
        if name in claims:
            yield from _claim_faults(name, claims[name], count, _mapping(job.get("metadata")))


def _claimed(templates: Iterable[PodTemplate]) -> dict[str, int]:
    """The volume claims of a job, and how many pods mount each."""
    pods = dict[str, int]()
    for template in templates:
        for volume in _mappings(template.spec.get("volumes")):
            name = at(volume, "persistentVolumeClaim", "claimName")
            if name is not None:
                pods[str(name)] = pods.get(str(name), 0) + template.count
    return pods


def _source(place: str, volume: Mapping[str, Any]) -> Iterator[Evidence]:
    kinds = []
    for key, value in volume.items():
        if key != "name" and value is not None:
            kinds.append(key)
    if len(kinds) != 1:
        what = f"{place}.volumes.{volume.get('name')}"
        yield Evidence(what=what, seen=" and ".join(kinds) or "nothing", expected="one source")
    claim = volume.get("persistentVolumeClaim")
    if claim is not None and not at(claim, "claimName"):
        what = f"{place}.volumes.{volume.get('name')}"
        yield Evidence(what=what, seen="no claimName", expected="the name of a claim")
    size = at(volume, "emptyDir", "sizeLimit")
    if size is not None and quantity_of(size) is None:
        what = f"{place}.volumes.{volume.get('name')}.sizeLimit"
        yield Evidence(what=what, seen=str(size), expected="a quantity: 16Gi")


def _mount_faults(
    place: str, container: Mapping[str, Any], names: Sequence[object]
) -> Iterator[Evidence]:
    paths = list[object]()
    where = f"{place}.{container.get('name')}.volumeMounts"
    for mount in _mappings(container.get("volumeMounts")):
        name, path = mount.get("name"), mount.get("mountPath")
        if name not in names:
            yield Evidence(what=where, seen=f"{name}: no volume is called that")
        if not isinstance(path, str) or not path.startswith("/") or ":" in path:
            yield Evidence(what=where, seen=f"{name} at {path}", expected="an absolute path")
        if path in paths:
            yield Evidence(what=where, seen=f"two mounts at {path}")
        inner = str(mount.get("subPath") or "")
        if inner.startswith("/") or ".." in inner.split("/"):
            yield Evidence(what=where, seen=f"subPath {inner}", expected="a relative path")
        unset = _unset_in(str(mount.get("subPathExpr") or ""), container)
        if unset:
            seen = f"subPathExpr needs {', '.join(unset)}, which is not set"
            yield Evidence(what=where, seen=seen)
        paths.append(path)


def _unset_in(expression: str, container: Mapping[str, Any]) -> list[str]:
    """The variables of ``$(NAME)`` that a container does not set."""
    if container.get("envFrom"):
        return []
    names = [str(one.get("name")) for one in _mappings(container.get("env"))]
    return [name for name in re.findall(r"(?<!\$)\$\(([^)]+)\)", expression) if name not in names]


def _written(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what writes, the folder): what a training writes to beside /tmp."""
    for variable in _mappings(container.get("env")):
        value = variable.get("value")
        if (
            str(variable.get("name")) in _WRITTEN
            and isinstance(value, str)
            and value.startswith("/")
        ):
            yield str(variable.get("name")), value
    arguments = _strings(container.get("command")) + _strings(container.get("args"))
    for number, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if not equals:
            value = "".join(arguments[number + 1 : number + 2])
        if flag in _OUTPUTS and value.startswith("/"):
            yield flag, value
    yield "shared memory", "/dev/shm"


def _read_only(template: PodTemplate, container: Mapping[str, Any]) -> Iterator[Evidence]:
    volumes = {str(one.get("name")): one for one in _mappings(template.spec.get("volumes"))}
    mounts = {}
    for mount in _mappings(container.get("volumeMounts")):
        mounts[str(mount.get("mountPath")).rstrip("/")] = mount
    locked = at(container, "securityContext", "readOnlyRootFilesystem") is True
    what = f"{template.place}.{container.get('name')}"
    needed = list(_written(container))
    if locked:
        needed.append(("torchrun", "/tmp"))
    for writer, folder in needed:
        over = []
        for path in mounts:
            if f"{folder}/".startswith(f"{path}/"):
                over.append(path)
        if not over:
            if locked:
                problem = f"the root file system is read-only, and no volume is mounted at {folder}"
                yield Evidence(
                    what=what, seen=problem, expected=f"a volume that {writer} can write to"
                )
            continue
        mount = mounts[max(over, key=len)]
        volume = _mapping(volumes.get(str(mount.get("name"))))
        if _is_read_only(mount, volume):
            problem = f"{mount.get('mountPath')} is read-only, and {writer} writes to {folder}"
            yield Evidence(what=what, seen=problem, expected="a volume that can be written to")


def _is_read_only(mount: Mapping[str, Any], volume: Mapping[str, Any]) -> bool:
    if mount.get("readOnly") is True:
        return True
    for kind in volume:
        # The kubelet mounts volumes of these kinds read-only.
        if kind in ("configMap", "secret", "downwardAPI", "image"):
            return True
        if kind != "name" and at(volume, kind, "readOnly") is True:
            return True
    return False


# The volume holds the models that are downloaded, and the checkpoints.
LEAST_VOLUME_BYTES = 2**30


def _claim_faults(
    name: str, claim: Mapping[str, Any], pods: int, metadata: Mapping[str, Any]
) -> Iterator[Evidence]:
    """What a claim that is known offers, beside what the pods of the job need of it."""
    modes = _strings(at(claim, "spec", "accessModes"))
    what = f"claim {name}.accessModes"
    if modes and set(modes) <= {"ReadOnlyMany"}:
        yield Evidence(what=what, seen="ReadOnlyMany", expected="a claim that is written to")
    elif pods > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        mounted = f"{pods} pods mount it"
        yield Evidence(what=what, seen=f"{', '.join(modes)}; {mounted}", expected="ReadWriteMany")
    size = at(claim, "spec", "resources", "requests", "storage")
    amount = quantity_of(size)
    if amount is None:
        yield Evidence(what=f"claim {name}.storage", seen=str(size), expected="20Gi")
    elif amount < LEAST_VOLUME_BYTES:
        yield Evidence(what=f"claim {name}.storage", seen=str(size), expected="1Gi or more")
    spaces = at(claim, "metadata", "namespace"), metadata.get("namespace")
    if None not in spaces and spaces[0] != spaces[1]:
        problem = f"it is in {spaces[0]}, the job in {spaces[1]}"
        yield Evidence(what=f"claim {name}.namespace", seen=problem, expected="one namespace")


# --- quality of service -----------------------------------------------------------------


def service_faults(job: Mapping[str, Any]) -> Iterator[Evidence]:
    """Why a pod is not of the Guaranteed class, which alone may get exclusive CPUs.

    Every container counts, init containers too, unless the pod as a whole has resources.
    """
    for template in templates_of(job):
        launches_only = job.get("kind") == "MPIJob" and template.place == "Launcher"
        if launches_only and not at(job, "spec", "runLauncherAsWorker"):
            continue
        of_pod = template.spec.get("resources")
        if of_pod is not None and not list(_unequal(template.place, _mapping(of_pod))):
            continue
        for container in (*template.containers, *template.first):
            place = f"{template.place}.{container.get('name')}"
            yield from _unequal(place, _mapping(container.get("resources")))


def _unequal(place: str, resources: Mapping[str, Any]) -> Iterator[Evidence]:
    limits, requests = _mapping(resources.get("limits")), _mapping(resources.get("requests"))
    for what in ("cpu", "memory"):
        limit = None
        if what in limits:
            limit = quantity_of(limits.get(what))
        if what in requests:
            request = quantity_of(requests.get(what))
        else:
            request = limit
        if limit is None:
            yield Evidence(what=f"{place}.limits.{what}", seen="missing", expected="a limit")
        elif request != limit:
            problem = f"requests {requests.get(what)}, limits {limits.get(what)}"
            yield Evidence(
                what=f"{place}.{what}", seen=problem, expected="requests equal to limits"
            )
        elif what == "cpu" and limit.denominator != 1:
            yield Evidence(what=f"{place}.cpu", seen=str(limits[what]), expected="whole CPUs")


# --- its lifetime ------------------------------------------------------------------------


def lifetime_faults(job: Mapping[str, Any]) -> Iterator[Evidence]:
    """Why a job would not start, or would end or vanish before it has trained."""
    spec, metadata = _mapping(job.get("spec")), _mapping(job.get("metadata"))
    policy = _mapping(spec.get("runPolicy")) or spec
    marks = {**_mapping(metadata.get("labels")), **_mapping(metadata.get("annotations"))}
    queued = any(queue in marks for queue in _QUEUES)
    if policy.get("suspend") is True and not queued:
        problem = "true, and no queue label is set that would start the job"
        yield Evidence(what="suspend", seen=problem, expected="false, or a label of a queue")
    yield from _deadline("activeDeadlineSeconds", policy.get("activeDeadlineSeconds"))
    if policy.get("ttlSecondsAfterFinished") == 0:
        problem = "0: the job and its logs are deleted the moment it ends"
        yield Evidence(what="ttlSecondsAfterFinished", seen=problem, expected="3600, for example")
    if policy.get("cleanPodPolicy") == "All":
        problem = "All: the pods and their logs are deleted when the job ends"
        yield Evidence(what="cleanPodPolicy", seen=problem, expected="None or Running")
    manager = policy.get("managedBy")
    if isinstance(manager, str) and "kueue" not in manager and "kubeflow.org/" not in manager:
        problem = f"{manager}: the operator ignores the job"
        yield Evidence(what="managedBy", seen=problem, expected="the operator")
    templates = list(templates_of(job))
    pods = sum(template.count for template in templates)
    least = at(policy, "schedulingPolicy", "minAvailable")
    if isinstance(least, int) and least > pods:
        problem = f"{least}, and the job has {pods}"
        yield Evidence(what="minAvailable", seen=problem, expected=f"{pods} or less")
    for template in templates:
        yield from _lifetime_of_pod(template, queued=queued)
    yield from _patched_jobs(spec)


def _patched_jobs(spec: Mapping[str, Any]) -> Iterator[Evidence]:
    """Patches for a job that the runtimes of torch do not have."""
    if not str(at(spec, "runtimeRef", "name")).startswith("torch"):
        return
    for patch in _mappings(spec.get("runtimePatches")):
        jobs = at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for replicated in _mappings(jobs):
            name = replicated.get("name")
            if name not in ("node", "dataset-initializer", "model-initializer"):
                expected = "node, as the runtimes of torch call it"
                what = "runtimePatches.replicatedJobs.name"
                yield Evidence(what=what, seen=str(name), expected=expected)


def _deadline(what: str, seconds: object) -> Iterator[Evidence]:
    if isinstance(seconds, int) and 0 <= seconds < LEAST_SECONDS:
        problem = f"{seconds} s, too short to pull an image"
        yield Evidence(what=what, seen=problem, expected=f"{LEAST_SECONDS} or more, or none")


def _lifetime_of_pod(template: PodTemplate, *, queued: bool) -> Iterator[Evidence]:
    place, spec = template.place, template.spec
    deadline = spec.get("activeDeadlineSeconds")
    yield from _deadline(f"{place}.activeDeadlineSeconds", deadline)
    if spec.get("schedulingGates") and not queued:
        problem = "the pod is not scheduled while it has one"
        yield Evidence(what=f"{place}.schedulingGates", seen=problem, expected="none")
    if spec.get("dnsPolicy") == "None" and not at(spec, "dnsConfig", "nameservers"):
        seen = "None, without dnsConfig.nameservers"
        yield Evidence(what=f"{place}.dnsPolicy", seen=seen, expected="ClusterFirst")
    if spec.get("hostNetwork") is True and spec.get("dnsPolicy") in (None, "ClusterFirst"):
        seen = "true: the pod asks the DNS of its node, which does not know the other pods"
        expected = "dnsPolicy: ClusterFirstWithHostNet, too"
        yield Evidence(what=f"{place}.hostNetwork", seen=seen, expected=expected)
    if template.training is not None:
        yield from _training_container(template, template.training)
    for kept in ("annotations", "labels"):
        if _mapping(template.metadata.get(kept)).get(_SIDECAR) == "true":
            problem = "true: the sidecar keeps a finished pod running, and catches its traffic"
            yield Evidence(what=f"{place}.{_SIDECAR}", seen=problem, expected="false")
    for context in (spec, *template.containers):
        secured = _mapping(context.get("securityContext"))
        root = secured.get("runAsUser") == 0
        refused = secured.get("runAsNonRoot", at(spec, "securityContext", "runAsNonRoot"))
        if root and refused is True:
            problem = "0 with runAsNonRoot: the kubelet refuses to start it"
            yield Evidence(what=f"{place}.runAsUser", seen=problem, expected="another user")


# A container that writes more than its limit of ephemeral storage is evicted; logs and the caches
# of Python count.
LEAST_EPHEMERAL_BYTES = 2**30
# Ports of rank 0; nothing else of a training listens.
_RANKS_LISTEN = (23456, 29500)
_NETWORKS = "k8s.v1.cni.cncf.io/networks"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def _training_container(template: PodTemplate, container: Mapping[str, Any]) -> Iterator[Evidence]:
    """Why the kubelet would end the container that trains, or its ranks not find each other."""
    place = f"{template.place}.{container.get('name')}"
    for probe in ("livenessProbe", "startupProbe"):
        for kind in ("httpGet", "tcpSocket", "grpc"):
            port = at(container, probe, kind, "port")
            if port is not None and port not in _RANKS_LISTEN:
                seen = f"{kind} at port {port}: a training does not listen, and is started again"
                yield Evidence(what=f"{place}.{probe}", seen=seen, expected="none, or exec")
    storage = at(container, "resources", "limits", "ephemeral-storage")
    amount = quantity_of(storage)
    if storage is not None and amount is not None and amount < LEAST_EPHEMERAL_BYTES:
        expected = "1Gi or more: the pod is evicted when it has written so much"
        yield Evidence(what=f"{place}.ephemeral-storage", seen=str(storage), expected=expected)
    has_networks = _NETWORKS in _mapping(template.metadata.get("annotations"))
    if template.spec.get("hostNetwork") is True or has_networks:
        return
    for variable in _mappings(container.get("env")):
        name, value = variable.get("name"), variable.get("value")
        if name in _INTERFACES and isinstance(value, str) and value not in ("", "eth0"):
            seen = f"{value}: the pod has lo, which reaches itself alone, and eth0"
            yield Evidence(what=f"{place}.env.{name}", seen=seen, expected="eth0")
