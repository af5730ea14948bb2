import copy

import pytest

from cputune.verifier.kubernetes import (
    environment_complaints,
    pytorchjob_complaints,
    resource_complaints,
    trainjob_complaints,
)

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


def test_good_jobs_are_let_in():
    assert pytorchjob_complaints(pytorchjob()) == ()
    assert trainjob_complaints(trainjob()) == ()


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
        (("metadata", "name"), "1bert", "no DNS-1035 label"),
        (("metadata", "name"), "b" * 64, "no DNS-1035 label"),
        (("metadata", "name"), "bert\n", "no DNS-1035 label"),
        (("spec", "nprocPerNode"), None, "one process for each CPU"),
        (("spec", "nprocPerNode"), 2, "not a number in quotes"),
        (("spec", "nprocPerNode"), "auto", "not a number in quotes"),
        (("spec", "elasticPolicy"), {"minReplicas": 1}, "part of its nodes"),
        (("spec", "runPolicy"), None, "runPolicy is missing"),
        ((*REPLICAS, "Master"), None, "no MASTER_ADDR"),
        ((*REPLICAS, "Master", "replicas"), 2, "must be 1"),
        ((*REPLICAS, "Worker", "replicas"), 0, "at least 1"),
        ((*REPLICAS, "Worker", "restartPolicy"), "Sometimes", "restartPolicy"),
        ((*REPLICAS, "Chief"), replica(1), "no replica type"),
        ((*CONTAINER, "name"), "main", "no container named pytorch"),
        ((*CONTAINER, "image"), None, "no image"),
        ((*CONTAINER, "env", 0, "value"), 1, "not a string"),
        ((*CONTAINER, "resources", "requests", "cpu"), "1", "Burstable"),
        ((*CONTAINER, "resources", "limits", "memory"), None, "Guaranteed"),
    ],
)
def test_what_the_training_operator_refuses(path, value, complaint):
    job = pytorchjob()
    put(job, path, value)
    found = pytorchjob_complaints(job)
    assert any(complaint in text for text in found), found


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("apiVersion",), "trainer.kubeflow.org/v1", "this is no TrainJob"),
        (("spec", "runtimeRef", "kind"), "Runtime", "runtimeRef.kind"),
        (("spec", "runtimeRef", "name"), None, "runtimeRef.name"),
        (("spec", "trainer", "numProcPerNode"), None, "one process for each CPU"),
        (("spec", "trainer", "numProcPerNode"), "2", "without a number"),
        (("spec", "trainer", "numNodes"), 0, "numNodes"),
        (("spec", "trainer", "env", 0, "name"), "PET_NNODES", "reserved"),
        (("spec", "trainer"), None, "trainer is missing"),
    ],
)
def test_what_kubeflow_trainer_refuses(path, value, complaint):
    job = trainjob()
    put(job, path, value)
    found = trainjob_complaints(job)
    assert any(complaint in text for text in found), found


@pytest.mark.parametrize("document", [{}, {"spec": None}, {"spec": []}, {"spec": {"trainer": 3}}])
def test_half_a_document_is_refused_in_words(document):
    assert pytorchjob_complaints(document)
    assert trainjob_complaints(document)


def test_cpus_of_a_pod_are_whole_ones():
    assert "whole" in resource_complaints({"limits": {"cpu": "1500m", "memory": "1Gi"}}, "x")[0]
    assert resource_complaints({"limits": {"cpu": "2", "memory": "1Gi"}}, "x") == ()


def test_a_variable_is_set_once():
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    assert environment_complaints(twice, "x") == ("x: A is set twice",)
    assert environment_complaints([{"name": "A", "valueFrom": {"fieldRef": {}}}], "x") == ()
