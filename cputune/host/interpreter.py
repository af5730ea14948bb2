"""Finds the Python that trains, and its modules and scripts, without running any of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec

from cputune.errors import UsageError
from cputune.host.files import head

ANSWER_SECONDS = 20.0
"""For a Python to start and say what it is; on a network disk that takes seconds. Assumed."""

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
    """The Python that runs cputune, with the paths of any other program that it runs."""
    version = ".".join(map(str, sys.version_info[:3]))
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    early = {os.path.abspath(path) for path in filter(None, named)}
    # cputune itself looks there last: ``cputune.__main__``.
    paths = sorted(sys.path, key=lambda path: os.path.abspath(path) not in early)
    return Interpreter(
        executable=sys.executable, version=version, prefix=sys.prefix, paths=tuple(paths)
    )


_CHOSEN: list[Interpreter] = []


def train_with(path: str | None) -> None:
    """Let another Python train, of this process and all that it starts; None: the one that runs us.

    For a cputune that is installed apart from the training stack (pipx, uv tool). Raises
    UsageError where it is no Python.
    """
    _CHOSEN[:] = [] if path is None else [other_interpreter(path)]


def training_interpreter() -> Interpreter:
    """The Python that trains: the chosen one, else the one that runs cputune."""
    return _CHOSEN[0] if _CHOSEN else this_interpreter()


def training_python() -> str:
    """The program of the Python that trains."""
    return _CHOSEN[0].executable if _CHOSEN else sys.executable


def has_module(name: str) -> bool:
    """Whether the Python that trains finds a package of this name; it is not imported."""
    if not _CHOSEN:
        return find_spec(name) is not None
    return PathFinder.find_spec(name, list(_CHOSEN[0].paths)) is not None


def install_tuning(*, stack: bool) -> str:
    """The command that installs what tuning lacks, with the tool that has installed cputune here.

    With ``stack`` also the training stack, unless another Python has it (``--python``).
    """
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return "pipx inject cputune optuna jinja2" + " torch transformers accelerate" * stack
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        with_stack = ",torch,transformers,accelerate" * stack
        return f"uv tool install --with optuna,jinja2{with_stack} cputune"
    extra = "tune" if stack else "search"
    return f"pip install 'cputune[{extra}]'"


def install_extra(extra: str, *packages: str) -> str:
    """The command that installs an extra of cputune, which is these packages."""
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject cputune {' '.join(packages)}"
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv tool install --with {','.join(packages)} cputune"
    return f"pip install 'cputune[{extra}]'"


def install_beside(package: str) -> str:
    """The command that installs a package beside cputune, with the tool that has installed it."""
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject cputune {package}"
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv tool install --with optuna,jinja2 --with {package} cputune"
    return f"pip install {package}"


def shebang(program: str) -> str | None:
    """The Python of a console script, by its first line; None where it names none."""
    first = head(program, 256).partition(b"\n")[0]
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    return next((word for word in words if "python" in os.path.basename(word)), None)


def other_interpreter(path: str) -> Interpreter:
    """A Python by its path, or by that of its virtual or conda environment.

    It is started once and says where its packages lie; none of them is imported. Raises
    UsageError where it is no Python.
    """
    program = os.path.abspath(os.path.join(path, "bin", "python") if os.path.isdir(path) else path)
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


def module_file(name: str) -> str | None:
    """The file that ``python -m NAME`` runs, looked for in the working directory first.

    Packages on the way are not imported, as ``importlib.util.find_spec`` would do. None
    where there is no such module, or where it is a package without ``__main__``.
    """
    path: list[str] | None = [
        os.getcwd(),
        *(place for place in training_interpreter().paths if place),
    ]
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
    beside = os.path.join(training_interpreter().prefix, "bin")
    found = shutil.which(name, path=beside) or shutil.which(name)
    return found if found and shebang(found) else None
