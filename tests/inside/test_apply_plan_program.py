"""apply_plan.py as a program: what it says, refuses and runs, and how the ranks it carries end."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import ran
from rows import every_row

from cputune.emitters import assembled
from cputune.emitters.assembled import apply_plan_file
from cputune.inside import applying_script
from cputune.inside.applying.force import Force

ACCELERATOR = """
prepare_data_loader = None

class Accelerator:
    num_processes = gradient_accumulation_steps = 1
    def __init__(self, mixed_precision=None, cpu=False):
        pass
    def prepare(self, loader):
        return self.prepare_data_loader(loader)
    def prepare_data_loader(self, loader):
        return loader
    def prepare_optimizer(self, optimizer):
        return optimizer
    def backward(self, loss):
        pass
    num_processes = property(lambda self: 2)
"""
SCRIPT = """
from accelerate.accelerator import Accelerator

class Loader:
    batch_sampler = None

Accelerator(mixed_precision="bf16").prepare_data_loader(Loader())
print("trained")
"""


APPLYING = (sys.executable, str(applying_script()))


def ran_with_plan(
    place: Path, plan: dict[str, int], *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the file that is emitted for this plan."""
    (place / "apply_plan.py").write_text(apply_plan_file(Force(**plan)))  # type: ignore[arg-type]
    return ran([sys.executable, "apply_plan.py", *words], cwd=place, env=environment)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a script, and a stand-in for accelerate."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    (tmp_path / "accelerate" / "accelerator.py").write_text(ACCELERATOR)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_without_a_script_it_says_how_it_is_used(tmp_path: Path) -> None:
    done = ran_with_plan(tmp_path, {})
    assert (done.returncode, done.stderr) == (1, "usage: apply_plan.py SCRIPT ARGUMENTS...\n")


def test_what_cannot_be_run_so_ends_with_3(place: Path, golden: Golden) -> None:
    done = ran_with_plan(place, {"world_size": 2}, "train.py")
    assert (done.returncode, done.stdout) == (3, "")
    golden(done.stderr)


@pytest.mark.parametrize(("rank", "says"), [(None, True), ("0", True), ("1", False)])
def test_the_first_rank_says_what_was_changed(place: Path, rank: str | None, says: bool) -> None:
    done = ran_with_plan(
        place, {"world_size": 1}, "train.py", **({} if rank is None else {"RANK": rank})
    )
    assert done.stdout == "trained\n"
    said = "apply_plan.py: set for the plan: mixed_precision=no (was bf16)\n"
    assert done.stderr == (said if says else "")


def test_cputune_run_carries_the_same_with_what_is_installed(place: Path) -> None:
    done = ran([*APPLYING, json.dumps({"world_size": 1}), "train.py"], cwd=place)
    said = "apply_plan.py: set for the plan: mixed_precision=no (was bf16)\n"
    assert (done.stdout, done.stderr) == ("trained\n", said)
    assert ran(APPLYING, cwd=place).stderr == "usage: apply_plan.py PLAN SCRIPT ARGUMENTS...\n"


LEVERS = ("dropout", "padding", "order")
SETS = [
    *(({"torch": {name: "on"}}, {name}) for name in LEVERS),
    ({"torch": dict.fromkeys(LEVERS, "on")}, set(LEVERS)),
    ({"world_size": 1, "by_flags": True}, {"trainer"}),
    ({"world_size": 1}, {"trainer", "loop"}),
    ({"world_size": 2, "by_flags": True}, {"trainer", "ranks", "dispatch", "draws"}),
    ({"world_size": 2}, {"trainer", "ranks", "dispatch", "draws", "loop"}),
    ({"world_size": 2, "loop_alone": True}, {"ranks", "dispatch", "draws", "loop"}),
    ({"world_size": 1, "loop_alone": True}, {"loop"}),
    ({}, set()),
]
CLASSES = {
    "dropout": "class Masks",
    "padding": "class Cutter",
    "order": "class Order",
    "trainer": "class TrainerPart",
    "loop": "class LoopPart",
    "ranks": "class RanksPart",
    "draws": "class DrawsPart",
    "dispatch": "class Dispatch",
}


