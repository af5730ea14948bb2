"""``cputune emit`` on this machine: what it writes, what it says, how it ends."""

from __future__ import annotations

import json
import os
import re
import venv
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from emit_machines import IPEX_ERA, TODAY, tuned
from golden_texts import Golden
from hosts.builder import machine as built
from in_process import Run

import cputune
from cputune import Workload
from cputune.plans.layout import guide_plan

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.fixture
def emit(cputune: Run) -> Run:
    return partial(cputune, "emit")


@pytest.fixture
def recorded_sockets(tmp_path: Path) -> str:
    """A recorded machine of two sockets, so that the guides' plan has two ranks."""
    built(tmp_path / "machine", sockets=2, cores=4)
    return str(tmp_path / "machine")


def document(**changes: Any) -> dict[str, Any]:
    """A result of this machine, on its guide's plan."""
    facts = cputune.probe()
    result = tuned(facts, guide_plan(facts), Workload.from_recipe("bert-mini"), TODAY)
    return {**result.to_json(), **changes}


def write(content: Any, name: str = "cputune.json") -> None:
    Path(name).write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.usefixtures("history")
def test_the_plan_of_another_launch_is_not_replaced(emit: Run) -> None:
    write(document())
    assert emit("-f", "torchrun").code == 0
    assert emit("-f", "mpirun").code == 0, "the same plan"
    before = Path("launch/plan.json").read_text()
    facts = cputune.probe()
    plan = guide_plan(facts)
    one = replace(plan, threads_per_process=1, cpus=tuple(cpus[:1] for cpus in plan.cpus))
    write(tuned(facts, one, Workload.from_recipe("bert-mini"), TODAY).to_json())
    answer = emit("-f", "mpirun")
    assert (answer.code, "launch/plan.json has the plan of torchrun.sh" in answer.err) == (3, True)
    assert Path("launch/plan.json").read_text() == before
    assert emit("-f", "all").code == 0, "every launch is written again"
    assert emit("-f", "torchrun", "-o", "other").code == 0
    write(document())
    assert emit("-f", "mpirun", "--force").code == 0


OLD_FLAGS = ("--no_cuda", "--evaluation_strategy", "epoch", "--bf16", "--output_dir", "out")


@pytest.mark.parametrize("format", ["torchrun", "mpirun", "slurm", "pytorchjob", "trainjob"])
def test_what_the_doctor_condemns_is_refused_with_the_fix(
    emit: Run, format: str, golden: Golden
) -> None:
    versions = ("--transformers-version", "5.23.0", "--accelerate-version", "1.15.0")
    hosts = ("--nodes", "2", "--hosts", "a,b", "--batch-per-rank", "4")
    answer = emit("-f", format, *hosts, *versions, "--", "run_qa.py", *OLD_FLAGS)
    assert answer.code == 2
    golden(answer.err)
    assert not Path("launch").exists()


def test_the_batch_that_is_typed_is_read(emit: Run, recorded_sockets: str) -> None:
    job = ("--root", recorded_sockets, "--nodes", "4", "--hosts", "a,b,c,d", "--")
    typed = ("run_qa.py", "--per_device_train_batch_size", "12", "--gradient_accumulation_steps")
    refused = emit("-f", "torchrun", *job, *typed, "1")
    assert refused.code == 2
    assert "a global batch of 12 cannot be divided over 8 ranks" in refused.err
    assert emit("-f", "torchrun", *job, *typed, "2").code == 0
    text = Path("launch/torchrun.sh").read_text()
    assert "8 ranks with 3 samples each, 24 together" in text
    assert "own batch" not in text


def test_a_loop_of_its_own_keeps_its_precision_and_its_one_rank(
    emit: Run, recorded_sockets: str
) -> None:
    """Two sockets with bf16: the guides' plan would be two ranks in bf16."""
    Path("loop.py").write_text("import torch\nfor _ in range(9): ...\n", encoding="utf-8")
    Path("accelerated.py").write_text("from accelerate import Accelerator\n", encoding="utf-8")
    assert emit("-f", "torchrun", "--root", recorded_sockets, "--", "loop.py").code == 0
    text = Path("launch/torchrun.sh").read_text()
    assert "fp32" in text
    assert "ACCELERATE_MIXED_PRECISION" not in text
    assert "one rank on all cores" in text.replace("\n# ", " ")
    assert not Path("launch/apply_plan.py").exists()
    other = ("--root", recorded_sockets, "-o", "two", "--", "accelerated.py")
    assert emit("-f", "torchrun", *other).code == 0
    assert Path("two/apply_plan.py").exists()


