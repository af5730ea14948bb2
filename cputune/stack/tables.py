"""The version tables of ``stack.toml``, and how to ask them.

Everything here is about versions and nothing about a machine: what a release needs, what
it accepts, what it does. A question about a version that the tables do not reach is
answered with None, or with what the nearest older release does where that is said.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, Literal, get_args

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from cputune.host.facts import HostFacts
from cputune.text.documents import packaged_toml, record_of

REMEMBERED = 4096
"""Answers about versions: a search for a way out asks some thousand times."""

Minor = tuple[int, int]
Library = Literal[
    "transformers",
    "accelerate",
    "tokenizers",
    "huggingface_hub",
    "datasets",
    "peft",
    "trl",
    "deepspeed",
]
LIBRARIES: tuple[Library, ...] = get_args(Library)
Compiled = Literal["torch", "ipex", "oneccl", "torchvision", "torchaudio"]
COMPILED: tuple[Compiled, ...] = get_args(Compiled)
BUILT_FOR_TORCH: tuple[Compiled, ...] = ("oneccl", "torchvision", "torchaudio")
"""Compiled packages whose rows name the one torch that they were built for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of a compiled package: of torch the last patch of a minor, of IPEX or its oneCCL
    bindings just this one.

    ``tags`` are the CPython tags of its wheels, None where they are unknown; ``torch`` is what the
    bindings were built for, and ``module`` what they bring; ``numpy`` is what torch needs.
    """

    version: Version
    tags: tuple[str, ...] | None = None
    torch: str = ""
    numpy: str = ""
    module: str = "oneccl_bindings_for_pytorch"
    on_pypi: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a package needs from this minor on, as specifiers; "" is no limit."""

    first: Minor
    torch: str = ""
    torch_at_run_time: str = ""
    transformers: str = ""
    accelerate: str = ""
    tokenizers: str = ""
    huggingface_hub: str = ""
    datasets: str = ""
    peft: str = ""
    numpy: str = ""
    python: str = ""

    def lower_bounds(self) -> Needs:
        """The same without upper limits and exclusions: all that can be said of a newer release."""
        kept: dict[str, Any] = {"first": self.first}
        for column in fields(self):
            if column.name != "first":
                kept[column.name] = ",".join(_lower_bounds(getattr(self, column.name)))
        return Needs(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a package has from one minor release to another, both included.

    ``source`` is empty where it is that of the whole table. ``torch`` and ``accelerate`` are
    specifiers: it is there beside these only.
    """

    name: str
    first: Minor | None = None
    last: Minor | None = None
    source: str = ""
    claim: str | None = None
    torch: str = ""
    accelerate: str = ""
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
class LibraryTable:
    """A library in Python: what it needs, accepts and does, release by release.

    Only transformers and accelerate have rows beside ``needs``.
    """

    source: str
    read: tuple[Version, ...]
    needs: tuple[Needs, ...]
    arguments: tuple[Feature, ...] = ()
    backends: tuple[Feature, ...] = ()
    optimizers: tuple[Feature, ...] = ()
    default_optimizers: tuple[Feature, ...] = ()
    keys: tuple[Feature, ...] = ()
    options: tuple[Feature, ...] = ()
    dynamo_backends: tuple[Feature, ...] = ()
    variables: tuple[Feature, ...] = ()
    behaviours: tuple[Feature, ...] = ()

    def needs_of(self, version: Version) -> Needs | None:
        """What this release needs; None for one older than the tables.

        Of a release newer than the tables only the lower bounds are taken over: a newer release
        may well have raised an upper limit.
        """
        at = minor(version)
        row = next((row for row in reversed(self.needs) if row.first <= at), None)
        if row is not None and at > minor(self.read[-1]):
            return row.lower_bounds()
        return row

    def argument(self, name: str) -> Feature:
        """The releases with this TrainingArguments field. Raises KeyError: not in the tables."""
        return {row.name: row for row in self.arguments}[name]

    def does(
        self, name: str, version: Version | None, torch: Version | None = None
    ) -> Feature | None:
        """The row that says that this release behaves so, beside this torch; else None."""
        rows = (row for row in self.behaviours if row.name == name and row.covers(version))
        return next((row for row in rows if row.beside(torch)), None)

    def keys_of(self, version: Version | None) -> frozenset[str]:
        """The top-level keys of a configuration file that this release knows."""
        return frozenset(row.name for row in self.keys if row.covers(version))

    def dynamo_of(self, version: Version | None) -> frozenset[str]:
        """The backends of torch.compile that this release knows, in small letters."""
        return frozenset(row.name for row in self.dynamo_backends if row.covers(version))

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
class BroughtLauncher:
    """A launcher that a package brings: without the package there is none."""

    name: str
    package: str
    why: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedImage:
    """A container image that holds a stack which has ended, and what takes its place."""

    name: str
    instead: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiOption:
    """An option of mpirun in the words of the other dialects; None: they take it as it is.

    ``takes`` is how many words follow it; ``{0}`` and ``{1}`` stand for them.
    """

    names: tuple[str, ...]
    takes: int
    hydra: str | None = None
    openmpi: str | None = None

    def said_to(self, dialect: str) -> str | None:
        """What this dialect (``mpich``, ``openmpi5``) is told instead."""
        return self.openmpi if dialect.startswith("openmpi") else self.hydra


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All tables. Rows stand in the order of their versions, the oldest first.

    ``checked`` is the ``day`` of that, and what was then the newest release of each package.
    """

    schema: Literal[1]
    checked: Mapping[str, str]
    eras: tuple[Era, ...]
    launchers: tuple[BroughtLauncher, ...]
    images: tuple[EndedImage, ...]
    mpirun: tuple[MpiOption, ...]
    wheels: Mapping[str, str]
    numpy: tuple[Version, ...]
    torch: tuple[Release, ...]
    torch_behaviours: tuple[Feature, ...]
    ipex: tuple[Release, ...]
    oneccl: tuple[Release, ...]
    torchvision: tuple[Release, ...]
    torchaudio: tuple[Release, ...]
    transformers: LibraryTable
    accelerate: LibraryTable
    tokenizers: LibraryTable
    huggingface_hub: LibraryTable
    datasets: LibraryTable
    peft: LibraryTable
    trl: LibraryTable
    deepspeed: LibraryTable

    def era(self, name: str) -> Era:
        """``ipex`` or ``today``. Raises KeyError for another."""
        return {era.name: era for era in self.eras}[name]

    def library(self, name: Library) -> LibraryTable:
        """The table of this library."""
        table: LibraryTable = getattr(self, name)
        return table

    def compiled(self, name: Compiled) -> tuple[Release, ...]:
        """The rows of this compiled package, the oldest first."""
        rows: tuple[Release, ...] = getattr(self, name)
        return rows

    def releases(self) -> Mapping[str, tuple[Version, ...]]:
        """The versions of each package that were looked at, by our short names."""
        return {
            **{name: tuple(row.version for row in self.compiled(name)) for name in COMPILED},
            **{name: self.library(name).read for name in LIBRARIES},
            "numpy": self.numpy,
        }

    def row(self, name: Compiled, version: Version | None) -> Release | None:
        """The row of this release; of torch that of its minor."""
        if version is None:
            return None
        if name == "torch":
            return next((row for row in self.torch if minor(row.version) == minor(version)), None)
        base = Version(version.base_version)
        return next((row for row in self.compiled(name) if row.version == base), None)

    def torch_does(self, name: str, version: Version) -> bool:
        """Whether this torch behaves so."""
        return any(row.name == name and row.covers(version) for row in self.torch_behaviours)

    def ipex_for(self, torch: Version | None) -> tuple[Release, ...]:
        """The IPEX releases for this torch, the newest first; none from torch 2.9 on."""
        rows = reversed(self.ipex)
        return tuple(row for row in rows if torch and minor(row.version) == minor(torch))

    def built_for(self, name: Compiled, torch: Version | None) -> tuple[Release, ...]:
        """The releases of this package that were built for exactly this torch, the newest first."""
        rows = reversed(self.compiled(name))
        return tuple(row for row in rows if torch and row.torch and satisfies(torch, row.torch))

    def bindings_for(self, torch: Version | None) -> tuple[Release, ...]:
        """The oneCCL bindings built for exactly this torch release."""
        return self.built_for("oneccl", torch)


def minor(version: Version) -> Minor:
    """(major, minor) of a version."""
    return version.major, version.minor


def _lower_bounds(specifier: str) -> list[str]:
    return [str(each) for each in SpecifierSet(specifier) if each.operator in (">=", ">")]


@lru_cache(maxsize=REMEMBERED)
def satisfies(version: Version, specifier: str) -> bool:
    """Whether a version is within a specifier; local labels and pre-releases are let through."""
    return SpecifierSet(specifier).contains(Version(version.base_version))


@lru_cache(maxsize=REMEMBERED)
def parse(text: str | None) -> Version | None:
    """A version, or None where the text is none."""
    try:
        return Version(text or "")
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return None


@cache
def load() -> Stack:
    """Read ``stack.toml``. It is part of the package: that it validates is a test's business."""
    document = packaged_toml("cputune.stack", "stack.toml")
    for library in (document[name] for name in LIBRARIES):
        library["needs"] = [*accumulate(library["needs"], operator.or_)]  # a row says what changes
    return record_of(Stack, document)


def beyond(name: str, version: Version | None) -> str | None:
    """Why the tables do not hold this release of a package, by our short name; None if they do."""
    releases = load().releases()[name]
    if version is None or name == "numpy":
        return None
    at, minors = minor(version), {minor(release) for release in releases}
    if at > minor(releases[-1]):
        return f"is newer than these tables, which end at {releases[-1]}"
    if at < minor(releases[0]):
        return f"is older than these tables, which begin at {releases[0]}"
    if at not in minors:
        return "is no release that these tables know"
    return None


DISTRIBUTIONS: Mapping[str, str] = {
    "torch": "torch",
    "ipex": "intel_extension_for_pytorch",
    "oneccl": "oneccl_bind_pt",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "numpy": "numpy",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "tokenizers": "tokenizers",
    "huggingface_hub": "huggingface_hub",
    "datasets": "datasets",
    "peft": "peft",
    "trl": "trl",
    "deepspeed": "deepspeed",
}
"""Our short names, and what pip calls them."""

_ALIASES = {
    "intel-extension-for-pytorch": "ipex",
    "oneccl-bind-pt": "oneccl",
    "oneccl-bindings-for-pytorch": "oneccl",
    "torch-ccl": "oneccl",
    "huggingface-hub": "huggingface_hub",
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
    torchvision: Version | None = None
    torchaudio: Version | None = None
    tokenizers: Version | None = None
    huggingface_hub: Version | None = None
    datasets: Version | None = None
    peft: Version | None = None
    trl: Version | None = None
    deepspeed: Version | None = None
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


@cache  # each check reads the versions of all that is installed
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
