"""``doctor -- LAUNCH``: the words, the script and what it really imports, in small modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clean_machine import CLEAN, changed
from golden_texts import Golden
from in_process import Run
from machines import machine

from cputune import CannotError, Finding, HostFacts, Severity, UsageError, diagnose
from cputune.doctor import rehearsed_launch, typed_launch
from cputune.doctor.rehearsed_launch import _finding_of, rehearsal_fails
from cputune.doctor.script_calls import import_advice, refused_arguments, require_possible
from cputune.doctor.typed_launch import judge_typed, of_the_launch, read_launch
from cputune.host import Completed, LiveHost, this_interpreter

Judge = Callable[..., dict[str, Finding]]
ARGUMENTS = """
import dataclasses
__version__ = "5.23.0"
@dataclasses.dataclass
class TrainingArguments:
    output_dir: str = ""
    per_device_train_batch_size: int = 8
"""
SCRIPT = """
import torch
from transformers import HfArgumentParser, TrainingArguments
class Data:
    samples: int
parser = HfArgumentParser((Data, TrainingArguments))
"""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judge a launch in a folder with train.py, where the stack is a few small modules."""
    for name, text in {"torch": "", "accelerate": "", "transformers": ARGUMENTS}.items():
        package = tmp_path / "site" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text or '__version__ = "1.2.3"\n')
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    def judged(*words: str, facts: HostFacts = CLEAN) -> dict[str, Finding]:
        launch, host = read_launch(words, this_interpreter()), LiveHost()
        return {f.code: f for f in judge_typed(launch, facts, host)}

    return judged


@pytest.mark.parametrize(
    "words",
    ["python train.py", "python -m train", "accelerate launch --cpu train.py", "mpirun train.py"],
)
def test_what_is_imported_without_a_fault_is_no_finding(judge: Judge, words: str) -> None:
    assert not judge(*words.split()).keys() & {"launch-import", "launch-script"}


def test_a_file_beside_the_script_that_fails_is_named(judge: Judge) -> None:
    Path("torch.py").write_text("from torch import nn\n")
    finding = judge("python", "train.py")["launch-import"]
    assert "ImportError" in finding.evidence
    assert "torch.py" in finding.evidence
    assert "rename it" in finding.remedy


def test_what_is_not_installed_is_said_in_words(judge: Judge, golden: Golden) -> None:
    Path("train.py").write_text("import torch\nimport no_such_library\n")
    finding = judge("python", "train.py")["launch-import"]
    assert "ModuleNotFoundError" in finding.evidence
    golden(finding.remedy)


@pytest.mark.parametrize(
    ("argument", "module"),
    [("--report_to wandb", "wandb"), ("--optim galore_adamw", "galore_torch")],
)
def test_what_an_argument_of_trainer_imports_must_be_there(
    judge: Judge, argument: str, module: str
) -> None:
    said = judge("python", "train.py", *argument.split())["launch-import"]
    assert said.remedy == f"Install {module} into the environment that trains."
    assert "launch-import" not in judge("python", "train.py", "--optim", "adamw_torch")


@pytest.mark.parametrize("argument", ["--train_file", "--resume_from_checkpoint"])
def test_a_file_that_an_argument_names_must_be_there(judge: Judge, argument: str) -> None:
    said = judge("python", "train.py", argument, "data/a.json")["launch-file-absent"]
    assert said.evidence == f"{argument} data/a.json: the file does not exist"
    for there in ("train.py", "true"):
        assert "launch-file-absent" not in judge("python", "train.py", argument, there)


def test_a_model_that_may_not_be_downloaded_must_be_there(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ("python", "train.py", "--model_name_or_path")
    said = judge(*words, "org/model")["launch-file-absent"]
    golden(said.evidence)
    golden(said.command)
    held = changed(surroundings={"model_bytes": 5})
    assert "launch-file-absent" not in judge(*words, "org/model", facts=held)
    assert "launch-file-absent" not in judge(*words, ".")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert "launch-file-absent" not in judge(*words, "org/model")


def test_a_module_that_ends_the_interpreter_is_named(judge: Judge) -> None:
    Path("train.py").write_text("import torch\nimport kills\n")
    Path("kills.py").write_text("import os\nos.abort()\n")
    assert (
        "import kills was ended by SIGABRT" in judge("python", "train.py")["launch-import"].evidence
    )


def test_a_launch_that_is_bound_is_compared_with_its_cpus(judge: Judge, golden: Golden) -> None:
    words = ("numactl", "-C", "0-1", "env", "OMP_NUM_THREADS=4", "python", "train.py")
    found = judge(*words)["threads-affinity"]
    golden(found.evidence)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("python", "trian.py"), "there is no script 'trian.py'"),
        (("python", "-m", "trian"), "there is no module 'trian'"),
        (("accelerate", "launch", "--config_file", "no.yaml", "train.py"), "--config_file no.yaml"),
    ],
)
def test_what_cannot_be_run_is_an_error(judge: Judge, words: tuple[str, ...], said: str) -> None:
    assert said in judge(*words)["launch-script"].evidence


