"""Commands that a test runs: ``cputune WORDS`` in its own process, any other in a child."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Ended(NamedTuple):
    """The exit code, and all that was written to either stream."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


def ran(argv: list[Any] | tuple[Any, ...], **more: Any) -> subprocess.CompletedProcess[str]:
    """A child that has ended, and all that it wrote; after four minutes it is killed."""
    return subprocess.run(argv, capture_output=True, text=True, **{"timeout": 250, **more})


def typed(
    command: str,
    cputune: Run,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cwd: Path,
    env: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """A line as it is typed in a shell; bash is started unless it is one cputune of plain words."""
    words = shlex.split(command)
    if words[0] != "cputune" or re.search(r"[|&;<>$`()*?~\n]", command):
        return ran(["bash", "-o", "pipefail", "-ec", command], cwd=cwd, env=env)
    with monkeypatch.context() as patched:
        patched.chdir(cwd)
        for name, value in env.items():
            patched.setenv(name, value)
        ended = cputune(*words[1:])
    return subprocess.CompletedProcess(words, ended.code, ended.out, ended.err)
