"""Kubernetes documents, handed to the SDK models, the operators' rules and the Pod schema.

No cluster is asked and nothing is applied. The SDKs are no dependency of ours: where one
is not installed, its check says so.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import yaml

from cputune.host import Host
from cputune.plan import Plan
from cputune.verifier.records import (
    FAILED,
    NOT_CHECKED,
    PASSED,
    Artefact,
    ConsumerAnswer,
    Evidence,
    Expected,
    Outcome,
    not_installed,
)

INSTALL = "pip install 'cputune[verify]'"


class KubernetesConsumer:
    """The SDK models, the operators' rules and the API schema."""

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> ConsumerAnswer:
        """Every document of the file, each by its kind."""
        try:
            with_nulls = list(yaml.safe_load_all(artefact.text))
        except yaml.YAMLError as error:
            summary = "no YAML: " + str(error).partition("\n")[0]
            return ConsumerAnswer(checks=(Outcome(name="syntax", state=FAILED, summary=summary),))
        documents = [document for document in with_nulls if document is not None]
        if not documents or not all(isinstance(document, Mapping) for document in documents):
            return ConsumerAnswer(
                checks=(Outcome(name="syntax", state=FAILED, summary="no Kubernetes document"),)
            )
        checks: list[Outcome] = []
        for document in documents:
            checks += _checks_of(document, expected.plan)
        return ConsumerAnswer(checks=tuple(checks))


def _checks_of(document: Document, plan: Plan | None) -> Iterator[Outcome]:
    kind = document.get("kind")
    if kind == "PyTorchJob":
        yield round_trip(document, "kubeflow-training", INSTALL, _through_training_sdk)
        yield quantities(document)
        yield admission(document, pytorchjob_complaints(document), "training operator 1.9")
        yield pod_schema([pod for _, pod in pytorchjob_pods(document)])
        yield plan_of_job(document, plan)
    elif kind == "TrainJob":
        yield round_trip(document, "kubeflow-trainer-api", INSTALL, _through_trainer_api)
        yield quantities(document)
        yield admission(document, trainjob_complaints(document), "Kubeflow Trainer 2")
        yield pod_schema([trainjob_pod(document)])
        yield plan_of_job(document, plan)
    else:
        yield quantities(document)
        yield pod_schema([dict(document)])


def round_trip(
    document: Document, distribution: str, install: str, through: Callable[[Document], Any]
) -> Outcome:
    """Into the SDK's models and out again: what comes back must be the document, equal.

    A key that the models do not know is dropped, a value of the wrong type is turned
    into another; both show.
    """
    name = "SDK models"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return not_installed(name, distribution, install)
    consumer = f"{distribution} {version}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            back = through(document)
    except Exception as error:  # the models raise whatever they like
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(
            name=name,
            state=FAILED,
            consumer=consumer,
            summary="the models refuse the document: " + (lines or [type(error).__name__])[0],
            evidence=tuple(Evidence(what="refusal", seen=line) for line in lines[:10]),
        )
    differences = tuple(_differences(document, back, document.get("kind", "document")))
    if differences:
        return Outcome(
            name=name,
            state=FAILED,
            consumer=consumer,
            summary="the document does not survive a round trip through the models",
            evidence=differences[:20],
        )
    return Outcome(name=name, state=PASSED, consumer=consumer, summary="came back equal")


def _through_training_sdk(document: Document) -> Any:
    from kubeflow.training.api_client import ApiClient

    class Response:
        data = json.dumps(document)

    client = ApiClient()
    job = client.deserialize(Response, "KubeflowOrgV1PyTorchJob")
    return client.sanitize_for_serialization(job)


def _through_trainer_api(document: Document) -> Any:
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    job = TrainerV1alpha1TrainJob.from_dict(dict(document))
    return None if job is None else job.to_dict()


