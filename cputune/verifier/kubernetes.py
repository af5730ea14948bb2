"""Jobs of Kubeflow, handed to the SDK models and held against the operators' rules.

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

from cputune.doctor.files.documents import Document
from cputune.doctor.files.kubeflow import job_faults
from cputune.emitters.manifest import NOTHING, PLAN, PODS, RANKS, at, decided
from cputune.emitters.promise import promise_of
from cputune.host import Host
from cputune.plans.carrier.environment import is_cleared
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
    """The plan in the document, the SDK models and the operator's rules, for each job of the file.

    What kustomize has written holds other documents beside them.
    """
    try:
        documents = list(yaml.safe_load_all(artefact.text))
    except yaml.YAMLError as error:
        said = "no YAML: " + str(error).partition("\n")[0]
        yield Outcome(name="syntax", state=FAILED, summary=said)
        return
    jobs = [document for document in documents if str(at(document, "kind")) in OPERATORS]
    if not jobs:
        said = "neither a PyTorchJob nor a TrainJob"
        yield Outcome(name="syntax", state=FAILED, summary=said)
    for job in jobs:
        distribution, operator, through = OPERATORS[job["kind"]]
        yield held_to_plan(job, expected)
        yield round_trip(job, distribution, through)
        yield admission(job, operator)
        yield not_checked("launch", NOT_STARTED, AS_A_SCRIPT, left_out=True)


IN_PODS = frozenset(["LD_PRELOAD", "CCL_WORKER_AFFINITY", "HF_HOME"])
"""Variables that a pod has otherwise than a script: by the places in its image and its volume."""


def held_to_plan(job: Manifest, expected: Expected) -> Outcome:
    """What the document decides, held against what it said when it was emitted, and the plan."""
    shown = decided(job)
    promised = dict(promise_of(at(job, "metadata", "annotations", PLAN)).document or {})
    plan = expected.plan
    promised |= {RANKS: str(plan.processes_per_node), PODS: str(plan.nodes)}
    prefixes = {name.rpartition(": ")[0] for name in shown if name.rpartition(": ")[2] == "image"}
    for name, value in (expected.environment or {}).items():
        if name not in IN_PODS:
            inside = value.replace("$", "$$")  # the kubelet expands $(NAME)
            promised |= {f"{before}: {name}".removeprefix(": "): inside for before in prefixes}
    others = [name for name in shown if name not in promised and not _is_own(name)]
    rows = [
        Evidence(what=name, expected=promised.get(name, NOTHING), seen=shown.get(name, NOTHING))
        for name in [*promised, *others]
    ]
    wrong = [row for row in rows if row.seen != row.expected]
    said = [f"{row.what}: {row.seen}, the plan has {row.expected}" for row in wrong[:1]]
    good = f"{len(rows)} values are as they were emitted"
    return judged("plan", "the plan in the file", wrong, good, wrong="".join(said) or None)


def _is_own(name: str) -> bool:
    """Whether what a document holds beside the plan is its owner's: a volume, a variable that no
    library reads.
    """
    last = name.rpartition(" ")[2]
    return last.startswith("/") or (last == last.upper() and not is_cleared(last))


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
        for index, (wanted, other) in enumerate(zip(expected, seen, strict=True)):
            yield from _differences(wanted, other, f"{where}[{index}]")
    elif expected != seen or isinstance(expected, bool) is not isinstance(seen, bool):
        yield Evidence(what=where, expected=repr(expected), seen=repr(seen))


def admission(job: Manifest, consumer: str) -> Outcome:
    """What the operator refuses of a job, or takes and does wrongly, as the doctor says it."""
    found = [
        Evidence(what=".".join(map(str, path)), seen=said)
        for _, path, said in job_faults(Document(value=job))
    ]
    return judged("admission rules", consumer, found, "nothing to refuse")


OPERATORS: Mapping[str, tuple[str, str, Callable[[Manifest], Any]]] = {
    "PyTorchJob": ("kubeflow-training", "training operator 1.9", _through_training_sdk),
    "TrainJob": ("kubeflow-trainer-api", "Kubeflow Trainer 2", _through_trainer_api),
}
"""By kind: the distribution of its SDK, its operator, and the way through the models."""
