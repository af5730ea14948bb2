"""Kubernetes documents, handed to the SDK models, the operators' rules and the Pod schema.

No cluster is asked and nothing is applied. The SDKs are no dependency of ours: where one
is not installed, its check says so.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import yaml

from cputune.host import Host
from cputune.plan import Plan
from cputune.verifier.interface import Answer, Artefact, Expected, not_installed
from cputune.verifier.jobs import plan_of_job, pytorchjob_pods, trainjob_pod
from cputune.verifier.records import FAILED, PASSED, Evidence, Outcome
from cputune.verifier.rules import Document, at, pytorchjob_complaints, trainjob_complaints

INSTALL = "pip install 'cputune[verify]'"


class KubernetesConsumer:
    """The SDK models, the operators' rules and the API schema."""

    formats = ("pytorchjob", "trainjob", "pvc", "kubernetes")

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> Answer:
        """Every document of the file, each by its kind."""
        try:
            with_nulls = list(yaml.safe_load_all(artefact.text))
        except yaml.YAMLError as error:
            summary = "no YAML: " + str(error).partition("\n")[0]
            return Answer(checks=(Outcome(name="syntax", state=FAILED, summary=summary),))
        documents = [document for document in with_nulls if document is not None]
        if not documents or not all(isinstance(document, Mapping) for document in documents):
            return Answer(
                checks=(Outcome(name="syntax", state=FAILED, summary="no Kubernetes document"),)
            )
        checks: list[Outcome] = []
        for document in documents:
            checks += _checks_of(document, expected.plan)
        return Answer(checks=tuple(checks))


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
