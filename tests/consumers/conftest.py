"""Real consumers: launchers installed side by side, and artefacts written for them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cputune import HostFacts, Plan, Workload, emit, probe
from cputune.records.claims import host_fingerprint

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import install  # noqa: E402
from launches import HOSTILE, TINY, result_of  # noqa: E402

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def here() -> HostFacts:
    """This machine with the variables that are set here, which a launch removes.

    Without its own MPIs: each test puts one on PATH.
    """
    facts = probe(watched=False)
    others = [one for one in facts.launchers if one.dialect is None]
    return replace(facts, launchers=tuple(others))


@pytest.fixture
def write(tmp_path: Path, here: HostFacts) -> Write:
    """Write the files of a format as `cputune emit` does here; returns their directory."""

    def write_files(format: str, plan: Plan, workload: Workload, **options: object) -> Path:
        directory = tmp_path / "launch"
        directory.mkdir()
        options = {"python": sys.executable, "facts": here, **options}
        result = replace(result_of(plan, workload), host=host_fingerprint(here))
        for file in emit(result, format, **options):  # type: ignore[arg-type]
            path = directory / file.name
            path.write_text(file.text)
            path.chmod(0o755 if file.executable else 0o644)
        return directory

    return write_files


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """The recipe of a very small BERT."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(TINY)
    return Workload.from_recipe(str(path))


@pytest.fixture
def witness(tmp_path: Path) -> tuple[Workload, Callable[[], list[Mapping[str, object]]]]:
    """A script whose ranks write down what they saw, and a way to read it."""
    seen = tmp_path / "seen"
    seen.mkdir()
    argv = (str(HERE / "witness.py"), str(seen))
    workload = Workload.script(argv).observed(
        framework="trainer", global_batch_size=8, parses_arguments=False
    )
    workload = replace(workload, argv=(*argv, *HOSTILE))  # as words, not as secrets

    def read() -> list[Mapping[str, object]]:
        return [json.loads(path.read_text()) for path in sorted(seen.iterdir())]

    return workload, read


def installed(name: str) -> Path:
    """Where a launcher of install.PACKAGES lies.

    The small ones are installed when they are first needed; the others only by
    ``make test-consumers``.
    """
    if name not in install.DEFAULT and not install.installed(name):
        pytest.skip(f"{install.PACKAGES[name]} is not installed; `make test-consumers` does it")
    return install.install(name)


@pytest.fixture
def launcher_path(request: pytest.FixtureRequest) -> str:
    """PATH with one MPI first; the parameter is a name of install.PACKAGES."""
    return f"{installed(request.param) / 'bin'}:{os.environ['PATH']}"


@pytest.fixture
def older_accelerate(request: pytest.FixtureRequest) -> Path:
    """A directory for PYTHONPATH with an older accelerate; the parameter as above."""
    return installed(request.param)


@pytest.fixture
def environment() -> dict[str, str]:
    """Our environment with the interpreter of the tests, as a launch would find it."""
    return {**os.environ, "PYTHON": sys.executable}


SSH = """#!/bin/bash
echo "$@" >> {log}
while [[ $1 == -* ]]; do case $1 in -[plo]) shift 2 ;; *) shift ;; esac; done
mkdir -p "{temporary}/$1"
node="{temporary}/$1"
shift
exec env -i HOME="$HOME" PATH={path} TMPDIR="$node" bash -c "$*"
"""


@pytest.fixture
def through_ssh(
    launcher_path: str, environment: dict[str, str], tmp_path: Path
) -> Iterator[tuple[dict[str, str], Callable[[], str]]]:
    """An environment in which ssh stays here, and a way to read where it would have gone.

    Each node has a /tmp of its own, as nodes have: two daemons of Open MPI 4 that make the
    same session directory at once fail one time in many.
    """
    programs, log = tmp_path / "programs", tmp_path / "ssh.log"
    programs.mkdir()
    outer = {**environment, "PATH": f"{programs}:{launcher_path}"}
    with tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as temporary:
        text = SSH.format(log=log, path="/usr/bin:/bin", temporary=temporary)
        (programs / "ssh").write_text(text)
        (programs / "ssh").chmod(0o755)
        yield outer, lambda: log.read_text() if log.exists() else ""
