"""What is installed: Python packages, libraries that can be preloaded, launchers.

Packages are read from their metadata and never imported; of launchers the MPI ones alone are
asked for their version.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cputune.host import Command, Host, Package
from cputune.host.facts import HostFacts, Launcher, Library
from cputune.host.files import head
from cputune.host.probing._look import Look


def read_packages(look: Look) -> tuple[Package, ...]:
    """Every distribution of the interpreter that trains, sorted by name."""
    found = []
    for distribution in look.host.distributions():
        if not distribution.version:
            look.not_known(
                f"packages.{distribution.name}.version",
                f"the metadata of {distribution.name} names no version"
                + (f" ({distribution.location})" if distribution.location else ""),
            )
        if not distribution.location:
            why = "the recording does not name the place"
            if distribution.installer == "conda":
                why = "conda keeps no place for it"
            look.not_known(f"packages.{distribution.name}.location", why)
        found.append(replace(distribution, build=_torch_build(look, distribution)))
    return tuple(found)


def _torch_build(look: Look, distribution: Package) -> str | None:
    """``cpu``, ``cuda 13.0``, ``hip 6.4``: what torch was built for, from torch/version.py.

    The version alone does not tell: the CUDA wheels of PyPI carry no local tag.
    """
    if distribution.name != "torch" or distribution.location is None:
        return None
    text = look.text(f"{distribution.location.rstrip('/')}/torch/version.py")
    if text is None:
        return None
    for kind in ("cuda", "hip", "xpu"):
        built = re.search(rf"^{kind}\b[^=\n]*=\s*'([\w.\-]{{1,40}})'", text, re.MULTILINE)
        if built:
            return f"{kind} {built[1]}"
    return "cpu"


_PATTERNS = (
    # name of ours, file names; apt's tcmalloc has a version in its name and no plain link
    ("tcmalloc", re.compile(r"libtcmalloc(_minimal)?\.so(\.[\d.]+)?")),
    ("jemalloc", re.compile(r"libjemalloc\.so(\.[\d.]+)?")),
    ("libiomp5", re.compile(r"libiomp5\.so")),
    ("libgomp", re.compile(r"libgomp(-[0-9a-f]+)?\.so(\.[\d.]+)*")),
    ("libccl", re.compile(r"libccl\.so(\.[\d.]+)?")),
)

SYSTEM_DIRECTORIES = (
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/powerpc64le-linux-gnu",
    "/usr/lib/s390x-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/opt/intel/oneapi/compiler/latest/lib",
)
INSIDE_SITE_PACKAGES = ("torch/lib", "oneccl_bindings_for_pytorch/lib")
_BUNDLE = re.compile(r"\w+\.libs|\w*(tc|je|mi)malloc\w*")
"""What wheels bring: auditwheel's folders (scikit_learn.libs) and packaged allocators."""


LOOKED_FOR = "|".join(f"(?:{pattern.pattern})" for pattern in (_BUNDLE, *(p for _, p in _PATTERNS)))
"""Names of such libraries, and of folders with some, as one pattern."""


def is_looked_for(name: str) -> bool:
    """Whether a name in a directory is that of such a library, or of a folder with some."""
    return bool(re.fullmatch(LOOKED_FOR, name))


def read_libraries(look: Look, site_packages: tuple[str, ...]) -> tuple[Library, ...]:
    """Find the libraries of ``_PATTERNS``: the environment's first, then the system's.

    The file lists of the directories are read, no linker cache and no child. Each real
    file counts once; ``libtcmalloc`` comes before ``libtcmalloc_minimal``.
    """
    seen: set[str] = set()
    found: list[tuple[int, Library]] = []
    for directory in _directories(look, site_packages):
        for file in look.names(directory):
            for rank, (name, pattern) in enumerate(_PATTERNS):
                if not pattern.fullmatch(file):
                    continue
                path = look.host.real_path(f"{directory}/{file}")
                if path not in seen:
                    seen.add(path)
                    found.append((rank, Library(name=name, path=path)))
    found.sort(key=lambda entry: (entry[0], "_minimal" in entry[1].path))
    return tuple(library for _, library in found)


