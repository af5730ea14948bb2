"""What a reviewer of a job asks for: its user, its labels, its secrets, how long it stays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from emit_machines import one_socket

from cputune.emitters import Cluster, SecretKey, Toleration, emit
from cputune.errors import UsageError

GIVEN = Cluster(
    labels=(("team", "nlp"),),
    tolerations=(
        Toleration(key="dedicated", value="training", effect="NoSchedule"),
        Toleration(key="spot"),
    ),
    pull_secrets=("regcred",),
    secret_variables=(SecretKey(variable="HF_TOKEN", secret="hub", key="token"),),
    ttl_seconds=3600,
)
KINDS = ("pytorchjob", "trainjob")


def job(kind: str, cluster: Cluster = GIVEN, **options: Any) -> dict[str, Any]:
    document = yaml.safe_load(emit(one_socket().result, kind, cluster=cluster, **options)[0].text)
    assert isinstance(document, dict)
    return document


def pod(document: dict[str, Any]) -> dict[str, Any]:
    """The template of a pod, as far as the document says it."""
    spec = document["spec"]
    if document["kind"] == "PyTorchJob":
        return dict(spec["pytorchReplicaSpecs"]["Master"]["template"])
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    return dict(patch["replicatedJobs"][0]["template"]["spec"]["template"])


def variables(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    trainer = spec.get("trainer") or pod(document)["spec"]["containers"][0]
    return {entry["name"]: entry for entry in trainer["env"]}


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_root_and_nothing_is_allowed_that_training_does_not_need(kind: str) -> None:
    spec = pod(job(kind))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 1000
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_job_and_pods_say_whose_they_are(kind: str) -> None:
    document = job(kind)
    for metadata in (document["metadata"], pod(document)["metadata"]):
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "cputune"
        assert metadata["labels"]["team"] == "nlp"


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_the_user_knows_of_the_nodes(kind: str) -> None:
    spec = pod(job(kind))["spec"]
    assert spec["imagePullSecrets"] == [{"name": "regcred"}]
    assert spec["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]
    bare = pod(job(kind, Cluster()))["spec"]
    assert not {"imagePullSecrets", "tolerations", "nodeSelector"} & set(bare)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hubs_token_comes_from_a_secret_that_need_not_be_there(kind: str) -> None:
    assert variables(job(kind, Cluster(job_name="bert")))["HF_TOKEN"]["valueFrom"] == {
        "secretKeyRef": {"name": "bert-secrets", "key": "HF_TOKEN", "optional": True}
    }
    assert variables(job(kind))["HF_TOKEN"]["valueFrom"] == {
        "secretKeyRef": {"name": "hub", "key": "token"}
    }


def test_a_job_that_is_done_goes_away() -> None:
    assert job("pytorchjob")["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == 3600
    assert job("pytorchjob", Cluster())["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == 604800
    notes = emit(one_socket().result, "trainjob", cluster=GIVEN)[0].notes
    assert any("has no TTL" in note for note in notes)


def test_a_volume_of_several_nodes_says_what_its_class_must_offer() -> None:
    files = {file.name: file for file in emit(one_socket().result, "pytorchjob", nodes=2)}
    assert "ReadWriteMany" in files["pvc.yaml"].text.partition("apiVersion")[0]
    assert any("ReadWriteMany" in note for note in files["pytorchjob.yaml"].notes)
    one = emit(one_socket().result, "pytorchjob", nodes=1)
    assert not any("ReadWriteMany" in note for note in one[0].notes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {"labels": (("a b", "c"),)},
        {"labels": (("a", "$(x)"),)},
        {"labels": (("/a", "b"),)},
        {"tolerations": (Toleration(key="a;b"),)},
        {"tolerations": (Toleration(key="a", value="\n"),)},
        {"tolerations": (Toleration(key="a", effect="Never"),)},
        {"pull_secrets": ("Reg Cred",)},
        {"secret_variables": (SecretKey(variable="A B", secret="s", key="k"),)},
        {"secret_variables": (SecretKey(variable="A", secret="$(s)", key="k"),)},
        {"secret_variables": (SecretKey(variable="A", secret="s", key="k/l"),)},
        {"user_id": 0},
        {"user_id": -1},
    ],
)
def test_what_kubernetes_would_refuse_is_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        job(kind, Cluster(**fields))
    assert caught.value.hint
