"""kubectl's kustomize takes what emit writes, with the patches of the page; verify its output."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from emitters.emit_machines import one_socket

from cputune import Cluster, emit, verify

pytestmark = [
    pytest.mark.consumer,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]
PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
Kustomize = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kustomize(tmp_path: Path) -> Kustomize:
    """Builds a kustomization beside what ``emit -f FORMAT`` has written for a job called bert."""
    case = one_socket()
    (tmp_path / "launch").mkdir()
    cluster = Cluster(image="registry.example/bert:1", job_name="bert")

    def build(text: str, format: str = "all") -> subprocess.CompletedProcess[str]:
        for file in emit(case.result, format, facts=case.facts, cluster=cluster):
            (tmp_path / "launch" / file.name).write_text(file.text, encoding="utf-8")
        team = tmp_path / "team"
        team.mkdir()
        (team / "kustomization.yaml").write_text(text, encoding="utf-8")
        argv = ["kubectl", "kustomize", str(team)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)

    return build


def shown() -> str:
    *_, found = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_patches_of_the_page_are_applied_and_leave_the_plan(
    kustomize: Kustomize, tmp_path: Path
) -> None:
    done = kustomize(shown() + "namePrefix: a-\n")
    assert done.returncode == 0, done.stderr
    documents = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    job = documents["PyTorchJob"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "nlp"
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert pod["priorityClassName"] == "high"
    claims = [one.get("persistentVolumeClaim", {}).get("claimName") for one in pod["volumes"]]
    assert {"a-bert-data", "squad"} <= set(claims)
    assert documents["PersistentVolumeClaim"]["spec"]["storageClassName"] == "nfs"
    (tmp_path / "team.yaml").write_text(done.stdout, encoding="utf-8")
    (verdict,) = verify([tmp_path / "team.yaml"], run=False)
    plans = [check for check in verdict.checks if check.name == "plan"]
    assert [check.state for check in plans] == ["passed"], plans


def test_a_folder_of_all_formats_starts_one_job(kustomize: Kustomize) -> None:
    done = kustomize("resources: [../launch]\n")
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert sorted(kinds) == ["PersistentVolumeClaim", "PyTorchJob"]


def test_a_patch_for_what_is_not_there_is_an_error(kustomize: Kustomize) -> None:
    done = kustomize(shown().replace("name: bert,", "name: other,"))
    assert done.returncode != 0
    assert "no resource matches strategic merge patch" in done.stderr


CHANGES = {
    "PyTorchJob": 'kubeflow.org/v1\n    kind: PyTorchJob\n    spec: {nprocPerNode: "1"}',
    "TrainJob": "trainer.kubeflow.org/v1alpha1\n    kind: TrainJob\n"
    "    spec: {trainer: {numProcPerNode: 1}}",
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_patch_changes_of_the_plan_is_seen(
    kind: str, kustomize: Kustomize, tmp_path: Path
) -> None:
    text = "resources: [../launch]\npatches:\n- patch: |-\n    apiVersion: "
    done = kustomize(text + CHANGES[kind] + "\n    metadata: {name: bert}\n", kind.lower())
    assert done.returncode == 0, done.stderr
    (tmp_path / "team.yaml").write_text(done.stdout, encoding="utf-8")
    (verdict,) = verify([tmp_path / "team.yaml"], run=False)
    failed = [check for check in verdict.checks if check.state == "failed"]
    assert [check.summary for check in failed] == ["processes of a pod: 1, the plan has 2"]
