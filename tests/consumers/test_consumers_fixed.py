"""What ``doctor --check-file --print-fix`` makes of the guides' files, handed to real launchers."""

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from in_process import ran
from launches import THOROUGH

from cputune import probe
from cputune.doctor.checkfile import fix_text
from cputune.host import LiveHost
from cputune.verifier.kubernetes import OPERATORS, round_trip

GUIDES = Path(__file__).parent.parent / "doctor" / "guides"
EXAMPLE = Path(__file__).with_name("run_qa.py")
pytestmark = [pytest.mark.consumer]
RUNS = (
    # a guide's file, the ranks that it then has, and whether they train in bf16
    ("one_process.sh", 1, True),
    pytest.param("ipexrun.sh", 1, True, marks=THOROUGH),
    pytest.param("ipex_launch.sh", 2, False, marks=THOROUGH),
    pytest.param("run_cpu.sh", 2, False, marks=THOROUGH),
    pytest.param("two_ranks.sh", 2, False, marks=THOROUGH),
)


def fixed_file(name, tmp_path):
    text, left = fix_text((GUIDES / name).read_text(), name, probe(), LiveHost())
    assert [one.code for one in left if one.severity.value == "error"] == []
    (tmp_path / name).write_text(text)
    shutil.copy(EXAMPLE, tmp_path)
    return tmp_path / name


def environment_of(launcher_path):
    folder = Path(sys.executable).parent
    return {"PATH": f"{folder}:{launcher_path}", "HOME": "/nonexistent", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("launcher_path", ["mpich"], indirect=True)
@pytest.mark.parametrize(("name", "ranks", "bf16"), RUNS, ids=lambda value: str(value))
def test_a_guides_file_trains_once_it_is_fixed(
    name, ranks, bf16, launcher_path, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", launcher_path)
    path = fixed_file(name, tmp_path)
    path.write_text(path.read_text().replace("/tmp/debug_squad", str(tmp_path / "out")))
    done = ran(["bash", path.name], env=environment_of(launcher_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = f"trained: world {ranks}, bf16 {bf16}"
    assert done.stdout.count(said) == ranks, done.stdout + done.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.thorough
def test_a_fixed_configuration_starts_accelerate(tmp_path):
    path = fixed_file("accelerate_one.yaml", tmp_path)
    line = f"accelerate launch --config_file {path} run_qa.py --output_dir out"
    done = ran(shlex.split(line), env=environment_of("/usr/bin:/bin"), cwd=tmp_path)
    assert "trained: world 1" in done.stdout, done.stderr


def test_a_fixed_job_goes_through_the_models_of_its_operator():
    pytest.importorskip("kubeflow.training")
    facts = replace(probe(), environment={})
    text, _ = fix_text((GUIDES / "pytorchjob.yaml").read_text(), "pytorchjob.yaml", facts)
    distribution, _, through = OPERATORS["PyTorchJob"]
    document = yaml.safe_load(text.replace("cpu: 240", 'cpu: "240"'))  # as the SDK writes it
    document["spec"].setdefault("runPolicy", {})  # the operator needs none, its SDK does
    outcome = round_trip(document, distribution, through)
    assert outcome.state == "passed", outcome
