"""Which files beside a script belong to its training: those that it imports, read and not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cputune.emitters.imported import imported, module_files, unreachable_parts
from cputune.host import LiveHost

FILES = {
    "train.py": "import json, net.blocks\nfrom data import load\ndef late():\n    import losses\n",
    "data.py": "from helpers import *\nimport data\n",
    "helpers.py": "raise SystemExit('it is not run')\n",
    "losses.py": "import a syntax error\n",
    "unused.py": "",
    "net/__init__.py": "",
    "net/blocks.py": "from . import attention\nfrom ..deep import none\n",
    "net/attention.py": "from .parts.norm import Norm\n",
    "net/parts/norm.py": "Norm = '\\d'\n",
    "net/__main__.py": "from net import blocks\n",
}
OF_NET = ["net/__init__.py", "net/blocks.py", "net/attention.py", "net/parts/norm.py"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_modules_beside_a_script_and_what_they_import(folder: Path) -> None:
    found = imported("train.py", LiveHost())
    assert set(found) == {*OF_NET, "data.py", "helpers.py", "losses.py"}


def test_a_module_is_looked_for_where_it_is_typed(folder: Path) -> None:
    assert set(module_files("net", LiveHost())) == {"net/__main__.py", *OF_NET}
    assert module_files("torch", LiveHost()) == ()


TRAINER = "from transformers import Trainer, TrainingArguments\nTrainer(model).train()\n"
LOOP = "import torch\nfrom accelerate import Accelerator\nAccelerator()\n"


@pytest.mark.parametrize(
    ("text", "beside", "left_out"),
    [
        (TRAINER, "", ["loop"]),
        (LOOP, "", ["trainer"]),
        ("from helper import run\n", TRAINER, ["loop"]),
        (TRAINER + "import helper\n", "from accelerate import Accelerator", []),
        (LOOP + "import helper\n", TRAINER, []),
        (TRAINER + "trainer.accelerator.wait_for_everyone()", "", []),
        (TRAINER + "import trl\n", "", []),  # its code is not read
        (TRAINER + "from trl import SFTTrainer\n", "", []),
        (LOOP + "import importlib\n", "", []),
        (LOOP + "exec(open('rest.py').read())\n", "", []),
        (LOOP + "model.eval()\n", "", ["trainer"]),
        (LOOP + "import helper\n", "a syntax error", []),
        ("import torch\n", "", []),
    ],
)
def test_parts_that_no_line_reaches_are_those_of_the_other_kind_of_training(
    text: str, beside: str, left_out: list[str], folder: Path
) -> None:
    Path("script.py").write_text(text)
    Path("helper.py").write_text(beside)
    assert list(unreachable_parts("script.py", LiveHost())) == left_out
