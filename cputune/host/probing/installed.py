"""Finds Python packages, libraries that can be preloaded, and launchers.

Packages are read from their metadata and not imported. Only MPI launchers are started, to ask for
their version.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cputune.host import Command, Host, Package
from cputune.host.facts import HostFacts, Launcher, Library
from cputune.host.files import head
from cputune.host.probing._look import Look


def read_packages(look: Look) -> tuple[Package, ...]:
    """All distributions of the Python of the training, sorted by name."""
    packages = []
    for distribution in look.host.distributions():
        fact = f"packages.{distribution.name}"
        if not distribution.version:
            reason = f"the metadata of {distribution.name} contain no version"
            if distribution.location:
                reason += f" ({distribution.location})"
            look.not_known(f"{fact}.version", reason)
        if not distribution.location:
            reason = "the recording does not contain the location"
            if distribution.installer == "conda":
                reason = "conda does not record a location"
            look.not_known(f"{fact}.location", reason)
        packages.append(replace(distribution, build=_torch_build(look, distribution)))
    return tuple(packages)


def _torch_build(look: Look, distribution: Package) -> str | None:
    """What torch was built for, from torch/version.py: ``cpu``, ``cuda 13.0``, ``hip 6.4``.

    PyPI's CUDA wheels have no local version tag.
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
    # our name, file names; apt's tcmalloc has a version in its name and no plain link
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
# Folders in site-packages: those of auditwheel (scikit_learn.libs) and packaged allocators.
_BUNDLE = re.compile(r"\w+\.libs|\w*(tc|je|mi)malloc\w*")


# Names of such libraries and folders, as one pattern.
LOOKED_FOR = "|".join(
    f"(?:{pattern.pattern})" for pattern in [_BUNDLE] + [pattern for _, pattern in _PATTERNS]
)


def is_looked_for(name: str) -> bool:
    return bool(re.fullmatch(LOOKED_FOR, name))


def read_libraries(look: Look, site_packages: tuple[str, ...]) -> tuple[Library, ...]:
    """Find the libraries of ``_PATTERNS``: first those of the environment, then the system's.

    Only directories are listed. Each real file counts once, and ``libtcmalloc`` comes before
    ``libtcmalloc_minimal``.
    """
    paths: set[str] = set()
    libraries: list[tuple[int, Library]] = []
    for directory in _directories(look, site_packages):
        for file in look.names(directory):
            for rank, (name, pattern) in enumerate(_PATTERNS):
                if not pattern.fullmatch(file):
                    continue
                path = look.host.real_path(f"{directory}/{file}")
                if path not in paths:
                    paths.add(path)
                    libraries.append((rank, Library(name=name, path=path)))
    libraries.sort(key=lambda entry: (entry[0], "_minimal" in entry[1].path))
    return tuple(library for _, library in libraries)


def _directories(look: Look, site_packages: tuple[str, ...]) -> tuple[str, ...]:
    environment = look.host.environment()
    prefixes = [environment.get("VIRTUAL_ENV"), environment.get("CONDA_PREFIX")]
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

# A program that asks a daemon for its version may hang.
VERSION_TIMEOUT_SECONDS = 5.0

_DIALECTS = (
    # output of `mpirun --version`: dialect, pattern of the version
    ("intelmpi", r"Intel\(R\) MPI Library.*?Version\s+([\d.]+)"),
    ("mpich", r"HYDRA build details:.*?Version:\s+([\w.]+)"),
    ("openmpi", r"\((?:Open MPI|OpenRTE)\)\s+v?([\w.]+)"),
)


def read_launchers(look: Look) -> tuple[Launcher, ...]:
    """Find the launchers on PATH, and the version of the MPI ones, once per directory.

    Every MPI calls its launcher mpirun, so it has to be asked: the only child of a probe.
    """
    launchers = []
    answers: dict[str, tuple[str | None, str | None, str]] = {}
    for name in MPI_PROGRAMS + OTHER_PROGRAMS:
        path = look.host.which(name)
        if path is None:
            continue
        dialect, version = None, None
        if name in MPI_PROGRAMS:
            directory = path.rpartition("/")[0]
            if directory not in answers:
                answers[directory] = _version_of(look, path)
            dialect, version, reason = answers[directory]
            if dialect is None:
                look.not_known(f"launchers.{name}.dialect", reason)
                look.not_known(f"launchers.{name}.version", reason)
        launchers.append(Launcher(name=name, path=path, dialect=dialect, version=version))
    return tuple(launchers)


def _version_of(look: Look, path: str) -> tuple[str | None, str | None, str]:
    command = Command(argv=(path, "--version"), timeout_seconds=VERSION_TIMEOUT_SECONDS)
    try:
        completed = look.host.run(command)
    except OSError as error:
        return None, None, f"{path} cannot be started: {error.strerror or error}"
    if completed.returncode is None:
        seconds = f"{VERSION_TIMEOUT_SECONDS:.0f} seconds"
        return None, None, f"no answer from {path} --version in {seconds}"
    dialect, version = parse_version(completed.stdout + "\n" + completed.stderr)
    reason = f"{path} --version has unexpected output"
    if completed.returncode:
        reason = f"{path} --version ended with {completed.returncode}"
    return dialect, version, reason


def parse_version(text: str) -> tuple[str | None, str | None]:
    """Parse the output of ``mpirun --version``. Two None if it is not from an MPI.

    Open MPI 4 and 5 have different options.
    """
    for dialect, pattern in _DIALECTS:
        match = re.search(pattern, text, re.DOTALL | re.MULTILINE)
        if match:
            version = match[1]
            if dialect == "openmpi":
                major = version.partition(".")[0]
                dialect = "openmpi4"
                if major.isdigit() and int(major) >= 5:
                    dialect = "openmpi5"
            return dialect, version
    return None, None


def dead_preloads(text: str, host: Host, facts: HostFacts) -> tuple[str, ...]:
    """Entries of LD_PRELOAD that ld.so cannot load, and so ignores.

    Paths that a recording does not have, and names that are not searched for, are not judged.
    """
    entries = dict.fromkeys(entry for entry in re.split(r"[:\s]+", text) if entry)
    return tuple(entry for entry in entries if _is_dead(entry, host, facts))


def _is_dead(entry: str, host: Host, facts: HostFacts) -> bool:
    if "$" in entry:
        # ld.so expands these three. A shell would already have expanded any other.
        return not re.search(r"\$\{?(LIB|ORIGIN|PLATFORM)\b", entry)
    if "/" in entry:
        gone = host.knows(entry) and not host.exists(entry)
        return gone or (host.live and not _is_library(entry))
    if not is_looked_for(entry):
        return False
    searched = set(SYSTEM_DIRECTORIES)
    searched.update(facts.environment.get("LD_LIBRARY_PATH", "").split(":"))
    for library in facts.libraries:
        directory, _, file = library.path.rpartition("/")
        if file.startswith(entry) and directory in searched:
            return False
    return True


def _is_library(path: str) -> bool:
    """Whether a file has the header of a library. True if it cannot be read."""
    try:
        return head(path, 4) in (b"", b"\x7fELF")
    except OSError:
        return True


# Variables with the path of a file that downloads need.
NAMING_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def absent_files(host: Host) -> tuple[str, ...]:
    """Those of ``NAMING_FILES`` that are set to a path that does not exist."""
    variables = host.environment()
    absent = []
    for name in NAMING_FILES:
        path = variables.get(name, "")
        if path.startswith("/") and host.knows(path) and not host.exists(path):
            absent.append(name)
    return tuple(absent)
