"""One fault after the other in a copy of the project, and the tests of its room against each.

pytest itself puts the tests that failed last first (``--failed-first``), and the first that fails
ends the try.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mutants.planting import Mutant
from mutants.rooms import Room

APART = "not consumer and not vm and not ipex and not matrix and not nodes and not fixes"
"""Tests that have a target of their own, and need what may not be there."""
OPTIONS = ("-x", "-q", "--failed-first", "-p", "no:randomly")
ALONE = ("--noconftest", "-o", "filterwarnings=")
MEMORY_BYTES = 8 << 30
"""Of one try: a fault may make a list without end."""


def noticed(copy: Path, module: str, mutants: Sequence[Mutant], room: Room) -> Iterator[bool]:
    """Of each of these faults of a module whether the tests notice it, or do not come to an end.

    Raises RuntimeError if one of them fails without any fault, or none is there.
    """
    left = [APART]
    if not room.torch:
        left.append("not torch")
    if not all(test.endswith(".py") for test in room.tests):  # a file is named for what it shows
        left.append("not slow")
    words = [*room.tests, "-m", " and ".join(left)]
    if room.alone:
        words += ALONE
    began = time.monotonic()
    code = _ran(copy, words, 3600.0)
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"without any fault, pytest {' '.join(words)} ends with {code}")
    limit_seconds = 10.0 + 3.0 * (time.monotonic() - began)
    place = copy / module
    before = place.read_text(encoding="utf-8")
    for mutant in mutants:
        place.write_text(mutant.source, encoding="utf-8")
        try:
            yield _ran(copy, words, limit_seconds) != pytest.ExitCode.OK
        finally:
            place.write_text(before, encoding="utf-8")


def _ran(copy: Path, given: Sequence[str], limit_seconds: float) -> int | None:
    """The exit code of pytest in the copy; None where it had to be ended."""
    variables = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", *OPTIONS, *given]
    with subprocess.Popen(
        words,
        cwd=copy,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_limit_memory,
    ) as child:
        try:
            return child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
