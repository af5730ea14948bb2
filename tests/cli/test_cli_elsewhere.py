"""macOS and Windows: recorded machines are judged, launches written, the rest refused in words.

Those systems are imitated: by their name, and without the modules and calls that they do not have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from golden_texts import Golden
from hosts.builder import machine
from in_process import Ended, ran

from cputune import Result

RESULT = Path(__file__).parents[2] / "docs" / "terminal" / "result.json"
IMITATED = """
import asyncio, contextlib, getpass, importlib.abc, io, json, logging, multiprocessing, os
import pathlib, random, selectors, shutil, signal, socket, subprocess, sys, tempfile, types
import urllib.request, uuid
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
from cputune.__main__ import main

for words in json.loads(sys.argv.pop(1)):
    sys.argv[1:] = words
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([int(code or 0), *(s.buffer.getvalue().decode() for s in (out, err))]))
"""


def cputune(system: str, folder: Path, *commands: str) -> list[Ended]:
    """How each of the commands ends, one after the other in one process of that system."""
    words = json.dumps([command.split() for command in commands])
    argv = [sys.executable, "-c", IMITATED, system, words]
    done = ran(argv, cwd=folder)
    ended = [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(ended) == len(commands), done.stderr
    assert "Traceback" not in done.stderr + "".join(one.err for one in ended)
    return ended


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_recorded_machines_are_judged_and_their_launches_written(
    tmp_path: Path, system: str
) -> None:
    machine(tmp_path / "m", sockets=2, cores=4)
    commands = ("doctor --root m --fail-on never", "emit --format slurm --root m", f"show {RESULT}")
    judged, written, shown = cputune(system, tmp_path, *commands)
    assert (judged.code, judged.out.count("How sure: read from the recording")) == (0, 1)
    assert written.code == 0
    assert (tmp_path / "launch" / "slurm.sh").is_file()
    speedup = Result.load(RESULT).speedup
    assert f"Result     {speedup.ratio:.2f} times as fast as your current" in shown.out


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_what_needs_linux_is_refused_in_words(tmp_path: Path, system: str, golden: Golden) -> None:
    refused = ("tune", "run", "verify")
    *starting, doctor, helped = cputune(system, tmp_path, *refused, "doctor", "tune --help")
    for command, ended in zip(refused, starting, strict=True):
        assert (ended.code, ended.out) == (3, "")
        assert f"error: {command} starts training processes" in ended.err
    golden(doctor.err)
    assert helped.code == 0
