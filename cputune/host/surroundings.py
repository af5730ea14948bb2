"""Looks at what surrounds a launch: its folders, what hides its modules, names of nothing.

A module of the training stack is looked for as Python would, and never imported.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from cputune.host.base import Place, Stray, Surroundings
from cputune.host.files import head, names
from cputune.host.interpreter import Interpreter, shebang

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
_OVERRIDES = re.compile(r"lib(torch\w*|c10|shm)\.so|lib(gomp|stdc\+\+)\.so\.[\d.]+")
_HOOKS = r"__editable__.*\.(pth|py)$|easy-install\.pth$|_\w+\.pth$|\w+\.egg-link$"
"""What makes an install editable."""
_BINDINGS = ("oneccl_bindings_for_pytorch", "torch_ccl")
_TAG = r"^Tag: \S+?_(x86_64|aarch64|arm64|ppc64le)$"
"""A wheel's instruction set."""
_SYSTEM = ("/usr/lib", "/lib", "/usr/local/lib")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_ANSWER_SECONDS = 1.0
_HEAD_BYTES = 1 << 16


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
        strays=(
            *_shadows(put_first, site),
            *_unlike_metadata(own),
            *_libraries(variables, python.prefix, site),
        ),
        names_nothing=(*_names_nothing(variables), *_dead_scripts(python.prefix)),
        ports_taken=tuple(_ports_taken(variables)),
    )


def _listed(variables: Mapping[str, str], name: str) -> list[str]:
    return [os.path.abspath(path) for path in variables.get(name, "").split(":") if path]