def _differences(expected: Any, seen: Any, where: str) -> Iterator[Evidence]:
    if isinstance(expected, Mapping) and isinstance(seen, Mapping):
        for key in [*expected, *(key for key in seen if key not in expected)]:
            yield from _differences(expected.get(key), seen.get(key), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        for index, (one, other) in enumerate(zip(expected, seen, strict=True)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif expected != seen or isinstance(expected, bool) is not isinstance(seen, bool):
        yield Evidence(what=where, expected=repr(expected), seen=repr(seen))


def quantities(document: Document) -> Outcome:
    """Whether the Kubernetes client can read every quantity: CPUs, memory, sizes."""
    try:
        from kubernetes.utils.quantity import parse_quantity
    except ImportError:
        return not_installed("quantities", "the kubernetes client", INSTALL)
    consumer = f"kubernetes {metadata.version('kubernetes')}"
    good, bad = [], []
    for where, value in _quantities(document, str(document.get("kind"))):
        try:
            if not isinstance(value, str):
                raise ValueError("not a string")
            good.append(Evidence(what=where, seen=f"{value} = {parse_quantity(value)}"))
        except ValueError as error:
            bad.append(Evidence(what=where, seen=f"{value!r}: {error}", expected="a quantity"))
    return Outcome(
        name="quantities",
        state=FAILED if bad else PASSED,
        consumer=consumer,
        summary=f"{len(bad)} cannot be read" if bad else f"{len(good)} read",
        evidence=tuple(bad or good),
    )


def _quantities(document: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            if key in ("limits", "requests") and isinstance(value, Mapping):
                for name, quantity in value.items():
                    yield f"{where}.{key}.{name}", quantity
            elif key == "sizeLimit":
                yield f"{where}.{key}", value
            else:
                yield from _quantities(value, f"{where}.{key}")
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from _quantities(value, f"{where}[{index}]")


def admission(document: Document, complaints: tuple[str, ...], consumer: str) -> Outcome:
    """What the operator's own webhook would say."""
    return Outcome(
        name="admission rules",
        state=FAILED if complaints else PASSED,
        consumer=consumer,
        summary=complaints[0] if complaints else "nothing to refuse",
        evidence=tuple(Evidence(what="refusal", seen=complaint) for complaint in complaints),
    )


def pod_schema(documents: list[dict[str, Any]]) -> Outcome:
    """Every document against the schema of the API server, unknown keys refused."""
    try:
        import kubernetes_validate
    except ImportError:
        return not_installed("Pod schema", "kubernetes-validate", INSTALL)
    version = metadata.version("kubernetes-validate")
    consumer = f"kubernetes-validate {version} --strict"
    wrong = []
    for document in documents:
        name = f"{document.get('kind')} {at(document, 'metadata', 'name')}"
        try:
            kubernetes_validate.validate(
                document, kubernetes_validate.latest_version(), strict=True
            )
        except kubernetes_validate.ValidationError as error:
            where = ".".join(str(part) for part in error.path)
            wrong.append(Evidence(what=f"{name}: {where}", seen=error.message))
        except Exception as error:  # no schema for the kind, no kind at all
            wrong.append(Evidence(what=name, seen=str(error) or type(error).__name__))
    kinds = ", ".join(sorted({str(document.get("kind")) for document in documents})) or "nothing"
    return Outcome(
        name="Pod schema",
        state=FAILED if wrong or not documents else PASSED,
        consumer=consumer,
        summary=wrong[0].seen if wrong else f"{len(documents)} valid: {kinds}",
        evidence=tuple(wrong),
    )


def pytorchjob_pods(job: Document) -> list[tuple[str, dict[str, Any]]]:
    """The Pods that the operator makes of a PyTorchJob, one for each replica, the master first."""
    pods = []
    replicas = at(job, "spec", "pytorchReplicaSpecs")
    for role in sorted(replicas if isinstance(replicas, Mapping) else ()):
        count = at(replicas, role, "replicas")
        for index in range(count if isinstance(count, int) and 0 < count <= 1024 else 1):
            template = at(replicas, role, "template") or {}
            name = f"{at(job, 'metadata', 'name')}-{str(role).lower()}-{index}"
            pods.append((str(role), _pod(name, template)))
    return pods


def _pod(name: str, template: Document) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**(at(template, "metadata") or {}), "name": name},
        **{key: value for key, value in template.items() if key != "metadata"},
    }


def trainjob_pod(job: Document) -> dict[str, Any]:
    """The Pod of one node, as far as the TrainJob itself says what is in it."""
    trainer = at(job, "spec", "trainer") or {}
    container = {
        key: trainer[key] for key in ("image", "command", "args", "env") if trainer.get(key)
    }
    resources = trainer.get("resourcesPerNode")
    if resources:
        container["resources"] = resources
    name = f"{at(job, 'metadata', 'name')}-node-0-0"
    return _pod(name, {"spec": {"containers": [{"name": "node", **container}]}})


def layout_of_job(job: Document) -> dict[str, Any]:
    """Nodes, ranks per node, CPUs and variables that a job of either kind asks for."""
    if job.get("kind") == "TrainJob":
        trainer = at(job, "spec", "trainer") or {}
        nodes, ranks = trainer.get("numNodes"), trainer.get("numProcPerNode")
        env, cpus = trainer.get("env"), at(trainer, "resourcesPerNode", "limits", "cpu")
    else:
        pods = pytorchjob_pods(job)
        nodes, ranks = len(pods), at(job, "spec", "nprocPerNode")
        container = at(pods[0][1], "spec", "containers", 0) if pods else None
        env, cpus = at(container, "env"), at(container, "resources", "limits", "cpu")
    return {
        "nodes": nodes,
        "ranks": str(ranks),
        "cpus": cpus,
        "environment": {at(e, "name"): at(e, "value") for e in env or () if at(e, "value")},
    }


def plan_of_job(job: Document, plan: Plan | None) -> Outcome:
    """Whether the numbers of the document are those of the plan."""
    if plan is None:
        return Outcome(
            name="plan",
            state=NOT_CHECKED,
            summary="there is no result file to compare with",
            remedy="give it with --result cputune.json",
        )
    layout = layout_of_job(job)
    needed = plan.processes_per_node * (plan.threads_per_process + plan.ccl_workers)
    rows: list[tuple[str, object, object]] = [
        ("nodes", plan.nodes, layout["nodes"]),
        ("ranks per node", plan.processes_per_node, layout["ranks"]),
    ]
    carried = plan.environment()
    for variable in ("OMP_NUM_THREADS", "CCL_WORKER_COUNT", "ACCELERATE_MIXED_PRECISION"):
        if variable in carried:
            rows.append((variable, carried[variable], layout["environment"].get(variable)))
    evidence = [Evidence(what=w, expected=str(e), seen=str(s)) for w, e, s in rows]
    wrong = [row.what for row in evidence if row.expected != row.seen]
    cpus = str(layout["cpus"])
    evidence.append(Evidence(what="CPUs", expected=f"at least {needed}", seen=cpus))
    if not cpus.isdigit() or int(cpus) < needed:
        wrong.append("CPUs")
    return Outcome(
        name="plan",
        state=FAILED if wrong else PASSED,
        summary=f"not the plan's: {', '.join(wrong)}" if wrong else "the numbers are the plan's",
        evidence=tuple(evidence),
    )


DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
RESERVED_BY_TRAINER = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
)