@pytest.mark.parametrize(("typed", "precision"), [((), "fp32"), (("--bf16",), "bf16")])
def test_a_plan_that_was_not_tried_keeps_the_numbers_that_it_shall_keep(
    emit: Run, recorded_sockets: str, typed: tuple[str, ...], precision: str
) -> None:
    where = ("--root", recorded_sockets, "--ranks-per-node", "2", "--batch-per-rank", "4")
    words = ("run_qa.py", "--output_dir", "o", "--use_cpu", *typed)
    assert emit("-f", "torchrun", "--keep", "numbers", *where, "--", *words).code == 0
    text = Path("launch/torchrun.sh").read_text()
    assert re.search(rf"# Plan: 2 × \d+ threads, {precision}", text)


def test_options_reach_the_files(emit: Run) -> None:
    write(document())
    typed = (
        "-f all --hosts a,b --mpi mpich --accelerate-version 1.12 --image r/i:1 --job-name j "
        "--namespace n --pvc p --memory 3Gi --node-selector k=v --runtime torch-cpu "
        "--time 01:00:00 --partition cpu --account me --interface eth1 --batch-per-rank 3 "
        "--image-pull-secret regcred --secret-env HF_TOKEN=hub/token --user-id 2000"
    )
    answer = emit(*typed.split())
    assert answer.code == 0
    assert "placeholder" not in answer.err
    job = yaml.safe_load(Path("launch/pytorchjob.yaml").read_text())
    metadata = job["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("j", "n")
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["nodeSelector"] == {"k": "v"}
    assert pod["securityContext"]["runAsUser"] == 2000
    assert pod["imagePullSecrets"] == [{"name": "regcred"}]
    (container,) = pod["containers"]
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert container["env"][-1] == {"name": "HF_TOKEN", "valueFrom": secret}
    assert container["image"] == "r/i:1"
    assert container["resources"]["limits"]["memory"] == "3Gi"
    assert {"name": "GLOO_SOCKET_IFNAME", "value": "eth1"} in container["env"]
    assert "#SBATCH --partition=cpu\n" in Path("launch/slurm.sh").read_text()
    assert "ipex_config" in yaml.safe_load(Path("launch/accelerate.yaml").read_text())
    assert "--per_device_train_batch_size 3)" in Path("launch/mpirun.sh").read_text()
    trainjob = yaml.safe_load(Path("launch/trainjob.yaml").read_text())
    assert trainjob["spec"]["runtimeRef"]["name"] == "torch-cpu"


@pytest.mark.parametrize("format", ["mpirun", "torchrun"])
def test_one_rank_says_that_it_needs_no_launcher(emit: Run, format: str) -> None:
    Path("mine.py").write_text("import torch\n")
    answer = emit("-f", format, "--", "mine.py")
    said = f"the plan has one rank, which needs no {format}: the script starts python itself"
    assert said in answer.err
    header = " ".join(Path(f"launch/{format}.sh").read_text().replace("\n# ", " ").split())
    assert f"Note: {said}" in header


@pytest.mark.usefixtures("history")
def test_emitting_again_replaces_what_cputune_wrote_and_nothing_else(
    emit: Run, golden: Golden
) -> None:
    write(document())
    emit("-f", "torchrun")
    first = Path("launch/torchrun.sh").read_text()
    again = emit("-f", "torchrun", "--", "train.py", "--epochs", "3")
    assert again.code == 0
    assert Path("launch/torchrun.sh").read_text() != first
    edited = Path("launch/torchrun.sh")
    edited.write_text(edited.read_text() + "# mine\n")
    refused = emit("-f", "torchrun")
    assert refused.code == 2
    golden(refused.err)
    assert "# mine" in edited.read_text()
    assert emit("-f", "torchrun", "--force").code == 0
    assert emit("-f", "torchrun", "--", "train.py").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-f", "yarn"), 2, "'yarn' is not one of"),
        ((), 2, "give either --format or --like"),
        (("-f", "mpirun", "--mpi", "lam"), 2, "no MPI is called 'lam'"),
        (("gone.json", "-f", "mpirun"), 3, "cannot read gone.json"),
        (("-f", "mpirun", "--nodes", "2"), 2, "needs their names"),
        (("-f", "mpirun", "--nodes", "0"), 2, "1 node or more"),
        (("-f", "mpirun", "--hostfile", "gone"), 2, "cannot read gone"),
        (("-f", "mpirun", "--hosts", "a", "--hostfile", "b"), 2, "exclude each other"),
        (("-f", "pytorchjob", "--node-selector", "x"), 2, "takes LABEL=VALUE, not 'x'"),
        (("-f", "pytorchjob", "--job-name", "A-b"), 2, "cannot name a job"),
        (("-f", "mpirun", "--"), 2, "no script was given"),
        (("-f", "mpirun", "--batch-per-rank", "0"), 2, "batch-per-rank"),
        (("-f", "mpirun", "-o", "/proc/nowhere"), 3, "/proc/nowhere"),
    ],
)
def test_it_refuses_in_words(emit: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    answer = emit(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert "error: " in answer.err
    assert "\nhint: " in answer.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "directory"])
