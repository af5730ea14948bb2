"""The public interface of the libraries, release by release: arguments, names, modules, messages.

``interface.zip`` holds it. ``make facts`` writes it from the wheels; nobody edits it. Each question
reads the part of the file that it needs, and nothing is read at import::

    found = argument("transformers", "TrainingArguments", "eval_strategy")
    found.first, found.still       # Version("4.41.0"), True

A release that was not read is taken for the nearest older one that was. Of torch one release was
read; ``torch_interface.toml`` holds rows by hand of names that came or went.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from packaging.version import Version

from cputune.stack.tables import load, minor
from cputune.text.documents import packaged_toml

FILE = "interface.zip"
PACKAGES = (
    "transformers",
    "torch",
    "accelerate",
    "datasets",
    "peft",
    "trl",
    "huggingface_hub",
)
"""Import names; pip takes the same names."""

Kind = Literal[
    "modules", "symbols", "arguments", "bases", "members", "messages", "renamed", "options"
]
KINDS: tuple[Kind, ...] = (
    "modules",
    "symbols",
    "arguments",
    "bases",
    "members",
    "messages",
    "renamed",
    "options",
)
"""Parts of the file. Each maps a place to ranges of releases, and a range to names:

- ``modules``: of the package.
- ``symbols``: what can be imported from a module.
- ``arguments``: of ``module:Class`` (its ``__init__``), ``module:Class.method`` and
  ``module:function``; ``**`` if it takes any keyword.
- ``bases`` and ``members``: of ``module:Class``.
- ``messages``: templates of what a module raises, ``{}`` for what is filled in.
- ``renamed``: of an old name the new one, as deprecations in the sources say.
- ``options``: of the argparse parsers of a module.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """In which of the releases that were read something is.

    ``indexes`` count in ``releases``, the oldest first. ``instead`` is what a row by hand names
    for the
    releases without it.
    """

    package: str
    releases: tuple[Version, ...]
    indexes: frozenset[int]
    instead: str = ""

    @property
    def first(self) -> Version:
        """The first release that has it."""
        return self.releases[min(self.indexes)]

    @property
    def last(self) -> Version:
        """The last release that has it."""
        return self.releases[max(self.indexes)]

    @property
    def always(self) -> bool:
        """Whether the oldest release that was read has it."""
        return 0 in self.indexes

    @property
    def still(self) -> bool:
        """Whether the newest release that was read has it."""
        return len(self.releases) - 1 in self.indexes

    @property
    def after(self) -> Version | None:
        """The first release without it after the last that has it; None if it is still there."""
        return None if self.still else self.releases[max(self.indexes) + 1]

    def at(self, version: Version) -> bool:
        """Whether this release has it."""
        older = [index for index, release in enumerate(self.releases) if release <= version]
        return (older[-1] if older else 0) in self.indexes

    def in_words(self) -> str:
        """``4.41 to 5.2``, ``from 4.41 on``, ``to 4.45``; empty if every release has it."""
        first, last = (f"{each.major}.{each.minor}" for each in (self.first, self.last))
        if self.still:
            return "" if self.always else f"from {first} on"
        if self.always:
            return f"to {last}"
        return first if first == last else f"{first} to {last}"

    def __or__(self, other: Presence) -> Presence:
        """In either."""
        indexes = self.indexes | other.indexes
        return Presence(package=self.package, releases=self.releases, indexes=indexes)


@cache
def releases(package: str) -> tuple[Version, ...]:
    """The releases of a package that were read, the oldest first; empty for other packages."""
    return tuple(Version(text) for text in _member("releases").get(package, ()))


def newest(package: str) -> Version | None:
    """The newest release that was read."""
    found = releases(package)
    return found[-1] if found else None


def module(package: str, name: str) -> Presence | None:
    """The releases with this module (``transformers.deepspeed``); None if none has it."""
    return _presence(package, "modules", package, name)


def symbol(package: str, home: str, name: str) -> Presence | None:
    """The releases in which ``name`` can be imported from the module ``home``."""
    return _presence(package, "symbols", home, name)


