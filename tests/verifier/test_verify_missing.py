"""A machine on which no consumer is installed: everything is said, nothing passes."""

from importlib import metadata
from pathlib import Path

import pytest
from test_verify_rules import pytorchjob, trainjob

from cputune.host import Host
from cputune.plan import Plan
from cputune.verifier import verify
from cputune.verifier.kubernetes import judge_documents
from cputune.verifier.records import Artefact, Expected
from cputune.verifier.scripts import read_script, submit_script

PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))
SCRIPT = "#!/usr/bin/env bash\nmpirun -n 1 train\n"


def artefact(format, text=SCRIPT):
    return Artefact(path=Path("run.sh"), format=format, text=text)


@pytest.mark.parametrize(
    ("consumer", "format"),
    [
        (read_script, "mpirun"),
        (submit_script, "slurm"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_consumer_that_is_not_installed_is_said_with_its_command(consumer, format):
    checks = list(consumer(artefact(format), Expected(plan=PLAN), Host()))
    assert {check.state for check in checks} == {"not checked"}
    assert all(check.remedy and check.consumer for check in checks)


@pytest.mark.parametrize("job", [pytorchjob(), trainjob()], ids=["PyTorchJob", "TrainJob"])
def test_the_sdks_are_no_dependency(job, monkeypatch):
    import yaml

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    text = yaml.safe_dump(job)
    checks = judge_documents(artefact("pytorchjob", text), Expected(), Host())
    states = {check.name: check for check in checks}
    assert states["SDK models"].state == "not checked"
    assert states["SDK models"].remedy == "pip install 'cputune[verify]'"
    assert states["admission rules"].state == "passed"


def test_a_verdict_with_one_thing_unchecked_is_not_passed(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    (verdict,) = verify([tmp_path], run=False)
    assert verdict.state == "not checked"
    assert {check.state for check in verdict.checks} == {"passed", "not checked"}