@pytest.mark.parametrize("option", ["result", "--hostfile"])
def test_what_is_no_regular_file_is_not_opened(
    emit: Run, kind: str, option: str, golden: Golden
) -> None:
    os.mkfifo("fifo")
    os.mkdir("directory")
    words = (kind,) if option == "result" else (option, kind)
    answer = emit("--format", "mpirun", *words)
    assert answer.code in (2, 3)
    golden(answer.err)


HOSTILE = "Xeon\x1b[2J\nerror: all is well\r\u202e"


def test_a_result_cannot_forge_a_line_on_the_terminal(emit: Run) -> None:
    content = document(notes=[HOSTILE])
    content["host"]["cpu"]["model_name"] = HOSTILE
    write(content)
    for words in ((), ("--other-machine",)):
        answer = emit("--format", "all", *words)
        assert "\x1b" not in answer.err
        assert not any(line.startswith("error: all is well") for line in answer.err.splitlines())
    assert "\\x1b[2J\\nerror: all is well" in answer.err


def test_what_would_take_minutes_is_refused(emit: Run) -> None:
    write(document(notes=["x" * (5 << 20)]))
    assert "a text has 5242880 characters" in emit("--format", "mpirun").err
    content = document()
    content["best"]["plan"].update(processes_per_node=10**6, cpus=[[0]] * 10**6)
    write(content)
    assert "processes_per_node: expected a whole number <= 4096" in emit("--format", "all").err


@pytest.mark.parametrize("named", [True, False])
def test_a_recorded_machine_gets_the_packages_of_the_python_that_is_named(
    named: bool, emit: Run, recorded_sockets: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    for name, version in IPEX_ERA.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
    python = ("--python", str(tmp_path / "venv" / "bin" / "python")) if named else ()
    done = emit("-f", "pytorchjob", "--root", recorded_sockets, *python, "-o", "out")
    assert done.code == 0, done.err
    job = Path("out/pytorchjob.yaml").read_text(encoding="utf-8")
    assert ("--use_ipex" in job) == named
    pinned = Path("out/constraints.txt").read_text(encoding="utf-8")
    assert ("intel_extension_for_pytorch==2.8.0" in pinned) == named


def test_no_batch_is_promised_in_a_loop_over_torch_alone(emit: Run, golden: Golden) -> None:
    tuned = document()
    seen = {"recipe": None, "argv": ["run.py"], "framework": "pytorch", "global_batch_size": 8}
    write({**tuned, "workload": {**tuned["workload"], **seen, "parses_arguments": None}})
    answer = emit("-f", "torchrun", "--batch-per-rank", "4")
    assert answer.code == 2
    golden(answer.err)


def test_a_plan_on_cpus_that_are_not_allowed_here(emit: Run, golden: Golden) -> None:
    content = document()
    content["best"]["plan"]["cpus"] = [[4000, 4001]]
    content["best"]["plan"].update(processes_per_node=1, threads_per_process=2)
    write(content)
    answer = emit("-f", "mpirun")
    assert answer.code == 3
    golden(answer.err)
