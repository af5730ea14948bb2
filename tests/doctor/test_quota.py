"""Threads that nobody set: containers with a limit of CPU time, and ranks of torchrun."""

from __future__ import annotations

import pytest
from rows import every_row
from stacks import TODAY, machine

from cputune.doctor.checkfile import check_file

FACTS = machine(TODAY, cores=64)
CODE = "quota-threads"

POD = """\
apiVersion: batch/v1
kind: Job
metadata: {name: x}
spec:
  template:
    spec:
      containers:
        - name: train
          image: registry.example/train:1
          command: [python, train.py, --do_train, --use_cpu, --output_dir, out]
          resources:
            limits: {cpu: 4, memory: 16Gi}
            requests: {cpu: 4, memory: 16Gi}
"""
TORCH_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: x}
spec:
  nprocPerNode: "1"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: registry.example/train:1
              command: [torchrun, train.py, --do_train, --use_cpu, --output_dir, out]
              env:
                - {name: HF_HOME, value: /cache}
              resources:
                limits: {cpu: 4, memory: 16Gi}
                requests: {cpu: 4, memory: 16Gi}
              volumeMounts:
                - {name: dshm, mountPath: /dev/shm}
          volumes:
            - {name: dshm, emptyDir: {medium: Memory}}
"""
COMPOSE = """\
services:
  train:
    image: registry.example/train:1
    command: python train.py --do_train --use_cpu --output_dir out
    cpus: 4
"""
FILES = {"job.yaml": POD, "pytorchjob.yaml": TORCH_JOB, "compose.yaml": COMPOSE}


def codes(text: str, name: str) -> set[str]:
    return {finding.code for finding in check_file(text, name, FACTS)}


@pytest.mark.parametrize("name", FILES)
def test_a_limit_of_cpu_time_without_a_number_of_threads(name: str) -> None:
    assert codes(FILES[name], name) == {CODE}


FLOW = "          env: [{name: OMP_NUM_THREADS, %s}]\n          resources:\n"


@every_row(
    ("name", "before", "after"),
    [
        ("job.yaml", "          resources:\n", FLOW % 'value: "2"'),
        ("job.yaml", "          resources:\n", FLOW % "valueFrom: {resourceFieldRef: {}}"),
        ("job.yaml", "          resources:\n", "          envFrom: []\n          resources:\n"),
        ("job.yaml", "[python, train.py", '[env, OMP_NUM_THREADS=4, python, "train.py"'),
        ("job.yaml", "limits: {cpu: 4, ", "limits: {"),
        ("pytorchjob.yaml", 'nprocPerNode: "1"', 'nprocPerNode: "2"'),
        ("compose.yaml", "    cpus: 4\n", "    cpus: 4\n    cpuset: 0-3\n"),
        ("compose.yaml", "    cpus: 4\n", "    cpus: 4\n    env_file: run.env\n"),
        ("compose.yaml", "    cpus: 4\n", "    cpus: 4\n    environment: [OMP_NUM_THREADS]\n"),
        ("compose.yaml", "    cpus: 4\n", ""),
    ],
)
def test_threads_that_something_sets_are_no_fault(name: str, before: str, after: str) -> None:
    text = FILES[name]
    assert before in text
    assert CODE not in codes(text.replace(before, after), name)
