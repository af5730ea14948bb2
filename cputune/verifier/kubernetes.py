"""Kubernetes documents, handed to the SDK models, the operators' rules and the API's schema.

No cluster is asked and nothing is applied. The SDKs are no dependency of ours: where one
is not installed, its check says so.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any, TypeAlias

import yaml

from cputune.doctor.files.kubernetes import job_faults
from cputune.doctor.files.yaml_lines import Document
from cputune.host import Host
from cputune.plan import Plan
from cputune.verifier.records import (
    FAILED,
    Answer,
    Artefact,
    Evidence,
    Expected,
    Outcome,
    judged,
    not_checked,
    not_installed,
)

INSTALL = "pip install 'cputune[verify]'"
NOT_STARTED = "its pods were not started: that needs the image, and a cluster"
AS_A_SCRIPT = "verify the same plan as a script: cputune emit --format torchrun"
Manifest: TypeAlias = Mapping[str, Any]


def judge_documents(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """The SDK models, the operators' rules and the API schema, for every document of the file."""
    try:
        found = [one for one in yaml.safe_load_all(artefact.text) if one is not None]
    except yaml.YAMLError as error:
        said = "no YAML: " + str(error).partition("\n")[0]
        yield Outcome(name="syntax", state=FAILED, summary=said)
        return
    if not found or not all(isinstance(document, Mapping) for document in found):
        yield Outcome(name="syntax", state=FAILED, summary="no Kubernetes document")
        return
    for document in found:
        yield from _checks_of(document, expected.plan)
        if document.get("kind") in OPERATORS:
            yield not_checked("launch", NOT_STARTED, AS_A_SCRIPT)


def _checks_of(document: Manifest, plan: Plan | None) -> Iterator[Outcome]:
    kind = str(document.get("kind"))
    if kind not in OPERATORS:
        yield api_schema(document)
        return
    distribution, operator, through = OPERATORS[kind]
    old = next((name for name in OF_OLD_TRAINERS if at(document, "spec", name)), None)
    if kind == "TrainJob" and old is not None:
        why = f"{old} is a field of Kubeflow Trainer {OF_OLD_TRAINERS[old]}, not of the models"
        yield not_checked("SDK models", why, consumer=distribution)
    else:
        yield round_trip(document, distribution, through)
    yield admission(document, operator)
    yield plan_of_job(document, plan)


def round_trip(
    document: Manifest, distribution: str, through: Callable[[Manifest], Any]
) -> Outcome:
    """Into the SDK's models and out again: what comes back must be the document, equal.

    A key that the models do not know is dropped, a value of the wrong type is turned
    into another; both show.
    """
    name = "SDK models"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return not_installed(name, distribution, INSTALL)
    consumer = f"{distribution} {version}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            back = through(document)
    except Exception as error:  # the models raise errors of any kind
        said = str(error).strip() or type(error).__name__
        refused = f"the models refuse the document: {said.splitlines()[0]}"
        return judged(name, consumer, [Evidence(what="refusal", seen=said)], "", wrong=refused)
    differences = tuple(_differences(document, back, document.get("kind", "document")))
    wrong = "the document does not survive a round trip through the models"
    return judged(name, consumer, differences[:20], "came back equal", wrong=wrong)


def _through_training_sdk(document: Manifest) -> Any:
    from kubeflow.training.api_client import ApiClient

    class Response:
        data = json.dumps(document)

    client = ApiClient()
    job = client.deserialize(Response, "KubeflowOrgV1PyTorchJob")
    return client.sanitize_for_serialization(job)


def _through_trainer_api(document: Manifest) -> Any:
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    job = TrainerV1alpha1TrainJob.from_dict(dict(document))
    return None if job is None else job.to_dict()


