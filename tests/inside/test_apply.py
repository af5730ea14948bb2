"""``python -m cputune.apply``: what it runs, what it refuses, and what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import ran
from numbered_ranks import numbered_ranks
from test_apply_plan_program import ACCELERATOR, SCRIPT

from cputune.apply import SCHEMA, VERSION

SCRIPTS = Path(__file__).parent.parent / "scripts" / "apart"
LAST = str(max(os.sched_getaffinity(0)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a script, and a stand-in for accelerate."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    (tmp_path / "accelerate" / "accelerator.py").write_text(ACCELERATOR)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def plan(place: Path, schema: str = f"{SCHEMA}{VERSION}", **applied: object) -> Path:
    path = place / "plan.json"
    path.write_text(json.dumps({"schema": schema, "apply": applied}))
    return path


def applied(place: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "cputune.apply", *words], cwd=place, env=more or None)


def test_a_plan_is_set_in_the_script(place: Path) -> None:
    plan(place, set={"world_size": 1})
    done = applied(place, "plan.json", "--", "train.py")
    said = "cputune: set for the plan: mixed_precision=no (was bf16)\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", said)


def test_the_plan_may_be_typed(place: Path) -> None:
    done = applied(place, '{"set": {"world_size": 1}}', "--", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "usage: "),
        (("plan.json", "--"), "usage: "),
        (("missing.json", "--", "train.py"), "missing.json cannot be read"),
        (("train.py", "--", "train.py"), "train.py cannot be read"),
        (("other.json", "--", "train.py"), "is no plan: its schema is 'else/1'"),
        (("newer.json", "--", "train.py"), "is of a newer cputune"),
        (("unknown.json", "--", "train.py"), "sets what this cputune does not know"),
    ],
)
def test_it_refuses_in_words(place: Path, words: tuple[str, ...], says: str) -> None:
    plan(place, "else/1").rename(place / "other.json")
    plan(place, f"{SCHEMA}{VERSION + 1}").rename(place / "newer.json")
    plan(place, set={"gpu": True}).rename(place / "unknown.json")
    plan(place)
    done = applied(place, *words)
    assert done.returncode == 2
    assert f"error: {says}" in done.stderr or says in done.stderr
    assert "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, cputune.apply; print(*sys.modules)"
    seen = ran([sys.executable, "-c", code]).stdout.split()
    assert "cputune.apply" in seen
    assert not {"torch", "optuna", "rich", "click", "numpy", "scipy", "yaml"} & set(seen)


@pytest.mark.torch
def test_a_rank_is_numbered_and_bound(place: Path) -> None:
    show = "import os\nprint(os.environ['RANK'], sorted(os.sched_getaffinity(0)))\n"
    (place / "train.py").write_text(show)
    plan(place, several=True, guard=True, cpus=LAST)
    numbers = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    words = ("plan.json", "--launcher", "torch", "--", "train.py")
    done = applied(place, *words, PATH=os.environ["PATH"], **numbers)
    assert done.stdout == f"0 [{LAST}]\n", done.stderr
    numbers["LOCAL_RANK"] = "1"
    done = applied(place, *words, PATH=os.environ["PATH"], **numbers)
    assert done.returncode == 3
    assert "local rank 1 has no CPUs" in done.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "script", "status"),
    [
        ("rank.py", "unfreezing.py", 5),
        # the guard of both is that of apply_plan.py: inside/test_guard.py
        pytest.param("rank.py", "sound.py", 0, marks=pytest.mark.matrix),
        pytest.param("apply", "unfreezing.py", 5, marks=pytest.mark.matrix),
        pytest.param("apply", "sound.py", 0, marks=pytest.mark.matrix),
    ],
)
def test_ranks_that_are_apart_are_stopped(
    way: str, script: str, status: int, tmp_path: Path
) -> None:
    from cputune.inside import rank

    plan(tmp_path, several=True, guard=True)
    words = {
        "apply": ["-m", "cputune.apply", "plan.json", "--"],
        "rank.py": [str(rank.__file__), "--draw", "apart", "--"],
    }
    ended = numbered_ranks(2, *words[way], str(SCRIPTS / script), cwd=tmp_path)
    assert [one.status for one in ended] == [status] * 2, ended
    assert ("error: " in "".join(one.err for one in ended)) == (status == 5)
