"""Where Python finds a module or a console script; nothing of either is run."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.machinery import PathFinder


def module_file(name: str) -> str | None:
    """The file that ``python -m NAME`` runs, looked for in the working directory first.

    Packages on the way are not imported, as ``importlib.util.find_spec`` would do. None
    where there is no such module, or where it is a package without ``__main__``.
    """
    path: list[str] | None = [os.getcwd(), *(place for place in sys.path if place)]
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        spec = None if path is None else PathFinder.find_spec(".".join(parts[:number]), path)
        if spec is None:
            return None
        inside = spec.submodule_search_locations
        path = None if inside is None else list(inside)
    if path is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", path)
    return None if spec is None or spec.origin is None else spec.origin


def console_script(name: str) -> str | None:
    """The file of a console script, a Python program: beside this Python, else on PATH."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=beside) or shutil.which(name)
    if found is None:
        return None
    try:
        with open(found, "rb") as file:
            first = file.readline(256)
    except OSError:
        return None
    return found if first.startswith(b"#!") and b"python" in first else None
