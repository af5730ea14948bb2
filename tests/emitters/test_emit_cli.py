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
from emit_machines import TODAY, machine, tuned
from golden_texts import Golden
from hosts.builder import machine as built
from in_process import Run

import cputune
from cputune import Workload
from cputune.emitters import FORMATS
from cputune.plans.layout import baseline_plan, guide_plan


@pytest.fixture
def emit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cputune: Run) -> Run:
    monkeypatch.chdir(tmp_path)
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


def test_without_a_result_it_says_that_nothing_was_measured(emit: Run) -> None:
    answer = emit("--format", "mpirun")
    assert answer.code == 0
    assert "note: nothing was measured" in answer.err
    assert answer.out.splitlines() == [
        f"launch/{name}" for name in ("mpirun.sh", "train.py", "recipe.json", "plan.json")
    ]
    assert "NOTHING WAS MEASURED" in Path("launch/mpirun.sh").read_text()
    assert os.access("launch/mpirun.sh", os.X_OK)
    assert not os.access("launch/recipe.json", os.X_OK)


def test_the_plan_of_another_launch_is_not_replaced(
    emit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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


def test_what_is_printed_is_the_main_file(emit: Run) -> None:
    answer = emit("-f", "pytorchjob", "-o", "-")
    assert yaml.safe_load(answer.out)["kind"] == "PyTorchJob"
    assert "it also needs: kustomization.yaml, Dockerfile, " in answer.err
    assert list(Path().iterdir()) == []


def test_a_file_name_is_that_of_the_main_file(emit: Run) -> None:
    assert emit("-f", "torchrun", "-o", "jobs/go.sh").code == 0
    assert sorted(path.name for path in Path("jobs").iterdir()) == [
        *("go.sh", "plan.json", "recipe.json", "train.py")
    ]


@pytest.mark.parametrize("folder", ["acc-0.28", "v1.x", "launch.d/"])
def test_a_number_behind_a_dot_is_no_suffix(emit: Run, folder: str) -> None:
    assert emit("-f", "torchrun", "-o", folder).code == 0
    assert (Path(folder) / "torchrun.sh").is_file()
    assert not Path("rank.py").exists()


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


def test_flags_of_the_scripts_own_are_left_alone(emit: Run) -> None:
    Path("own.py").write_text("parser.add_argument('--no_cuda'); import torch")
    assert emit("-f", "torchrun", "--", "own.py", *OLD_FLAGS[:1], "--output_dir", "x").code == 0
    assert "--no_cuda" in Path("launch/torchrun.sh").read_text()


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


def test_a_script_of_the_user(emit: Run) -> None:
    write(document())
    answer = emit("-f", "torchrun", "--", "run.py", "--force", "--format", "2", "--run_name", "x y")
    assert answer.code == 0
    text = Path("launch/torchrun.sh").read_text().replace(" \\\n ", "")
    words = """run.py --force --format 2 --run_name 'x y' "$@"\n"""
    assert f'-m cputune.apply "$here/plan.json" -- {words}' in text
    assert "needs cputune in the Python that trains" in text
    assert not Path("launch/apply_plan.py").exists()
    assert not Path("launch/train.py").exists()
    assert "was not run yet" in answer.err
    copied = ("-f", "torchrun", "--self-contained", "-o", "copy", "--", "run.py")
    assert emit(*copied).code == 0
    assert '"$here/apply_plan.py" run.py' in Path("copy/torchrun.sh").read_text()
    assert "self-contained" in Path("copy/torchrun.sh").read_text()
    assert Path("copy/apply_plan.py").exists()


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
    answer = emit(
        *("-f", "all", "--hosts", "a,b", "--mpi", "mpich", "--accelerate-version", "1.12"),
        *("--image", "r/i:1", "--job-name", "j", "--namespace", "n", "--pvc", "p"),
        *("--memory", "3Gi"),
        *("--node-selector", "k=v", "--runtime", "torch-cpu", "--time", "01:00:00"),
        *("--partition", "cpu", "--account", "me", "--interface", "eth1"),
        *("--batch-per-rank", "3"),
        *("--image-pull-secret", "regcred", "--secret-env", "HF_TOKEN=hub/token"),
        *("--user-id", "2000"),
    )
    assert answer.code == 0
    assert "placeholder" not in answer.err
    job = yaml.safe_load(Path("launch/pytorchjob.yaml").read_text())
    metadata = job["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("j", "n")
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["nodeSelector"] == {"k": "v"}
    assert pod["securityContext"]["runAsUser"] == 2000
    assert pod["imagePullSecrets"] == [{"name": "regcred"}]
    assert pod["containers"][0]["env"][-1] == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}},
    }
    assert pod["containers"][0]["image"] == "r/i:1"
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "3Gi"
    assert {"name": "GLOO_SOCKET_IFNAME", "value": "eth1"} in pod["containers"][0]["env"]
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


def test_a_quantity_is_written_as_the_cluster_reads_it_or_refused(emit: Run) -> None:
    write(document())
    image = ("--image", "r.example.com/b:1")
    assert emit("-f", "pytorchjob", *image, "--memory", "8GB").code == 0
    assert 'memory: "8G"' in Path("launch/pytorchjob.yaml").read_text()
    refused = emit("-f", "pytorchjob", *image, "--memory", "lots", "--force")
    assert (refused.code, "--memory 32Gi" in refused.err) == (2, True)
    assert emit("-f", "slurm", "--time", "4h").code == 0
    assert " --time=04:00:00\n" in Path("launch/slurm.sh").read_text()
    assert emit("-f", "slurm", "--time", "soon", "--force").code == 2


