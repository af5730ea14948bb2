"""Changes that somebody may make in a job: which check sees it, and which are no fault at all.

The contract of ``cputune verify`` for documents: each planted change has the check that must fail,
each honest edit passes every check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from emitters.emit_machines import two_sockets_smt
from rows import every_row
from verifier.jobs import Job, container, pod, variable

from cputune import Cluster, emit, verify
from cputune.emitters import FORMATS
from cputune.emitters.manifest import decided
from cputune.verifier.pods import lifetime_faults, name_faults, service_faults, volume_faults
from cputune.verifier.records import NOT_CHECKED
from cputune.verifier.schemas import schema_faults

Change = Callable[[Job], object]
CLUSTER = Cluster(image="registry.example/team/bert:1", memory="64Gi", namespace="nlp")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One emitted document of each kind, with what lies beside it."""
    case = two_sockets_smt()
    written = {}
    for format in ("pytorchjob", "trainjob"):
        folder = tmp_path_factory.mktemp(format)
        for file in emit(case.result, format, facts=case.facts, nodes=3, cluster=CLUSTER):
            (folder / file.name).write_text(file.text, encoding="utf-8")
        written[format] = folder / FORMATS[format].main
    return written


def roles(job: Job) -> list[str]:
    return ["Master", "Worker"] if job["kind"] == "PyTorchJob" else ["Master"]


def mounts(job: Job, role: str = "Master") -> list[Job]:
    return pod(job, role)["containers"][0]["volumeMounts"]


def resources(job: Job, role: str = "Master") -> Job:
    one = container(job, role)
    return one["resources" if "resources" in one else "resourcesPerNode"]


def run_policy(job: Job) -> Job:
    return job["spec"]["runPolicy"] if job["kind"] == "PyTorchJob" else job["spec"]


def each_pod(change: Callable[[Job], object]) -> Change:
    def changed(job: Job) -> None:
        for role in roles(job):
            change(pod(job, role))

    return changed


def each_container(change: Callable[[Job], object]) -> Change:
    def changed(job: Job) -> None:
        for role in roles(job):
            change(container(job, role))

    return changed


def given(**amounts: object) -> Change:
    """The same amounts as requests and limits of every container that trains."""

    def changed(job: Job) -> None:
        for role in roles(job):
            for kind in ("requests", "limits"):
                resources(job, role)[kind].update(amounts)

    return changed


def second(**more: object) -> Job:
    return {"name": "logs", "image": "fluent/fluent-bit:3.1", **more}


def sized(cpu: object = "1", memory: object = "1Gi") -> Job:
    amounts = {"cpu": cpu, "memory": memory}
    return {"requests": amounts, "limits": dict(amounts)}


def pod_has(**fields: object) -> Change:
    return lambda job: pod(job).update(fields)


def container_has(**fields: object) -> Change:
    return lambda job: container(job).update(fields)


def policy_has(**fields: object) -> Change:
    return lambda job: run_policy(job).update(fields)


def metadata_has(**fields: object) -> Change:
    return lambda job: job["metadata"].update(fields)


def each_pod_has(**fields: object) -> Change:
    return each_pod(lambda one: one.update(fields))


def each_container_has(**fields: object) -> Change:
    return each_container(lambda one: one.update(fields))


def variable_added(name: str, value: str) -> Change:
    return lambda job: container(job)["env"].append({"name": name, "value": value})


