"""The version tables of ``stack.toml``, and questions to them.

For a version outside of the tables there is no answer, or that of the nearest older release if the
docstring says so.
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

# Cached answers about versions: a search for a change asks some thousand times.
REMEMBERED = 4096

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
# Compiled packages whose rows name the torch that they were built for.
BUILT_FOR_TORCH: tuple[Compiled, ...] = ("oneccl", "torchvision", "torchaudio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of a compiled package; a row of torch is for all patches of its minor.

    ``tags`` are the CPython tags of its wheels, None if unknown. ``torch`` is the version for which
    the bindings were built, ``module`` their import name, ``numpy`` what torch requires.
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
    """What a package requires from this minor on, as specifiers. "" is no limit."""

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
        """The same without upper limits and exclusions, for releases newer than the tables."""
        bounds: dict[str, Any] = {"first": self.first}
        for column in fields(self):
            if column.name != "first":
                bounds[column.name] = ",".join(_lower_bounds(getattr(self, column.name)))
        return Needs(**bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a package has from one minor release to another, both included.

    ``torch`` and ``accelerate`` are specifiers: the row applies only with these versions.
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
        """Whether this release has it. An unknown version counts as the newest."""
        if version is None:
            return self.last is None
        at = minor(version)
        return (self.first is None or self.first <= at) and (self.last is None or at <= self.last)

    def beside(self, torch: Version | None) -> bool:
        """Whether it applies with this torch. An unknown version counts as the latest in the
        tables.
        """
        return satisfies(torch or load().era("today").versions["torch"], self.torch)

    def instead(self, version: Version) -> str | None:
        """The replacement in a release outside the range, if known."""
        if self.first is not None and minor(version) < self.first:
            return self.instead_before
        return self.instead_after


def _names_in(rows: Iterable[Feature], version: Version | None) -> frozenset[str]:
    return frozenset(row.name for row in rows if row.covers(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedName:
    """A name of another package that releases import when they are imported themselves.

    ``of`` is the package and ``name`` the name that its later releases do not have. ``home`` is the
    module that has it, if it is not the package itself.
    """

    first: Minor
    last: Minor
    of: str
    name: str
    source: str
    home: str = ""

    def covers(self, version: Version) -> bool:
        """Whether this release imports it."""
        return self.first <= minor(version) <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyPython:
    """The newest CPython for which these releases of numpy have wheels."""

    first: Minor
    last: Minor
    newest: Minor


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """What releases from ``first`` to ``last`` do beside a release of ``of`` from ``since`` on.

    ``trains``: training works, and what ``says`` describes comes later.
    """

    first: Minor
    last: Minor
    of: str
    since: Minor
    says: str
    source: str
    trains: bool = False

    def covers(self, version: Version, other: Version) -> bool:
        """Whether these two releases are meant."""
        return self.first <= minor(version) <= self.last and minor(other) >= self.since


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryTable:
    """What the releases of a Python library need, accept and do."""

    source: str
    read: tuple[Version, ...]
    needs: tuple[Needs, ...]
    imports: tuple[ImportedName, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
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
        """What this release needs. None if it is older than the tables.

        Of a newer release only the lower bounds are used, because it may have raised upper limits.
        """
        at = minor(version)
        row = next((row for row in reversed(self.needs) if row.first <= at), None)
        if row is not None and at > minor(self.read[-1]):
            return row.lower_bounds()
        return row

    def argument(self, name: str) -> Feature:
        """The releases with this TrainingArguments field. Raises KeyError if the tables do not
        have it.
        """
        for row in self.arguments:
            if row.name == name:
                return row
        raise KeyError(name)

    def does(
        self, name: str, version: Version | None, torch: Version | None = None
    ) -> Feature | None:
        """The row of a behaviour, if this release has it with this torch. Else None."""
        for row in self.behaviours:
            if row.name == name and row.covers(version) and row.beside(torch):
                return row
        return None

    def keys_of(self, version: Version | None) -> frozenset[str]:
        """The top-level keys of a configuration file that this release reads."""
        return _names_in(self.keys, version)

    def dynamo_of(self, version: Version | None) -> frozenset[str]:
        """The backends of torch.compile that this release accepts, in lower case."""
        return _names_in(self.dynamo_backends, version)

    def backends_of(self, version: Version | None) -> tuple[str, ...]:
        """The values of ``--ddp_backend`` (or its older name) that this release accepts."""
        names: list[str] = []
        for row in self.backends:
            if row.covers(version):
                names.append(row.name)
        return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """A set of versions that was installed from PyPI alone and trained with."""

    name: str
    says: str
    versions: Mapping[str, Version]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtLauncher:
    """A launcher that is part of a package."""

    name: str
    package: str
    why: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedImage:
    """A container image that is no longer maintained, and its replacement."""

    name: str
    instead: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiOption:
    """An option of mpirun in other dialects. None: they accept it as it is.

    ``takes`` is the number of words after it. ``{0}`` and ``{1}`` are their places.
    """

    names: tuple[str, ...]
    takes: int
    hydra: str | None = None
    openmpi: str | None = None

    def spelling_in(self, dialect: str) -> str | None:
        """The option in this dialect (``mpich``, ``openmpi5``)."""
        if dialect.startswith("openmpi"):
            return self.openmpi
        return self.hydra


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All tables, each with the oldest version first.

    ``checked`` has the ``day`` of the tables, and the newest release of each package on that day.
    """

    schema: Literal[1]
    checked: Mapping[str, str]
    eras: tuple[Era, ...]
    launchers: tuple[BroughtLauncher, ...]
    images: tuple[EndedImage, ...]
    mpirun: tuple[MpiOption, ...]
    wheels: Mapping[str, str]
    numpy: tuple[Version, ...]
    numpy_pythons: tuple[NumpyPython, ...]
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
        """``ipex`` or ``today``. Raises KeyError for another name."""
        for era in self.eras:
            if era.name == name:
                return era
        raise KeyError(name)

    def library(self, name: Library) -> LibraryTable:
        table: LibraryTable = getattr(self, name)
        return table

    def compiled(self, name: Compiled) -> tuple[Release, ...]:
        """The rows of a compiled package, the oldest first."""
        rows: tuple[Release, ...] = getattr(self, name)
        return rows

    def releases(self) -> Mapping[str, tuple[Version, ...]]:
        """The releases of each package in the tables, by short name."""
        versions: dict[str, tuple[Version, ...]] = {"numpy": self.numpy}
        for name in COMPILED:
            versions[name] = tuple(row.version for row in self.compiled(name))
        for library in LIBRARIES:
            versions[library] = self.library(library).read
        return versions

    def row(self, name: Compiled, version: Version | None) -> Release | None:
        """The row of this release. Of torch, the row of its minor."""
        if version is None:
            return None
        base = Version(version.base_version)
        for row in self.compiled(name):
            if row.version == base or (name == "torch" and minor(row.version) == minor(base)):
                return row
        return None

    def torch_does(self, name: str, version: Version) -> bool:
        return any(row.name == name and row.covers(version) for row in self.torch_behaviours)

    def ipex_for(self, torch: Version | None) -> tuple[Release, ...]:
        """The IPEX releases for this torch, the newest first. Empty from torch 2.9 on."""
        rows = reversed(self.ipex)
        return tuple(row for row in rows if torch and minor(row.version) == minor(torch))

    def built_for(self, name: Compiled, torch: Version | None) -> tuple[Release, ...]:
        """The releases of a package that were built for exactly this torch, the newest first."""
        rows = reversed(self.compiled(name))
        return tuple(row for row in rows if torch and row.torch and satisfies(torch, row.torch))


