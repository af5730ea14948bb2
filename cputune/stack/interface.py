"""The public interface of the libraries in each release: arguments, names, modules, messages.

It is in ``interface.zip``, which ``make facts`` writes from the wheels. Each call reads only the
part that it needs, and nothing is read at import::

    presence = argument("transformers", "TrainingArguments", "eval_strategy")
    presence.first, presence.still       # Version("4.41.0"), True

A release that was not read counts as the nearest older one that was. Of torch only one release was
read, and ``torch_interface.toml`` lists by hand names that came or went.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from packaging.version import Version

from cputune.stack.tables import load, minor
from cputune.text.documents import packaged_toml

FILE = "interface.zip"
# Import names, which are also the names for pip.
PACKAGES = (
    "transformers",
    "torch",
    "accelerate",
    "datasets",
    "peft",
    "trl",
    "huggingface_hub",
)

Kind = Literal[
    "modules", "symbols", "arguments", "bases", "members", "messages", "renamed", "options"
]
# Parts of the file. Each maps a place to ranges of releases, and a range to names:
#
# - ``modules``: of the package.
# - ``symbols``: names that can be imported from a module.
# - ``arguments``: of ``module:Class`` (its ``__init__``), ``module:Class.method`` and
#   ``module:function``; ``**`` if it accepts any keyword.
# - ``bases`` and ``members``: of ``module:Class``.
# - ``messages``: templates of the errors that a module raises, with ``{}`` for values.
# - ``renamed``: old names with their new ones, from deprecations in the sources.
# - ``options``: of the argparse parsers of a module.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The releases, among those that were read, that have something.

    ``indexes`` are positions in ``releases``, the oldest first. ``instead`` is the replacement for
    other releases, from a row that was written by hand.
    """

    package: str
    releases: tuple[Version, ...]
    indexes: frozenset[int]
    instead: str = ""

    @property
    def first(self) -> Version:
        return self.releases[min(self.indexes)]

    @property
    def last(self) -> Version:
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
        """The release after the last one that has it. None if the newest still has it."""
        if self.still:
            return None
        return self.releases[max(self.indexes) + 1]

    def at(self, version: Version) -> bool:
        older = []
        for index, release in enumerate(self.releases):
            if release <= version:
                older.append(index)
        return max(older, default=0) in self.indexes

    def range_text(self) -> str:
        """``4.41 to 5.2``, ``from 4.41 on``, ``to 4.45``. Empty if every release has it."""
        first, last = (f"{each.major}.{each.minor}" for each in (self.first, self.last))
        if self.still and self.always:
            return ""
        if self.still:
            return f"from {first} on"
        if self.always:
            return f"to {last}"
        if first == last:
            return first
        return f"{first} to {last}"

    def __or__(self, other: Presence) -> Presence:
        indexes = self.indexes | other.indexes
        return Presence(package=self.package, releases=self.releases, indexes=indexes)


@cache
def releases(package: str) -> tuple[Version, ...]:
    """The releases of a package that were read, the oldest first."""
    return tuple(Version(text) for text in _member("releases").get(package, ()))


def newest(package: str) -> Version | None:
    """The newest release that was read."""
    return next(reversed(releases(package)), None)


def module(package: str, name: str) -> Presence | None:
    """The releases with a module (``transformers.deepspeed``). None if no release has it."""
    return _presence(package, "modules", package, name)


def symbol(package: str, home: str, name: str) -> Presence | None:
    """The releases in which ``name`` can be imported from the module ``home``."""
    return _presence(package, "symbols", home, name)


def homes(package: str, name: str) -> Mapping[str, Presence]:
    """The modules from which a name can be imported, each with its releases."""
    rows = _index(package, "symbols").get(name, ())
    return {home: _presence_of(package, ranges) for home, ranges in rows}


def names(package: str, home: str) -> frozenset[str]:
    """All names of a module in any release."""
    rows = _member(f"{package}/symbols").get(home, {})
    return frozenset(" ".join(rows.values()).split())


def callables(package: str, name: str) -> tuple[str, ...]:
    """Full names (``module:Class.method``) of callables, by their short name."""
    short = name.removesuffix(".__init__")
    return _index_of_callables(package).get(short, ())


def argument(package: str, called: str, name: str) -> Presence | None:
    """The releases in which a class, method or function accepts an argument. Base classes count.

    ``called`` is a short name (``TrainingArguments``, ``Accelerator.prepare``) or a full one.
    """
    return _in_any(package, "arguments", _places_of(package, called), name)


def _places_of(package: str, called: str) -> list[str]:
    """Full names of a callable, each followed by those of its base classes."""
    names = callables(package, called)
    if ":" in called:
        names = (called,)
    places = []
    for full in names:
        places.append(full)
        places += _inherited(package, full)
    return places


def _in_any(package: str, kind: Kind, places: Iterable[str], name: str) -> Presence | None:
    total: Presence | None = None
    for place in places:
        presence = _presence(package, kind, place, name)
        if presence is None:
            continue
        if total is None:
            total = presence
        else:
            total = total | presence
    return total


def takers(package: str, name: str) -> Mapping[str, Presence]:
    """The callables that have accepted an argument of this name, by full name."""
    rows = _index(package, "arguments").get(name, ())
    return {called: _presence_of(package, ranges) for called, ranges in rows}


