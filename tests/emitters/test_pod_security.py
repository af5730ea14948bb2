"""What a reviewer of a job asks for: its user, its labels, its secrets, how long it stays."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from emit_machines import one_socket, script_workload
from golden_texts import Golden
from rows import every_row

from cputune import Cluster, SecretKey, Trial, UsageError, emit
from cputune.emitters import Emission
from cputune.emitters.kubernetes import memory, notes
from cputune.emitters.prepared import make_job

GIVEN = Cluster(
    pull_secrets=("regcred",),
    secret_variables=(SecretKey(variable="HF_TOKEN", secret="hub", key="token"),),
)
KINDS = ("pytorchjob", "trainjob")


def job(kind: str, cluster: Cluster = GIVEN, **options: Any) -> dict[str, Any]:
    return yaml.safe_load(emit(one_socket().result, kind, cluster=cluster, **options)[0].text)


def pod(document: dict[str, Any]) -> dict[str, Any]:
    """The template of a pod, as far as the document says it."""
    spec = document["spec"]
    if document["kind"] == "PyTorchJob":
        return dict(spec["pytorchReplicaSpecs"]["Master"]["template"])
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    return dict(patch["replicatedJobs"][0]["template"]["spec"]["template"])


@every_row("kind", KINDS)
@every_row(
    ("typed", "place"),
    [
        ("/tmp/out", "/data/out"),
        ("out/run 1", "/data/out/run 1"),
        ("../out", "/data/out"),
        ("/data/out", "/data/out"),
        ("/datashop", "/data/datashop"),
    ],
)
def test_the_output_outlives_the_pod(kind: str, typed: str, place: str) -> None:
    for words in (("--output_dir", typed), (f"--output-dir={typed}",)):
        files = emit(one_socket().result, kind, workload=script_workload(*words))
        assert place in files[0].text.replace("--output-dir=", "")
        moved = [note for note in files[0].notes if "would die with the pod" in note]
        assert len(moved) == (place != typed)


def test_data_that_no_volume_holds_is_said(golden: Golden) -> None:
    words = ("--train_file", "/home/me/x.json", "--validation_file", "/data/v.json")
    notes = emit(one_socket().result, "pytorchjob", workload=script_workload(*words))[0].notes
    (note,) = (said for said in notes if "not on a volume" in said)
    golden(note)


def test_the_patch_of_the_page_meets_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    *_, first, shown = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert "kind: TrainJob" in first
    patches = [*yaml.safe_load(first)["patches"], *yaml.safe_load(shown)["patches"]]
    files = emit(one_socket().result, "pytorchjob")
    documents = [yaml.safe_load(f.text) for f in files if f.name in ("pytorchjob.yaml", "pvc.yaml")]
    documents.append(yaml.safe_load(emit(one_socket().result, "trainjob")[0].text))
    of_kind = {document["kind"]: document for document in documents}
    named = set()
    for patch in patches:
        change = yaml.safe_load(patch["patch"])
        if isinstance(change, dict):
            named.add(change["kind"])
            assert change["apiVersion"] == of_kind[change["kind"]]["apiVersion"]
            assert "target" not in patch, "it would pass in silence where nothing is selected"
            continue
        assert patch["target"]["kind"] in named
        for step in change:
            assert_meets(of_kind[patch["target"]["kind"]], step)
    assert named == set(of_kind)


def assert_meets(document: Any, change: dict[str, Any]) -> None:
    assert change["op"] == "add"
    *parents, last = change["path"].split("/")[1:]
    place = document
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    assert isinstance(place, list if last == "-" else dict), change["path"]


NO_VARIABLE = SecretKey(variable="A-B", secret="s", key="k")


@pytest.mark.parametrize("fields", [{"secret_variables": (NO_VARIABLE,)}, {"user_id": 0}])
def test_what_no_pod_can_have_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        job("pytorchjob", Cluster(**fields))
    assert caught.value.hint


def test_memory_comes_from_what_ranks_held() -> None:
    """Two ranks of 3 GiB and half as much again are 9 GiB; a flat guess were 16."""
    result = one_socket().result
    seen = ({"peak_bytes": 2 << 30}, {"peak_bytes": 3 << 30})
    trial = Trial(number=0, plan=result.best.plan, state="failed", reason="late", observed=seen)
    job = make_job(replace(result, trials=(trial,)), Emission())
    assert (job.machine.rank_bytes, memory(job)) == (3 << 30, "9Gi")
    assert any("2 ranks that held 3.00 GiB at most" in note for note in notes(job))
    assert memory(make_job(result, Emission(cluster=Cluster(memory="64Gi")))) == "64Gi"
