import copy

import pytest

from cputune.doctor.files.kubernetes import job_faults
from cputune.doctor.files.yaml_lines import Document

RESOURCES = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "2", "memory": "4Gi"}}


def replica(count):
    container = {
        "name": "pytorch",
        "image": "registry.example/train:1",
        "command": ["torchrun", "train.py"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": RESOURCES,
    }
    template = {"spec": {"containers": [container]}}
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def pytorchjob():
    return copy.deepcopy(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "bert"},
            "spec": {
                "nprocPerNode": "2",
                "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
                "pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(1)},
            },
        }
    )


def trainjob():
    return copy.deepcopy(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "bert"},
            "spec": {
                "runtimeRef": {
                    "apiGroup": "trainer.kubeflow.org",
                    "kind": "ClusterTrainingRuntime",
                    "name": "torch-distributed",
                },
                "trainer": {
                    "image": "registry.example/train:1",
                    "numNodes": 2,
                    "numProcPerNode": 2,
                    "command": ["torchrun", "train.py"],
                    "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                    "resourcesPerNode": RESOURCES,
                },
            },
        }
    )


def complaints(job):
    return [said for _, _, said in job_faults(Document(value=job))]


def test_good_jobs_are_let_in():
    assert complaints(pytorchjob()) == complaints(trainjob()) == []


def put(document, path, value):
    *parents, last = path
    for key in parents:
        document = document[key]
    if value is None:
        document.pop(last)
    else:
        document[last] = value


REPLICAS = ("spec", "pytorchReplicaSpecs")
CONTAINER = (*REPLICAS, "Master", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("spec", "nprocPerNode"), None, "one rank for each CPU"),
        (("spec", "nprocPerNode"), "auto", "one rank for each CPU"),
        (("spec", "elasticPolicy"), {"minReplicas": 0}, "minReplicas: 0"),
        ((*REPLICAS, "Master"), None, "nobody sets MASTER_ADDR"),
        ((*CONTAINER, "resources", "requests", "cpu"), "1", "requests 1, limits 2"),
        ((*CONTAINER, "resources", "limits", "memory"), None, "limits.memory is missing"),
        ((*CONTAINER, "resources", "limits", "cpu"), "1500m", "no whole number"),
    ],
)
def test_what_the_training_operator_does_wrongly(path, value, complaint):
    job = pytorchjob()
    put(job, path, value)
    found = complaints(job)
    assert any(complaint in text for text in found), found


@pytest.mark.parametrize("path", [("spec", "trainer", "numProcPerNode"), ("spec", "trainer")])
def test_ranks_that_kubeflow_trainer_chooses(path):
    job = trainjob()
    put(job, path, None)
    assert any("one rank for each CPU" in text for text in complaints(job))


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": []}, {"spec": {"trainer": 3}}])
@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_half_a_document_is_refused_in_words(document, kind):
    assert complaints({"kind": kind, **document})


def test_a_variable_may_come_from_elsewhere():
    job = trainjob()
    job["spec"]["trainer"]["env"] = [{"name": "A", "valueFrom": {"fieldRef": {}}}]
    assert complaints(job) == []
