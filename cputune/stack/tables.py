"""The version tables of ``stack.toml``, and how to ask them.

Everything here is about versions and nothing about a machine: what a release needs, what
it accepts, what it does. A question about a version that the tables do not reach is
answered with None, or with what the nearest older release does where that is said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1

Minor = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """One minor release of torch; ``last`` is its last patch, ``tags`` its CPython wheels."""

    minor: Minor
    last: Version
    tags: tuple[str, ...]
    numpy: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipex:
    """One release of intel_extension_for_pytorch; ``tags`` is None where they are unknown.

    ``mismatch`` is what importing it beside another torch does: ``none`` (nothing looks),
    ``exit 127``, or ``AttributeError``.
    """

    version: Version
    torch: Minor
    tags: tuple[str, ...] | None
    mismatch: str
    on_pypi: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """One release of oneccl_bind_pt: the torch it was built for, and the module it brings."""

    version: Version
    torch: str
    module: str
    tags: tuple[str, ...] | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a package needs from this minor on, as specifiers; None is no limit."""

    first: Minor
    torch: str | None = None
    torch_at_run_time: str | None = None
    accelerate: str | None = None
    numpy: str | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a package has from one minor release to another, both included.

    ``torch`` and ``accelerate`` are specifiers: it is there beside these only.
    """

    name: str
    first: Minor | None
    last: Minor | None
    source: str
    claim: str | None = None
    torch: str | None = None
    accelerate: str | None = None
    instead_before: str | None = None
    instead_after: str | None = None

    def covers(self, version: Version | None) -> bool:
        """Whether this release has it; one that is not known is taken to be the newest."""
        if version is None:
            return self.last is None
        at = minor(version)
        return (self.first is None or self.first <= at) and (self.last is None or at <= self.last)

    def beside(self, torch: Version | None) -> bool:
        """Whether it is there beside this torch; one that is not known is taken for today's."""
        return satisfies(torch or load().era("today").versions["torch"], self.torch)

    def instead(self, version: Version) -> str | None:
        """What a release outside the range has in its place, where that is known."""
        if self.first is not None and minor(version) < self.first:
            return self.instead_before
        return self.instead_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """transformers or accelerate: what it needs, accepts and does, release by release."""

    read: tuple[Version, ...]
    needs: tuple[Needs, ...]
    arguments: tuple[Feature, ...]
    backends: tuple[Feature, ...]
    optimizers: tuple[Feature, ...]
    default_optimizers: tuple[Feature, ...]
    keys: tuple[Feature, ...]
    options: tuple[Feature, ...]
    behaviours: tuple[Feature, ...]

    def needs_of(self, version: Version) -> Needs | None:
        """What this release needs; None for one older than the tables."""
        at = minor(version)
        return next((row for row in reversed(self.needs) if row.first <= at), None)

    def argument(self, name: str) -> Feature:
        """The releases with this TrainingArguments field. Raises KeyError: not in the tables."""
        found = [row for row in self.arguments if row.name == name]
        if not found:
            raise KeyError(name)
        return found[0]

    def does(
        self, name: str, version: Version | None, torch: Version | None = None
    ) -> Feature | None:
        """The row that says that this release behaves so, beside this torch; else None."""
        for row in self.behaviours:
            if row.name == name and row.covers(version) and row.beside(torch):
                return row
        return None

    def keys_of(self, version: Version | None) -> frozenset[str]:
        """The top-level keys of a configuration file that this release knows."""
        return frozenset(row.name for row in self.keys if row.covers(version))

    def backends_of(self, version: Version | None) -> tuple[str, ...]:
        """The values of ``--ddp_backend`` (or its older name) that this release takes."""
        return tuple(row.name for row in self.backends if row.covers(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """A stack that was installed from PyPI alone and trained."""

    name: str
    says: str
    versions: Mapping[str, Version]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All tables. Rows stand in the order of their versions, the oldest first."""

    checked: str
    eras: tuple[Era, ...]
    wheels: Mapping[str, str]
    torch: tuple[Torch, ...]
    ipex: tuple[Ipex, ...]
    oneccl: tuple[Bindings, ...]
    transformers: Library
    accelerate: Library

    def era(self, name: str) -> Era:
        """``ipex`` or ``today``. Raises KeyError for another."""
        for era in self.eras:
            if era.name == name:
                return era
        raise KeyError(name)

    def torch_row(self, version: Version) -> Torch | None:
        """The row of this torch's minor release."""
        return next((row for row in self.torch if row.minor == minor(version)), None)

    def ipex_for(self, torch: Version) -> tuple[Ipex, ...]:
        """The IPEX releases for this torch, the newest first; none from torch 2.9 on."""
        return tuple(row for row in reversed(self.ipex) if row.torch == minor(torch))

    def bindings_for(self, torch: Version) -> tuple[Bindings, ...]:
        """The oneCCL bindings built for exactly this torch release."""
        return tuple(row for row in reversed(self.oneccl) if satisfies(torch, row.torch))

    def bindings_row(self, version: Version) -> Bindings | None:
        """The row of these bindings."""
        return next(
            (row for row in self.oneccl if row.version == Version(version.base_version)), None
        )


def minor(version: Version) -> Minor:
    """(major, minor) of a version."""
    return version.major, version.minor


@lru_cache(maxsize=4096)
def satisfies(version: Version, specifier: str | None) -> bool:
    """Whether a version is within a specifier; local labels and pre-releases are let through."""
    return specifier is None or SpecifierSet(specifier, prereleases=True).contains(
        Version(version.base_version)
    )


def parse(text: str | None) -> Version | None:
    """A version, or None where the text is none."""
    try:
        return Version(text or "")
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return None


def tag_of(python: Version) -> str:
    """The CPython tag of an interpreter: ``cp311``."""
    return f"cp{python.major}{python.minor}"


@lru_cache(maxsize=1)
def load() -> Stack:
    """Read ``stack.toml``. It is part of the package: that it validates is a test's business."""
    text = resources.files("cputune.stack").joinpath("stack.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    return Stack(
        checked=document["checked"],
        eras=tuple(_era(row) for row in document["era"]),
        wheels=document["wheels"],
        torch=tuple(
            Torch(
                minor=_minor(row["minor"]),
                last=Version(row["last"]),
                tags=tuple(row["tags"]),
                numpy=row.get("numpy"),
                source=row["source"],
            )
            for row in document["torch"]
        ),
        ipex=tuple(
            Ipex(
                version=Version(row["version"]),
                torch=_minor(row["torch"]),
                tags=tuple(row["tags"]) if "tags" in row else None,
                mismatch=row["mismatch"],
                on_pypi=row["on_pypi"],
                source=row["source"],
            )
            for row in document["ipex"]
        ),
        oneccl=tuple(
            Bindings(
                version=Version(row["version"]),
                torch=row["torch"],
                module=row["module"],
                tags=tuple(row["tags"]) if "tags" in row else None,
                source=row["source"],
            )
            for row in document["oneccl"]
        ),
        transformers=_library(document["transformers"]),
        accelerate=_library(document["accelerate"]),
    )


def _library(table: Mapping[str, Any]) -> Library:
    keys = [
        {**row, "name": name, "source": table["source"]}
        for row in table.get("keys", ())
        for name in row["names"]
    ]
    return Library(
        read=tuple(Version(text) for text in table["read"]),
        needs=tuple(
            Needs(first=_minor(row["from"]), **{k: v for k, v in row.items() if k != "from"})
            for row in table["needs"]
        ),
        arguments=_features(table.get("argument", ())),
        backends=_features(table.get("backend", ())),
        optimizers=_features(table.get("optimizer", ())),
        default_optimizers=_features(table.get("default_optimizer", ())),
        keys=_features(keys),
        options=_features(table.get("option", ())),
        behaviours=_features(table.get("behaviour", ())),
    )


def _features(rows: Iterable[Mapping[str, Any]]) -> tuple[Feature, ...]:
    return tuple(
        Feature(
            first=_minor(row["from"]) if "from" in row else None,
            last=_minor(row["until"]) if "until" in row else None,
            **{k: v for k, v in row.items() if k not in ("from", "until", "names")},
        )
        for row in rows
    )


def _era(row: Mapping[str, str]) -> Era:
    packages = {k: Version(v) for k, v in row.items() if k not in ("name", "says", "source")}
    return Era(name=row["name"], says=row["says"], versions=packages, source=row["source"])


def _minor(text: str) -> Minor:
    major, small = text.split(".")[:2]
    return int(major), int(small)
