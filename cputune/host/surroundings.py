"""Examines what surrounds a launch: folders, modules that hide others, ports, files of the model.

Modules are searched as Python does, but never imported.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cputune.host.files import names
from cputune.host.interpreter import Interpreter

_STACK = """
    torch transformers accelerate datasets peft trl tokenizers safetensors huggingface_hub numpy
    evaluate packaging regex requests tqdm yaml psutil
"""
# Modules that a Trainer imports if they are installed.
STACK = frozenset(_STACK.split())
_STANDARD = """
    argparse array ast asyncio base64 bisect bz2 calendar cmath colorsys concurrent configparser
    contextlib contextvars copy csv ctypes dataclasses datetime decimal difflib dis email filecmp
    fractions functools getpass gettext glob gzip hashlib heapq hmac http inspect ipaddress json
    linecache locale logging lzma math mimetypes mmap multiprocessing numbers pathlib pickle
    pickletools platform pprint profile pstats pydoc queue random resource runpy secrets select
    selectors shlex shutil signal socket ssl statistics string struct subprocess tarfile tempfile
    textwrap threading timeit token tokenize traceback tty types typing unittest urllib uuid
    warnings weakref xml zipfile zlib zoneinfo
"""
# Modules of Python that importing torch and transformers loads (2.13 and 5.23).
STANDARD = frozenset(_STANDARD.split())
_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
# If they are set, these caches are not below HF_HOME.
_FOLDERS = ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCHINDUCTOR_CACHE_DIR")
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder that a variable or an option names, or its default.

    ``writable`` is about it, or its nearest existing parent. ``free_files`` is the number of files
    that the file system can still create, None without a limit.
    """

    variable: str
    path: str
    exists: bool
    writable: bool
    free_bytes: int
    free_files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A module of yours that is imported instead of the intended one; ``how``: ``PYTHONPATH``,
    ``the folder of the script``.
    """

    name: str
    path: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What surrounds a launch, outside of its command.

    ``prefix`` is that of the examined Python. ``ports_taken`` are ports of the launch on which
    another process listens. ``model_bytes`` is the size of the model's weights, if they are on this
    machine. ``held_bytes`` is the peak memory of a rank from an earlier tuning. ``mpi_left_over``:
    variables of an MPI launcher are set, but none is above this process. In a container, whose
    first process may be started by one, also a shell above has to lack them.
    ``address_unknown``: MASTER_ADDR is a host name without an address here. ``unreachable``: the
    address of rank 0, and why a connection to it fails. ``loopback_fails``: why one from this
    machine to itself fails.
    """

    prefix: str = ""
    places: tuple[Place, ...] = ()
    strays: tuple[Stray, ...] = ()
    ports_taken: tuple[int, ...] = ()
    model_bytes: int | None = None
    held_bytes: int | None = None
    mpi_left_over: bool = False
    address_unknown: bool = False
    unreachable: str = ""
    loopback_fails: str = ""

    def place(self, variable: str) -> Place | None:
        return next((place for place in self.places if place.variable == variable), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What to examine of a launch.

    ``folder`` is the first folder in which Python searches, empty for the working folder.
    ``output`` is the folder for its output, ``model`` the name or the folder of the weights.
    ``address`` is that of rank 0, if an option names it.
    """

    folder: str = ""
    port: str = ""
    address: str = ""
    output: str = ""
    model: str = ""


def look_around(python: Interpreter, variables: Mapping[str, str], launch: Around) -> Surroundings:
    """Examine what surrounds a launch on this machine."""
    absolute = [path for path in python.paths if os.path.isabs(path)]
    first, how = launch.folder, "the folder of the script"
    if not first:
        first, how = _working_folder(), "the working folder"
    put_first = [(how, first)]
    put_first += [("PYTHONPATH", path) for path in _listed(variables.get("PYTHONPATH", ""))]
    strange = {os.path.realpath(path) for _, path in put_first}
    site = [path for path in absolute if os.path.realpath(path) not in strange]
    cache = _cache(variables)
    address = launch.address or variables.get("MASTER_ADDR", "").strip()
    numbers = _addresses_of(address)
    unreachable = ""
    if numbers:
        port = launch.port or variables.get("MASTER_PORT", "")
        unreachable = _why_unreachable(address, numbers[0], port)
    return Surroundings(
        prefix=os.path.realpath(python.prefix),
        places=tuple(_places(variables, cache, launch.output)),
        strays=tuple(_shadows(put_first, site)),
        ports_taken=tuple(filter(_is_taken, _ports(launch.port, variables))),
        model_bytes=_model_bytes(launch.model, variables.get("HF_HUB_CACHE") or f"{cache}/hub"),
        mpi_left_over=_mpi_left_over(variables),
        address_unknown=numbers == [],
        unreachable=unreachable,
        loopback_fails=_why_loopback_fails(),
    )


_LAUNCHERS = re.compile(
    r"mpirun|mpiexec|orterun|orted|prterun|prted|prun|hydra|pmi_proxy|slurmstepd|srun|mpispawn|jsrun"
)
_SHELLS = re.compile(r"-?(?:ba|da|z|k|c|tc|fi)?sh")
_OF_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_MOST_PARENTS = 64  # processes above this one; a launcher is nearer


def _mpi_left_over(variables: Mapping[str, str]) -> bool:
    """Whether variables of an MPI launcher are set without such a launcher among the parents."""
    names = [name for name in _OF_MPI if variables.get(name)]
    if not names:
        return False
    pid = os.getppid()
    for _ in range(_MOST_PARENTS):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, _, rest = file.read().rpartition(")")
        except OSError:
            return False
        if _LAUNCHERS.match(head.partition("(")[2]):
            return False
        if _SHELLS.fullmatch(head.partition("(")[2]) and _starts_without(pid, names):
            return True
        pid = int(rest.split()[1])
        if pid <= 0:
            return not _in_container()
    return False


def _starts_without(pid: int, names: Sequence[str]) -> bool:
    """Whether a process was certainly started without these variables."""
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
            started = file.read().split("\0")
    except OSError:
        return False
    return bool(started[0]) and not any(one.partition("=")[0] in names for one in started)


def _in_container() -> bool:
    return os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")


RESOLVE_SECONDS = 1.0  # for the answer of a name server


def _addresses_of(name: str) -> list[str] | None:
    """The addresses of a host; None if it is not a name, or no answer came in time."""
    if re.fullmatch(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:.]*", name):
        return [name]
    if not re.fullmatch(r"[A-Za-z][\w.-]*|\d[\w.-]*[A-Za-z][\w.-]*", name):
        return None
    answers: list[list[str]] = []

    def resolve() -> None:
        try:
            answers.append([str(one[4][0]) for one in socket.getaddrinfo(name, None)])
        except (OSError, UnicodeError):
            answers.append([])

    thread = threading.Thread(target=resolve, daemon=True)  # nothing ends getaddrinfo
    thread.start()
    thread.join(RESOLVE_SECONDS)
    if answers:
        return answers[0]
    return None


REACH_SECONDS = 1.0  # for an answer of rank 0; nothing listens there before the start
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def _why_unreachable(name: str, address: str, port: str) -> str:
    """``10.0.0.7: No route to host`` if no connection gets there; a refused one does."""
    if address.startswith("127.") or address == "::1":
        return ""
    number = 29500  # torchrun's default
    if port.isdigit() and 0 < int(port) < 1 << 16:
        number = int(port)
    problem = _why_not_connected(address, number)
    if problem:
        return f"{name}: {problem}"
    return ""


def _why_not_connected(address: str, port: int) -> str:
    family = socket.AF_INET
    if ":" in address:
        family = socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(REACH_SECONDS)
            connection.connect((address, port))
    except TimeoutError:
        return f"no answer within {REACH_SECONDS:g} s at port {port}"
    except OSError as error:
        if error.errno in _NO_WAY:
            return str(error.strerror)
    return ""


def _why_loopback_fails() -> str:
    """Why this machine cannot connect to itself; empty if it can."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            return _why_not_connected("127.0.0.1", server.getsockname()[1])
    except OSError as error:
        if error.errno in _NO_WAY:
            return str(error.strerror)
    return ""


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def _listed(paths: str) -> list[str]:
    return [os.path.abspath(path) for path in paths.split(":") if path]


def _cache(variables: Mapping[str, str]) -> str:
    home = variables.get("HOME") or os.path.expanduser("~")
    cache = variables.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return variables.get("HF_HOME") or os.path.join(cache, "huggingface")


def _places(variables: Mapping[str, str], cache: str, output: str) -> Iterator[Place]:
    yield _place("HF_HOME", cache)
    yield _place("TMPDIR", variables.get("TMPDIR") or "/tmp")
    yield _place("/dev/shm", "/dev/shm")
    for name in _FOLDERS:
        if variables.get(name):
            yield _place(name, variables[name])
    if output:
        yield _place("--output_dir", output)
    for name in _ENVIRONMENTS:
        if variables.get(name):
            yield _place(name, os.path.realpath(variables[name]))


def _place(name: str, path: str) -> Place:
    path = os.path.expanduser(path)
    there = os.path.abspath(path)
    while not os.path.exists(there) and there != "/":
        there = os.path.dirname(there)
    writable = os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)
    free, files = 0, None
    try:
        stats = os.statvfs(there)
    except OSError:
        writable = False
    else:
        free = stats.f_frsize * stats.f_bavail
        if stats.f_files:
            files = stats.f_favail
    return Place(
        variable=name,
        path=path,
        exists=os.path.isdir(path),
        writable=writable and not there.startswith(("/proc", "/sys")),
        free_bytes=free,
        free_files=files,
    )