def minor(version: Version) -> Minor:
    return version.major, version.minor


def _lower_bounds(specifier: str) -> list[str]:
    bounds: list[str] = []
    for each in SpecifierSet(specifier):
        if each.operator in (">=", ">"):
            bounds.append(str(each))
    return bounds


@lru_cache(maxsize=REMEMBERED)
def satisfies(version: Version, specifier: str) -> bool:
    """Local labels and pre-release suffixes are ignored."""
    return SpecifierSet(specifier).contains(Version(version.base_version))


@lru_cache(maxsize=REMEMBERED)
def parse(text: str | None) -> Version | None:
    """Parse a version. None if the text is not one."""
    try:
        return Version(text or "")
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return None


@cache
def load() -> Stack:
    """Read ``stack.toml``. A test checks that it is valid."""
    document = packaged_toml("cputune.stack", "stack.toml")
    for name in LIBRARIES:
        # A row has only what differs from the row before it.
        document[name]["needs"] = list(accumulate(document[name]["needs"], operator.or_))
    return record_of(Stack, document)


def beyond(name: str, version: Version | None) -> str | None:
    """Why the tables do not have this release. None if they have it."""
    releases = load().releases()[name]
    if version is None or name == "numpy":
        return None
    at = minor(version)
    if at > minor(releases[-1]):
        return f"is newer than these tables, which end at {releases[-1]}"
    if at < minor(releases[0]):
        return f"is older than these tables, which begin at {releases[0]}"
    if at not in map(minor, releases):
        return "is not a release in these tables"
    return None


# Our short names, and the names for pip.
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

_ALIASES = {
    "intel-extension-for-pytorch": "ipex",
    "oneccl-bind-pt": "oneccl",
    "oneccl-bindings-for-pytorch": "oneccl",
    "torch-ccl": "oneccl",
    "huggingface-hub": "huggingface_hub",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions of the training packages.

    None: the package is not installed, or its version cannot be parsed; then ``unreadable`` has its
    short name.
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
        """The versions of these distributions, in any spelling of their names."""
        return _read(versions.items())

    def get(self, name: str) -> Version | None:
        """The version of a package, by its short name."""
        version: Version | None = getattr(self, name)
        return version

    def changed(self, **versions: Version | None) -> Versions:
        """The same with other versions of some packages, by short name. None removes a package."""
        fields: dict[str, Any] = dict(versions)
        return replace(self, unreadable=self.unreadable.difference(fields), **fields)

    def describe(self) -> str:
        """For example ``torch 2.6.0, transformers 4.40``."""
        parts = []
        for name, distribution in DISTRIBUTIONS.items():
            version = self.get(name)
            if version is not None:
                parts.append(f"{distribution} {version}")
        return ", ".join(parts) or "nothing"


@cache  # called for each installed package by each check
def short_name(distribution: str) -> str | None:
    """The short name of a distribution in any spelling. None if it has no table."""
    name = canonicalize_name(distribution)
    if name in DISTRIBUTIONS:
        return name
    return _ALIASES.get(name)


def versions_of(facts: HostFacts) -> Versions:
    """The versions on a machine. If a package is installed twice, the first one counts."""
    named = [("python", facts.python)]
    for package in facts.packages:
        named.append((package.name, package.version))
    return _read(named)


def _read(named: Iterable[tuple[str, str | None]]) -> Versions:
    versions: dict[str, Version | None] = {}
    for distribution, text in named:
        name: str | None = "python"
        if distribution != "python":
            name = short_name(distribution)
        if name is not None:
            versions.setdefault(name, parse(text))
    unreadable = frozenset(name for name, version in versions.items() if version is None)
    return Versions(**versions, unreadable=unreadable - {"python"})
