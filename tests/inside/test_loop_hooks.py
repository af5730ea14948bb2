"""What cannot be measured ends before it trains; a trial saves no files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import cputune
from cputune.inside import SCRATCH_VARIABLE, SOCKET_VARIABLE

TORCH = {
    "torch/__init__.py": """
def manual_seed(seed):
    pass
def save(obj, f):
    (f if hasattr(f, "write") else open(f, "w")).write(obj)
""",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
HOOKS = []
register_optimizer_step_pre_hook = HOOKS.append
register_optimizer_step_post_hook = [].append
class SGD:
    def step(self):
        for hook in HOOKS:
            hook(self, (), {})
""",
}
"""As much of torch as the hooks touch."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def told(place: Path, script: str) -> list[dict[str, object]]:
    """What a script says of itself while it is measured."""
    (place / "train.py").write_text(script)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as post:
        post.bind(str(place / "post"))
        post.listen()
        variables = {
            SOCKET_VARIABLE: str(place / "post"),
            SCRATCH_VARIABLE: str(place),
            "PYTHONPATH": str(Path(cputune.__file__).parent.parent),
        }
        subprocess.run(
            [sys.executable, "-m", "cputune.inside", "train.py"],
            cwd=place,
            env={**os.environ, **variables},
            timeout=60,
            check=False,
        )
        with post.accept()[0] as line:
            said = b"".join(iter(lambda: line.recv(1 << 16), b""))
    return [json.loads(message) for message in said.splitlines()]


def test_a_loop_without_a_data_loader_is_refused_before_its_first_step(place: Path) -> None:
    script = "import torch.optim.optimizer as o\no.SGD().step()\nopen('trained', 'w')\n"
    refusal = told(place, script)[-1]
    assert (refusal["event"], refusal["hopeless"]) == ("refused", True)
    assert "iterate a DataLoader" in str(refusal["reason"])
    assert not (place / "trained").exists()


def test_files_are_saved_before_training_and_not_while_it_trains(place: Path) -> None:
    script = """
import gc, io, torch
torch.save("x", "before")
from cputune.inside.meter import Meter
meter = next(one for one in gc.get_objects() if isinstance(one, Meter))
meter.begin("trainer")
torch.save("x", "while")
memory = io.StringIO()
torch.save("x", memory)
assert memory.getvalue() == "x"
"""
    assert told(place, script)[-1]["event"] == "end"
    assert (place / "before").exists()
    assert not (place / "while").exists()


def test_no_bytecode_is_written_beside_the_script(place: Path) -> None:
    (place / "mine.py").write_text("")
    assert told(place, "import mine\n")[-1]["event"] == "end"
    assert not (place / "__pycache__").exists()
