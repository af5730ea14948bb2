"""Whoever stands for the kubelet in tests does as it does."""

import pytest
from local_pods import expand, pods_of
from rows import every_row


@every_row(
    ("text", "expected"),
    [
        ("$(A)", "one"),
        ("x$(A)y$(B)", "xoneytwo"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("`id` $HOME", "`id` $HOME"),
    ],
)
def test_names_in_parentheses_are_expanded_as_the_kubelet_does(text, expected):
    assert expand(text, {"A": "one", "B": "two"}) == expected


CONTAINER = {
    "command": ["torchrun", "train.py"],
    "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
}
LIMITS = {"limits": {"cpu": "2"}}
POD = {"spec": {"containers": [{**CONTAINER, "resources": LIMITS}]}}
REPLICA = {"replicas": 1, "template": POD}
PYTORCHJOB = {
    "kind": "PyTorchJob",
    "spec": {"nprocPerNode": "2", "pytorchReplicaSpecs": {"Master": REPLICA, "Worker": REPLICA}},
}
TRAINER = {"numNodes": 2, "numProcPerNode": 2, **CONTAINER, "resourcesPerNode": LIMITS}
TRAINJOB = {"kind": "TrainJob", "spec": {"trainer": TRAINER}}


@pytest.mark.parametrize("job", [PYTORCHJOB, TRAINJOB], ids=["PyTorchJob", "TrainJob"])
def test_a_job_becomes_its_pods(job, tmp_path):
    environment = {"PYTHON": "/opt/python/bin/python", "PATH": "/usr/bin", "RANK": "9"}
    pods = pods_of(job, tmp_path / "job.yaml", (0, 1, 2, 3), tmp_path / "volumes", environment)
    assert [pod.argv for pod in pods] == [("torchrun", "train.py")] * 2
    assert [pod.cpus for pod in pods] == [(0, 1), (2, 3)]
    assert [pod.environment["PET_NODE_RANK"] for pod in pods] == ["0", "1"]
    assert all(pod.environment["OMP_NUM_THREADS"] == "1" for pod in pods)
    assert all(pod.environment.get("RANK") != "9" for pod in pods)
    assert pods[0].environment["PATH"] == "/opt/python/bin:/usr/bin"
    assert pods[0].environment["PET_MASTER_PORT"] == pods[1].environment["PET_MASTER_PORT"]
