"""What users get: the wheel holds the whole package, and doctor and emit run from it alone.

The environment is as fresh as `pip install cputune` makes it, without the network: the wheel,
and a copy of what its metadata asks for. So a dependency that is not declared is missed here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def _build(target: Path, *what: str) -> Path:
    """Build with the hatchling of this environment; the folder that holds what was built."""
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *what]
    done = subprocess.run([*argv, str(HERE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that was built from the sdist."""
    return _build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def _needed(requirements: list[str], seen: set[str]) -> set[str]:
    """The names of the distributions that these lines of metadata ask for, and theirs."""
    for line in requirements:
        wanted = Requirement(line)
        if wanted.name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name)
        _needed(importlib.metadata.requires(wanted.name) or [], seen)
    return seen


def _copy_distribution(name: str, site_packages: Path) -> None:
    for file in importlib.metadata.distribution(name).files or []:
        if ".." not in file.parts and file.suffix != ".pyc":
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`run("doctor", "--json", cwd=…)`: the cputune of a fresh environment."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (site_packages,) = home.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    (metadata,) = site_packages.glob("cputune-*.dist-info")
    declared = importlib.metadata.PathDistribution(metadata).requires or []
    for name in _needed(declared, set()):
        _copy_distribution(name, site_packages)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def cputune(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        argv = [str(home / "bin" / "cputune"), *words]
        return subprocess.run(argv, cwd=cwd, env=clean, capture_output=True, text=True)

    return cputune


def test_the_wheel_holds_every_file_of_the_package_the_recipes_and_the_pages(wheel: Path) -> None:
    wanted = {str(p.relative_to(HERE)) for p in HERE.glob("cputune/**/*") if p.is_file()}
    wanted |= {f"cputune/{p.relative_to(HERE)}" for p in HERE.glob("recipes/*")}
    wanted |= {f"cputune/{p.relative_to(HERE)}" for p in HERE.glob("docs/*.md")}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in wanted if "__pycache__" not in name} == {
        name for name in held if ".dist-info/" not in name
    }


def test_the_sdist_builds_the_same_wheel_as_the_tree(wheel: Path, tmp_path: Path) -> None:
    (from_tree,) = _build(tmp_path, "--wheel").glob("*.whl")
    assert from_tree.name == wheel.name
    assert from_tree.read_bytes() == wheel.read_bytes()


def test_doctor_runs_from_the_wheel_where_there_is_no_torch(run: Run, tmp_path: Path) -> None:
    done = run("doctor", "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert not done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "cputune.doctor/1"
    assert "torch" not in {p["name"] for p in document["host"]["packages"]}


def test_emit_writes_every_format_from_the_wheel(run: Run, tmp_path: Path) -> None:
    done = run("emit", "--format", "all", "-o", "launch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "launch").iterdir()}
    assert written >= {"mpirun.sh", "trainjob.yaml", "rank.py", "train.py", "recipe.json"}
    compile((tmp_path / "launch" / "rank.py").read_text(), "rank.py", "exec")


def test_the_recipes_come_along(run: Run, tmp_path: Path) -> None:
    listed = run("recipes", cwd=tmp_path).stdout
    for recipe in HERE.glob("recipes/*.toml"):
        assert recipe.stem in listed


def test_tune_says_what_to_install(run: Run, tmp_path: Path) -> None:
    done = run("tune", cwd=tmp_path)
    assert done.returncode == 3
    assert "cputune[tune]" in done.stderr
    assert "Traceback" not in done.stderr