Document = Mapping[str, Any]


def at(document: Any, *path: str | int) -> Any:
    """What lies at a path of keys and indexes, None where there is nothing."""
    for key in path:
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list) and isinstance(key, int) and key < len(document):
            document = document[key]
        else:
            return None
    return document


def pytorchjob_complaints(job: Document) -> tuple[str, ...]:
    """Why the training operator would not take a PyTorchJob, or would not run what it says."""
    return (*_head(job, "kubeflow.org/v1", "PyTorchJob"), *_pytorchjob(job))


def trainjob_complaints(job: Document) -> tuple[str, ...]:
    """Why Kubeflow Trainer would not take a TrainJob, or would not run what it says."""
    return (*_head(job, "trainer.kubeflow.org/v1alpha1", "TrainJob"), *_trainjob(job))


def resource_complaints(resources: Any, where: str) -> tuple[str, ...]:
    """Why a container with these resources is not of the Guaranteed class with whole CPUs.

    Only such a container gets CPUs of its own from the static CPU manager
    (kubernetes.io, "Control CPU Management Policies on the Node").
    """
    limits, requests = at(resources, "limits"), at(resources, "requests")
    found = []
    if not isinstance(limits, Mapping) or not {"cpu", "memory"} <= set(limits):
        found.append(f"{where}: limits need cpu and memory for the Guaranteed class")
    elif requests is not None and requests != limits:
        found.append(f"{where}: requests are not the limits, so the class is Burstable")
    elif not str(limits["cpu"]).isdigit():
        found.append(f"{where}: {limits['cpu']!r} CPUs are not whole ones")
    return tuple(found)


