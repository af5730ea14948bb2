"""Shared libraries that can be preloaded: allocators and OpenMP runtimes, by real path."""

from __future__ import annotations

import re

from cputune.facts import Library
from cputune.probing._look import Look

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
_INSIDE_SITE_PACKAGES = ("torch/lib", "oneccl_bindings_for_pytorch/lib")
_BUNDLE = re.compile(r"\w+\.libs|\w*(tc|je|mi)malloc\w*")
"""What wheels bring: auditwheel's folders (scikit_learn.libs) and packaged allocators."""


def is_looked_for(name: str) -> bool:
    """Whether a name in a directory is that of such a library, or of a folder with some."""
    return bool(_BUNDLE.fullmatch(name)) or any(pattern.fullmatch(name) for _, pattern in _PATTERNS)


def read_libraries(look: Look, site_packages: tuple[str, ...]) -> tuple[Library, ...]:
    """Find them, in the order in which a person would choose: own environment, then system.

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
        wanted += [f"{site}/{inside}" for inside in _INSIDE_SITE_PACKAGES]
        for bundle in filter(_BUNDLE.fullmatch, look.names(site)):
            wanted += [f"{site}/{bundle}", f"{site}/{bundle}/lib"]
    wanted += SYSTEM_DIRECTORIES
    return tuple(dict.fromkeys(path.rstrip("/") for path in wanted))
