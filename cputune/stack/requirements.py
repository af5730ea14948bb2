"""Whether what is installed is what the installed packages declare that they require.

``Requires-Dist`` of the training stack, with its markers, and of the extras that a training run
stands on (https://packaging.python.org/en/latest/specifications/core-metadata/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from cputune.host.facts import HostFacts, Package
from cputune.stack.tables import parse

_REQUIRERS = (
    "transformers accelerate peft trl datasets evaluate sentence-transformers torchvision "
    "torchaudio torchao optimum optimum-intel deepspeed tokenizers safetensors huggingface-hub "
    "torch"
)
REQUIRERS = frozenset(_REQUIRERS.split())
"""Whose requirements are judged, by normal names."""

EXTRAS: Mapping[str, tuple[str, ...]] = {"transformers": ("torch", "deepspeed")}
"""Of an extra a version that is there must fit; what is not there was not asked for."""

JUDGED_ELSEWHERE = frozenset({"torch", "transformers", "accelerate", "numpy"})
"""Among each other these are judged by ``fit``, which knows what happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A requirement that is not met: of which package, by which package, and in words.

    ``wanted`` joins what all packages here require of it, so that the fix of one breaks no other.
    ``possible``: whether any release can be all of that; ``downgrade``: whether only older releases
    than the installed one can.
    """

    name: str
    by: str
    said: str
    wanted: str
    possible: bool
    downgrade: bool


def unmet(facts: HostFacts) -> Iterator[Unmet]:
    """Every requirement of the training stack that is not met, in the order of the packages."""
    there = {canonicalize_name(package.name): package for package in reversed(facts.packages)}
    asked = [
        (package, requirement)
        for package in facts.packages
        if canonicalize_name(package.name) in REQUIRERS
        for requirement, extra in _asked(package, _environment(facts))
        if not extra or canonicalize_name(requirement.name) in there
    ]
    for package, requirement in asked:
        name = canonicalize_name(requirement.name)
        held = there.get(name)
        judged_elsewhere = {canonicalize_name(package.name), name} <= JUDGED_ELSEWHERE
        if _meets(held, requirement) or (judged_elsewhere and held is not None):
            continue
        others = (other for _, other in asked if canonicalize_name(other.name) == name)
        every = {str(specifier) for other in others for specifier in other.specifier}
        found = f"found {held.version}" if held and held.version else "and there is none"
        joined = SpecifierSet(",".join(sorted(every)))
        asks = f"{package.name} {package.version} requires {requirement.name}"
        yield Unmet(
            name=requirement.name,
            by=package.name,
            said=f"{asks}{requirement.specifier}, {found}",
            wanted=requirement.name + ",".join(sorted(every)),
            possible=bool(_within(joined)),
            downgrade=_is_downgrade(held, joined),
        )


def _asked(package: Package, environment: Mapping[str, str]) -> Iterator[tuple[Requirement, bool]]:
    """What a package requires here, and whether an extra does; what cannot be read is left out."""
    extras = EXTRAS.get(canonicalize_name(package.name), ())
    for text in package.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        for extra in ("", *extras):
            marker = requirement.marker
            if marker is None or marker.evaluate({**environment, "extra": extra}):
                yield requirement, bool(extra)
                break


def _is_downgrade(held: Package | None, specifiers: SpecifierSet) -> bool:
    """Whether every release that these take is older than the installed one."""
    version = parse(held.version) if held is not None else None
    taken = _within(specifiers)
    return version is not None and bool(taken) and max(taken) < version


def _within(specifiers: SpecifierSet) -> list[Version]:
    """Releases within a set of specifiers: each bound itself, one below it and some above it.

    A range that holds none of them is empty.
    """
    near = {Version("0"), Version("99999")}
    for specifier in specifiers:
        bound = parse(specifier.version.removesuffix(".*"))
        if bound is None:
            continue
        near.add(bound)
        near.update(Version(f"{bound.base_version}.{more}") for more in (1, 99))
        last = [*bound.release[:-1], max(0, bound.release[-1] - 1)]
        below = ".".join(str(part) for part in last)
        near.update((Version(below), Version(f"{below}.99999")))
    return sorted(specifiers.filter(near, prereleases=True))


def _environment(facts: HostFacts) -> dict[str, str]:
    """What markers ask, of the machine that is looked at and not of ours."""
    version = parse(facts.python) or Version("3.11")
    return {
        **{key: str(value) for key, value in default_environment().items()},
        "python_version": f"{version.major}.{version.minor}",
        "python_full_version": str(version),
        "platform_machine": facts.cpu.architecture or "x86_64",
    }


def _meets(held: Package | None, requirement: Requirement) -> bool:
    """Whether this package is what is required; an unreadable version is another check's."""
    if held is None:
        return False
    version = parse(held.version)
    if version is None or requirement.url:
        return True
    taken = requirement.specifier.filter((version.public, version), prereleases=True)
    return any(True for _ in taken)
