import json
import re
from pathlib import Path

import pytest

from cputune.emitters.promise import Promise, promise_in
from cputune.errors import ResultError, UsageError
from cputune.plan import Plan
from cputune.verifier.artefact import expectation, find, format_of
from cputune.verifier.records import Artefact, Expected

PLAN = Plan(processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)), precision="bf16")
SPEED = {"median": 10.0, "low": 9.0, "high": 11.0}


def header(**more):
    said = {"format": "mpirun", "plan": PLAN.to_json(), "samples_per_second": SPEED, **more}
    return f"#!/usr/bin/env bash\n# Launch.\n# cputune-plan: {json.dumps(said)}\nmpirun train\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/usr/bin/env bash\nexec mpirun -n 2 train\n", "mpirun"),
        ("#!/bin/sh\npython -m torch.distributed.run train.py\n", "torchrun"),
        ("#!/bin/bash\nmpirun --version\naccelerate launch train.py\n", "accelerate"),
        ("#!/bin/bash\n#SBATCH --nodes=1\nsrun train\n", "slurm"),
        ("#!/bin/bash\n# mpirun is not used here\nls\n", "shell"),
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n", "pytorchjob"),
        ("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n", "trainjob"),
        ("apiVersion: v1\nkind: PersistentVolumeClaim\n", "kubernetes"),
        ("apiVersion: v1\nkind: ConfigMap\n", "kubernetes"),
        ("compute_environment: LOCAL_MACHINE\n", None),
        ("FROM python:3.11\n", None),
        ("#!/usr/bin/env python3\nprint()\n", None),
        ("", None),
    ],
)
def test_a_format_is_known_by_what_a_file_holds(text, expected):
    assert format_of(text) == expected


def test_a_file_says_its_format_itself():
    assert format_of(header(format="torchrun")) == "torchrun"


@pytest.mark.parametrize("said", ["{", "[]", "3", '{"format": 3}'])
def test_a_damaged_promise_is_none(said):
    text = f"#!/bin/bash\n# cputune-plan: {said}\nmpirun train\n"
    assert format_of(text) == "mpirun"
    assert promise_in(text) == Promise()


def test_the_files_of_a_directory_that_belong_to_artefacts_are_passed_over(tmp_path):
    (tmp_path / "mpirun.sh").write_text(header())
    (tmp_path / "hosts.openmpi").write_text("localhost slots=2\n")
    (tmp_path / "rank.py").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    found = find([tmp_path, tmp_path / "mpirun.sh"])
    assert [artefact.path.name for artefact in found] == ["mpirun.sh"]


@pytest.mark.parametrize("name", ["missing", "notes.txt", "empty"])
def test_what_is_no_artefact_is_a_usage_error(tmp_path, name):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as raised:
        find([tmp_path / name])
    assert raised.value.hint


def artefact(text, path=Path("/nowhere/deeper/run.sh")):
    return Artefact(path=path, format="mpirun", text=text)


def test_an_artefact_is_held_against_what_it_says_of_itself():
    expected = expectation(artefact(header(global_batch_size=8)), None, Expected())
    assert expected.plan == PLAN
    assert expected.samples_per_second.median == 10.0
    assert expected.global_batch_size == 8


def test_without_a_promise_nothing_is_expected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = expectation(artefact("#!/bin/bash\n"), None, Expected(steps=5))
    assert expected == Expected(steps=5)


@pytest.mark.parametrize("damage", ['"plan": {}', '"plan": 3', '"samples_per_second": [1]'])
def test_a_damaged_plan_is_no_plan(tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)
    text = f"#!/bin/bash\n# cputune-plan: {{{damage}}}\n"
    assert expectation(artefact(text), None, Expected()).plan is None


def test_a_result_that_is_given_and_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ResultError, match=re.escape("cannot read")):
        expectation(artefact(header()), tmp_path / "none.json", Expected())