def test_emitting_again_replaces_what_cputune_wrote_and_nothing_else(
    emit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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


def test_emitting_again_replaces_nothing_that_differs(emit: Run, golden: Golden) -> None:
    write(document())
    emit("-f", "mpirun")
    assert emit("-f", "mpirun").code == 0, "the same files are no conflict"
    assert emit("-f", "torchrun").code == 0, "companions are shared"
    Path("launch/recipe.json").write_text("mine")
    Path("launch/mpirun.sh").unlink()
    answer = emit("-f", "mpirun")
    assert answer.code == 2
    golden(answer.err)
    assert not Path("launch/mpirun.sh").exists(), "all files or none"
    assert Path("launch/recipe.json").read_text() == "mine"
    assert emit("-f", "mpirun", "--force").code == 0
    assert Path("launch/recipe.json").read_text() != "mine"


def test_a_result_of_another_machine(emit: Run) -> None:
    facts = machine("Intel(R) Xeon(R) Platinum 8490H", sockets=8, cores=28)
    result = tuned(facts, baseline_plan(facts), Workload.from_recipe("bert-mini"), TODAY)
    write(result.to_json())
    answer = emit("-f", "mpirun")
    assert answer.code == 3
    assert "was measured on another machine: processor Intel(R) Xeon(R) Platinum" in answer.err
    assert "hint: tune on this machine, or use it with --other-machine" in answer.err
    assert not Path("launch").exists()
    answer = emit("-f", "mpirun", "--other-machine")
    assert answer.code == 0
    assert "note: the plan was measured on another machine" in answer.err


def test_a_plan_on_cpus_that_are_not_allowed_here(emit: Run, golden: Golden) -> None:
    content = document()
    content["best"]["plan"]["cpus"] = [[4000, 4001]]
    content["best"]["plan"].update(processes_per_node=1, threads_per_process=2)
    write(content)
    answer = emit("-f", "mpirun")
    assert answer.code == 3
    golden(answer.err)


def test_no_batch_is_promised_in_a_loop_over_torch_alone(emit: Run, golden: Golden) -> None:
    tuned = document()
    seen = {"recipe": None, "argv": ["run.py"], "framework": "pytorch", "global_batch_size": 8}
    write({**tuned, "workload": {**tuned["workload"], **seen, "parses_arguments": None}})
    answer = emit("-f", "torchrun", "--batch-per-rank", "4")
    assert answer.code == 2
    golden(answer.err)


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
        (
            ("-f", "pytorchjob", "--node-selector", "x"),
            2,
            "--node-selector takes LABEL=VALUE, not 'x'",
        ),
        (("-f", "pytorchjob", "--job-name", "A-b"), 2, "cannot name a job"),
        (("-f", "mpirun", "--"), 2, "no script was given"),
        (("-f", "mpirun", "--batch-per-rank", "0"), 2, "batch-per-rank"),
        (("-f", "mpirun", "-o", "/proc/nowhere"), 3, "/proc/nowhere"),
    ],
)
def test_it_refuses_in_words(emit: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    answer = emit(*arguments)
    assert answer.code == code
    assert said in answer.err
    assert "error: " in answer.err
    assert "\nhint: " in answer.err
    assert answer.out == ""
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_directory_where_a_file_should_be(emit: Run, format: str, golden: Golden) -> None:
    Path("launch/recipe.json").mkdir(parents=True)
    answer = emit("-f", format, "--force")
    assert answer.code == 3
    golden(answer.err)
    assert [path.name for path in Path("launch").iterdir()] == ["recipe.json"]


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


def test_a_global_batch_can_be_asked_for(emit: Run, golden: Golden) -> None:
    write(document())
    answer = emit("-f", "torchrun", "--hosts", "a,b", "--global-batch-size", "48")
    assert answer.code == 0
    ranks = 2 * guide_plan(cputune.probe()).processes_per_node
    told = f" --per_device_train_batch_size {48 // ranks})\n"
    assert told in Path("launch/torchrun.sh").read_text()
    both = emit("-f", "torchrun", "--global-batch-size", "48", "--batch-per-rank", "4")
    assert both.code == 2
    golden(both.err)


def test_another_batch_in_the_words_than_was_tuned_is_no_silent_matter(
    emit: Run, golden: Golden
) -> None:
    words = ["run.py", "--per_device_train_batch_size", "8"]
    script = replace(Workload.script(words, global_batch_size=8), parses_arguments=True)
    write(document(workload=script.to_json()))
    asked = ("-f", "torchrun", "--force", "--", "run.py", "--per_device_train_batch_size", "16")
    answer = emit(*asked)
    assert answer.code == 2
    golden(answer.err)
    assert emit("--global-batch-size", "16", *asked).code == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_recorded_machine_gets_the_packages_of_the_python_that_is_named(
    named: bool, emit: Run, recorded_sockets: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    stack = {
        "torch": "2.8.0",
        "intel_extension_for_pytorch": "2.8.0",
        "transformers": "4.56.2",
        "accelerate": "1.7.0",
    }
    for name, version in stack.items():
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
