"""A first look at a script, before anything of it runs: what cannot be trained is refused."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from cputune.errors import UsageError
from cputune.host import module_file, read_document

EXAMPLE = "after -- comes the script itself, then its arguments: -- train.py --epochs 3"
MOST_BYTES = 4 << 20
"""Of a script; the longest of the transformers examples has 60 KiB."""

SHARDED = ("--deepspeed", "--fsdp", "--fsdp_config", "--fsdp-config")


def require_trainable(argv: Sequence[str]) -> None:
    """Raise UsageError where python cannot run this, or no plan for CPUs can.

    ``argv`` is a script or ``-m`` and a module, with its arguments.
    """
    _refuse_sharded(argv)
    path = script_file(argv)
    if path is None:
        return
    text = _text_of(path)
    if text is None:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own words: python says it too
            ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"{path}{line}: {what}", hint="python cannot run this file either; mend it first"
        ) from error


def script_text(argv: Sequence[str]) -> str:
    """The text of the script; "" where it has none that can be read (a zip, a C module)."""
    path = script_file(argv)
    return ("" if path is None else _text_of(path)) or ""


def script_file(argv: Sequence[str]) -> Path | None:
    """The file that python would run; None where only python can know."""
    if argv[0] != "-m":
        return _runnable(Path(argv[0]))
    name = argv[1]
    if not re.fullmatch(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*", name):
        raise UsageError(
            f"{name!r} is no name of a module",
            hint="-m package.train, with dots and without .py",
        )
    found = module_file(name)
    if found is None:
        raise UsageError(
            f"there is no module {name!r} here",
            hint=f"it is looked for in {os.getcwd()} and among the installed packages",
        )
    return Path(found)


def _runnable(path: Path) -> Path:
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(
                f"{str(path)!r} is a directory without __main__.py",
                hint=f"give the script in it: {EXAMPLE}",
            )
        return path / "__main__.py"
    if not path.exists():
        raise UsageError(f"there is no script {str(path)!r}", hint=EXAMPLE)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{path.name} is a notebook, and trials need a script",
            hint=f"jupyter nbconvert --to script {path.name}",
        )
    return path


def _text_of(path: Path) -> str | None:
    """The text of a file of Python; None for a zip archive and for bytecode, which run too."""
    try:
        return read_document(path, most_bytes=MOST_BYTES)
    except OSError as error:
        head = _head(path)
        if head.startswith(b"PK\x03\x04") or path.suffix == ".pyc":
            return None
        if re.match(rb"(?:#.*\n)?#.*coding[:=]", head):
            return None  # Python reads it in its own encoding
        if head and b"\0" in head:
            raise UsageError(
                f"{str(path)!r} is a binary, no Python script", hint=EXAMPLE
            ) from error
        raise UsageError(
            f"cannot read the script {str(path)!r}: {error.strerror}", hint=EXAMPLE
        ) from error


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(1024)
    except OSError:
        return b""


def _refuse_sharded(argv: Sequence[str]) -> None:
    for position, word in enumerate(argv):
        name, _, value = word.partition("=")
        following = "".join(argv[position + 1 : position + 2])
        if name in SHARDED and (value or following) not in ("", "''", "None"):
            raise UsageError(
                f"{name} divides a model over accelerators; on CPUs each rank holds all of it",
                hint=f"leave {name} and its value out of the script's arguments",
            )
