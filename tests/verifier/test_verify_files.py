"""Which files are artefacts, what they promise, what is said where no consumer is here."""

import json
import os
import re
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_texts import Golden

from cputune import Plan
from cputune.cli import cli
from cputune.emitters.promise import Promise, promise_in
from cputune.host import Host, locks
from cputune.verifier import read
from cputune.verifier.kubernetes import judge_documents
from cputune.verifier.records import Artefact, Expected
from cputune.verifier.scripts import interpreter, read_script, submit_script

PLAN = Plan(processes_per_node=2, threads_per_process=1, cpus=((0,), (1,)), precision="bf16")
SPEED = {"centre": 10.0, "low": 9.0, "high": 11.0}
LAUNCH = "set -eu\nmpirun -n 2 train\n"
PYTORCHJOB = """
kind: PyTorchJob
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          containers:
          - name: pytorch
            resources: {limits: {cpu: "2", memory: 4Gi}, requests: {cpu: "2", memory: 4Gi}}
"""
TRAINJOB = """
kind: TrainJob
spec:
  trainer:
    numProcPerNode: 2
    resourcesPerNode: {limits: {cpu: "2", memory: 4Gi}, requests: {cpu: "2", memory: 4Gi}}
"""


def script(text=LAUNCH, **more):
    said = {"format": "mpirun", "plan": PLAN.to_json(), "samples_per_second": SPEED, **more}
    return f"#!/usr/bin/env bash\n# Launch.\n# cputune-plan: {json.dumps(said)}\n{text}"


@pytest.fixture
def launch(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(script())
    return path


def artefact(path, text=None, format="mpirun"):
    return Artefact(path=path, format=format, text=script() if text is None else text)


@pytest.mark.parametrize(
    "said",
    ["{", "[]", "3", '{"format": 3}', '{"format": "mpirun"}', '{"format": "mpirun", "plan": {}}'],
)
def test_a_damaged_promise_is_not_read(said, launch):
    launch.write_text(f"#!/bin/bash\n# cputune-plan: {said}\nmpirun train\n")
    assert promise_in(launch.read_text()) in (Promise(), Promise(format="mpirun"))
    assert read(launch) is None


@pytest.fixture
def run(monkeypatch):
    """The command; other tests may measure on this machine at the same time."""
    monkeypatch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")

    def invoke(*arguments):
        return CliRunner().invoke(cli, ["verify", *map(str, arguments)])

    return invoke


def test_while_another_process_measures_nothing_is_run(run, launch, monkeypatch):
    def interrupted(visitor):
        raise KeyboardInterrupt

    launch.write_text(script("echo 'error: there is no train' >&2\necho 'hint: bring it' >&2\n"))
    monkeypatch.setattr(locks, "_peer", interrupted)
    with locks.measuring_lock(pytest.fail):
        assert run(launch).exit_code == 1, "click's word for an interrupt"
        assert run("--no-run", launch).exit_code == 0, "nothing else was asked"
        assert run("--share-machine", launch).exit_code == 3


EXIT_CODES = [
    # the launch, the options, and what a CI sees
    (LAUNCH, ("--no-run",), 0),
    ("if mpirun; then\n", (), 1),
    ("exit 5\n", ("--share-machine",), 1),
    (None, (), 2),
    ("echo 'error: no train' >&2\necho 'hint: bring it' >&2\nexit 3\n", ("--share-machine",), 3),
]


@pytest.mark.parametrize(("text", "options", "code"), EXIT_CODES)
@pytest.mark.usefixtures("run")
def test_the_exit_codes_of_the_page(cputune, launch, text, options, code):
    page = (Path(__file__).parents[2] / "docs" / "verify.md").read_text(encoding="utf-8")
    said = {int(number) for number in re.findall(r"^\| (\d) \|", page, re.MULTILINE)}
    assert said == {number for *_, number in EXIT_CODES}
    if text is None:
        launch.unlink()
    else:
        launch.write_text(script(text))
    assert cputune("verify", *options, str(launch)).code == code


def test_what_was_not_asked_for_counts_neither_way(run, launch):
    done = run("--no-run", "--json", launch)
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["schema"] == "cputune.verify/1"
    assert document["summary"] == {"passed": 1, "failed": 0, "not_checked": 0}
    (verdict,) = document["verdicts"]
    assert verdict["state"] == "passed"
    assert [(check["name"], check["state"]) for check in verdict["checks"]] == [
        ("syntax", "passed"),
        ("lint", "passed"),
        ("launch", "not checked"),
    ]


def test_what_a_file_says_cannot_paint_the_terminal(run, tmp_path):
    path = tmp_path / "run \x1b[31m.sh"
    path.write_text(script())
    done = run("--no-run", path)
    assert "\x1b" not in done.stdout
    assert "\\x1b[31m" in done.stdout.replace("\n", "")


@pytest.mark.parametrize("consumer", [read_script, submit_script])
def test_a_consumer_that_is_not_installed_is_said_with_its_command(consumer, launch):
    checks = list(consumer(artefact(launch), Expected(plan=PLAN), Host()))
    assert {check.state for check in checks} == {"not checked"}
    assert all(check.remedy and check.consumer for check in checks)


@pytest.mark.parametrize("job", [PYTORCHJOB, TRAINJOB], ids=["PyTorchJob", "TrainJob"])
def test_the_sdks_are_no_dependency(job, launch, monkeypatch, golden: Golden):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    checks = judge_documents(artefact(launch, job, "pytorchjob"), Expected(plan=PLAN), Host())
    states = {check.name: check for check in checks}
    assert states["SDK models"].state == "not checked"
    golden(states["SDK models"].remedy)
    assert states["admission rules"].state == "passed"


class FakeHost(Host):
    """A machine with some interpreters."""

    def __init__(self, *programs):
        self.programs = programs

    def which(self, program):
        return next((p for p in self.programs if p in (program, f"/usr/bin/{program}")), None)


@pytest.mark.parametrize(
    ("environment", "programs", "chosen"),
    [
        ({}, ("/t/python", "/usr/bin/python3"), "/t/python"),
        ({"PYTHON": "/mine"}, ("/t/python", "/mine"), "/mine"),
        ({}, ("/usr/bin/python3",), None),
    ],
)
@pytest.mark.parametrize(
    "lines",
    [
        "tuned=/t/python\nif [[ -x $tuned ]]; then python=${PYTHON:-$tuned}; fi",
        "tuned=/t/python; [[ -x $tuned ]] || tuned=python3; python=${PYTHON:-$tuned}",
    ],
)
def test_the_interpreter_is_the_one_that_the_script_takes(
    environment, programs, chosen, launch, lines
):
    text = f"#!/bin/bash\n{lines}\n"
    python, gone = interpreter(artefact(launch, text), environment, FakeHost(*programs))
    assert python == chosen
    assert [outcome.state for outcome in gone] == ["not checked"] * (chosen is None)


def test_shellcheck_is_listened_to(run, launch):
    launch.write_text(script('echo "$(ls *.txt | grep x)"\nfor x in $y; do rm $x; done\n'))
    done = run("--no-run", launch)
    assert done.exit_code == 1
    assert "SC2154" in done.stdout