def homes(package: str, name: str) -> Mapping[str, Presence]:
    """The modules that a name could be imported from, each with its releases."""
    found = _index(package, "symbols").get(name, ())
    return {home: _presence_of(package, ranges) for home, ranges in found}


def names(package: str, home: str) -> frozenset[str]:
    """All names that any release of a module has had."""
    rows = _member(f"{package}/symbols").get(home, {})
    return frozenset(name for listed in rows.values() for name in listed.split(" "))


def callables(package: str, name: str) -> tuple[str, ...]:
    """Full names (``module:Class.method``) of callables by their short name.

    ``Trainer`` and ``Trainer.__init__`` are the class, ``Accelerator.prepare`` a method.
    """
    short = name.removesuffix(".__init__")
    return _index_of_callables(package).get(short, ())


def argument(package: str, called: str, name: str) -> Presence | None:
    """The releases in which a class, method or function takes an argument, bases included.

    ``called`` is a short name (``TrainingArguments``, ``Accelerator.prepare``) or a full one.
    """
    full = (called,) if ":" in called else callables(package, called)
    found: Presence | None = None
    for each in full:
        for place in (each, *_inherited(package, each)):
            here = _presence(package, "arguments", place, name)
            if here is not None:
                found = here if found is None else found | here
    return found


def takers(package: str, name: str) -> Mapping[str, Presence]:
    """The callables that have taken an argument of this name, by full name."""
    found = _index(package, "arguments").get(name, ())
    return {called: _presence_of(package, ranges) for called, ranges in found}


def arguments(package: str, called: str, version: Version) -> frozenset[str]:
    """The arguments of a class, method or function in one release, bases included."""
    full = (called,) if ":" in called else callables(package, called)
    places = [place for each in full for place in (each, *_inherited(package, each))]
    rows = _member(f"{package}/arguments")
    found = set()
    for place in places:
        for ranges, listed in rows.get(place, {}).items():
            if _presence_of(package, ranges).at(version):
                found.update(listed.split(" "))
    return frozenset(found - {"**"})


def member(package: str, owner: str, name: str) -> Presence | None:
    """The releases in which a class has this method or attribute, bases included."""
    rows = _member(f"{package}/members")
    found: Presence | None = None
    for place in (each for each in rows if each.rpartition(":")[2] == owner):
        for each in (place, *_inherited(package, place)):
            here = _presence(package, "members", each, name)
            if here is not None:
                found = here if found is None else found | here
    return found


def option(package: str, name: str) -> Mapping[str, Presence]:
    """The modules whose command line has had an option (``--mpirun_ccl``)."""
    found = _index(package, "options").get(name, ())
    return {home: _presence_of(package, ranges) for home, ranges in found}


def renamed(package: str, old: str) -> tuple[str, ...]:
    """The new names of an argument, as deprecations in the sources say, the latest first."""
    rows = _member(f"{package}/renamed").get(old, {})
    by_age = sorted(rows, key=lambda ranges: max(_presence_of(package, ranges).indexes))
    return tuple(name for ranges in reversed(by_age) for name in rows[ranges].split(" "))


