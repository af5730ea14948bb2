"""macOS and Windows: recorded machines are judged, launches written, the rest refused in words.

Those systems are imitated: by their name, and without the modules and calls that they do not have.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hosts.builder import machine

RESULT = Path(__file__).parents[2] / "docs" / "terminal" / "result.json"
IMITATED = """
import asyncio, getpass, importlib.abc, logging, multiprocessing, os, pathlib, random, selectors
import shutil, signal, socket, subprocess, sys, tempfile, types, urllib.request, uuid
import click, msgspec, psutil, rich.console, yaml

GONE = {"win32": {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}, "darwin": set()}
CALLS = {"win32": ["fork", "geteuid", "getuid", "killpg", "statvfs", "setsid"], "darwin": []}
system = sys.argv.pop(1)


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in GONE[system]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in GONE[system]:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for name in [*(n for n in dir(os) if n.startswith("sched_")), *CALLS[system]]:
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGSTOP") if system == "win32" else ():
    delattr(signal, name)
sys.platform = system
from cputune.start import main
main()
"""


def cputune(system: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", IMITATED, system, *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_recorded_machines_are_judged_and_their_launches_written(
    tmp_path: Path, system: str
) -> None:
    machine(tmp_path / "m", sockets=2, cores=4)
    done = cputune(system, "doctor", "--root", "m", "--fail-on", "never", folder=tmp_path)
    assert (done.returncode, done.stdout.count("How sure: read from the recording")) == (0, 1)
    done = cputune(system, "emit", "--format", "slurm", "--root", "m", folder=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "launch" / "slurm.sh").is_file()
    done = cputune(system, "show", str(RESULT), folder=tmp_path)
    assert done.stdout.startswith("4.10 times as fast as today's launch")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_what_needs_linux_is_refused_in_words(tmp_path: Path, system: str) -> None:
    for command in ("tune", "run", "verify"):
        done = cputune(system, command, folder=tmp_path)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"error: {command} starts training processes" in done.stderr
    done = cputune(system, "doctor", folder=tmp_path)
    name = {"darwin": "macOS", "win32": "Windows"}[system]
    assert f"error: this machine runs {name}, and only Linux is looked at" in done.stderr
    assert "hint: --root DIR" in done.stderr
    done = cputune(system, folder=tmp_path)
    assert f"This machine cannot be looked at: this machine runs {name}" in done.stdout
    assert cputune(system, "tune", "--help", folder=tmp_path).returncode == 0
