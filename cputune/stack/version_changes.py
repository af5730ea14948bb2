"""Finds the smallest change that makes versions fit: of this stack, to the IPEX era, or to today's.

The search takes the first broken rule, changes one of its packages, and repeats until no rule is
broken. It tries one change before two, and two before three. ``smallest_change`` downgrades a
package only if newer releases do not make everything fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

from packaging.version import Version

from cputune.stack.fit import misfits, misfitting, python_wheel
from cputune.stack.tables import (
    BUILT_FOR_TORCH,
    DISTRIBUTIONS,
    REMEMBERED,
    Versions,
    load,
    minor,
    satisfies,
)
from cputune.stack.uses import Framework, ipex_use

# The order in which packages of the same rule are changed: dependent ones first, then small
# downloads.
ORDER = (
    "ipex",
    "oneccl",
    "torchvision",
    "torchaudio",
    "tokenizers",
    "huggingface_hub",
    "numpy",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "deepspeed",
    "transformers",
    "torch",
)

# Packages that are built for a torch, or that transformers pins. They take the release that
# fits, newer or older; for others an older one is a downgrade.
FOLLOWS = frozenset(ORDER[:7])

# If more packages would change, the latest whole stack is proposed.
MOST_CHANGES = 6

# Stacks that a search examines for each number of changes, in a tenth of a second.
MOST_STACKS = 400

# The first minor releases without support for IPEX.
TODAY_FROM = {"torch": (2, 9), "transformers": (4, 57), "accelerate": (1, 13)}

# The packages of the first problem of a stack; empty without one.
Problem = Callable[[Versions], tuple[str, ...]]
# The versions of a package to try in a stack.
Candidates = Callable[[str, Versions], "Iterator[Version | None]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """Versions that fit: each package that changes with its version, or None to remove it."""

    says: str
    changes: tuple[tuple[str, Version | None], ...]
    result: Versions
    cpu_build: bool = False
    older: tuple[str, ...] = ()

    def command(self) -> str | None:
        """The change as pip commands. None if nothing changes.

        If torch was built for CPUs, it is taken from PyTorch's index again, because PyPI's torch
        installs the CUDA libraries.
        """
        removed, installed = [], []
        for name, version in self.changes:
            if version is None:
                removed.append(DISTRIBUTIONS[name])
            else:
                installed.append((name, version))
        parts = []
        if removed:
            parts.append("pip uninstall -y " + " ".join(removed))
        if installed:
            part, pages = "pip install", set()
            for name, version in installed:
                part += f" {_requirement(name, version)}"
                if not _on_pypi(name, version):
                    pages.add(load().wheels[name])
            for page in sorted(pages):
                part += f" -f {page}"
            if self.cpu_build and {"torch", "torchvision", "torchaudio"} & dict(installed).keys():
                part += f" --extra-index-url {load().wheels['torch_cpu']}"
            parts.append(part)
        return " && ".join(parts) or None


@lru_cache(maxsize=REMEMBERED)
def smallest_change(versions: Versions) -> VersionChange | None:
    """The fewest changes with which everything fits and no unused package is left, or None.

    Only installed packages are changed or removed. A package is downgraded only if no newer
    releases fit, or none has a wheel for this Python (``older`` has their names). IPEX and the
    oneCCL bindings are removed if no release of them fits, or if nothing would call IPEX.
    """
    if not _broken(versions):
        return None
    # No downgrades first, then of packages that this Python cannot install, then of any.
    barred = {name for name in ORDER if python_wheel(versions, name)}
    for downgrades in (set[str](), barred, set(ORDER)):
        candidates = partial(_newer, versions, downgrades=downgrades)
        fitting = _Search(_broken, candidates).nearest(versions, MOST_CHANGES)
        if fitting is not None:
            return _change("what fits", versions, fitting)
    return version_change("today", versions)


def version_change(era: str, versions: Versions, *, complete: bool = False) -> VersionChange | None:
    """The smallest change to a stack of this era in which everything fits, or None.

    With ``complete``, torch, transformers, accelerate and (for its era) IPEX are added if they are
    missing.
    """
    trained = load().era(era)
    start = versions
    for name, version in trained.versions.items():
        if complete and versions.get(name) is None:
            start = start.changed(**{name: version})
    search = _Search(partial(_not_of, era), partial(_of_era, era))
    foreign = [name for name in ORDER if not _is_of(era, name, start)]
    fitting = search.nearest(start, len(foreign) + MOST_CHANGES, len(foreign))
    if fitting is None:
        return None
    return _change(trained.says, versions, fitting)


def version_changes(versions: Versions) -> tuple[VersionChange, ...]:
    """The change to each era that this Python allows, the one with fewer packages first."""
    changes = (version_change(era.name, versions) for era in load().eras)
    return tuple(sorted(filter(None, changes), key=lambda change: len(change.changes)))


def newest_fitting(name: str, versions: Versions) -> Version | None:
    """The newest release of a package that fits what is installed, preferably that of the latest
    tested stack.
    """
    wrong = set(misfits(versions.changed(**{name: None})))
    for candidate in _newer(versions.changed(**{name: None}), name, versions, downgrades=set()):
        if wrong.issuperset(misfits(versions.changed(**{name: candidate}))):
            return candidate
    return None


def upgraded(name: str, too_old: str, versions: Versions) -> VersionChange | None:
    """A newer release of a package outside the specifier ``too_old``, with the fewest changes."""
    fitting: list[Versions] = []
    for candidate in _newer(versions, name, versions, downgrades=set()):
        if candidate is None or satisfies(candidate, too_old):
            continue
        at = versions.changed(**{name: candidate})
        change = smallest_change(at)
        if change is None and not misfits(at):
            fitting.append(at)
        elif change is not None and not change.older and change.result.get(name) == candidate:
            fitting.append(change.result)
    changes = [_change("what fits", versions, each) for each in fitting]
    return min(changes, key=lambda change: len(change.changes), default=None)


@lru_cache(maxsize=REMEMBERED)
def advised_changes(versions: Versions) -> tuple[str | None, str | None]:
    """The smallest change as a sentence and as a command. With IPEX also that to the other era."""
    change = smallest_change(versions)
    if change is None and not _broken(versions):
        return None, None
    if change is None:
        return "No stack in the tables has wheels for this Python; use Python 3.10 to 3.14.", None
    command = change.command()
    sentence = []
    if change.older:
        names = ", ".join(DISTRIBUTIONS[name] for name in change.older)
        sentence.append(f"No newer releases fit; older ones of {names} do.")
    if versions.ipex is not None or versions.oneccl is not None:
        choices = [command or ""]
        for other in version_changes(versions):
            if other.command() != command:
                choices.append(_verb(other))
        sentence.append(f"Smallest change: {'; or '.join(choices)}.")
    return " ".join(sentence) or None, command


def _verb(change: VersionChange) -> str:
    verb = "go to"
    if "IPEX" in change.says:
        verb = "stay in"
    return f"{verb} {change.says}: {change.command()}"


def _change(says: str, versions: Versions, fitting: Versions) -> VersionChange:
    changed = [name for name in reversed(ORDER) if versions.get(name) != fitting.get(name)]
    return VersionChange(
        says=says,
        changes=tuple((name, fitting.get(name)) for name in changed),
        result=fitting,
        cpu_build=versions.torch is not None and versions.torch.local == "cpu",
        older=tuple(name for name in changed if _is_older(name, fitting.get(name), versions)),
    )


def _is_older(name: str, candidate: Version | None, versions: Versions) -> bool:
    """Whether this downgrades a package that does not follow another one."""
    installed = versions.get(name)
    if name in FOLLOWS or installed is None or candidate is None:
        return False
    return candidate < Version(installed.base_version)


class _Search:
    """Searches stacks without a problem, within a number of changes from one.

    ``seen`` are stacks that led nowhere with as many changes left. After ``MOST_STACKS`` the search
    continues with one change more.
    """

    def __init__(self, problem: Problem, candidates: Candidates) -> None:
        self.problem = problem
        self.candidates = candidates
        self.seen = set[tuple[Versions, int]]()
        self.looked_at = 0

    def nearest(self, start: Versions, most: int, least: int = 0) -> Versions | None:
        """The stack with the fewest changes. None if more than ``most`` would be needed."""
        for changes in range(least, most + 1):
            self.seen.clear()
            self.looked_at = 0
            fitting = self._from(start, frozenset(), changes)
            if fitting is not None:
                return fitting
        return None

    def _from(self, at: Versions, changed: frozenset[str], changes_left: int) -> Versions | None:
        wrong = self.problem(at)
        if not wrong:
            return at
        if changes_left == 0 or (at, changes_left) in self.seen:
            return None
        self.seen.add((at, changes_left))
        for name in sorted(set(wrong) - changed, key=ORDER.index):
            for after in self._fewest_misfits_first(wrong, name, at):
                fitting = self._from(after, changed | {name}, changes_left - 1)
                if fitting is not None:
                    return fitting
        return None

    def _fewest_misfits_first(
        self, wrong: tuple[str, ...], name: str, at: Versions
    ) -> Iterator[Versions]:
        """Yield stacks in which another release of this package solves the problem."""
        tried: list[tuple[int, Versions]] = []
        for candidate in self.candidates(name, at):
            if self.looked_at > MOST_STACKS:
                break
            self.looked_at += 1
            after = at.changed(**{name: candidate})
            remaining = misfits(after)
            still = self.problem(after)
            if still != wrong:
                tried.append((len(remaining), after))
            if not still:
                break
        for _, after in sorted(tried, key=lambda each: each[0]):
            yield after


def _broken(at: Versions) -> tuple[str, ...]:
    """The packages of the first broken rule, or IPEX if nothing would call it."""
    for names in misfitting(at):
        return names
    if at.ipex is not None and not _has_a_caller(at):
        return ("ipex",)
    return ()


def _not_of(era: str, at: Versions) -> tuple[str, ...]:
    """A package that does not belong to this era, torch first, or else those of a broken rule."""
    for name in reversed(ORDER):
        if not _is_of(era, name, at):
            return (name,)
    for names in misfitting(at):
        return names
    if era == "ipex" and at.ipex is not None and not _has_a_caller(at):
        return ("accelerate", "transformers")
    return ()


def _newer(
    versions: Versions, name: str, at: Versions, *, downgrades: set[str]
) -> Iterator[Version | None]:
    """Releases to try instead of the installed one.

    First newer ones: those of the same major version, of these the one of the latest tested stack,
    then the newest. Then, if the package is in ``downgrades``, older ones, the nearest first.
    """
    if name in FOLLOWS:
        yield from _following(name, at)
        return
    releases = list(reversed(load().releases()[name]))
    # With an IPEX that fits, versions that call it are tried first.
    eras = ["today"]
    if at.ipex is not None and load().ipex_for(at.torch):
        eras.append("ipex")
    for era in eras:
        trained = load().era(era).versions.get(name)
        if trained is not None:
            releases.insert(0, trained)
    installed = versions.get(name)
    older, newer = [], []
    for release in dict.fromkeys(releases):
        if _is_older(name, release, versions):
            older.append(release)
        elif release != installed:
            newer.append(release)
    yield from sorted(
        newer, key=lambda each: installed is not None and each.major != installed.major
    )
    if name in downgrades:
        yield from sorted(older, reverse=True)


def _following(name: str, at: Versions) -> Iterator[Version | None]:
    """Yield releases of a package that depends on another one, the newest first."""
    if name == "ipex":
        for row in load().ipex_for(at.torch):
            yield row.version
        yield None
    elif name in BUILT_FOR_TORCH:
        for row in load().built_for(name, at.torch):
            yield row.version
        if name == "oneccl":
            yield None
    else:
        yield from reversed(load().releases()[name])


def _of_era(era: str, name: str, at: Versions) -> Iterator[Version | None]:
    """Yield versions to try: the one that the era was tested with, then the newest first."""
    candidates: list[Version | None]
    if era == "today" and name in ("ipex", "oneccl"):
        candidates = [None]
    elif name in FOLLOWS:
        candidates = list(_following(name, at))
    else:
        candidates = list(reversed(load().releases()[name]))
        trained = load().era(era).versions.get(name)
        if trained is not None:
            candidates.insert(0, trained)
    for version in candidates:
        if _belongs(era, name, version):
            yield version


def _is_of(era: str, name: str, at: Versions) -> bool:
    version = at.get(name)
    return version is None or _belongs(era, name, version)


def _belongs(era: str, name: str, version: Version | None) -> bool:
    """Whether this version of a package can be part of a stack of this era."""
    if name in ("ipex", "oneccl") and era == "today":
        return version is None
    if name == "ipex":
        return version is not None
    if version is None or name not in ("torch", "transformers", "accelerate"):
        return True
    if era == "today":
        return minor(version) >= TODAY_FROM[name]
    if name == "torch":
        return bool(load().ipex_for(version))
    if name == "transformers":
        return load().transformers.argument("use_ipex").covers(version)
    return minor(version) < TODAY_FROM["accelerate"]


def _has_a_caller(v: Versions) -> bool:
    """Whether scripts of some framework use IPEX. True if accelerate is missing: it is not
    known.
    """
    if v.accelerate is None:
        return True
    frameworks: tuple[Framework, ...] = ("accelerate",)
    if v.transformers is not None:
        frameworks = ("trainer", "accelerate")
    return any(ipex_use(v, framework=each).possible for each in frameworks)


def _requirement(name: str, version: Version) -> str:
    if name == "numpy" and version.major < 2:
        return "'numpy<2'"
    return f"{DISTRIBUTIONS[name]}=={version}"


def _on_pypi(name: str, version: Version) -> bool:
    if name == "ipex":
        return any(row.on_pypi and row.version == version for row in load().ipex)
    return name != "oneccl"
