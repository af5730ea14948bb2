"""Run a training script with what a plan sets inside the training process.

    python -m cputune.apply plan.json [--launcher torch|mpi|slurm] [--bind offered] -- train.py ...

``cputune emit`` writes such lines, and ``plan.json``. With a launcher the process is a rank: it is
numbered and bound as ``rank.py`` does it. Several ranks end together and are compared while they
train. The script stays as it is; ``-m package.train`` names a module.

What this imports is the standard library and ``cputune.inside``: torch is loaded by the script.
Exit status 2: the words or the plan cannot be read; 3: the script cannot be run so; 5: the ranks
are apart.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cputune.inside import rank
from cputune.inside.applying.apart import DrawsPart
from cputune.inside.applying.ending import Ending, run_together
from cputune.inside.applying.force import Force
from cputune.inside.applying.guard import Guard
from cputune.inside.applying.parts import made
from cputune.inside.applying.run_script import main as run_with, refuse, run_script
from cputune.inside.applying.shared import Setting

SCHEMA = "cputune.plan/"
VERSION = 1
"""The newest schema of ``plan.json`` that is read; a newer one is refused."""

USAGE = "usage: python -m cputune.apply plan.json [--launcher torch|mpi|slurm] -- SCRIPT ARGUMENTS"


def main(argv: Sequence[str]) -> None:
    """Run the script of these words; ``argv`` as ``sys.argv`` has them."""
    if "--" not in argv[2:]:
        _fail(USAGE, "`cputune emit` writes the line")
    end = argv.index("--", 2)
    path, options, words = argv[1], argv[2:end], argv[end + 1 :]
    applied = applied_in(path)
    if not words or len(options) % 2:
        _fail(USAGE, "`cputune emit` writes the line")
    if "--launcher" in options:
        own = ["--cpus", str(applied.get("cpus", "")), "--compare", "no"]
        again = ["-m", "cputune.apply", path, "--", *words]
        program = [sys.executable, rank.__file__, *options, *own, "--", *again]
        os.execv(sys.executable, program)
    several = bool(applied.get("several", False))
    parts: list[Any] = [Ending()] if several else []
    if applied.get("guard", False):
        parts.append(Guard())
    try:
        force = Force(**applied.get("set", {}))
    except TypeError as error:
        _fail(f"{path} sets what this cputune does not know ({error})", _NEWER)
    if applied.get("draw") == "apart":
        parts.append(DrawsPart(Setting(force, refuse, _say)))
    sys.argv = ["cputune.apply", *words]
    run_with([*parts, *made(force, refuse, _say)], run_together if several else run_script)


def applied_in(path: str) -> Mapping[str, Any]:
    """What a plan sets inside a process: ``apply`` of a plan file, or the JSON text itself."""
    try:
        text = path if path.startswith("{") else Path(path).read_text(encoding="utf-8")
        document = json.loads(text)
    except (OSError, ValueError) as error:
        _fail(f"{path} cannot be read: {error}", "`cputune emit` writes it beside the launch")
    if path.startswith("{"):
        return dict(document)
    schema = str(document.get("schema", "")) if isinstance(document, dict) else ""
    number = schema[len(SCHEMA) :] if schema.startswith(SCHEMA) else ""
    if not number.isdigit():
        _fail(f"{path} is no plan: its schema is {schema!r}", "`cputune emit` writes plans")
    if int(number) > VERSION:
        _fail(f"{path} is of a newer cputune ({schema})", _NEWER)
    return dict(document.get("apply", {}))


_NEWER = "update cputune in this environment, or emit --self-contained"


def _say(text: str) -> None:
    """The first rank reports what is set."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"cputune: {text}\n")


def _fail(why: str, hint: str) -> NoReturn:
    sys.stderr.write(f"error: {why}\nhint: {hint}\n")
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv)