# (name, the change, the check that must fail)
OF_BOTH: list[tuple[str, Change, str]] = [
    (
        "a mount without a volume",
        lambda j: mounts(j).append({"name": "x", "mountPath": "/x"}),
        "volumes",
    ),
    (
        "two mounts at one place",
        lambda j: mounts(j).append({"name": "data", "mountPath": "/dev/shm"}),
        "volumes",
    ),
    (
        "an expression with an unset variable",
        lambda j: mounts(j)[0].update(subPathExpr="$(POD_NAME)/out"),
        "volumes",
    ),
    ("no name server", pod_has(dnsPolicy="None"), "lifetime"),
    ("the network of the node", pod_has(hostNetwork=True), "lifetime"),
    ("an interface that no pod has", variable_added("GLOO_SOCKET_IFNAME", "ib0"), "lifetime"),
    ("a volume renamed", lambda j: pod(j)["volumes"][0].update(name="datas"), "volumes"),
    ("a volume without a source", lambda j: pod(j)["volumes"].append({"name": "x"}), "volumes"),
    ("a volume of two sources", lambda j: pod(j)["volumes"][0].update(emptyDir={}), "volumes"),
    (
        "two volumes of one name",
        lambda j: pod(j)["volumes"].append({"name": "data", "emptyDir": {}}),
        "volumes",
    ),
    ("data read-only by its mount", lambda j: mounts(j)[0].update(readOnly=True), "volumes"),
    (
        "data read-only by its claim",
        lambda j: pod(j)["volumes"][0]["persistentVolumeClaim"].update(readOnly=True),
        "volumes",
    ),
    ("memory read-only", lambda j: mounts(j)[1].update(readOnly=True), "volumes"),
    (
        "a claim without a name",
        lambda j: pod(j)["volumes"][0].update(persistentVolumeClaim={}),
        "volumes",
    ),
    (
        "data from a ConfigMap",
        lambda j: pod(j)["volumes"].__setitem__(0, {"name": "data", "configMap": {"name": "x"}}),
        "volumes",
    ),
    ("a job name with capitals", metadata_has(name="Bert_Large"), "names"),
    ("a job name too long for its pods", metadata_has(name="a" * 58), "names"),
    ("a namespace with a dot", metadata_has(namespace="team.nlp"), "names"),
    ("the container renamed", lambda j: pod(j)["containers"][0].update(name="main"), "names"),
    ("an image with a space", container_has(image="registry.example/bert: 1"), "names"),
    ("a node label that is none", pod_has(nodeSelector={"node type": "spr"}), "names"),
    ("suspended", policy_has(suspend=True), "lifetime"),
    ("a deadline of one second", policy_has(activeDeadlineSeconds=1), "lifetime"),
    ("a gate of the scheduler", pod_has(schedulingGates=[{"name": "x/y"}]), "lifetime"),
    ("an image of another tag", container_has(image="registry.example/team/bert:2"), "plan"),
    (
        "another learning rate",
        lambda j: container(j)["args"].extend(["--learning_rate", "1e-2"]),
        "plan",
    ),
    ("twice the threads", lambda j: variable(j, "OMP_NUM_THREADS").update(value="48"), "plan"),
    ("CPUs by halves", given(cpu="55500m"), "quality of service"),
    ("half the memory", given(memory="32Gi"), "plan"),
    (
        "no resources",
        lambda j: [resources(j).pop(kind) for kind in ("limits", "requests")],
        "quality of service",
    ),
    ("no limit on memory", lambda j: resources(j)["limits"].pop("memory"), "quality of service"),
    (
        "a variable that is a number",
        lambda j: variable(j, "OMP_NUM_THREADS").update(value=24),
        "schema",
    ),
    (
        "an unknown key of a container",
        lambda j: pod(j)["containers"][0].update(resource={}),
        "schema",
    ),
    ("a mount without a path", lambda j: mounts(j).append({"name": "data"}), "schema"),
    ("a label that is a number", lambda j: j["metadata"]["labels"].update(release=3), "schema"),
]
PYTORCHJOB: list[tuple[str, Change, str]] = [
    (
        "a probe of a port",
        container_has(livenessProbe={"httpGet": {"path": "/", "port": 8080}}),
        "lifetime",
    ),
    (
        "10 MiB of ephemeral storage",
        lambda j: resources(j)["limits"].update({"ephemeral-storage": "10Mi"}),
        "lifetime",
    ),
    (
        "a device that the pod does not claim",
        lambda j: resources(j).update(claims=[{"name": "device"}]),
        "names",
    ),
    *OF_BOTH,
    (
        "a second container without limits",
        lambda j: pod(j)["containers"].append(second()),
        "quality of service",
    ),
    (
        "two containers of one name",
        lambda j: pod(j)["containers"].append(second(name="pytorch", resources=sized())),
        "names",
    ),
    ("cleanPodPolicy All", policy_has(cleanPodPolicy="All"), "lifetime"),
    ("deleted when it ends", policy_has(ttlSecondsAfterFinished=0), "lifetime"),
    ("a deadline below zero", policy_has(activeDeadlineSeconds=-1), "schema"),
    ("a gang larger than the job", policy_has(schedulingPolicy={"minAvailable": 9}), "lifetime"),
    (
        "a mesh",
        lambda j: j["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["metadata"][
            "annotations"
        ].update({"sidecar.istio.io/inject": "true"}),
        "lifetime",
    ),
    ("root", lambda j: pod(j)["securityContext"].update(runAsUser=0), "lifetime"),
    (
        "a read-only root without /tmp",
        lambda j: container(j)["securityContext"].update(readOnlyRootFilesystem=True),
        "volumes",
    ),
    ("ranks as a number", lambda j: j["spec"].update(nprocPerNode=2), "schema"),
    ("ranks left out", lambda j: j["spec"].pop("nprocPerNode"), "plan"),
    (
        "a worker less",
        lambda j: j["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=1),
        "plan",
    ),
    (
        "a small /dev/shm",
        lambda j: pod(j)["volumes"][1]["emptyDir"].update(sizeLimit="64Mi"),
        "plan",
    ),
    ("/dev/shm on the disk", lambda j: pod(j)["volumes"][1].update(emptyDir={}), "plan"),
    (
        "data that dies with the pod",
        lambda j: pod(j)["volumes"].__setitem__(0, {"name": "data", "emptyDir": {}}),
        "plan",
    ),
]
TRAINJOB: list[tuple[str, Change, str]] = [
    (
        "a manager twice",
        lambda j: j["spec"]["runtimePatches"].append({"manager": "cputune"}),
        "names",
    ),
    *OF_BOTH,
    (
        "another runtime",
        lambda j: j["spec"]["runtimeRef"].update(name="deepspeed-distributed"),
        "plan",
    ),
    ("fewer pods", lambda j: j["spec"]["trainer"].update(numNodes=2), "plan"),
    (
        "an owner that leaves it alone",
        lambda j: j["spec"].update(managedBy="example.com/mine"),
        "lifetime",
    ),
]

HONEST_OF_BOTH: list[tuple[str, Change]] = [
    ("CPUs as a number", lambda j: given(cpu=int(resources(j)["limits"]["cpu"]))(j)),
    ("CPUs in thousandths", lambda j: given(cpu=f"{resources(j)['limits']['cpu']}000m")(j)),
    ("memory in bytes", given(memory=64 * 2**30)),
    ("requests left out", lambda j: [resources(j, role).pop("requests") for role in roles(j)]),
    (
        "two CPUs for the kubelet",
        lambda j: given(cpu=str(int(resources(j)["limits"]["cpu"]) - 2))(j),
    ),
    ("another namespace", metadata_has(namespace="research")),
    (
        "a generated name",
        lambda j: (j["metadata"].pop("name"), j["metadata"].update(generateName="bert-")),
    ),
    (
        "a queue that lets it go",
        lambda j: (
            j["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "nlp"}),
            run_policy(j).update(suspend=True),
        ),
    ),
    ("a deadline of a day", policy_has(activeDeadlineSeconds=86_400)),
    (
        "another claim",
        each_pod(lambda p: p["volumes"][0]["persistentVolumeClaim"].update(claimName="squad")),
    ),
    (
        "an NFS share as data",
        each_pod(
            lambda p: p["volumes"].__setitem__(
                0, {"name": "data", "nfs": {"server": "nas", "path": "/x"}}
            )
        ),
    ),
    (
        "a volume of data to read",
        each_pod(
            lambda p: (
                p["volumes"].append(
                    {
                        "name": "squad",
                        "persistentVolumeClaim": {"claimName": "squad", "readOnly": True},
                    }
                ),
                p["containers"][0]["volumeMounts"].append(
                    {"name": "squad", "mountPath": "/squad", "readOnly": True}
                ),
            )
        ),
    ),
    (
        "16 GiB of /dev/shm at most",
        each_pod(lambda p: p["volumes"][1]["emptyDir"].update(sizeLimit="16Gi")),
    ),
    (
        "a proxy",
        each_container(
            lambda c: c["env"].append({"name": "HTTPS_PROXY", "value": "http://proxy:3128"})
        ),
    ),
    (
        "the image by its digest",
        each_container_has(image="registry.example/team/bert:1@sha256:" + "a" * 64),
    ),
]
HONEST_PYTORCHJOB: list[tuple[str, Change]] = [
    *HONEST_OF_BOTH,
    (
        "a probe of a file",
        each_container_has(livenessProbe={"exec": {"command": ["test", "-d", "/data"]}}),
    ),
    (
        "20 GiB of ephemeral storage",
        each_container(lambda c: c["resources"]["limits"].update({"ephemeral-storage": "20Gi"})),
    ),
    (
        "name servers of its own",
        each_pod_has(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.2"]}),
    ),
    (
        "the network of the node and the names of pods",
        each_pod_has(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
    ),
    (
        "the interface of a pod",
        each_container(lambda c: c["env"].append({"name": "GLOO_SOCKET_IFNAME", "value": "eth0"})),
    ),
    ("a priority class", each_pod_has(priorityClassName="high")),
    (
        "a second container with limits",
        each_pod(lambda p: p["containers"].append(second(resources=sized()))),
    ),
    ("two tries more", policy_has(backoffLimit=2)),
    ("deleted after an hour", policy_has(ttlSecondsAfterFinished=3600)),
    ("cleanPodPolicy Running", policy_has(cleanPodPolicy="Running")),
    ("a gang of all pods", policy_has(schedulingPolicy={"minAvailable": 3, "queue": "nlp"})),
    (
        "a read-only root with /tmp",
        each_pod(
            lambda p: (
                p["volumes"].append({"name": "tmp", "emptyDir": {}}),
                p["containers"][0]["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"}),
                p["containers"][0]["securityContext"].update(readOnlyRootFilesystem=True),
            )
        ),
    ),
]


@cache
def read(path: Path) -> Job:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def verdict_on(path: Path, change: Change, folder: Path) -> dict[str, tuple[str, str]]:
    job = copy.deepcopy(read(path))
    change(job)
    changed = folder / path.name
    changed.write_text(yaml.safe_dump(job), encoding="utf-8")
    (verdict,) = verify([changed], run=False)
    return {check.name: (check.state, check.summary) for check in verdict.checks}


def cases(format: str, rows: list[Any]) -> Iterator[Any]:
    for name, *row in rows:
        yield pytest.param(format, *row, id=f"{format}: {name}")


@every_row(
    ("format", "change", "check"), [*cases("pytorchjob", PYTORCHJOB), *cases("trainjob", TRAINJOB)]
)
def test_a_planted_change_fails_its_check(
    format: str, change: Change, check: str, documents: dict[str, Path], tmp_path: Path
) -> None:
    seen = verdict_on(documents[format], change, tmp_path)
    assert seen[check][0] == "failed", seen


@every_row(
    ("format", "change"),
    [*cases("pytorchjob", HONEST_PYTORCHJOB), *cases("trainjob", HONEST_OF_BOTH)],
)
def test_an_honest_edit_passes(
    format: str, change: Change, documents: dict[str, Path], tmp_path: Path
) -> None:
    seen = verdict_on(documents[format], change, tmp_path)
    assert {state for state, _ in seen.values()} <= {"passed", NOT_CHECKED}, seen
    assert seen["plan"][0] == "passed"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


@pytest.mark.parametrize("format", ["pytorchjob", "trainjob"])
def test_a_value_of_another_type_is_said_and_breaks_nothing(
    format: str, documents: dict[str, Path]
) -> None:
    whole = read(documents[format])
    for *above, last in list(places(whole))[1:]:
        for other in (3, "x", [], {}, None, True, [3], [[]], {"a": 3}):
            job = copy.deepcopy(whole)
            holder: Any = job
            for step in above:
                holder = holder[step]
            holder[last] = other
            decided(job)
            list(schema_faults(job))
            list(name_faults(job))
            list(volume_faults(job, {}))
            list(service_faults(job))
            list(lifetime_faults(job))
