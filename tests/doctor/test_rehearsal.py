"""A launch is rehearsed: real libraries refuse in their own words, and nothing is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import pytest
from clean_machine import CLEAN

from cputune import Finding, Severity
from cputune.doctor import rehearsed_launch
from cputune.doctor.looks.rehearse import REPLACED, libraries_of
from cputune.doctor.rehearsed_launch import rehearsed
from cputune.doctor.typed_launch import read_launch
from cputune.host import LiveHost, this_interpreter
from cputune.host.children import in_session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(util.find_spec("torch") is None, reason="torch is not installed"),
]

TRAINER = """
from datasets import load_dataset
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
data = load_dataset("no/such/data").map(lambda row: row)
Trainer(model=None, args=args, train_dataset=data["train"]{more})
open("reached", "w").write("the script went on")
"""
OWN_LOOP = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
open("reached", "w").write("the script went on")
"""


@pytest.fixture
def rehearse(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rehearsed_launch, "SECONDS", 200)  # the machine does other things, too

    def found(text: str, *words: str, launcher: tuple[str, ...] = (sys.executable,)):
        Path("train.py").write_text(text)
        launch = read_launch((*launcher, "train.py", *words), this_interpreter())
        findings = list(rehearsed(launch, text, CLEAN, LiveHost()))
        assert [path.name for path in workdir.iterdir()] == ["train.py"]
        return findings

    return found


