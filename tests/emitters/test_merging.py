"""``emit --patch FILE``: fields of the user's own in a job, before it is judged."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from emit_machines import one_socket
from golden_texts import Golden

from cputune import UsageError, emit

PATCH = """
metadata:
  labels: {team: nlp}
spec:
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          tolerations:
            - {key: dedicated, operator: Equal, value: "yes", effect: NoSchedule}
          containers:
            - name: pytorch
              env:
                - {name: HF_HOME, value: /data/hub}
                - {name: TOKENIZERS_PARALLELISM, value: "false"}
              resources: {limits: {cpu: "7"}, requests: {cpu: "7"}}
"""


def emitted(patch: str) -> dict[str, Any]:
    file = emit(one_socket().result, "pytorchjob", patch=yaml.safe_load(patch))[0]
    return yaml.safe_load(file.text)


def test_mappings_and_named_items_are_merged_and_other_lists_are_taken() -> None:
    before, after = emitted("{}"), emitted(PATCH)
    assert after["metadata"]["labels"] == {**before["metadata"].get("labels", {}), "team": "nlp"}
    pod = after["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    told = {"key": "dedicated", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    assert pod["tolerations"][0] == told
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["HF_HOME"] == "/data/hub"
    assert variables["TOKENIZERS_PARALLELISM"] == "false"
    assert variables["OMP_NUM_THREADS"] == "3"  # of 8 cores one is the kubelet's
    assert [one["name"] for one in container["env"]].count("HF_HOME") == 1
    assert container["args"][:2] == ["/workspace/place.py", "7"]  # as the pod has them then


def test_null_takes_a_field_out_and_the_job_is_judged_without_it() -> None:
    fields = {"spec": {"nprocPerNode": None}}
    file = emit(one_socket().result, "pytorchjob", patch=fields)[0]
    assert "nprocPerNode" not in yaml.safe_load(file.text)["spec"]
    assert any("one rank for each CPU of the host" in note for note in file.notes)


@pytest.mark.parametrize(
    ("patch", "there"),
    [
        ("{spec: {runPolicy: {suspend: null}}}", "spec.runPolicy.suspend"),
        ("{spec: {pytorchReplicaSpecs: {Worker: {replicas: 2}}}}", "pytorchReplicaSpecs.Worker"),
        ("{metadata: {annotations: null}}", "metadata.annotations"),
    ],
)
def test_a_patch_for_what_is_not_there_is_refused(patch: str, there: str, golden: Golden) -> None:
    with golden.raises(UsageError) as caught:
        emitted(patch)
    assert caught.value.hint