def arguments(package: str, called: str, version: Version) -> frozenset[str]:
    """The arguments of a class, method or function in one release. Base classes count."""
    rows = _member(f"{package}/arguments")
    names = set()
    for place in _places_of(package, called):
        for ranges, listed in rows.get(place, {}).items():
            if _presence_of(package, ranges).at(version):
                names.update(listed.split(" "))
    return frozenset(names - {"**"})


def member(package: str, owner: str, name: str) -> Presence | None:
    """The releases in which a class has a method or attribute. Base classes count."""
    rows = _member(f"{package}/members")
    places = []
    for place in rows:
        if place.rpartition(":")[2] == owner:
            places.append(place)
            places += _inherited(package, place)
    return _in_any(package, "members", places, name)


def option(package: str, name: str) -> Mapping[str, Presence]:
    """The modules whose command line has had an option (``--mpirun_ccl``)."""
    rows = _index(package, "options").get(name, ())
    return {home: _presence_of(package, ranges) for home, ranges in rows}


def renamed(package: str, old: str) -> tuple[str, ...]:
    """The new names of an argument, from deprecations in the sources, the latest first."""
    rows = _member(f"{package}/renamed").get(old, {})
    by_age = sorted(rows, key=lambda ranges: max(_presence_of(package, ranges).indexes))
    return tuple(" ".join(rows[ranges] for ranges in reversed(by_age)).split())


def renamed_from(package: str, new: str) -> tuple[str, ...]:
    """The old names of an argument."""
    return tuple(place for place, _ in _index(package, "renamed").get(new, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a library raises, and the releases that have it."""

    package: str
    module: str
    template: str
    presence: Presence


def messages(text: str) -> tuple[Message, ...]:
    """The messages of the libraries with which a text begins, the longest template first."""
    text = " ".join(text.split())
    matching = []
    for package in PACKAGES:
        if package == "torch":
            continue
        for home, rows in _member(f"{package}/messages").items():
            for ranges, listed in rows.items():
                for template in listed.split("\n"):
                    if _fits(template, text):
                        message = Message(
                            package=package,
                            module=home,
                            template=template,
                            presence=_presence_of(package, ranges),
                        )
                        matching.append(message)
    return tuple(sorted(matching, key=lambda message: -len(message.template)))


# Messages of Python itself, which libraries raise in the same words.
_OF_PYTHON = re.compile(
    r"has no attribute|unexpected keyword argument|No module named|cannot import name"
    r"|is not defined|not supported between instances|positional argument|object is not "
)


def _fits(template: str, text: str) -> bool:
    if _OF_PYTHON.search(template):
        return False
    parts = template.split("{}")
    if max(parts, key=len) not in text:
        return False
    return re.match(".*?".join(map(re.escape, parts)), text) is not None


# --- reading ----------------------------------------------------------------------------


@cache
def _member(name: str) -> dict[str, Any]:
    """A part of the file. Empty if the package does not have it."""
    import zipfile  # most runs of the doctor do not need it

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
    places: dict[str, tuple[tuple[str, str], ...]] = {}
    for place, rows in _member(f"{package}/{kind}").items():
        for ranges, listed in rows.items():
            for name in listed.split(" "):
                places[name] = places.get(name, ()) + ((place, ranges),)
    return places


@cache
def _index_of_callables(package: str) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for full in _member(f"{package}/arguments"):
        short = full.rpartition(":")[2]
        names[short] = names.get(short, ()) + (full,)
    return names


def _inherited(package: str, full: str) -> Iterator[str]:
    """Yield the same callable of the base classes in this package, the nearest first."""
    home, _, called = full.rpartition(":")
    owner, _, method = called.partition(".")
    rows = _member(f"{package}/bases")
    places, waiting = set(), [f"{home}:{owner}"]
    while waiting:
        for listed in rows.get(waiting.pop(), {}).values():
            for base in listed.split(" "):
                for place in _classes(package).get(base, ()):
                    if place not in places:
                        places.add(place)
                        waiting.append(place)
                        if method:
                            yield f"{place}.{method}"
                        else:
                            yield place


@cache
def _classes(package: str) -> dict[str, tuple[str, ...]]:
    classes: dict[str, tuple[str, ...]] = {}
    for place in _member(f"{package}/bases") | _member(f"{package}/arguments"):
        short = place.rpartition(":")[2]
        if "." not in short:
            classes[short] = classes.get(short, ()) + (place,)
    return classes


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
    """First release, last release and replacement, by full name."""
    rows = packaged_toml("cputune.stack", "torch_interface.toml")["names"]
    return {
        row["name"]: (row.get("first", ""), row.get("last", ""), row.get("instead", ""))
        for row in rows
    }


def _of_torch(place: str, name: str) -> Presence | None:
    """The row of a name of torch that was written by hand, over all releases of the stack table."""
    full = name
    if not name.startswith("torch."):
        full = f"{place}.{name}"
    row = _torch_rows().get(full)
    if row is None:
        return None
    versions = tuple(each.version for each in load().torch)
    first, last, instead = row
    indexes = set()
    for index, version in enumerate(versions):
        too_old = first and minor(version) < minor(Version(first))
        too_new = last and minor(version) > minor(Version(last))
        if not too_old and not too_new:
            indexes.add(index)
    return Presence(package="torch", releases=versions, indexes=frozenset(indexes), instead=instead)


@cache
def _presence_of(package: str, ranges: str) -> Presence:
    indexes: set[int] = set()
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    presence = _made(package, indexes)
    assert presence is not None
    return presence


def _made(package: str, indexes: set[int]) -> Presence | None:
    if not indexes:
        return None
    return Presence(package=package, releases=releases(package), indexes=frozenset(indexes))
