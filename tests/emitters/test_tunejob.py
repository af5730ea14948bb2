"""The Job that tunes in a pod, and TrainJobs of every Kubeflow Trainer 2."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from emit_machines import one_socket, script_workload

from cputune.documents import record_of
from cputune.emitters import Cluster, emit
from cputune.errors import UsageError

PATCHES = {
    "2.0": "podSpecOverrides",
    "v2.1.0": "podTemplateOverrides",
    "2.2.1": "runtimePatches",
    "2.3": "runtimePatches",
}
OF_2_0 = {"targetJobs", "serviceAccountName", "nodeSelector", "tolerations", "volumes",
          "initContainers", "containers", "schedulingGates"}  # fmt: skip
OF_2_1 = (OF_2_0 | {"affinity", "imagePullSecrets"}) - {"targetJobs"}
"""The fields of ``pkg/apis/trainer/v1alpha1/trainjob_types.go`` at v2.0.0 and v2.1.0."""

GIVEN = Cluster(
    image="r.example.com/bert:1", pull_secrets=("regcred",), node_selector=(("pool", "spr"),)
)


def items(**options: Any) -> dict[str, Any]:
    options = {"cluster": GIVEN, **options}
    (file,) = emit(one_socket().result, "tunejob", **options)
    return {item["kind"]: item for item in yaml.safe_load(file.text)["items"]}


def trainjob(version: str, cluster: Cluster = GIVEN) -> tuple[dict[str, Any], tuple[str, ...]]:
    asked = replace(cluster, trainer_version=version)
    file = emit(one_socket().result, "trainjob", cluster=asked)[0]
    return yaml.safe_load(file.text)["spec"], file.notes


def test_it_tunes_in_a_guaranteed_pod_of_the_shape_that_will_train() -> None:
    found = items(workload=script_workload("--do_train"))
    assert set(found) == {"PersistentVolumeClaim", "Job"}
    pod = found["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    trained = trainjob("2.3")[0]["trainer"]
    assert container["resources"] == trained["resourcesPerNode"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["command"] == ["cputune", "tune"]
    assert container["args"][:2] == ["--output", "/data/cputune.json"]
    assert container["args"][-2:] == ["run_qa.py", "--do_train"]
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    assert pod["nodeSelector"] == {"pool": "spr"}


def test_it_has_no_right_at_all() -> None:
    pod = items()["Job"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_of_several_nodes_each_trial_is_a_trainjob_and_no_more_is_allowed() -> None:
    found = items(nodes=2, workload=script_workload())
    pod = found["Job"]["spec"]["template"]["spec"]
    name = found["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == name
    assert found["RoleBinding"]["subjects"][0]["name"] == name
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    rules = [(rule["resources"], rule["verbs"]) for rule in found["Role"]["rules"]]
    assert rules == [
        (["trainjobs"], ["create", "get", "delete"]),
        (["pods"], ["list"]),
        (["pods/log"], ["get"]),
    ]
    own = {
        one["name"]: one["valueFrom"] for one in pod["containers"][0]["env"] if "POD" in one["name"]
    }
    assert own["POD_UID"]["fieldRef"]["fieldPath"] == "metadata.uid"
    words = pod["containers"][0]["args"]
    told = json.loads(words[words.index("--trainjobs") + 1])
    assert told["nodes"] == 2
    assert record_of(Cluster, told["cluster"]) == GIVEN
    named = items(nodes=2, cluster=replace(GIVEN, service_account="mine"))
    assert "ServiceAccount" not in named
    assert named["RoleBinding"]["subjects"][0]["name"] == "mine"


@pytest.mark.parametrize("version", PATCHES)
def test_a_trainjob_has_the_fields_of_its_trainer(version: str) -> None:
    spec, notes = trainjob(version)
    assert set(PATCHES.values()) & set(spec) == {PATCHES[version]}
    told = [note for note in notes if "cannot say" in note]
    if "runtimePatches" in spec:
        assert not told
        return
    assert "security contexts" in told[0]
    (patch,) = spec[PATCHES[version]]
    if version == "2.0":
        assert set(patch) <= OF_2_0
        assert "pull secrets" in told[0]
        pod = patch
    else:
        assert set(patch) == {"targetJobs", "metadata", "spec"}
        assert set(patch["spec"]) <= OF_2_1
        pod = patch["spec"]
    assert pod["volumes"][0]["name"] == pod["containers"][0]["volumeMounts"][0]["name"] == "data"


@pytest.mark.parametrize("version", ["1.9", "2.4", "3", "two", ""])
def test_a_trainer_that_is_not_known_is_refused(version: str) -> None:
    if not version:
        assert "runtimePatches" in trainjob(version)[0]
        return
    with pytest.raises(UsageError, match="Kubeflow Trainer") as caught:
        trainjob(version)
    assert "2.0 to 2.3" in (caught.value.hint or "")