@pytest.mark.parametrize(
    ("text", "libraries"),
    [
        ("import torch, os\n", ()),
        ("from accelerate import Accelerator\n", ("accelerate",)),
        ("def main():\n    from datasets import load_dataset\n", ("datasets",)),
        ("import transformers.trainer\n", REPLACED),
        ("import torch, helper\n", REPLACED),
        ("from . import helper\n", REPLACED),
        ("__import__('transformers')\n", REPLACED),
        ("import importlib\n", REPLACED),
        ("no python\n", REPLACED),
    ],
)
def test_a_library_that_a_script_cannot_import_is_not_loaded(
    tmp_path: Path, text: str, libraries: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert libraries_of(str(script), module=False) == libraries
    assert libraries_of(str(script), module=True) == REPLACED


def only(findings: list[Finding]) -> Finding:
    (finding,) = (one for one in findings if one.code == "rehearsal-fails")
    return finding


def test_a_launch_that_trains_is_not_condemned(rehearse) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    words = ("--use_cpu", "--output_dir", "out", "--bf16")
    assert rehearse(TRAINER.format(more=""), *words, launcher=torchrun) == []
    assert rehearse(OWN_LOOP) == []


def test_a_rehearsal_says_that_it_stopped_at_the_first_file(rehearse) -> None:
    (finding,) = rehearse('import torch\nopen("log.txt", "w")\ntorch.ones(2).backward()\n')
    assert finding.code == "rehearsal-stopped"
    assert finding.evidence.endswith("log.txt")


def test_an_argument_is_refused_in_the_words_of_the_library(rehearse) -> None:
    finding = only(rehearse(TRAINER.format(more=""), "--use_cpu", "--no_such_flag"))
    assert "ValueError: Some specified arguments are not used" in finding.evidence
    assert "no_such_flag" in finding.evidence


@pytest.mark.matrix
def test_an_argument_of_a_class_is_refused_in_the_words_of_the_library(rehearse) -> None:
    finding = only(rehearse(TRAINER.format(more=", tokenizers=None"), "--use_cpu"))
    said = "Trainer.__init__() got an unexpected keyword argument 'tokenizers'"
    assert said in finding.evidence


def test_a_variable_is_refused_where_an_accelerator_is_built(rehearse, monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "perhaps")
    finding = only(rehearse(OWN_LOOP))
    assert "ValueError: invalid truth value perhaps" in finding.evidence
    assert finding.evidence.endswith("at Accelerator")


@pytest.mark.parametrize(
    "line",
    [
        'import os; os.system("touch reached")',
        'import subprocess; subprocess.run(["touch", "reached"])',
        'import os; os.makedirs("reached")',
        'import pathlib; pathlib.Path("reached").write_text("x")',
        'import socket; socket.create_connection(("192.0.2.1", 9), timeout=1)',
    ],
)
def test_a_script_does_nothing_to_the_machine(rehearse, line: str) -> None:
    (found,) = rehearse(f"{line}\nraise ValueError('it went on')\n")
    assert found.code == "rehearsal-stopped"


def test_what_only_a_step_shows_is_a_warning(rehearse) -> None:
    words = ("--use_cpu", "--output_dir", "out", "--optim", "galore_adamw")
    finding = only(rehearse(TRAINER.format(more=""), *words))
    assert finding.severity is Severity.WARNING
    assert "at one step of a tiny model" in finding.evidence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_rehearsal_that_is_ended(tmp_path: Path, number: int) -> None:
    (tmp_path / "waits.py").write_text("import time; time.sleep(100)")
    place = tmp_path / "temporary"
    place.mkdir()
    asked = {"script": "waits.py", "module": False, "arguments": [], "ranks": 2}
    asked |= {"numbered": False, "seconds": 90, "offline": True}
    looks = Path(rehearsed_launch.__file__).parent / "looks" / "rehearse.py"
    process = subprocess.Popen(
        [sys.executable, str(looks), json.dumps(asked)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(place)},
        start_new_session=True,
    )
    while len(in_session(process.pid)) < 3:
        time.sleep(0.05)
    assert len(list(place.iterdir())) == 1
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + number
    assert list(place.iterdir()) == []
    assert in_session(process.pid) == []


FORKS = """
import torch
{first}
def work(n):
    return torch.ones(n)
import multiprocessing
multiprocessing.get_context("{method}").Pool(2).map(work, range(2))
"""
COMPUTES = "torch.set_num_threads(2); a = torch.randn(900, 900); a @ a"


@pytest.mark.parametrize(
    ("first", "method", "late"),
    [
        (COMPUTES, "fork", True),
        ("", "fork", False),
        pytest.param(COMPUTES, "spawn", False, marks=pytest.mark.matrix),
    ],
)
def test_a_pool_that_is_forked_after_openmp_threads(rehearse, first, method, late) -> None:
    found = rehearse(FORKS.format(first=first, method=method))
    assert [one.code for one in found] == ["fork-after-threads"] * late + ["rehearsal-stopped"]
    if late:
        assert "train.py:7 starts processes by fork" in found[0].evidence


MAPS = """
import torch
from datasets import load_dataset
model = torch.nn.Linear(900, 900)
torch.set_num_threads(2); model(torch.randn(900, 900))
def embed(row): return {"x": model(row)}
def count(row): return {"x": len(row)}
load_dataset("no/such/data")["train"].map(FUNCTION, num_proc=PROCESSES)
"""


@pytest.mark.parametrize(
    ("function", "processes", "late"),
    [
        ("embed", 4, True),
        pytest.param("embed", 1, False, marks=pytest.mark.matrix),
        ("count", 4, False),
    ],
)
def test_a_map_whose_processes_compute(rehearse, function, processes, late) -> None:
    text = MAPS.replace("FUNCTION", function).replace("PROCESSES", str(processes))
    assert [one.code for one in rehearse(text)] == ["fork-after-threads"] * late


WEIGHTS = """
import torch
model = torch.nn.Linear(4, 2){cast}
torch.optim.AdamW(model.parameters())
model.weight.sum().backward()
"""


@pytest.mark.parametrize(
    ("cast", "half"),
    [
        pytest.param("", False, marks=pytest.mark.matrix),
        (".to(torch.bfloat16)", True),
        pytest.param(".half()", True, marks=pytest.mark.matrix),
        pytest.param(".double()", False, marks=pytest.mark.matrix),
    ],
)
def test_weights_of_16_bits(rehearse, cast, half) -> None:
    found = rehearse(WEIGHTS.format(cast=cast))
    assert [one.code for one in found] == ["weights-half"] * half
    if half:
        assert "train.py:3" in found[0].evidence
