"""Kubeflow jobs, checked by the SDK models and the operators' rules.

No cluster is contacted. If an SDK is not installed, its check says so.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import metadata
from typing import Any, TypeAlias

import yaml

from cputune.doctor.files.kubeflow import job_faults
from cputune.doctor.files.yaml_spans import Document
from cputune.emitters.container import PLACE_SCRIPT
from cputune.emitters.manifest import NOTHING, PLAN, PODS, RANKS, decided
from cputune.emitters.promise import Promise, promise_in, promise_of
from cputune.host import Host, read_document
from cputune.plans.delivery.environment import is_cleared
from cputune.plans.plan import Plan
from cputune.text.documents import at
from cputune.text.quantities import quantity_of
from cputune.verifier.folder import folder_check
from cputune.verifier.pods import (
    PERSISTENT,
    lifetime_faults,
    name_faults,
    service_faults,
    volume_faults,
)
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
from cputune.verifier.schemas import schema_faults, versions_of_kind

INSTALL = "pip install 'cputune[verify]'"
NOT_STARTED = "its pods were not started: that needs the image and a cluster"
AS_A_SCRIPT = "verify the same plan as a script: cputune emit --format torchrun"
Manifest: TypeAlias = Mapping[str, Any]
# What reading a text that is no YAML raises.
_NO_YAML = (yaml.YAMLError, ValueError, RecursionError)


def judge_documents(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """The plan in the document, the SDK models and the operator's rules, for each job of the
    file.
    """
    try:
        documents = list(yaml.safe_load_all(artefact.text))
    except _NO_YAML as error:
        yield _no_yaml(error)
        return
    jobs = []
    for document in documents:
        if str(at(document, "kind")) in OPERATORS:
            jobs.append(document)
    if not jobs:
        reason = "neither a PyTorchJob nor a TrainJob"
        yield Outcome(name="syntax", state=FAILED, summary=reason)
    claims = _claims(documents, artefact)
    for job in jobs:
        distribution, operator, through = OPERATORS[job["kind"]]
        promise = _promise(job, artefact)
        yield compared_with_plan(job, expected, promise.document or {})
        yield from folder_check(artefact, promise.folder, job)
        yield from checks_without_plan(job, claims)
        yield round_trip(job, distribution, through)
        yield admission(job, operator)
        yield not_checked("launch", NOT_STARTED, AS_A_SCRIPT, left_out=True)


def _promise(job: Manifest, artefact: Artefact) -> Promise:
    """What the annotation of a job promises, else the last line of its file."""
    annotation = at(job, "metadata", "annotations", PLAN)
    if annotation is None:
        return promise_in(artefact.text)
    return promise_of(annotation)


# The format of a job that names no plan, or whose plan cannot be read because it is not YAML.
DOCUMENT = "document"
_ANNOTATED = re.compile(rf"""^[ \t]*["']?{PLAN}["']?[ \t]*:""", re.MULTILINE)


def is_broken(text: str) -> bool:
    """Whether a text is an emitted job that is no longer YAML."""
    if _ANNOTATED.search(text) is None:
        return False
    try:
        list(yaml.safe_load_all(text))
    except _NO_YAML:
        return True
    return False


def is_job(text: str) -> bool:
    """Whether a text is YAML with a job that is understood here."""
    if "kind:" not in text and '"kind"' not in text:
        return False
    try:
        documents = list(yaml.safe_load_all(text))
    except _NO_YAML:
        return False
    return any(versions_of_kind(str(at(one, "kind"))) for one in documents)


def judge_without_plan(artefact: Artefact) -> Iterator[Outcome]:
    """The checks of each job of a file that need no plan."""
    try:
        documents = list(yaml.safe_load_all(artefact.text))
    except _NO_YAML as error:
        yield _no_yaml(error)
        return
    claims = _claims(documents, artefact)
    for job in documents:
        if not versions_of_kind(str(at(job, "kind"))):
            continue
        reason = "the document names no plan"
        yield not_checked("plan", reason, f"cputune emit --like {artefact.path}", left_out=True)
        yield from checks_without_plan(job, claims)
        if job["kind"] in OPERATORS:
            distribution, operator, through = OPERATORS[job["kind"]]
            yield round_trip(job, distribution, through)
            yield admission(job, operator)
        yield not_checked("launch", NOT_STARTED, AS_A_SCRIPT, left_out=True)


def _no_yaml(error: Exception) -> Outcome:
    problem = str(error).partition("\n")[0]
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem = f"{error.problem}, line {error.problem_mark.line + 1}"
    return Outcome(name="syntax", state=FAILED, summary=f"no YAML: {problem}")


CLAIM_FILE = "pvc.yaml"


def _claims(documents: Sequence[Any], artefact: Artefact) -> dict[str, Manifest]:
    """The volume claims of the file and of ``pvc.yaml`` next to it, by name."""
    beside = artefact.path.parent / CLAIM_FILE
    candidates = list(documents)
    with contextlib.suppress(OSError, yaml.YAMLError):
        candidates += yaml.safe_load_all(read_document(beside))
    claims = {}
    for candidate in candidates:
        if at(candidate, "kind") == "PersistentVolumeClaim":
            claims[str(at(candidate, "metadata", "name"))] = candidate
    return claims


def checks_without_plan(job: Manifest, claims: Mapping[str, Manifest]) -> Iterator[Outcome]:
    """What needs neither the plan nor an SDK: the schema, the names, the volumes, the class of
    the pods, and their lifetime.
    """
    name = str(job["kind"])
    questions = (
        ("schema", f"the definition of {name}", schema_faults(job), "every key and type is known"),
        ("names", "the rules of Kubernetes", name_faults(job), "all names are accepted"),
        ("volumes", "the rules of Kubernetes", volume_faults(job, claims), "all mounts fit"),
        ("quality of service", "the pod as a whole", service_faults(job), "Guaranteed"),
        ("lifetime", "the job as a whole", lifetime_faults(job), "it starts and may end by itself"),
    )
    for check, consumer, faults, good in questions:
        faulty = list(faults)
        wrong = None
        if faulty:
            first = faulty[0]
            wanted = ""
            if first.expected is not None:
                wanted = f", expected {first.expected}"
            wrong = f"{first.what}: {first.seen}{wanted}"
        yield judged(check, consumer, faulty, good, wrong=wrong)


# What a document decides and you may change: the training stays the same.
YOURS = frozenset(["tries again"])
# Variables that a pod sets in another way than a script: paths in its image and its volume.
IN_PODS = frozenset(["LD_PRELOAD", "CCL_WORKER_AFFINITY", "HF_HOME"])


def compared_with_plan(job: Manifest, expected: Expected, emitted: Mapping[str, str]) -> Outcome:
    """What the document decides, compared with its decision when it was emitted, and the plan."""
    shown = decided(job)
    promised = _promised_values(expected, shown, emitted)
    names = [name for name in promised if name not in YOURS]
    for name in shown:
        if name not in promised and not _may_be_added(name):
            names.append(name)
    meaning = _SameMeaning(expected.plan, promised, shown)
    rows: list[Evidence] = []
    wrong: list[Evidence] = []
    for name in names:
        wanted = promised.get(name, NOTHING)
        row = Evidence(what=name, expected=wanted, seen=shown.get(name, NOTHING))
        rows.append(row)
        if not meaning.same(row):
            wrong.append(row)
    difference = None
    if wrong:
        difference = f"{wrong[0].what}: {wrong[0].seen}, the plan has {wrong[0].expected}"
    good = f"{len(rows)} values are as emitted"
    if meaning.fewer:
        good += f", with {meaning.fewer} fewer CPUs per pod"
    return judged("plan", "the plan in the file", wrong, good, wrong=difference)


def _promised_values(
    expected: Expected, shown: Manifest, emitted: Mapping[str, str]
) -> dict[str, str]:
    """What the document decided when it was emitted, with the plan and its variables."""
    promised = dict(emitted)
    planned = {RANKS: expected.plan.processes_per_node, PODS: expected.plan.nodes}
    for name, number in planned.items():
        # One is what the operator starts if your own document names no number.
        if number > 1 or emitted.get(name) != NOTHING:
            promised[name] = str(number)
    variables = {}
    for name, value in (expected.environment or {}).items():
        if name not in IN_PODS:
            variables[name] = value.replace("$", "$$")  # the kubelet expands $(NAME)
    # Each container that has an image gets the variables of the plan.
    for shown_name in shown:
        prefix, _, last = shown_name.rpartition(": ")
        if last == "image":
            for name, value in variables.items():
                promised[f"{prefix}: {name}".removeprefix(": ")] = value
    return promised


# The least limit on /dev/shm: loader workers and ranks share batches there.
LEAST_SHARED_BYTES = 2**30
# Down to this share of threads a plan counts as the same, to leave CPUs to the kubelet.
_LEAST_THREADS = 0.9


def _few_less(threads: int, planned: int) -> bool:
    return min(math.ceil(_LEAST_THREADS * planned), planned - 1) <= threads < planned


def with_emitted_threads(plan: Plan, emitted: Plan) -> Plan:
    """A tuned plan with as few threads as a document of it has.

    Unchanged if the document differs otherwise, or by more than a few threads.
    """
    threads = emitted.threads_per_process
    fewer = replace(plan, threads_per_process=threads, cpus=emitted.cpus)  # pods number their own
    if fewer == emitted and _few_less(threads, plan.threads_per_process):
        return fewer
    return plan


class _SameMeaning:
    """Whether values of a document that are written otherwise still mean what was emitted.

    ``fewer``: how many CPUs a pod has less than it was emitted with.
    """

    def __init__(self, plan: Plan, promised: Manifest, shown: Manifest) -> None:
        self.plan, self.promised, self.shown = plan, promised, shown
        self.fewer = 0

    def same(self, row: Evidence) -> bool:
        """Whether a row is unchanged: the same quantity, more memory, an image by its digest."""
        if row.seen == row.expected:
            return True
        before, _, name = row.what.rpartition(": ")
        prefix = ""
        if before:
            prefix = f"{before}: "
        match name:
            case "requests.cpu" | "limits.cpu":
                return self._cpus(prefix, row)
            case "requests.memory" | "limits.memory":
                amount_shown = self._amount(prefix, name)
                wanted = quantity_of(row.expected)
                return None not in (amount_shown, wanted) and amount_shown >= wanted  # type: ignore[operator]
            case "OMP_NUM_THREADS":
                return self._threads(prefix, row)
            case "args":
                return self._arguments(prefix, row)
            case "image":
                digest = re.fullmatch(r"(.+?)(:[\w.-]+)?@sha256:[0-9a-f]{64}", row.seen)
                repository = re.sub(r"(?<=[^/]):[\w.-]+$", "", str(row.expected))
                return digest is not None and digest[1] == repository
            case "/dev/shm":
                size = re.fullmatch(r"medium Memory, sizeLimit (\S+)", row.seen)
                amount = None
                if size is not None:
                    amount = quantity_of(size[1])
                return amount is not None and amount >= LEAST_SHARED_BYTES
        return name.startswith("/") and {row.seen, row.expected} <= PERSISTENT

    def _amount(self, prefix: str, name: str) -> Fraction | None:
        """A quantity of the document; a request that is left out equals the limit."""
        text = self.shown.get(prefix + name, NOTHING)
        if text == NOTHING and name.startswith("requests."):
            text = self.shown.get(f"{prefix}limits.{name.partition('.')[2]}", NOTHING)
        return quantity_of(text)

    def _cpus(self, prefix: str, row: Evidence) -> bool:
        """As many CPUs, or fewer whole ones that still give each thread one."""
        shown, wanted = (
            self._amount(prefix, row.what.rpartition(": ")[2]),
            quantity_of(row.expected),
        )
        if shown is None or wanted is None or shown == wanted:
            return shown == wanted
        threads = _whole_number(
            self.shown.get(f"{prefix}OMP_NUM_THREADS"), self.plan.threads_per_process
        )
        needed = self.plan.processes_per_node * (threads + self.plan.ccl_workers)
        if shown > wanted or shown.denominator != 1 or shown < needed:
            return False
        self.fewer = int(wanted - shown)
        return True

    def _threads(self, prefix: str, row: Evidence) -> bool:
        """A few threads less, if the pod has fewer CPUs, too."""
        planned = self.plan.threads_per_process
        threads = _whole_number(row.seen, 0)
        given = self._amount(prefix, "limits.cpu")
        promised = quantity_of(self.promised.get(f"{prefix}limits.cpu", NOTHING))
        if given is None or promised is None or given >= promised:
            return False
        return _few_less(threads, planned)

    def _arguments(self, prefix: str, row: Evidence) -> bool:
        """The same words, if place.py is given the number of CPUs that the pod has."""
        shown, promised = shlex.split(row.seen), shlex.split(str(row.expected))
        if _is_placed(shown):
            if Fraction(shown[1]) != self._amount(prefix, "limits.cpu"):
                return False
            shown[1] = "CPUS"
        if _is_placed(promised):
            promised[1] = "CPUS"
        return shown == promised


def _is_placed(command: Sequence[str]) -> bool:
    """Whether a command is place.py with a number of CPUs."""
    return len(command) > 1 and command[0].endswith(f"/{PLACE_SCRIPT}") and command[1].isdigit()


def _whole_number(text: object, otherwise: int) -> int:
    if str(text).isdigit():
        return int(str(text))
    return otherwise


def _may_be_added(name: str) -> bool:
    """Whether an addition to the plan may stay: a volume, a variable no library reads."""
    last = name.rpartition(" ")[2]
    if last.startswith("/"):
        return True
    return last == last.upper() and not is_cleared(last)


def round_trip(
    document: Manifest, distribution: str, through: Callable[[Manifest], Any]
) -> Outcome:
    """Into the SDK's models and out again: the result must equal the document."""
    name = "SDK models"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return not_installed(name, distribution, INSTALL)
    consumer = f"{distribution} {version}"
    sent = with_text_quantities(document)
    spec = document.get("spec")
    of_training = document.get("kind") == "PyTorchJob" and isinstance(spec, Mapping)
    if of_training and "runPolicy" not in sent["spec"]:
        # Only the models want one; the API server sets it.
        sent = {**sent, "spec": {**sent["spec"], "runPolicy": {"cleanPodPolicy": "None"}}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            back = through(sent)
    except AttributeError as error:  # kubeflow-training 1.9.4 has no model of a metric
        return not_checked(name, f"the SDK lacks a model: {error}", consumer=consumer)
    except Exception as error:  # the models raise errors of any kind
        message = str(error).strip() or type(error).__name__
        refused = f"the models refuse the document: {message.splitlines()[0]}"
        return judged(name, consumer, [Evidence(what="refusal", seen=message)], "", wrong=refused)
    differences = tuple(_differences(sent, back, document.get("kind", "document")))
    wrong = "the document changes in a round trip through the models"
    return judged(name, consumer, differences[:20], "came back equal", wrong=wrong)


def with_text_quantities(value: Any, key: str = "") -> Any:
    """A document with quantities as text: ``cpu: 8`` is valid, and the models hold only text."""
    if isinstance(value, Mapping):
        texts = {}
        for name, inner in value.items():
            # type(): a bool is an int, too.
            if key in ("limits", "requests") and type(inner) is int:
                texts[name] = str(inner)
            else:
                texts[name] = with_text_quantities(inner, name)
        return texts
    if isinstance(value, list):
        return [with_text_quantities(inner) for inner in value]
    return value


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
    if job is None:
        return None
    return job.to_dict()


def _differences(expected: object, shown: object, where: str) -> Iterator[Evidence]:
    if isinstance(expected, Mapping) and isinstance(shown, Mapping):
        for key in {**expected, **shown}:
            yield from _differences(expected.get(key), shown.get(key), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(shown, list) and len(expected) == len(shown):
        for index, (wanted, other) in enumerate(zip(expected, shown, strict=True)):
            yield from _differences(wanted, other, f"{where}[{index}]")
    elif expected != shown or isinstance(expected, bool) is not isinstance(shown, bool):
        yield Evidence(what=where, expected=repr(expected), seen=repr(shown))


def admission(job: Manifest, consumer: str) -> Outcome:
    """What the operator refuses of a job, or starts wrongly, by the doctor's checks."""
    faults = []
    for _, path, fault in job_faults(Document(value=job)):
        faults.append(Evidence(what=".".join(map(str, path)), seen=fault))
    return judged("admission rules", consumer, faults, "nothing to refuse")


# For each kind the distribution of its SDK, its operator, and the conversion through the models.
OPERATORS: Mapping[str, tuple[str, str, Callable[[Manifest], Any]]] = {
    "PyTorchJob": ("kubeflow-training", "training operator 1.9", _through_training_sdk),
    "TrainJob": ("kubeflow-trainer-api", "Kubeflow Trainer 2", _through_trainer_api),
}
