"""Checks whether installed packages meet the requirements (``Requires-Dist``) that training
packages declare, with markers and extras
(https://packaging.python.org/en/latest/specifications/core-metadata/).
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
# Normal names of the packages whose requirements are checked.
REQUIRERS = frozenset(_REQUIRERS.split())

# Extras whose requirements are checked if the required package is installed.
EXTRAS: Mapping[str, tuple[str, ...]] = {"transformers": ("torch", "deepspeed")}

# Requirements among these are checked by ``fit``, which knows the consequences.
JUDGED_ELSEWHERE = frozenset({"torch", "transformers", "accelerate", "numpy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A requirement that is not met.

    ``name`` is the required package, ``by`` the one that requires it. ``wanted`` joins the
    requirements of all packages. ``possible``: a release can meet all of them. ``downgrade``: only
    older releases can.
    """

    name: str
    by: str
    problem: str
    wanted: str
    possible: bool
    downgrade: bool


def unmet(facts: HostFacts) -> Iterator[Unmet]:
    """Yield the requirements of the training packages that are not met, in the order of the
    packages.
    """
    installed = {canonicalize_name(package.name): package for package in reversed(facts.packages)}
    environment = _environment(facts)
    required = []
    for package in facts.packages:
        if canonicalize_name(package.name) not in REQUIRERS:
            continue
        for requirement, extra in _requirements(package, environment):
            if not extra or canonicalize_name(requirement.name) in installed:
                required.append((package, requirement))
    for package, requirement in required:
        name = canonicalize_name(requirement.name)
        present = installed.get(name)
        judged_elsewhere = {canonicalize_name(package.name), name} <= JUDGED_ELSEWHERE
        if _meets(present, requirement) or (judged_elsewhere and present is not None):
            continue
        specifiers: set[str] = set()
        for _, other in required:
            if canonicalize_name(other.name) == name:
                specifiers.update(str(specifier) for specifier in other.specifier)
        joined = SpecifierSet(",".join(sorted(specifiers)))
        installed_text = "and it is not installed"
        if present and present.version:
            installed_text = f"found {present.version}"
        asks = f"{package.name} {package.version} requires {requirement.name}"
        yield Unmet(
            name=requirement.name,
            by=package.name,
            problem=f"{asks}{requirement.specifier}, {installed_text}",
            wanted=requirement.name + ",".join(sorted(specifiers)),
            possible=bool(_within(joined)),
            downgrade=_is_downgrade(present, joined),
        )


def _requirements(
    package: Package, environment: Mapping[str, str]
) -> Iterator[tuple[Requirement, bool]]:
    """Yield the requirements of a package on this machine, and whether they are of an extra."""
    extras = EXTRAS.get(canonicalize_name(package.name), ())
    for text in package.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        for extra in ("", *extras):
            marker = requirement.marker
            if marker is None or marker.evaluate(dict(environment, extra=extra)):
                yield requirement, bool(extra)
                break


def _is_downgrade(installed: Package | None, specifiers: SpecifierSet) -> bool:
    version = None
    if installed is not None:
        version = parse(installed.version)
    releases = _within(specifiers)
    return version is not None and bool(releases) and max(releases) < version


def _within(specifiers: SpecifierSet) -> list[Version]:
    """Releases within the specifiers: each bound, one below it, and some above it.

    If none of them is within, the specifiers exclude each other.
    """
    near = {Version("0"), Version("99999")}
    for specifier in specifiers:
        bound = parse(specifier.version.removesuffix(".*"))
        if bound is None:
            continue
        near.add(bound)
        near.update(Version(f"{bound.base_version}.{more}") for more in (1, 99))
        last = list(bound.release[:-1]) + [max(0, bound.release[-1] - 1)]
        below = ".".join(str(part) for part in last)
        near.update((Version(below), Version(f"{below}.99999")))
    return sorted(specifiers.filter(near, prereleases=True))


def _environment(facts: HostFacts) -> dict[str, str]:
    """The environment of markers, for the examined machine instead of ours."""
    version = parse(facts.python) or Version("3.11")
    environment = {key: str(value) for key, value in default_environment().items()}
    return environment | {
        "python_version": f"{version.major}.{version.minor}",
        "python_full_version": str(version),
        "platform_machine": facts.cpu.architecture or "x86_64",
    }


def _meets(installed: Package | None, requirement: Requirement) -> bool:
    """Whether a package meets a requirement. A version that cannot be parsed is left to another
    check.
    """
    if installed is None:
        return False
    version = parse(installed.version)
    if version is None or requirement.url:
        return True
    matching = requirement.specifier.filter((version.public, version), prereleases=True)
    return any(True for _ in matching)