def renamed_from(package: str, new: str) -> tuple[str, ...]:
    """The old names of an argument."""
    return tuple(place for place, _ in _index(package, "renamed").get(new, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a library raises: its package, the module, the template, the releases."""

    package: str
    module: str
    template: str
    presence: Presence


def messages(text: str) -> tuple[Message, ...]:
    """The messages of the libraries that begin a text, the longest template first."""
    said = " ".join(text.split())
    found = []
    for package in PACKAGES:
        if package == "torch":
            continue
        for home, rows in _member(f"{package}/messages").items():
            for ranges, listed in rows.items():
                for template in listed.split("\n"):
                    if _fits(template, said):
                        found.append(
                            Message(
                                package=package,
                                module=home,
                                template=template,
                                presence=_presence_of(package, ranges),
                            )
                        )
    return tuple(sorted(found, key=lambda message: -len(message.template)))


_OF_PYTHON = re.compile(
    r"has no attribute|unexpected keyword argument|No module named|cannot import name"
    r"|is not defined|not supported between instances|positional argument|object is not "
)
"""Messages of Python itself, which libraries raise in the same words."""


def _fits(template: str, said: str) -> bool:
    if _OF_PYTHON.search(template):
        return False
    parts = template.split("{}")
    if max(parts, key=len) not in said:
        return False
    return re.match(".*?".join(map(re.escape, parts)), said) is not None


# --- reading ----------------------------------------------------------------------------


@cache
def _member(name: str) -> dict[str, Any]:
    """A part of the file; empty if the package has no such part."""
    import zipfile  # most runs of the doctor ask nothing here

    with (
        resources.files("cputune.stack").joinpath(FILE).open("rb") as file,
        zipfile.ZipFile(file) as parts,
    ):
        try:
            document: dict[str, Any] = json.loads(parts.read(f"{name}.json"))
        except KeyError:
            return {}
    return document


@cache
def _index(package: str, kind: Kind) -> dict[str, tuple[tuple[str, str], ...]]:
    """By name: the places that have it, each with its ranges."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for place, rows in _member(f"{package}/{kind}").items():
        for ranges, listed in rows.items():
            for name in listed.split(" "):
                found[name] = (*found.get(name, ()), (place, ranges))
    return found


@cache
def _index_of_callables(package: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for full in _member(f"{package}/arguments"):
        short = full.rpartition(":")[2]
        found[short] = (*found.get(short, ()), full)
    return found


def _inherited(package: str, full: str) -> Iterator[str]:
    """The same callable of the bases, the nearest first; of other packages none."""
    home, _, called = full.rpartition(":")
    owner, _, method = called.partition(".")
    rows = _member(f"{package}/bases")
    seen, waiting = set(), [f"{home}:{owner}"]
    while waiting:
        for listed in rows.get(waiting.pop(), {}).values():
            for base in listed.split(" "):
                for place in _classes(package).get(base, ()):
                    if place not in seen:
                        seen.add(place)
                        waiting.append(place)
                        yield f"{place}.{method}" if method else place


@cache
def _classes(package: str) -> dict[str, tuple[str, ...]]:
    """By its name: the places of a class."""
    places = {**_member(f"{package}/bases"), **_member(f"{package}/arguments")}
    found: dict[str, tuple[str, ...]] = {}
    for place in places:
        short = place.rpartition(":")[2]
        if "." not in short:
            found[short] = (*found.get(short, ()), place)
    return found


def _presence(package: str, kind: Kind, place: str, name: str) -> Presence | None:
    rows = _member(f"{package}/{kind}").get(place, {})
    indexes: set[int] = set()
    for ranges, listed in rows.items():
        if name in listed.split(" "):
            indexes |= _presence_of(package, ranges).indexes
    if package == "torch" and (by_hand := _of_torch(place, name)) is not None:
        return by_hand
    return _made(package, indexes)


@cache
def _torch_rows() -> dict[str, tuple[str, str, str]]:
    """By full name: the first and the last release, and what is written instead."""
    rows = packaged_toml("cputune.stack", "torch_interface.toml")["names"]
    return {
        row["name"]: (row.get("first", ""), row.get("last", ""), row.get("instead", ""))
        for row in rows
    }


def _of_torch(place: str, name: str) -> Presence | None:
    """The row by hand of a name of torch, over all releases of the stack table."""
    row = _torch_rows().get(name if name.startswith("torch.") else f"{place}.{name}")
    if row is None:
        return None
    known = tuple(each.version for each in load().torch)
    first, last, instead = row
    indexes = {
        index
        for index, version in enumerate(known)
        if not (first and minor(version) < minor(Version(first)))
        and not (last and minor(version) > minor(Version(last)))
    }
    return Presence(package="torch", releases=known, indexes=frozenset(indexes), instead=instead)


@cache
def _presence_of(package: str, ranges: str) -> Presence:
    indexes: set[int] = set()
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    found = _made(package, indexes)
    assert found is not None
    return found


def _made(package: str, indexes: set[int]) -> Presence | None:
    if not indexes:
        return None
    return Presence(package=package, releases=releases(package), indexes=frozenset(indexes))