def _places(variables: Mapping[str, str]) -> Iterator[Place]:
    home = variables.get("HOME") or os.path.expanduser("~")
    cache = variables.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    named = {
        "HOME": home,
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


def _unlike_metadata(paths: Sequence[str]) -> Iterator[Stray]:
    """Packages that differ from their metadata, and those that have none."""
    told: dict[str, tuple[str, str]] = {}
    editable: set[str] = set()
    for path in paths:
        for entry in names(path):
            stem, suffix = os.path.splitext(entry)
            name, _, version = stem.partition("-")
            name = re.sub(r"[-.]", "_", name.lower())
            if suffix in (".dist-info", ".egg-info") and name in STACK:
                told.setdefault(name, (f"{path}/{entry}", re.sub(r"-py\d.*$", "", version)))
            elif re.match(_HOOKS, entry):
                editable |= {one for one in STACK if one in entry or entry == "easy-install.pth"}
                yield from _dead_editable(f"{path}/{entry}")
            elif entry in _BINDINGS and not os.path.isfile(f"{path}/{entry}/env/setvars.sh"):
                yield Stray(name=entry, path=f"{path}/{entry}", how="no env/setvars.sh")
    for name in STACK:
        # A program of the same name may lie beside the script that runs: bin/accelerate.
        places = (p for p in paths if os.path.isdir(f"{p}/{name}") or _module_at(p, name))
        where = next(places, None)
        if name in told:
            yield from _lies(name, *told[name], where, editable=name in editable)
        elif where is not None and _module_at(where, name) and name in ("torch", "transformers"):
            version = _own_version(f"{where}/{name}")
            yield Stray(name=name, path=f"{where}/{name}", how=f"no metadata {version}".strip())


def _lies(
    name: str, metadata: str, version: str, where: str | None, *, editable: bool
) -> Iterator[Stray]:
    package = f"{where or os.path.dirname(metadata)}/{name}"
    tag = re.search(_TAG, _text(f"{metadata}/WHEEL"), re.MULTILINE)
    if tag and tag[1] != platform.machine():
        yield Stray(name=name, path=package, how=f"built for {tag[1]}")
    if where is None:
        if not editable and name in STACK[:9]:
            yield Stray(name=name, path=package, how="no files")
    elif os.path.isdir(package) and not os.path.isfile(f"{package}/__init__.py"):
        yield Stray(name=name, path=package, how="no __init__.py")
    elif (own := _own_version(package)) and version and own.split("+")[0] != version.split("+")[0]:
        yield Stray(name=name, path=package, how=f"says {own}, its metadata {version}")


def _own_version(package: str) -> str:
    for file in ("version.py", "__init__.py"):
        found = re.search(
            r"^__version__ = ['\"]([\w.+!-]{1,40})['\"]", _text(f"{package}/{file}"), re.M
        )
        if found:
            return found[1]
    return ""


def _text(path: str) -> str:
    return head(path, _HEAD_BYTES).decode(errors="replace")


def _dead_editable(path: str) -> Iterator[Stray]:
    """Folders that are gone, of an editable install (PEP 660: a .pth file, or a finder's map)."""
    text = _text(path)
    named = re.findall(r"'[^']+': '(/[^']+)'", text) if path.endswith(".py") else []
    named += [line.strip() for line in text.splitlines() if line.startswith("/")]
    for folder in named:
        if not os.path.exists(folder):
            yield Stray(name=os.path.basename(path), path=folder, how="editable, gone")


def _libraries(variables: Mapping[str, str], prefix: str, site: Sequence[str]) -> Iterator[Stray]:
    """Libraries that ld.so takes from LD_LIBRARY_PATH before those that torch brings."""
    own = tuple(os.path.realpath(path) for path in (prefix, *site))
    for folder in _listed(variables, "LD_LIBRARY_PATH"):
        real = os.path.realpath(folder)
        if real.startswith((*own, *_SYSTEM)):
            continue
        for name in filter(_OVERRIDES.fullmatch, names(folder)):
            path = f"{folder}/{name}"
            whole = head(path, 4) == b"\x7fELF"
            if not whole or name.startswith(("libtorch", "libc10", "libshm")):
                how = "LD_LIBRARY_PATH" if whole else "LD_LIBRARY_PATH, no library"
                yield Stray(name=name, path=path, how=how)


def _names_nothing(variables: Mapping[str, str]) -> Iterator[str]:
    address = variables.get("MASTER_ADDR", "").strip()
    if address and _resolves(address) is False:
        yield "MASTER_ADDR"
    for name in _PROXIES:
        text = variables.get(name) or variables.get(name.lower()) or ""
        if text and not _answers(text):
            yield name if variables.get(name) else name.lower()
    # Python sets LC_CTYPE=C.UTF-8 itself where the locale is not there (PEP 538).
    chosen = ("LC_ALL",) if variables.get("LC_ALL") else ("LC_CTYPE", "LANG")
    for name in chosen:
        if variables.get(name) and not _has_locale(variables[name]):
            yield name


def _resolves(name: str) -> bool | None:
    """Whether a host's name has an address; None where the answer takes too long."""
    if re.fullmatch(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:.]*|localhost", name):
        return True
    try:
        done = subprocess.run(
            ("getent", "ahosts", name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.returncode != 2  # exit status of getent(1): the key is not in the database


def _answers(proxy: str) -> bool:
    """Whether something accepts connections there; true where that cannot be found out."""
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return True
    if not host or _resolves(host) is None:
        return True
    if _resolves(host) is False:
        return False
    try:
        socket.create_connection((host, port or 80), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _has_locale(name: str) -> bool:
    """Whether the C library has this locale; it is not set."""
    if name.split(".")[0] in ("C", "POSIX") or sys.platform != "linux":
        return True
    import ctypes

    library = ctypes.CDLL(None)
    library.newlocale.restype = ctypes.c_void_p
    library.newlocale.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    library.freelocale.argtypes = (ctypes.c_void_p,)
    found = library.newlocale(1, name.encode(errors="replace"), None)  # LC_CTYPE_MASK is 1
    if found:
        library.freelocale(found)
    return bool(found)


def _dead_scripts(prefix: str) -> Iterator[str]:
    """Launchers of a moved environment: their first line names a Python that is gone."""
    for name in ("torchrun", "accelerate"):
        program = os.path.join(prefix, "bin", name)
        interpreter = shebang(program)
        if interpreter and os.path.isabs(interpreter) and not os.path.exists(interpreter):
            yield program


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
