"""What users get: the wheel holds the whole package, and doctor and emit run from it alone.

The environment is as fresh as `pip install cputune` makes it, without the network: the wheel,
and a copy of what its metadata asks for. So a dependency that is not declared is missed here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import ran
from packaging.requirements import Requirement

pytestmark = pytest.mark.xdist_group("the wheel")  # built and installed once

HERE = Path(__file__).resolve().parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]


REPOSITORY = "https://example.org/cputune"
"""Where a release is built, its workflow tells the address of the repository."""


def _build(target: Path, *what: str, of: Path = HERE) -> Path:
    """Build with the hatchling of this environment; the folder that holds what was built."""
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), *what]
    done = ran([*argv, str(of)], env={**os.environ, "CPUTUNE_REPOSITORY": REPOSITORY})
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


def _needed(requirements: list[str], seen: set[str], extra: str = "") -> set[str]:
    """The names of the distributions that these lines of metadata ask for, and theirs."""
    for line in requirements:
        wanted = Requirement(line)
        if wanted.name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": extra})):
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
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment into which the wheel is installed, without extras."""
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
    return home


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    """`run("doctor", "--json", cwd=…)`: the cputune of the fresh environment."""
    return _runner(home)


def _tops(name: str) -> set[Path]:
    """The modules, folders and metadata of a distribution."""
    found = importlib.metadata.distribution(name)
    place = Path(str(found.locate_file("")))
    return {place / file.parts[0] for file in found.files or [] if ".." not in file.parts}


