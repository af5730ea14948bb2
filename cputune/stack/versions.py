"""The versions of a stack: what is installed on a machine, or only named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from cputune.facts import HostFacts
from cputune.stack.tables import parse

DISTRIBUTIONS: Mapping[str, str] = {
    "torch": "torch",
    "ipex": "intel_extension_for_pytorch",
    "oneccl": "oneccl_bind_pt",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "numpy": "numpy",
}
"""Our short names, and what pip calls them."""

_ALIASES = {
    "intel-extension-for-pytorch": "ipex",
    "oneccl-bind-pt": "oneccl",
    "oneccl-bindings-for-pytorch": "oneccl",
    "torch-ccl": "oneccl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions of a stack.

    None is a package that is not there. One that is there with a version that cannot be
    read is None too, and its short name stands in ``unreadable``.
    """

    python: Version | None = None
    torch: Version | None = None
    ipex: Version | None = None
    oneccl: Version | None = None
    transformers: Version | None = None
    accelerate: Version | None = None
    numpy: Version | None = None
    unreadable: frozenset[str] = frozenset()

    @classmethod
    def from_names(cls, versions: Mapping[str, str]) -> Versions:
        """The versions of these distributions, in any spelling of their names.

        Distributions that no table knows are passed over.
        """
        return _read(versions.items())

    def get(self, name: str) -> Version | None:
        """The version of a package by our short name."""
        version: Version | None = getattr(self, name)
        return version

    def changed(self, **versions: Version | None) -> Versions:
        """The same stack with other versions, or without (None), of packages by short name."""
        fields: dict[str, Any] = dict(versions)
        return replace(self, unreadable=self.unreadable.difference(fields), **fields)

    def describe(self) -> str:
        """``torch 2.6.0, transformers 4.40``."""
        found = ((DISTRIBUTIONS[name], self.get(name)) for name in DISTRIBUTIONS)
        return ", ".join(f"{name} {version}" for name, version in found if version) or "nothing"


def short_name(distribution: str) -> str | None:
    """Our short name of a distribution in any of its spellings; None for all others."""
    name = canonicalize_name(distribution)
    return _ALIASES.get(name, name if name in DISTRIBUTIONS else None)


def versions_of(facts: HostFacts) -> Versions:
    """The stack that is installed on a machine: of a package named twice the first."""
    packages = ((package.name, package.version) for package in facts.packages)
    return _read((("python", facts.python), *packages))


def _read(named: Iterable[tuple[str, str | None]]) -> Versions:
    found: dict[str, Version | None] = {}
    for distribution, text in named:
        name = "python" if distribution == "python" else short_name(distribution)
        if name is not None:
            found.setdefault(name, parse(text))
    unreadable = frozenset(name for name, version in found.items() if version is None)
    return Versions(**found, unreadable=unreadable - {"python"})
