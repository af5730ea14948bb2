"""The very end of a script under carry.py: nothing that gloo's threads may hold is freed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from in_process import ran

from cputune.inside import carry_script

FAKE_DISTRIBUTED = """
class Group:
    def __del__(self):
        print("freed")

class _world:
    pg_map = {Group(): "gloo"}

def destroy_process_group():
    _world.pg_map.clear()
"""
SCRIPT = """
import atexit
from torch.distributed import distributed_c10d
atexit.register(print, "bye")
distributed_c10d.destroy_process_group()
print("trained")
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(0)", 0), ("1 / 0", 1)])
def test_a_group_that_is_destroyed_is_not_freed(tmp_path: Path, end: str, status: int) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text(FAKE_DISTRIBUTED)
    (tmp_path / "train.py").write_text(SCRIPT + end)
    done = ran(
        [sys.executable, str(carry_script()), "{}", str(tmp_path / "train.py")],
        env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert (done.stdout, done.returncode) == ("trained\nbye\n", status), done.stderr
