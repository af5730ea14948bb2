"""Which launchers are there, and which dialect mpirun speaks: by its words, not its name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from rows import every_row

from cputune import HostFacts, probe
from cputune.host import LiveHost
from cputune.host.probing.installed import parse_version

SPOKEN = {
    # what the packages of PyPI and Debian print
    "intelmpi": (
        "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n"
        "Copyright 2003-2026, Intel Corporation.\n",
        "2021.18.1",
    ),
    "mpich": (
        "HYDRA build details:\n    Version:                                 4.0.2\n"
        "    Release Date:                            Thu Apr  7 12:34:45 CDT 2022\n",
        "4.0.2",
    ),
    "openmpi4": (
        "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
        "4.1.4",
    ),
    "openmpi5": (
        "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
        "5.0.11",
    ),
}


@every_row("dialect", SPOKEN)
def test_dialects(dialect: str) -> None:
    text, version = SPOKEN[dialect]

    assert parse_version(text) == (dialect, version)


def probed_with(monkeypatch: pytest.MonkeyPatch, directory: Path, **programs: str) -> HostFacts:
    for name, script in programs.items():
        path = directory / name
        path.write_text(script)
        path.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        return probe(LiveHost())


def test_a_launcher_that_hangs_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cputune.host.probing.installed.VERSION_TIMEOUT_SECONDS", 1.5)
    script = f"#!/bin/sh\ntrap '' INT\nsleep 60 & echo $! > {tmp_path}/child\nwait\nsleep 60\n"

    facts = probed_with(monkeypatch, tmp_path, mpirun=script)

    launcher = next(x for x in facts.launchers if x.name == "mpirun")
    assert (launcher.dialect, launcher.version) == (None, None)
    assert "no answer" in (facts.why_unknown("launchers.mpirun.dialect") or "")
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "State:\tZ" in Path(
            f"/proc/{child}/status"
        ).read_text(errors="replace"):
            break
        time.sleep(0.02)
    else:
        pytest.fail("the launcher's child lives on")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\nkill -9 $$\n", "ended with -9"),
        ("#!/bin/sh\nexit 3\n", "ended with 3"),
        ("#!/bin/sh\nprintf '\\377\\376'\n", "has unexpected output"),
        ("#!/no/such/interpreter\n", "cannot be started"),
    ],
)
def test_broken_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    facts = probed_with(monkeypatch, tmp_path, mpirun=script)

    assert reason in (facts.why_unknown("launchers.mpirun.dialect") or "")