def test_arguments_that_no_cpu_can_follow_are_errors_as_in_a_file(judge: Judge) -> None:
    words = "python train.py --deepspeed ds.json --tf32 True --optim adamw_bnb_8bit"
    found = judge(*words.split())
    assert {"argument-sharded", "argument-no-cpu", "argument-package"} <= found.keys()
    assert "launch-script" not in found


def test_words_that_train_nothing_are_refused(golden: Golden) -> None:
    with golden.raises(UsageError):
        read_launch(("ls", "-l"), this_interpreter())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("python train.py", None),  # how many samples a step takes, its words do not say
        ("python train.py --per_device_train_batch_size 16", None),
        ("python train.py --per_device_train_batch_size 12", "12 samples, which cannot be"),
        ("python train.py --per_device_train_batch_size 12", "over 8 NUMA nodes; 16 can"),
        (
            "python train.py --per_device_train_batch_size 6 --gradient_accumulation_steps 4",
            None,
        ),
        (
            "torchrun --nproc-per-node 2 train.py --per_device_train_batch_size 6",
            "12 samples",
        ),
        ("torchrun --nproc-per-node 4 train.py --per_device_train_batch_size 6", None),
    ],
)
def test_a_batch_that_keeps_a_rank_from_each_numa_node(
    judge: Judge, words: str, said: str | None
) -> None:
    facts = machine(sockets=2, cores_per_socket=32, nodes_per_socket=4)
    found = judge(*words.split(), facts=facts)
    assert ("batch-undivided" in found) == (said is not None)
    if said is not None:
        assert said in found["batch-undivided"].evidence
    assert "batch-undivided" not in judge(*words.split())  # a machine of one NUMA node


SECRETS = {
    "arguments": "torchrun --nproc-per-node 64 train.py --hub_token swordfish --fp16 --bf16",
    "assigned": "accelerate launch --cpu train.py --db-password=swordfish --bf16 --fp16",
    "variables": "mpirun -n 64 -x HF_TOKEN=swordfish -genv SSHPASS swordfish python train.py",
    "in front": "env HF_TOKEN=swordfish python train.py --fp16 --bf16 --data https://me:swordfish@host/x",
    "missing": "python other.py --password swordfish",
}


@pytest.mark.parametrize("words", SECRETS.values(), ids=SECRETS)
def test_a_secret_among_the_words_is_not_printed(words: str, judge: Judge, cputune: Run) -> None:
    Path("helper.py").write_text("import os\nraise RuntimeError(os.environ.get('HF_TOKEN'))\n")
    Path("train.py").write_text(f"import helper\n{SCRIPT}")
    done = cputune("doctor", "--json", "--", *words.split())
    assert done.code == 1, "the launch has a fault"
    assert "swordfish" not in done.out + done.err


ADDRESSED = {"MASTER_ADDR": "10.0.0.7", "ACCELERATE_USE_CPU": None}
OWN_RANKS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def test_a_script_that_starts_its_own_ranks_does_not_ask_accelerate(judge: Judge) -> None:
    facts = changed(
        environment={"RANK": "0", "WORLD_SIZE": "2", **ADDRESSED},
        packages={"torch": "2.13.0+cpu", "accelerate": "1.15.0"},
    )
    machine_findings = diagnose(facts).findings
    assert "ranks-alone" in {one.code for one in machine_findings}
    for text, alone in ((SCRIPT, True), (OWN_RANKS, False)):
        Path("train.py").write_text(text)
        launch = read_launch(["python", "train.py"], this_interpreter())
        left = of_the_launch(machine_findings, launch, facts, LiveHost())
        assert ("ranks-alone" in {one.code for one in left}) is alone


MOVES_PATH = "import sys\nsys.path.append('lib')\nimport mine_elsewhere\n"
PARSES = "import argparse\nargparse.ArgumentParser().parse_args(['--unknown'])\n"
READS_RANK = "import os\nRANK = os.environ['LOCAL_RANK']\n"


@pytest.mark.parametrize(
    ("before", "helper"),
    [(MOVES_PATH, ""), ("import helper\n", PARSES), ("import helper\n", READS_RANK)],
)
def test_what_works_in_the_script_is_no_fault_although_it_fails_alone(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, before: str, helper: str
) -> None:
    Path("lib").mkdir()
    Path("lib/mine_elsewhere.py").write_text("")
    Path("helper.py").write_text(helper)
    Path("train.py").write_text(f"{before}{SCRIPT}")
    monkeypatch.setattr(typed_launch, "rehearsed", lambda *_: iter(()))
    assert "launch-import" not in judge("python", "train.py")