def _directories(look: Look, site_packages: tuple[str, ...]) -> tuple[str, ...]:
    environment = look.host.environment()
    prefixes = [environment.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    prefixes += [path.partition("/lib/python")[0] for path in site_packages]
    wanted = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    wanted += [f"{prefix}/lib" for prefix in prefixes if prefix]
    for site in site_packages:
        wanted.append(site)
        wanted += [f"{site}/{inside}" for inside in INSIDE_SITE_PACKAGES]
        for bundle in filter(_BUNDLE.fullmatch, look.names(site)):
            wanted += [f"{site}/{bundle}", f"{site}/{bundle}/lib"]
    wanted += SYSTEM_DIRECTORIES
    return tuple(dict.fromkeys(path.rstrip("/") for path in wanted))


MPI_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra")
OTHER_PROGRAMS = ("torchrun", "accelerate", "srun", "sbatch", "numactl", "kubectl", "conda")

VERSION_TIMEOUT_SECONDS = 5.0
"""A program that asks a daemon for its version may hang."""

_DIALECTS = (
    # what `mpirun --version` says: dialect, pattern of the version
    ("intelmpi", r"Intel\(R\) MPI Library.*?Version\s+([\d.]+)"),
    ("mpich", r"HYDRA build details:.*?Version:\s+([\w.]+)"),
    ("openmpi", r"\((?:Open MPI|OpenRTE)\)\s+v?([\w.]+)"),
)


def read_launchers(look: Look) -> tuple[Launcher, ...]:
    """Find the launchers on PATH, and ask the MPI ones for their version, once for each directory.

    That child is the only one that probing starts. The name tells nothing: every MPI
    calls its launcher mpirun.
    """
    found = []
    asked: dict[str, tuple[str | None, str | None, str]] = {}
    for name in (*MPI_PROGRAMS, *OTHER_PROGRAMS):
        path = look.host.which(name)
        if path is None:
            continue
        dialect, version = None, None
        if name in MPI_PROGRAMS:
            directory = path.rpartition("/")[0]
            if directory not in asked:
                asked[directory] = _ask(look, path)
            dialect, version, reason = asked[directory]
            for fact in ("dialect", "version") if dialect is None else ():
                look.not_known(f"launchers.{name}.{fact}", reason)
        found.append(Launcher(name=name, path=path, dialect=dialect, version=version))
    return tuple(found)


def _ask(look: Look, path: str) -> tuple[str | None, str | None, str]:
    """Dialect and version, or why they are not known."""
    command = Command(argv=(path, "--version"), timeout_seconds=VERSION_TIMEOUT_SECONDS)
    try:
        completed = look.host.run(command)
    except OSError as error:
        return None, None, f"{path} cannot be started: {error.strerror or error}"
    if completed.returncode is None:
        seconds = f"{VERSION_TIMEOUT_SECONDS:.0f} seconds"
        return None, None, f"{path} --version gave no answer in {seconds}"
    dialect, version = parse_version(completed.stdout + "\n" + completed.stderr)
    code = completed.returncode
    ended = f"ended with {code}" if code else "says nothing known"
    return dialect, version, f"{path} --version {ended}"


def parse_version(text: str) -> tuple[str | None, str | None]:
    """Dialect and version in what ``mpirun --version`` wrote; two None where it is no MPI.

    Open MPI 4 and 5 differ in their options and count as two dialects.
    """
    for dialect, pattern in _DIALECTS:
        found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
        if found:
            version = found[1]
            if dialect == "openmpi":
                major = version.partition(".")[0]
                dialect = "openmpi5" if major.isdigit() and int(major) >= 5 else "openmpi4"
            return dialect, version
    return None, None


def dead_preloads(text: str, host: Host, facts: HostFacts) -> tuple[str, ...]:
    """The entries of LD_PRELOAD that ld.so cannot load: it ignores them.

    ``facts`` hold the libraries that were found. Nothing is said of paths that a recording
    does not know of, nor of bare names that are not looked for.
    """
    entries = dict.fromkeys(entry for entry in re.split(r"[:\s]+", text) if entry)
    return tuple(entry for entry in entries if _is_dead(entry, host, facts))


def _is_dead(entry: str, host: Host, facts: HostFacts) -> bool:
    if "$" in entry:
        # ld.so expands these three; a shell would have expanded any other.
        return not re.search(r"\$\{?(LIB|ORIGIN|PLATFORM)\b", entry)
    if "/" in entry:
        gone = host.knows(entry) and not host.exists(entry)
        return gone or (host.live and not _is_library(entry))
    if not is_looked_for(entry):
        return False
    searched = (*facts.environment.get("LD_LIBRARY_PATH", "").split(":"), *SYSTEM_DIRECTORIES)
    places = [lib.path.rpartition("/") for lib in facts.libraries]
    return not any(file.startswith(entry) and place in searched for place, _, file in places)


def _is_library(path: str) -> bool:
    """Whether a file of this machine begins as libraries do; yes if it cannot be read."""
    try:
        return head(path, 4) in (b"", b"\x7fELF")
    except OSError:
        return True


NAMING_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name what downloads need."""


def absent_files(host: Host) -> tuple[str, ...]:
    """Those of ``NAMING_FILES`` that are set to a path where nothing is."""
    variables = host.environment()
    found = []
    for name in NAMING_FILES:
        path = variables.get(name, "")
        if path.startswith("/") and host.knows(path) and not host.exists(path):
            found.append(name)
    return tuple(found)
