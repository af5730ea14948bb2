"""Finds the Python of the training, its modules and its scripts, without running any of them."""

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

# Seconds for a Python to start and answer. On a network disk it takes several. Assumed.
ANSWER_SECONDS = 20.0

QUESTION = (
    "import json, sys; "
    "print(json.dumps([sys.version.split()[0], sys.prefix, [p for p in sys.path if p]]))"
)


# Prefix of the code of ``python -c``, which would import from the working folder first.
ELSEWHERE = "import sys; sys.path = [p for p in sys.path if p]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python: its program, version, ``sys.prefix`` and ``sys.path``."""

    executable: str
    version: str
    prefix: str
    paths: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Whether it also runs cputune."""
        return self.executable == sys.executable

    def has_module(self, name: str) -> bool:
        """Whether it has a package of this name. The package is not imported."""
        if self.is_ours:
            return find_spec(name) is not None
        return PathFinder.find_spec(name, list(self.paths)) is not None

    def module_file(self, name: str) -> str | None:
        """The file that ``python -m NAME`` runs. The working directory is searched first.

        Parent packages are not imported, as ``importlib.util.find_spec`` would do. None if there is
        no such module, or if it is a package without ``__main__``.
        """
        path: list[str] | None = [os.getcwd()] + [folder for folder in self.paths if folder]
        parts = name.split(".")
        for number in range(1, len(parts) + 1):
            if path is None:
                return None
            spec = PathFinder.find_spec(".".join(parts[:number]), path)
            if spec is None:
                return None
            path = None
            if spec.submodule_search_locations is not None:
                path = list(spec.submodule_search_locations)
        if path is not None:
            spec = PathFinder.find_spec(f"{name}.__main__", path)
        if spec is None:
            return None
        return spec.origin

    def console_script(self, name: str) -> str | None:
        """The file of a console script in Python: one beside this Python, else the one on PATH."""
        beside = os.path.join(self.prefix, "bin")
        script = shutil.which(name, path=beside) or shutil.which(name)
        if script and shebang(script):
            return script
        return None


def this_interpreter() -> Interpreter:
    """The Python that runs cputune, with ``sys.path`` as any other program has it."""
    version = ".".join(map(str, sys.version_info[:3]))
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    early = {os.path.abspath(path) for path in filter(None, named)}
    # cputune puts the paths of PYTHONPATH last for itself: see cputune.__main__.
    paths = sorted(sys.path, key=lambda path: os.path.abspath(path) not in early)
    return Interpreter(
        executable=sys.executable, version=version, prefix=sys.prefix, paths=tuple(paths)
    )


def install_tuning(*, stack: bool) -> str:
    """The command that installs the packages for tuning, with the tool that installed cputune.

    With ``stack`` it includes the training packages, unless another Python has them (``--python``).
    """
    packages = ["optuna", "jinja2"]
    extra = "search"
    if stack:
        packages += ["torch", "transformers", "accelerate"]
        extra = "tune"
    return install_extra(extra, *packages)


def install_extra(extra: str, *packages: str) -> str:
    """The command that installs an extra of cputune, which consists of these packages."""
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx inject cputune {' '.join(packages)}"
    if os.path.exists(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv tool install --with {','.join(packages)} cputune"
    return f"pip install 'cputune[{extra}]'"


def shebang(program: str) -> str | None:
    """The Python in the first line of a console script. None if there is no Python in it."""
    first = head(program, 256).partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return None
    argv = first[2:].decode(errors="replace").split()
    return next((word for word in argv if "python" in os.path.basename(word)), None)


def other_interpreter(path: str) -> Interpreter:
    """A Python, given by its path or by that of its virtual or conda environment.

    It is started once to report the paths of its packages, which are not imported. Raises
    UsageError if it is not a Python.
    """
    if os.path.isdir(path):
        path = os.path.join(path, "bin", "python")
    program = os.path.abspath(path)
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
        problem = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        problem = f"no answer in {ANSWER_SECONDS:.0f} seconds"
    except (ValueError, TypeError):
        problem = "its output is not that of Python"
        lines = done.stderr.strip().splitlines()
        if lines:
            problem = lines[-1][:200]
    raise UsageError(
        f"{program} does not run as Python: {problem}",
        hint="give the path of a python program, or of a virtual environment",
    )