def _module_at(folder: str, name: str) -> str | None:
    """The file that ``import name`` takes from this folder. A namespace package has none."""
    for file in (f"{name}/__init__.py", f"{name}.py"):
        if os.path.isfile(os.path.join(folder, file)):
            return os.path.join(folder, file)
    return None


def _shadows(put_first: Sequence[tuple[str, str]], site: Sequence[str]) -> Iterator[Stray]:
    """Yield modules in folders that Python searches before those of the environment."""
    reported: set[str] = set()
    installed = {os.path.realpath(path) for path in site}
    for how, folder in put_first:
        if os.path.realpath(folder) in installed:
            continue
        inside = {entry.removesuffix(".py") for entry in names(folder)}
        metadata = {entry.partition("-")[0].lower() for entry in inside if "-info" in entry}
        for name in sorted((inside & (STANDARD | STACK)) - metadata - reported):
            file = _module_at(folder, name)
            meant = name in STANDARD or any(_module_at(path, name) for path in site)
            if file and meant:
                reported.add(name)
                yield Stray(name=name, path=file, how=how)


def _ports(typed: str, variables: Mapping[str, str]) -> list[int]:
    text = (typed or variables.get("MASTER_PORT", "")).strip()
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        return []
    if not 0 < int(text) < 1 << 16:
        return []
    return [int(text)]


def _is_taken(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _model_bytes(model: str, hub: str) -> int | None:
    """The bytes of the weights in a folder, or in the cache of a model's name."""
    if not model:
        return None
    snapshots = os.path.join(hub, "models--" + model.replace("/", "--"), "snapshots")
    folders = [model] + [os.path.join(snapshots, name) for name in names(snapshots)]
    for folder in folders:
        files = [os.path.join(folder, name) for name in names(folder)]
        for suffix in _WEIGHTS:  # a folder may have the same weights in both formats
            sizes = []
            for file in files:
                if file.endswith(suffix):
                    sizes.append(_size(file))
            if sum(sizes):
                return sum(sizes)
    return None


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
