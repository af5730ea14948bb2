"""TrainJobs of every Kubeflow Trainer 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from emit_machines import one_socket

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


def trainjob(version: str, cluster: Cluster = GIVEN) -> tuple[dict[str, Any], tuple[str, ...]]:
    asked = replace(cluster, trainer_version=version)
    file = emit(one_socket().result, "trainjob", cluster=asked)[0]
    return yaml.safe_load(file.text)["spec"], file.notes


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