def environment_complaints(env: Any, where: str) -> tuple[str, ...]:
    """Why a list of variables is none that a Pod takes."""
    if env is None:
        return ()
    if not isinstance(env, list):
        return (f"{where}: env is no list",)
    found, names = [], set()
    for entry in env:
        name, value = at(entry, "name"), at(entry, "value")
        if not isinstance(name, str) or not name:
            found.append(f"{where}: a variable without a name")
        elif name in names:
            found.append(f"{where}: {name} is set twice")
        elif at(entry, "valueFrom") is None and not isinstance(value, str):
            found.append(f"{where}: the value of {name} is {value!r}, not a string")
        names.add(name)
    return tuple(found)


def _head(document: Document, api_version: str, kind: str) -> Iterator[str]:
    if document.get("apiVersion") != api_version or document.get("kind") != kind:
        yield f"this is no {kind} of {api_version}"
    name = at(document, "metadata", "name")
    if not isinstance(name, str) or len(name) > 63 or not DNS_1035.fullmatch(name):
        yield f"metadata.name {name!r} is no DNS-1035 label"


def _pytorchjob(job: Document) -> Iterator[str]:
    spec = at(job, "spec") or {}
    processes = at(spec, "nprocPerNode")
    if processes is None:
        yield "spec.nprocPerNode is not set: torchrun then starts one process for each CPU"
    elif not isinstance(processes, str) or not processes.isdigit() or int(processes) < 1:
        yield f"spec.nprocPerNode is {processes!r}, not a number in quotes"
    elastic = at(spec, "elasticPolicy")
    if elastic is not None:
        yield "spec.elasticPolicy lets the job train on a part of its nodes"
    if at(spec, "runPolicy") is None:
        yield "spec.runPolicy is missing"
    replicas = at(spec, "pytorchReplicaSpecs")
    if not isinstance(replicas, Mapping) or not replicas:
        yield "spec.pytorchReplicaSpecs is missing"
        return
    if "Master" not in replicas:
        yield "without a Master the operator sets no MASTER_ADDR"
    for role, replica in replicas.items():
        yield from _replica(role, replica)


def _replica(role: str, replica: Any) -> Iterator[str]:
    if role not in ("Master", "Worker"):
        yield f"{role!r} is no replica type of a PyTorchJob"
    count = at(replica, "replicas")
    if role == "Master" and count != 1:
        yield f"Master.replicas must be 1, not {count!r}"
    if role == "Worker" and (not isinstance(count, int) or count < 1):
        yield f"Worker.replicas must be at least 1, not {count!r}"
    if at(replica, "restartPolicy") not in RESTART_POLICIES:
        yield f"{role}.restartPolicy is {at(replica, 'restartPolicy')!r}"
    containers = at(replica, "template", "spec", "containers")
    if not isinstance(containers, list) or not containers:
        yield f"{role} has no containers"
        return
    if "pytorch" not in [at(container, "name") for container in containers]:
        yield f"{role} has no container named pytorch"
    for container in containers:
        where = f"{role}/{at(container, 'name')}"
        if not at(container, "image"):
            yield f"{where} has no image"
        yield from environment_complaints(at(container, "env"), where)
        if at(container, "name") == "pytorch":
            yield from resource_complaints(at(container, "resources"), where)


def _trainjob(job: Document) -> Iterator[str]:
    spec = at(job, "spec") or {}
    reference = at(spec, "runtimeRef") or {}
    if reference.get("apiGroup", "trainer.kubeflow.org") != "trainer.kubeflow.org":
        yield f"spec.runtimeRef.apiGroup is {reference.get('apiGroup')!r}"
    if reference.get("kind") not in ("ClusterTrainingRuntime", "TrainingRuntime"):
        yield f"spec.runtimeRef.kind is {reference.get('kind')!r}"
    if not reference.get("name"):
        yield "spec.runtimeRef.name is missing"
    trainer = at(spec, "trainer")
    if not isinstance(trainer, Mapping):
        yield "spec.trainer is missing"
        return
    for key in ("numNodes", "numProcPerNode"):
        value = trainer.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            default = "one process for each CPU" if key == "numProcPerNode" else "the runtime's"
            yield f"spec.trainer.{key} is {value!r}; without a number it is {default}"
    yield from environment_complaints(trainer.get("env"), "spec.trainer")
    for entry in trainer.get("env") or ():
        if at(entry, "name") in RESERVED_BY_TRAINER:
            yield f"{at(entry, 'name')} is reserved for the operator"
    yield from resource_complaints(trainer.get("resourcesPerNode"), "spec.trainer")
