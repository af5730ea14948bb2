"""Looks at what surrounds a launch: its folders, what hides its modules, a port that is taken.

A module of the training stack is looked for as Python would, and never imported.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence

from cputune.host.base import Place, Stray, Surroundings
from cputune.host.files import names
from cputune.host.interpreter import Interpreter

STACK = (
    *("torch", "transformers", "accelerate", "datasets", "peft", "trl", "tokenizers"),
    *("safetensors", "huggingface_hub", "numpy", "evaluate", "packaging", "regex", "requests"),
    *("tqdm", "yaml", "psutil"),
)
"""Modules that a Trainer imports where they are installed."""
_STANDARD_NAMES = """
    argparse array ast asyncio base64 bisect bz2 calendar cmath colorsys concurrent configparser
    contextlib contextvars copy csv ctypes dataclasses datetime decimal difflib dis email filecmp
    fractions functools getpass gettext glob gzip hashlib heapq hmac http inspect ipaddress json
    linecache locale logging lzma math mimetypes mmap multiprocessing numbers pathlib pickle
    pickletools platform pprint profile pstats pydoc queue random resource runpy secrets select
    selectors shlex shutil signal socket ssl statistics string struct subprocess tarfile tempfile
    textwrap threading timeit token tokenize traceback tty types typing unittest urllib uuid
    warnings weakref xml zipfile zlib zoneinfo
"""
_STANDARD = frozenset(_STANDARD_NAMES.split())
"""The modules of Python's own library that importing torch and transformers loads (2.13 and
5.23)."""


def look_around(python: Interpreter, variables: Mapping[str, str], cwd: str) -> Surroundings:
    """The surroundings on this machine of what ``python`` would run from ``cwd``."""
    own = [path for path in python.paths if os.path.isabs(path)]
    put_first = [("the working folder", cwd)]
    put_first += [("PYTHONPATH", path) for path in _listed(variables, "PYTHONPATH")]
    strange = {os.path.realpath(path) for _, path in put_first}
    site = [path for path in own if os.path.realpath(path) not in strange]
    return Surroundings(
        prefix=os.path.abspath(python.prefix),
        places=tuple(_places(variables)),
        strays=tuple(_shadows(put_first, site)),
        ports_taken=tuple(_ports_taken(variables)),
    )


def _listed(variables: Mapping[str, str], name: str) -> list[str]:
    return [os.path.abspath(path) for path in variables.get(name, "").split(":") if path]


def _places(variables: Mapping[str, str]) -> Iterator[Place]:
    home = variables.get("HOME") or os.path.expanduser("~")
    cache = variables.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    named = {
        "HF_HOME": variables.get("HF_HOME") or os.path.join(cache, "huggingface"),
        "TMPDIR": variables.get("TMPDIR") or "/tmp",
        "VIRTUAL_ENV": variables.get("VIRTUAL_ENV"),
        "CONDA_PREFIX": variables.get("CONDA_PREFIX"),
    }
    for name, path in named.items():
        if path:
            yield _place(name, path, real=name in ("VIRTUAL_ENV", "CONDA_PREFIX"))


def _place(name: str, path: str, *, real: bool) -> Place:
    there = os.path.abspath(path)
    while not os.path.exists(there) and there != "/":
        there = os.path.dirname(there)
    try:
        stats = os.statvfs(there)
        free = stats.f_frsize * stats.f_bavail
    except OSError:
        free = 0
    writable = os.access(there, os.W_OK | os.X_OK) and not there.startswith(("/proc", "/sys"))
    return Place(
        variable=name,
        path=os.path.realpath(path) if real else path,
        exists=os.path.isdir(path),
        writable=writable,
        free_bytes=free,
    )


def _module_at(folder: str, name: str) -> str | None:
    """The file that ``import name`` takes from this folder; a namespace package has none."""
    for file in (f"{name}/__init__.py", f"{name}.py"):
        if os.path.isfile(os.path.join(folder, file)):
            return os.path.join(folder, file)
    return None


def _shadows(put_first: Sequence[tuple[str, str]], site: Sequence[str]) -> Iterator[Stray]:
    """Modules in folders that Python searches before those of the environment."""
    seen: set[str] = set()
    for how, folder in put_first:
        inside = {entry.removesuffix(".py") for entry in names(folder)}
        metadata = {entry.partition("-")[0].lower() for entry in inside if "-info" in entry}
        for name in sorted((inside & (_STANDARD | set(STACK))) - metadata - seen):
            file = _module_at(folder, name)
            elsewhere = name in _STANDARD or any(_module_at(path, name) for path in site)
            if file and elsewhere and os.path.realpath(folder) not in map(os.path.realpath, site):
                seen.add(name)
                yield Stray(name=name, path=file, how=how)


def _ports_taken(variables: Mapping[str, str]) -> Iterator[str]:
    port = variables.get("MASTER_PORT", "").strip()
    if not re.fullmatch(r"[0-9]{1,5}", port):
        return
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield "MASTER_PORT"
        except OverflowError:  # a port is below 65536
            return
