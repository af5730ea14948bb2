"""The smallest change that makes versions fit: to the IPEX era, or to today's stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from packaging.version import Version

from cputune.stack.fit import misfits
from cputune.stack.tables import DISTRIBUTIONS, REMEMBERED, Versions, load, minor
from cputune.stack.uses import Framework, ipex_use

# What is changed first where one change is as small as another: a small download first.
ORDER = ("ipex", "oneccl", "accelerate", "transformers", "numpy", "torch")

TODAY_FROM = {"torch": (2, 9), "transformers": (4, 57), "accelerate": (1, 13)}
"""The first minor releases that know nothing of IPEX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """Versions that fit: each package that changes, with its version, or None to remove it."""

    says: str
    changes: tuple[tuple[str, Version | None], ...]
    result: Versions

    def command(self) -> str | None:
        """The change as pip commands that can be pasted; None where nothing changes."""
        gone = [DISTRIBUTIONS[name] for name, version in self.changes if version is None]
        come = [(name, version) for name, version in self.changes if version is not None]
        parts = ["pip uninstall -y " + " ".join(gone)] if gone else []
        if come:
            parts.append("pip install " + " ".join(_requirement(*change) for change in come))
            elsewhere = {load().wheels[n] for n, v in come if not _on_pypi(n, v)}
            parts[-1] += "".join(f" -f {page}" for page in sorted(elsewhere))
        return " && ".join(parts) or None


def version_change(era: str, versions: Versions, *, complete: bool = False) -> VersionChange | None:
    """The smallest change to a stack of this era in which everything fits.

    Only packages that are there are changed or removed; with ``complete`` torch,
    transformers, accelerate and (for its era) IPEX are added where they are missing.
    None where this Python has no such stack.
    """
    trained = load().era(era)
    added = [name for name in trained.versions if complete and versions.get(name) is None]
    start = versions.changed(**{name: trained.versions[name] for name in added})
    present = [name for name in ORDER if start.get(name) is not None]
    must = {n for n in present if n in added or not _belongs(era, n, start.get(n))}
    for count in range(len(must), len(present) + 1):
        for names in combinations(present, count):
            if not must.issubset(names):
                continue
            for found in _solutions(era, start, names):
                changed = [n for n in reversed(ORDER) if versions.get(n) != found.get(n)]
                changes = tuple((name, found.get(name)) for name in changed)
                return VersionChange(says=trained.says, changes=changes, result=found)
    return None


def version_changes(versions: Versions) -> tuple[VersionChange, ...]:
    """To either era, the one with fewer packages first; one that this Python bars is left out."""
    found = (version_change(era.name, versions) for era in load().eras)
    return tuple(sorted(filter(None, found), key=lambda change: len(change.changes)))


@lru_cache(maxsize=REMEMBERED)
def advised_changes(versions: Versions) -> tuple[str, str | None]:
    """The changes to either era as a sentence, and the smaller one as a command.

    Where both change several packages, one package alone comes first, if that is enough.
    """
    found = [change for change in version_changes(versions) if change.changes]
    if all(len(change.changes) > 1 for change in found):
        found = [*_beside_this_torch(versions), *found]
    if not found:
        return "No stack in the tables has wheels for this Python; use Python 3.10 to 3.14.", None
    commands = [change.command() or "" for change in found]
    if versions.torch is not None and versions.torch.local == "cpu":
        # PyPI's torch brings the CUDA libraries.
        index = f" --extra-index-url {load().wheels['torch_cpu']}"
        commands = [text + index if " torch==" in text else text for text in commands]
    said = (f"{_verb(change)}: {text}" for change, text in zip(found, commands, strict=True))
    sentence = "; or ".join(said)
    return f"{sentence[0].upper()}{sentence[1:]}.", commands[0] or None


def _verb(change: VersionChange) -> str:
    if change.says.startswith("torch "):
        return f"stay with {change.says}"
    return ("stay in " if "IPEX" in change.says else "go to ") + change.says


def _beside_this_torch(versions: Versions) -> Iterator[VersionChange]:
    """The newest accelerate, else transformers, with which the rest fits as it is."""
    for name in ("accelerate", "transformers"):
        for release in reversed(load().releases()[name]):
            found = versions.changed(**{name: release})
            if versions.torch and not misfits(found):
                yield VersionChange(
                    says=f"torch {versions.torch}", changes=((name, release),), result=found
                )
                return


def _solutions(era: str, versions: Versions, names: tuple[str, ...]) -> Iterator[Versions]:
    """Assign versions to the packages one after the other; go back where a rule is broken."""

    def assign(at: Versions, left: list[str]) -> Iterator[Versions]:
        if misfits(at):
            return
        if not left:
            if era == "today" or at.ipex is None or _has_a_caller(at):
                yield at
            return
        for candidate in _candidates(era, left[0], at):
            if _belongs(era, left[0], candidate):
                yield from assign(at.changed(**{left[0]: candidate}), left[1:])

    # torch decides what fits the rest, so it is chosen first.
    order = sorted(names, key=lambda name: name != "torch")
    yield from assign(versions.changed(**dict.fromkeys(names)), order)


def _candidates(era: str, name: str, at: Versions) -> Iterator[Version | None]:
    """Versions to try: what this era was trained with first, then the newest first."""
    stack = load()
    if name == "ipex":
        yield from (*(row.version for row in stack.ipex_for(at.torch)), None)
    elif name == "oneccl":
        yield from (*(row.version for row in stack.bindings_for(at.torch)), None)
    elif name == "numpy":
        yield stack.numpy[0]
    else:
        yield stack.era(era).versions[name]
        yield from reversed(stack.releases()[name])


def _belongs(era: str, name: str, version: Version | None) -> bool:
    """Whether this version of a package can be part of a stack of this era at all."""
    if name in ("ipex", "oneccl") and era == "today":
        return version is None
    if name == "ipex":
        return version is not None
    if version is None or name in ("oneccl", "numpy"):
        return True
    if era == "today":
        return minor(version) >= TODAY_FROM[name]
    if name == "torch":
        return bool(load().ipex_for(version))
    if name == "transformers":
        return load().transformers.argument("use_ipex").covers(version)
    return minor(version) < TODAY_FROM["accelerate"]


def _has_a_caller(v: Versions) -> bool:
    """Whether scripts of some framework use IPEX; without accelerate nobody can tell."""
    framework: Framework = "accelerate" if v.transformers is None else "trainer"
    return v.accelerate is None or ipex_use(v, framework=framework).possible


def _requirement(name: str, version: Version) -> str:
    if name == "numpy" and version.major < 2:
        return "'numpy<2'"
    return f"{DISTRIBUTIONS[name]}=={version}"


def _on_pypi(name: str, version: Version) -> bool:
    if name == "ipex":
        return any(row.on_pypi and row.version == version for row in load().ipex)
    return name != "oneccl"