def _differences(expected: object, seen: object, where: str) -> Iterator[Evidence]:
    if isinstance(expected, Mapping) and isinstance(seen, Mapping):
        for key in [*expected, *(key for key in seen if key not in expected)]:
            yield from _differences(expected.get(key), seen.get(key), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        for index, (one, other) in enumerate(zip(expected, seen, strict=True)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif expected != seen or isinstance(expected, bool) is not isinstance(seen, bool):
        yield Evidence(what=where, expected=repr(expected), seen=repr(seen))


def admission(job: Manifest, consumer: str) -> Outcome:
    """What the operator refuses of a job, or takes and does wrongly, as the doctor says it."""
    found = [
        Evidence(what=".".join(map(str, path)), seen=said)
        for _, path, said in job_faults(Document(value=job))
    ]
    return judged("admission rules", consumer, found, "nothing to refuse")


def api_schema(document: Manifest) -> Outcome:
    """A document of Kubernetes' own kinds against the API server's schema, unknown keys refused."""
    try:
        import kubernetes_validate
    except ImportError:
        return not_installed("API schema", "kubernetes-validate", INSTALL)
    consumer = f"kubernetes-validate {metadata.version('kubernetes-validate')} --strict"
    kind, wrong = document.get("kind"), []
    try:
        newest = kubernetes_validate.latest_version()
        kubernetes_validate.validate(dict(document), newest, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        wrong.append(Evidence(what=f"{kind}: {where}", seen=error.message))
    except Exception as error:  # no schema for the kind, no kind at all
        wrong.append(Evidence(what=str(kind), seen=str(error) or type(error).__name__))
    return judged("API schema", consumer, wrong, f"a valid {kind}")


def plan_of_job(job: Manifest, plan: Plan | None) -> Outcome:
    """Whether the numbers of the document are those of the plan."""
    if plan is None:
        why = "there is no result file to compare with"
        return not_checked("plan", why, "give it with --result cputune.json")
    said = Document(value=job)
    if job.get("kind") == "TrainJob":
        ranks, nodes = said.get(*TRAINER, "numProcPerNode"), said.get(*TRAINER, "numNodes")
        container = Document(value=said.get(*TRAINER))
        limits = container.mapping("resourcesPerNode", "limits")
    else:
        counts = [at(one, "replicas") for one in said.mapping(*REPLICAS).values()]
        ranks = said.get("spec", "nprocPerNode")
        nodes = sum(count if isinstance(count, int) else 1 for count in counts)
        master = said.get(*REPLICAS, "Master", "template", "spec", "containers", 0)
        container = Document(value=master)
        limits = container.mapping("resources", "limits")
    values = {at(entry, "name"): at(entry, "value") for entry in container.items("env")}
    cpus = str(limits.get("cpu"))
    needed = plan.processes_per_node * (plan.threads_per_process + plan.ccl_workers)
    enough = cpus.isdigit() and int(cpus) >= needed
    carried = plan.environment()
    rows: list[tuple[str, object, object]] = [
        ("nodes", plan.nodes, nodes),
        ("ranks per node", plan.processes_per_node, ranks or "auto"),
        *(
            (name, carried[name], values.get(name))
            for name in ("OMP_NUM_THREADS", "CCL_WORKER_COUNT", "ACCELERATE_MIXED_PRECISION")
            if name in carried
        ),
        ("CPUs", cpus if enough else f"at least {needed}", cpus),
    ]
    evidence = [Evidence(what=w, expected=str(e), seen=str(s)) for w, e, s in rows]
    wrong = [row for row in evidence if row.expected != row.seen]
    others = f"not the plan's: {', '.join(row.what for row in wrong)}"
    return judged("plan", None, wrong, "the numbers are the plan's", evidence, wrong=others)


TRAINER, REPLICAS = ("spec", "trainer"), ("spec", "pytorchReplicaSpecs")


def at(document: object, *path: str | int) -> Any:
    """What lies at a path of keys and indexes, None where there is nothing."""
    return Document(value=document).get(*path)


OF_OLD_TRAINERS = {"podTemplateOverrides": "2.1", "podSpecOverrides": "2.0"}
"""What has since become ``runtimePatches``; the models are those of the newest version."""

OPERATORS: Mapping[str, tuple[str, str, Callable[[Manifest], Any]]] = {
    "PyTorchJob": ("kubeflow-training", "training operator 1.9", _through_training_sdk),
    "TrainJob": ("kubeflow-trainer-api", "Kubeflow Trainer 2", _through_trainer_api),
}
"""By kind: the distribution of its SDK, its operator, and the way through the models."""