@every_row(("plan", "parts"), SETS)
def test_the_file_has_the_parts_of_its_plan_alone(
    plan: dict[str, object], parts: set[str], tmp_path: Path
) -> None:
    text = apply_plan_file(Force(**plan))  # type: ignore[arg-type]
    # A loop over an Accelerator keeps its shuffles with what stands beside RanksPart.
    found = {name for name, code in CLASSES.items() if code in text}
    assert found - {"ranks"} == parts - {"ranks"}
    assert ("ranks" in found) == bool({"ranks", "loop"} & parts)
    assert "cputune.inside" not in text
    (tmp_path / "apply_plan.py").write_text(text)
    (tmp_path / "train.py").write_text(
        "import sys; print(sorted(sys.modules['cputune_applied'].parts))"
    )
    done = ran([sys.executable, "apply_plan.py", "train.py"], cwd=tmp_path)
    assert done.stdout == f"{sorted(parts)}\n", done.stderr


def test_no_two_modules_of_the_file_define_the_same_name() -> None:
    """In one file the second would take the place of the first, in the functions of both."""
    defined: dict[str, str] = {}
    for path in sorted(applying_script().parent.glob("[a-z]*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in names_defined(statement):
                assert defined.setdefault(name, path.name) == path.name, name


def names_defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def test_a_module_is_imported_as_a_whole_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "from __future__ import annotations\n\n"
    (tmp_path / "run_script.py").write_text(
        f'"""One."""\n\n{start}from os import path\n\n\ndef main(parts): print(path.sep)\n'
    )
    (tmp_path / "dropout.py").write_text(
        f'"""Two."""\n\n{start}import os\n\n\ndef Masks(say): return os.sep\n\n\nsay = 1\n'
    )
    monkeypatch.setattr(
        assembled, "packaged_text", lambda package, name: (tmp_path / name).read_text()
    )
    for parts in ({}, {"dropout": "bytes"}):
        text = apply_plan_file(Force(torch=parts))
        (tmp_path / "apply_plan.py").write_text(text)
        assert ran([sys.executable, "apply_plan.py"], cwd=tmp_path).stdout == "/\n"
    assert "import os\nfrom os import path\n" in text


def test_an_empty_plan_changes_nothing(place: Path) -> None:
    done = ran_with_plan(place, {}, "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_it_runs_a_folder_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import sys\nprint(__name__, sys.argv[1:])")
    done = ran_with_plan(tmp_path, {}, str(tmp_path), "-x")
    assert done.stdout == "__main__ ['-x']\n", done.stderr


DISTRIBUTED = """
import sys
def is_available():
    return "unavailable" not in sys.argv
def is_initialized():
    return "alone" not in sys.argv
def barrier():
    print("waited")
    if "lost" in sys.argv:
        raise RuntimeError("a rank is gone")
def destroy_process_group():
    print("taken down")
    raise RuntimeError("it was already")
"""
TOGETHER = "waited\ntaken down\n"


@every_row(
    ("end", "words", "said"),
    [
        ("", (), TOGETHER),
        ("raise SystemExit", (), TOGETHER),
        ("raise SystemExit(0)", (), TOGETHER),
        ("raise SystemExit(2)", (), ""),
        ("1 / 0", (), ""),
        ("", ("lost",), TOGETHER),
        ("", ("alone",), ""),
        ("", ("unavailable",), ""),
    ],
)
def test_ranks_that_end_well_end_together(
    tmp_path: Path, end: str, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "distributed.py").write_text(DISTRIBUTED)
    (tmp_path / "train.py").write_text(f"import torch.distributed\n{end}\n")
    assert ran([*APPLYING, "{}", "train.py", *words], cwd=tmp_path).stdout == said


FREED = """
class Group:
    def __del__(self):
        print("freed")

class _world:
    pg_map = {Group(): "gloo"}

def destroy_process_group():
    _world.pg_map.clear()
"""
DESTROYS = """
import atexit
from torch.distributed import distributed_c10d
atexit.register(print, "bye")
distributed_c10d.destroy_process_group()
print("trained")
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(0)", 0), ("1 / 0", 1)])
def test_a_group_that_is_destroyed_is_not_freed(tmp_path: Path, end: str, status: int) -> None:
    """At the very end gloo's threads may hold what it holds."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text(FREED)
    (tmp_path / "train.py").write_text(DESTROYS + end)
    done = ran([*APPLYING, "{}", "train.py"], cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("trained\nbye\n", status), done.stderr
