"""A document that somebody has changed, by hand or by kustomize, is held against its plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from emitters.emit_machines import TODAY, one_socket, tuned
from golden_texts import Golden
from rows import every_row
from verifier.jobs import Job, container, pod, variable

from cputune import Cluster, emit, verify
from cputune.emitters.promise import promise_in
from cputune.verifier import promised_of
from cputune.verifier.kubernetes import compared_with_plan
from cputune.verifier.records import Expected

CLUSTER = Cluster(image="registry.example/bert:1", memory="64Gi")


def emitted(format: str, folder: Path) -> Path:
    case = one_socket()
    files = emit(case.result, format, facts=case.facts, nodes=3, cluster=CLUSTER)
    folder.mkdir()
    for file in files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
    return folder / f"{format}.yaml"


def given(job: Job) -> Job:
    one = container(job)
    return one.get("resources") or one["resourcesPerNode"]


def without_shared_memory(job: Job) -> None:
    pod(job)["volumes"] = [one for one in pod(job)["volumes"] if one["name"] != "dshm"]


OF_BOTH: list[Callable[[Job], object]] = [
    lambda job: job.update(apiVersion="kubeflow.org/v1beta1"),
    lambda job: container(job).update(image="registry.example/bert:2"),
    lambda job: container(job).update(command=["bash", "-c", "torchrun"]),
    lambda job: container(job)["args"].insert(0, "--nnodes=1"),
    lambda job: container(job)["args"].extend(["--learning_rate", "1e-2"]),
    lambda job: container(job)["args"].pop(),
    lambda job: variable(job, "OMP_NUM_THREADS").update(value="64"),
    lambda job: container(job)["env"].remove(variable(job, "OMP_NUM_THREADS")),
    lambda job: container(job)["env"].append({"name": "MKL_NUM_THREADS", "value": "1"}),
    lambda job: given(job)["limits"].update(cpu="4"),
    lambda job: given(job).update(requests={"cpu": "4", "memory": "4Gi"}),
    lambda job: given(job)["limits"].update(memory="4Gi"),
    lambda job: [given(job)[kind].update(memory="64GB") for kind in ("limits", "requests")],
    without_shared_memory,
]
PYTORCHJOB: list[Callable[[Job], object]] = [
    *OF_BOTH,
    lambda job: job["spec"].update(nprocPerNode="1"),
    lambda job: job["spec"].update(nprocPerNode="auto"),
    lambda job: job["spec"].pop("nprocPerNode"),
    lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=1),
    lambda job: job["spec"]["pytorchReplicaSpecs"]["Master"].update(replicas=2),
    lambda job: job["spec"]["pytorchReplicaSpecs"].pop("Worker"),
    lambda job: job["spec"].update(elasticPolicy={"minReplicas": 1, "maxReplicas": 3}),
    lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(restartPolicy="Always"),
    lambda job: container(job, "Worker").update(image="registry.example/bert:0"),
    lambda job: variable(job, "OMP_NUM_THREADS", "Worker").update(value="1"),
    lambda job: variable(job, "HF_HOME").update(value="/tmp/hub"),
    lambda job: pod(job)["volumes"][1]["emptyDir"].update(sizeLimit="64Mi"),
    lambda job: pod(job)["volumes"][1].update(emptyDir={}),
    lambda job: container(job)["volumeMounts"].pop(0),
]
TRAINJOB: list[Callable[[Job], object]] = [
    *OF_BOTH,
    lambda job: job["spec"]["trainer"].update(numProcPerNode=1),
    lambda job: job["spec"]["trainer"].update(numNodes=2),
]


def test_enough_changes_are_planted() -> None:
    assert (len(PYTORCHJOB), len(TRAINJOB)) == (28, 16)


@every_row(
    ("format", "change"),
    [("pytorchjob", one) for one in PYTORCHJOB] + [("trainjob", one) for one in TRAINJOB],
)
def test_every_change_is_seen(format: str, change: Callable[[Job], object], tmp_path: Path) -> None:
    path = emitted(format, tmp_path / "launch")
    text = path.read_text(encoding="utf-8")
    job = copy.deepcopy(yaml.safe_load(text))
    change(job)
    path.write_text(yaml.safe_dump(job), encoding="utf-8")  # without the comment, as by kustomize
    (verdict,) = verify([path], run=False)
    assert verdict.state == "failed"
    (seen,) = [check for check in verdict.checks if check.name == "plan"]
    assert seen.state == "failed"
    assert any(row.seen != row.expected for row in seen.evidence), seen


@pytest.mark.parametrize("format", ["pytorchjob", "trainjob"])
def test_what_a_team_adds_is_its_own(format: str, tmp_path: Path) -> None:
    path = emitted(format, tmp_path / "launch")
    job = yaml.safe_load(path.read_text(encoding="utf-8"))
    job["metadata"].update(name="team-bert", namespace="nlp")
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "nlp"
    pod(job)["priorityClassName"] = "high"
    pod(job)["volumes"].append({"name": "squad", "persistentVolumeClaim": {"claimName": "squad"}})
    pod(job)["containers"][0]["volumeMounts"].append({"name": "squad", "mountPath": "/squad"})
    container(job)["env"].append({"name": "HTTPS_PROXY", "value": "http://proxy:3128"})
    claim = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    path.write_text(yaml.safe_dump_all([claim, job]), encoding="utf-8")
    (verdict,) = verify([path], run=False)
    (seen,) = [check for check in verdict.checks if check.name == "plan"]
    assert seen.state == "passed", seen
    assert [check.state for check in verdict.checks if check.left_out] == ["not checked"]


@pytest.mark.parametrize("format", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize(("threads", "state"), [(4, "passed"), (6, "failed"), (2, "failed")])
def test_it_is_compared_with_its_own_result_which_has_a_thread_more(
    format: str, threads: int, state: str, tmp_path: Path
) -> None:
    case = one_socket()
    path, result = emitted(format, tmp_path / "launch"), tmp_path / "cputune.json"
    emitted_plan = promised_of(path, path.read_text(encoding="utf-8")).plan
    assert emitted_plan.threads_per_process == 3
    shares = tuple(range(threads)), tuple(range(threads, 2 * threads))
    plan = replace(case.result.best.plan, threads_per_process=threads, cpus=shares)
    tuned(case.facts, plan, case.result.workload, TODAY).save(result)
    (verdict,) = verify([path], result=result, run=False)
    assert [one.state for one in verdict.checks if one.name == "plan"] == [state]


@every_row(
    ("old", "new", "said"),
    [
        ("spec:", "status: [\nspec:", "no YAML: "),
        ("kind: PyTorchJob", "kind: Pod", "neither a PyTorchJob nor a"),
    ],
)
def test_an_emitted_document_that_cannot_be_read_any_more_fails(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    path = emitted("pytorchjob", tmp_path / "launch")
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    for asked in (path, path.parent):
        (verdict,) = verify([asked], run=False)
        (check,) = verdict.checks
        assert (check.name, check.state) == ("syntax", "failed")
        assert check.summary.startswith(said)


def test_a_document_is_compared_with_another_result_too(tmp_path: Path, golden: Golden) -> None:
    text = emitted("pytorchjob", tmp_path / "launch").read_text(encoding="utf-8")
    other = replace(one_socket().result.best.plan, threads_per_process=2, nodes=3)
    expected = Expected(plan=other, environment=other.environment())
    seen = compared_with_plan(yaml.safe_load(text), expected, promise_in(text).document or {})
    assert seen.state == "failed"
    golden(seen.summary)
