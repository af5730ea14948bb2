"""Whether what is installed is what the installed packages declare that they require.

``Requires-Dist`` of the training stack, with its markers, and of the extras that a training run
stands on (https://packaging.python.org/en/latest/specifications/core-metadata/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from cputune.facts import HostFacts, Package
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
    """A requirement that is not met. ``found`` is None where the package is not there.

    ``wanted`` joins what all packages here require of it, so that the cure of one is none's harm.
    """

    requirer: Package
    name: str
    specifier: str
    found: str | None
    wanted: str

    def describe(self) -> str:
        """``transformers 5.23.0 requires tokenizers<0.24,>=0.23, found 0.19.1``."""
        there = f"found {self.found}" if self.found else "and there is none"
        asked = f"{self.name}{self.specifier}"
        return f"{self.requirer.name} {self.requirer.version} requires {asked}, {there}"


def unmet(facts: HostFacts) -> tuple[Unmet, ...]:
    """Every requirement of the training stack that is not met, in the order of the packages."""
    there = {canonicalize_name(package.name): package for package in reversed(facts.packages)}
    asked = [
        (package, requirement, extra)
        for package in facts.packages
        if canonicalize_name(package.name) in REQUIRERS
        for requirement, extra in _asked(package, _environment(facts))
    ]
    found = []
    for package, requirement, extra in asked:
        name = canonicalize_name(requirement.name)
        held = there.get(name)
        if {canonicalize_name(package.name), name} <= JUDGED_ELSEWHERE and held is not None:
            continue
        if _meets(held, requirement) or (extra and held is None):
            continue
        every = {
            str(one)
            for _, other, from_extra in asked
            if canonicalize_name(other.name) == name and not (from_extra and held is None)
            for one in other.specifier
        }
        found.append(
            Unmet(
                requirer=package,
                name=requirement.name,
                specifier=str(requirement.specifier),
                found=None if held is None else held.version,
                wanted=requirement.name + ",".join(sorted(every)),
            )
        )
    return tuple(found)


def _asked(package: Package, environment: Mapping[str, str]) -> Iterator[tuple[Requirement, bool]]:
    """What a package requires here, and whether an extra does; what cannot be read is left out."""
    extras = EXTRAS.get(canonicalize_name(package.name), ())
    for text in package.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        for extra in ("", *extras):
            if requirement.marker is None or requirement.marker.evaluate(
                {**environment, "extra": extra}
            ):
                yield requirement, bool(extra)
                break


def _environment(facts: HostFacts) -> dict[str, str]:
    """What markers ask, of the machine that is looked at and not of ours."""
    version = parse(facts.python) or Version("3.11")
    told = {
        "python_version": f"{version.major}.{version.minor}",
        "python_full_version": str(version),
        "implementation_version": str(version),
        "platform_machine": facts.cpu.architecture or "x86_64",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    return {**{key: str(value) for key, value in default_environment().items()}, **told}


def _meets(held: Package | None, requirement: Requirement) -> bool:
    """Whether this package is what is required; an unreadable version is another check's."""
    if held is None:
        return False
    version = parse(held.version)
    if version is None or requirement.url:
        return True
    public = Version(version.public)
    return requirement.specifier.contains(public, prereleases=True) or (
        requirement.specifier.contains(version, prereleases=True)
    )
