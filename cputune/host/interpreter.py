"""Which Python trains: the one that runs us, or another that is asked in a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from cputune.errors import UsageError

ANSWER_SECONDS = 20.0
QUESTION = (
    "import json, sys; "
    "print(json.dumps([sys.version.split()[0], sys.prefix, [p for p in sys.path if p]]))"
)


ELSEWHERE = "import sys; sys.path = [p for p in sys.path if p]\n"
"""Put before the code of ``python -c``, which would import from the working folder first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python: its program, version, ``sys.prefix`` and ``sys.path``."""

    executable: str
    version: str
    prefix: str
    paths: tuple[str, ...]


def this_interpreter() -> Interpreter:
    """The one that runs us."""
    version = ".".join(map(str, sys.version_info[:3]))
    paths = tuple(sys.path)
    return Interpreter(executable=sys.executable, version=version, prefix=sys.prefix, paths=paths)


def other_interpreter(path: str) -> Interpreter:
    """A Python by its path, or by that of its virtual or conda environment.

    It is started once and says where its packages lie; none of them is imported. Raises
    UsageError where it is no Python.
    """
    program = os.path.join(path, "bin", "python") if os.path.isdir(path) else path
    try:
        done = subprocess.run(
            (program, "-c", ELSEWHERE + QUESTION),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
        version, prefix, paths = json.loads(done.stdout)
        return Interpreter(
            executable=program,
            version=str(version),
            prefix=str(prefix),
            paths=tuple(map(str, paths)),
        )
    except OSError as error:
        said = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        said = f"it gave no answer in {ANSWER_SECONDS:.0f} seconds"
    except (ValueError, TypeError):
        lines = done.stderr.strip().splitlines()
        said = lines[-1][:200] if lines else "it does not answer as Python does"
    raise UsageError(
        f"{program} is no Python that can be asked: {said}",
        hint="give a python program, or the directory of a virtual environment",
    )
