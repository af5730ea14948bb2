"""The smallest change that makes versions fit: of what is there, to the IPEX era, or to today.

One search makes all of them. It looks at the first rule that is broken, changes one of the packages
that break it, and goes on until none is broken; it tries one change before two, and two before
three. ``smallest_change`` takes no older release of a package if newer ones make everything fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

from packaging.version import Version

from cputune.stack.fit import Misfit, first_misfit, misfits, python_wheel
from cputune.stack.tables import (
    BUILT_FOR_TORCH,
    DISTRIBUTIONS,
    REMEMBERED,
    Compiled,
    Versions,
    load,
    minor,
    satisfies,
)
from cputune.stack.uses import Framework, ipex_use

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
"""What is changed first, of packages that break the same rule: what follows another package, then a
small download before a large one."""

FOLLOWS = frozenset(ORDER[:7])
"""Packages that are built for a torch, or that transformers pins. They take the release that fits
the other, whether that is newer or older; of all others an older release is a downgrade."""

MOST_CHANGES = 6
"""More packages are not changed one by one: then today's whole stack is proposed."""

MOST_STACKS = 400
"""Stacks that a search looks at for each number of changes: a tenth of a second."""

TODAY_FROM = {"torch": (2, 9), "transformers": (4, 57), "accelerate": (1, 13)}
"""The first minor releases that know nothing of IPEX."""