@pytest.fixture(scope="module")
def tuning(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The cputune of what `pip install 'cputune[tune]'` makes: nothing else can be imported."""
    there = tmp_path_factory.mktemp("tuning")
    venv.create(there, symlinks=True)
    (core,) = home.glob("lib/python*/site-packages")
    (metadata,) = core.glob("cputune-*.dist-info")
    declared = importlib.metadata.PathDistribution(metadata).requires or []
    names = _needed(declared, {"cputune"}, extra="tune") - {"cputune"}
    site_packages = there / core.relative_to(home)
    for path in (*core.glob("cputune*"), *(top for name in names for top in _tops(name))):
        if not (site_packages / path.name).exists():
            (site_packages / path.name).symlink_to(path)
    return _runner(there)


def _runner(home: Path) -> Run:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    clean["PATH"] = f"{home / 'bin'}:/usr/bin:/bin"

    def cputune(
        *words: str, cwd: Path, by: tuple[str, ...] = ("cputune",)
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(home / "bin" / by[0]), *by[1:], *words]
        return ran(argv, cwd=cwd, env=clean)

    return cputune


def test_the_wheel_holds_every_file_of_the_package_the_recipes_and_the_pages(wheel: Path) -> None:
    wanted = {str(p.relative_to(HERE)) for p in HERE.glob("cputune/**/*") if p.is_file()}
    wanted |= {f"cputune/{p.relative_to(HERE)}" for p in HERE.glob("recipes/*")}
    wanted |= {f"cputune/{p.relative_to(HERE)}" for p in HERE.glob("docs/*.md")}
    held = set(zipfile.ZipFile(wheel).namelist())
    (manual,) = (name for name in held if name.endswith(".data/data/share/man/man1/cputune.1"))
    assert {name for name in wanted if "__pycache__" not in name} == {
        name for name in held if ".dist-info/" not in name and name != manual
    }


def test_on_the_package_index_every_link_of_readme_leads_somewhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        metadata = files.read(name).decode()
    assert f"Project-URL: Source, {REPOSITORY}\n" in metadata
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_sdist_builds_the_same_wheel_as_the_tree(wheel: Path, tmp_path: Path) -> None:
    (from_tree,) = _build(tmp_path, "--wheel").glob("*.whl")
    assert from_tree.name == wheel.name
    assert from_tree.read_bytes() == wheel.read_bytes()


def test_doctor_runs_from_the_wheel_if_there_is_no_torch(run: Run, tmp_path: Path) -> None:
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
    assert written >= {"mpirun.sh", "trainjob.yaml", "plan.json", "train.py", "recipe.json"}


def test_emit_writes_what_several_ranks_need_from_the_wheel(run: Run, tmp_path: Path) -> None:
    shutil.copy(HERE / "docs" / "terminal" / "result.json", tmp_path / "cputune.json")
    words = ("--other-machine", "--self-contained", "--format", "torchrun", "-o", "launch")
    done = run("emit", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    compile((tmp_path / "launch" / "rank.py").read_text(), "rank.py", "exec")


README = (HERE / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh$(.*?)^```$", README.partition("## What it does")[0], re.M | re.S)
TYPED = re.findall(r"^(?:uvx )?cputune (.+)$", "\n".join(BLOCKS), re.M)
SMALL = {
    "tune": ["--dry-run"],
    "run": ["--dry-run", "--other-machine"],
    "emit": ["--other-machine"],
    "verify": ["--no-run"],
}
FURTHER = ("show", "report", "history", "verify")


def test_readmes_steps_work_where_its_install_was_made(tuning: Run, tmp_path: Path) -> None:
    shutil.copy(HERE / "docs" / "terminal" / "result.json", tmp_path / "cputune.json")
    (tmp_path / "train.py").write_text("import torch\n")
    assert {words.split()[0] for words in TYPED} == {"doctor", "tune", "run", "emit"}
    for line in (*dict.fromkeys(TYPED), *FURTHER):
        words = line.split()
        argv = [words[0], *SMALL.get(words[0], []), *words[1:]]
        done = tuning(*argv, cwd=tmp_path, by=("python", "-m", "cputune"))
        good = {"doctor": (0, 1), "verify": (0, 3)}.get(words[0], (0,))
        assert done.returncode in good, f"{argv}\n{done.stdout}\n{done.stderr}"
        assert "is not installed" not in done.stderr.replace("tcmalloc is not installed", "")


def test_it_runs_as_a_module_too_and_bears_the_version_that_was_built(
    run: Run, wheel: Path, tmp_path: Path
) -> None:
    version = wheel.name.split("-")[1]
    for by in (("cputune",), ("python", "-m", "cputune")):
        assert run("--version", cwd=tmp_path, by=by).stdout == f"cputune {version}\n"


def test_every_extra_is_declared_and_what_it_asks_for_goes_together(home: Path) -> None:
    """What pip would find: names that exist, in versions that this environment has."""
    (metadata,) = home.glob("lib/python*/site-packages/cputune-*.dist-info")
    found = importlib.metadata.PathDistribution(metadata)
    extras = set(found.metadata.get_all("Provides-Extra") or ())
    assert extras >= {"tune", "lora", "report", "verify", "all"}
    every = {str(name): _of_extra(found.requires or [], str(name)) for name in extras}
    parts = set().union(*(every[name] for name in extras - {"all"}))
    for wanted in parts:
        one = Requirement(wanted)
        assert one.specifier.contains(importlib.metadata.version(one.name), prereleases=True)
    assert every["all"] == parts


def _of_extra(requirements: list[str], extra: str) -> set[str]:
    """The lines of metadata that an extra adds, without their markers."""
    lines = [Requirement(line) for line in requirements if "extra ==" in line]
    asked = [line for line in lines if line.marker and line.marker.evaluate({"extra": extra})]
    return {str(line).partition(";")[0].strip() for line in asked}


@pytest.mark.parametrize("kind", ["tag", "no tag", "no git"])
def test_the_version_is_the_tag_and_a_tree_without_one_builds_too(
    kind: str, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(HERE / name, tree)
    for name in ("cputune", "docs", "recipes"):
        shutil.copytree(HERE / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    me = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        if kind != "no git":
            subprocess.run(["git", *me, *words], cwd=tree, check=True)
    if kind == "tag":
        subprocess.run(["git", "tag", "v3.2.1"], cwd=tree, check=True)
    if kind == "no git":
        (built,) = _build(tmp_path / "out", "--wheel", of=tree).glob("*.whl")
        assert built.name.split("-")[1] == "0.1.0.dev0"
        return
    version = ran([sys.executable, "-m", "hatchling", "version"], cwd=tree).stdout.strip()
    if kind == "no tag":
        assert version.startswith("0.1.0.dev1+g")
    else:
        assert version == "3.2.1"