LAUNCHER = """#!/bin/sh
case "$*" in
*--start-method*) echo "AssertionError: Torch not compiled with CUDA enabled" >&2; exit 1;;
*--role=waits*) exec sleep 30;;
esac
for last; do :; done
exec {python} "$last"
"""


@pytest.mark.parametrize(
    ("option", "code", "evidence"),
    [
        ("--start-method=fork", "launcher-fails", "with 1: AssertionError: Torch not compiled"),
        ("--role=waits", "rehearsal-late", "did not start ranks in 1 seconds"),
        ("--standalone", None, ""),
    ],
)
def test_the_launcher_is_started_with_its_words(
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    option: str,
    code: str | None,
    evidence: str,
) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if option == "--role=waits":
        monkeypatch.setattr(rehearsed_launch, "LAUNCHER_SECONDS", 1)
    monkeypatch.setattr(typed_launch, "rehearsed", lambda *_: iter(()))
    Path("helper.py").write_text(READS_RANK)
    Path("train.py").write_text(f"import helper\n{SCRIPT}")
    found = judge("torchrun", "--nproc_per_node=2", option, "train.py", "-m", "x")
    tried = found.keys() & {"launcher-fails", "rehearsal-late", "launch-import"}
    if code is None:
        assert not tried
        return
    assert tried == {code, "launch-import"}
    assert evidence in found[code].evidence
    # What decides about the import was not run.
    assert found["launch-import"].severity is Severity.WARNING


def test_what_fails_in_the_rehearsal_too_is_a_fault(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("helper.py").write_text(READS_RANK)
    Path("train.py").write_text(f"import helper\n{SCRIPT}")
    failed = rehearsal_fails.finding("rank 0: KeyError: 'LOCAL_RANK', at the script")
    monkeypatch.setattr(typed_launch, "rehearsed", lambda *_: iter((failed,)))
    assert "LOCAL_RANK" in judge("python", "train.py")["launch-import"].evidence


def test_an_error_of_the_rehearsal_is_explained_as_an_error_text() -> None:
    message = {
        "rank": 0,
        "error": "RuntimeError",
        "said": "mixed dtype (CPU): all the parameters must have the same type",
        "where": "/v/site-packages/torch/nn/functional.py:2910",
        "during": "the script",
    }
    done = Completed(returncode=0)
    finding = _finding_of(message, done, {}, {})
    assert "load the model in float32" in finding.remedy
    unknown = _finding_of({**message, "said": "something else"}, done, {}, {})
    assert unknown.remedy.startswith("Correct what the evidence names")


FROM = "from transformers import TrainingArguments"


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (f"{FROM}\nTrainingArguments(output_dir='o', use_ipex=True)", {"use_ipex": "error"}),
        (f"{FROM} as A\ndef main():\n    a = A(no_cuda=1, evaluation_strategy='no')", "both"),
        ("import transformers as t\na = t.TrainingArguments(bf1=True)", {"bf1": "error"}),
        (f"{FROM}\nif bf16:\n    a = TrainingArguments(no_cuda=True)", {"no_cuda": "warning"}),
        ("class TrainingArguments: ...\nTrainingArguments(no_cuda=True)", {}),
        (f"{FROM}\nTrainingArguments(**words, use_cpu=True)", {}),
        ("def broken(:", {}),
    ],
)
def test_arguments_that_the_installed_transformers_refuses(
    lines: str, arguments: dict[str, str] | str
) -> None:
    if arguments == "both":
        arguments = {"no_cuda": "error", "evaluation_strategy": "error"}
    seen = {}
    for finding in refused_arguments(lines, "p/train.py", CLEAN):
        assert finding.code == "file-flag-refused"
        seen[finding.evidence.partition("(")[2].partition("=")[0]] = finding.severity.value
    assert seen == arguments
    older = changed(packages={"transformers": "4.40.0"})
    kept = {
        finding.evidence.partition("(")[2].partition("=")[0]
        for finding in refused_arguments(lines, "train.py", older)
    }
    assert not kept & {"use_ipex", "no_cuda", "evaluation_strategy"}


def test_a_script_of_the_ipex_era_is_refused_before_a_trial(tmp_path: Path, golden: Golden) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import intel_extension_for_pytorch as ipex\nfrom transformers import TrainingArguments\n"
        "TrainingArguments(use_ipex=True)\n"
    )
    with pytest.raises(CannotError) as raised:
        require_possible([str(script)], CLEAN)
    golden(f"{raised.value.details}")
    assert "[launch-import]" in str(raised.value.details)
    advice = import_advice("intel_extension_for_pytorch", changed(packages={"torch": "2.7.0"}))
    assert advice[1] == "pip install intel-extension-for-pytorch==2.7.0"
    script.write_text("try:\n    import intel_extension_for_pytorch\nexcept ImportError: ...\n")
    require_possible([str(script)], CLEAN)