Problem = Callable[[Versions], "Misfit | None"]
"""The first thing that is wrong with a stack."""
Candidates = Callable[[str, Versions], "Iterator[Version | None]"]
"""What may be tried of a package in a stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """Versions that fit: each package that changes, with its version, or None to remove it."""

    says: str
    changes: tuple[tuple[str, Version | None], ...]
    result: Versions
    cpu_build: bool = False
    older: tuple[str, ...] = ()

    def command(self) -> str | None:
        """The change as pip commands that can be pasted; None if nothing changes.

        A torch that was built for CPUs comes from PyTorch's page again: PyPI's torch brings the
        CUDA libraries.
        """
        gone = [DISTRIBUTIONS[name] for name, version in self.changes if version is None]
        come = [(name, version) for name, version in self.changes if version is not None]
        parts = ["pip uninstall -y " + " ".join(gone)] if gone else []
        if come:
            parts.append("pip install " + " ".join(_requirement(*change) for change in come))
            elsewhere = {load().wheels[n] for n, v in come if not _on_pypi(n, v)}
            parts[-1] += "".join(f" -f {page}" for page in sorted(elsewhere))
            if self.cpu_build and {"torch", "torchvision", "torchaudio"} & {n for n, _ in come}:
                parts[-1] += f" --extra-index-url {load().wheels['torch_cpu']}"
        return " && ".join(parts) or None


@lru_cache(maxsize=REMEMBERED)
def smallest_change(versions: Versions) -> VersionChange | None:
    """The fewest packages to change so that everything fits, and that nothing unused is left.

    Only packages that are there are changed or removed. An older release of a package is taken only
    if no newer releases fit, or none for this Python (``older`` names the packages then). IPEX and
    the oneCCL bindings are removed if no release of them fits, or if nothing would call IPEX. None
    if nothing is wrong, or if no releases in the tables fit.
    """
    if _broken(versions) is None:
        return None
    barred = {name for name in ORDER if python_wheel(versions, name)}
    for downgrades in (set[str](), barred, set(ORDER)):
        candidates = partial(_newer, versions, downgrades=downgrades)
        found = _Search(_broken, candidates).nearest(versions, MOST_CHANGES)
        if found is not None:
            return _change("what fits", versions, found)
    return version_change("today", versions)


def version_change(era: str, versions: Versions, *, complete: bool = False) -> VersionChange | None:
    """The smallest change to a stack of this era in which everything fits.

    Only packages that are there are changed or removed; with ``complete`` torch,
    transformers, accelerate and (for its era) IPEX are added if they are missing.
    None if this Python has no such stack.
    """
    trained = load().era(era)
    added = [name for name in trained.versions if complete and versions.get(name) is None]
    start = versions.changed(**{name: trained.versions[name] for name in added})
    search = _Search(partial(_not_of, era), partial(_of_era, era))
    foreign = [name for name in ORDER if not _is_of(era, name, start)]
    found = search.nearest(start, len(foreign) + MOST_CHANGES, len(foreign))
    return None if found is None else _change(trained.says, versions, found)


def version_changes(versions: Versions) -> tuple[VersionChange, ...]:
    """To either era, the one with fewer packages first; one that this Python bars is left out."""
    found = (version_change(era.name, versions) for era in load().eras)
    return tuple(sorted(filter(None, found), key=lambda change: len(change.changes)))


def newest_fitting(name: str, versions: Versions) -> Version | None:
    """The newest release of a package that fits all that is there; None if none of them does.

    The release that today's stack was trained with is preferred if it fits.
    """
    wrong = set(misfits(versions.changed(**{name: None})))
    for candidate in _newer(versions.changed(**{name: None}), name, versions, downgrades=set()):
        if wrong.issuperset(misfits(versions.changed(**{name: candidate}))):
            return candidate
    return None


def upgraded(name: str, too_old: str, versions: Versions) -> VersionChange | None:
    """A newer release of a package outside the specifier ``too_old``, with the fewest changes."""
    found: list[Versions] = []
    for candidate in _newer(versions, name, versions, downgrades=set()):
        if candidate is None or satisfies(candidate, too_old):
            continue
        at = versions.changed(**{name: candidate})
        change = smallest_change(at)
        if change is None and not misfits(at):
            found.append(at)
        elif change is not None and not change.older and change.result.get(name) == candidate:
            found.append(change.result)
    changes = [_change("what fits", versions, each) for each in found]
    return min(changes, key=lambda change: len(change.changes), default=None)


@lru_cache(maxsize=REMEMBERED)
def advised_changes(versions: Versions) -> tuple[str | None, str | None]:
    """The smallest change as a sentence and as a command; with IPEX the other era, too.

    The sentence is None if the command says it all.
    """
    change = smallest_change(versions)
    if change is None and _broken(versions) is None:
        return None, None
    if change is None:
        return "No stack in the tables has wheels for this Python; use Python 3.10 to 3.14.", None
    command = change.command()
    sentence = []
    if change.older:
        names = ", ".join(DISTRIBUTIONS[name] for name in change.older)
        sentence.append(f"No newer releases fit; older ones of {names} do.")
    if versions.ipex is not None or versions.oneccl is not None:
        others = (_verb(way) for way in version_changes(versions) if way.command() != command)
        sentence.append(f"Smallest change: {'; or '.join((command or '', *others))}.")
    return " ".join(sentence) or None, command


def _verb(change: VersionChange) -> str:
    verb = "stay in" if "IPEX" in change.says else "go to"
    return f"{verb} {change.says}: {change.command()}"


def _change(says: str, versions: Versions, found: Versions) -> VersionChange:
    changed = [name for name in reversed(ORDER) if versions.get(name) != found.get(name)]
    return VersionChange(
        says=says,
        changes=tuple((name, found.get(name)) for name in changed),
        result=found,
        cpu_build=versions.torch is not None and versions.torch.local == "cpu",
        older=tuple(name for name in changed if _is_older(name, found.get(name), versions)),
    )


def _is_older(name: str, candidate: Version | None, versions: Versions) -> bool:
    """Whether this is a downgrade of a package that has a release of its own choice."""
    there = versions.get(name)
    if name in FOLLOWS or there is None or candidate is None:
        return False
    return candidate < Version(there.base_version)


class _Search:
    """Looks for stacks without a problem, at most so many packages away from one.

    ``seen`` are the stacks that led nowhere with as many changes left. After ``MOST_STACKS`` the
    search allows one change more, with which an odd stack is often solved without going back.
    """

    def __init__(self, problem: Problem, candidates: Candidates) -> None:
        self.problem = problem
        self.candidates = candidates
        self.seen = set[tuple[Versions, int]]()
        self.looked_at = 0

    def nearest(self, start: Versions, most: int, least: int = 0) -> Versions | None:
        """The stack with the fewest changes; None if more than ``most`` would be needed."""
        for changes in range(least, most + 1):
            self.seen.clear()
            self.looked_at = 0
            found = self._from(start, frozenset(), changes)
            if found is not None:
                return found
        return None

    def _from(self, at: Versions, changed: frozenset[str], left: int) -> Versions | None:
        wrong = self.problem(at)
        if wrong is None:
            return at
        if left == 0 or (at, left) in self.seen:
            return None
        self.seen.add((at, left))
        for name in sorted(set(wrong.names) - changed, key=ORDER.index):
            for after in self._fewest_misfits_first(wrong, name, at):
                found = self._from(after, changed | {name}, left - 1)
                if found is not None:
                    return found
        return None

    def _fewest_misfits_first(self, wrong: Misfit, name: str, at: Versions) -> Iterator[Versions]:
        """The stacks in which another release of this package solves this problem."""
        tried: list[tuple[int, Versions]] = []
        for candidate in self.candidates(name, at):
            if self.looked_at > MOST_STACKS:
                break
            self.looked_at += 1
            after = at.changed(**{name: candidate})
            left = misfits(after)
            still = self.problem(after)
            if still is None or still.names != wrong.names:
                tried.append((len(left), after))
            if still is None:
                break
        yield from (after for _, after in sorted(tried, key=lambda each: each[0]))


def _broken(at: Versions) -> Misfit | None:
    """The first rule that is broken; or that IPEX is there and nothing would call it."""
    found = first_misfit(at)
    if found is None and at.ipex is not None and not _has_a_caller(at):
        return Misfit(names=("ipex",), said="nothing calls IPEX")
    return found


def _not_of(era: str, at: Versions) -> Misfit | None:
    """A package that cannot be part of this era, torch first; else a rule that is broken."""
    for name in reversed(ORDER):
        if not _is_of(era, name, at):
            return Misfit(names=(name,), said=f"{name} is not of this era")
    found = first_misfit(at)
    if found is None and era == "ipex" and at.ipex is not None and not _has_a_caller(at):
        return Misfit(names=("accelerate", "transformers"), said="nothing calls IPEX")
    return found


def _newer(
    versions: Versions, name: str, at: Versions, *, downgrades: set[str]
) -> Iterator[Version | None]:
    """Releases of a package to try in the place of the one that is there.

    Newer ones: of the same major version first, and of these what today's stack was trained with,
    then the newest. Then, for those in ``downgrades``, older ones, the nearest first.
    """
    if name in FOLLOWS:
        yield from _following(name, at)
        return
    releases = list(reversed(load().releases()[name]))
    # Beside an IPEX that fits, the versions that call it come first.
    eras = ["today", "ipex"] if at.ipex is not None and load().ipex_for(at.torch) else ["today"]
    for era in eras:
        trained = load().era(era).versions.get(name)
        if trained is not None:
            releases.insert(0, trained)
    older = [release for release in releases if _is_older(name, release, versions)]
    there = versions.get(name)
    newer = [each for each in dict.fromkeys(releases) if each not in older and each != there]
    yield from sorted(newer, key=lambda each: there is not None and each.major != there.major)
    if name in downgrades:
        yield from sorted(set(older), reverse=True)


def _following(name: str, at: Versions) -> Iterator[Version | None]:
    """Releases of a package that takes its release from another one, the newest first."""
    if name == "ipex":
        yield from (row.version for row in load().ipex_for(at.torch))
        yield None
    elif name in BUILT_FOR_TORCH:
        built: Compiled = next(each for each in BUILT_FOR_TORCH if each == name)
        yield from (row.version for row in load().built_for(built, at.torch))
        if name == "oneccl":
            yield None
    else:
        yield from reversed(load().releases()[name])


def _of_era(era: str, name: str, at: Versions) -> Iterator[Version | None]:
    """Versions to try: what this era was trained with first, then the newest first."""
    if name in FOLLOWS:
        found = _following(name, at)
    else:
        trained = load().era(era).versions.get(name)
        releases = reversed(load().releases()[name])
        found = iter((*([trained] if trained is not None else []), *releases))
    if era == "today" and name in ("ipex", "oneccl"):
        found = iter((None,))
    yield from (version for version in found if _belongs(era, name, version))


def _is_of(era: str, name: str, at: Versions) -> bool:
    """Whether a package, if it is there, can be part of a stack of this era."""
    version = at.get(name)
    return version is None or _belongs(era, name, version)


def _belongs(era: str, name: str, version: Version | None) -> bool:
    """Whether this version of a package can be part of a stack of this era at all."""
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
    """Whether scripts of some framework use IPEX; without accelerate nobody can tell."""
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
