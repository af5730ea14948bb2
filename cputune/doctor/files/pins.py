"""Versions that a Dockerfile, a requirements.txt or an environment.yml installs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from packaging.specifiers import SpecifierSet

from cputune.doctor.files.context import Context
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host.facts import Package
from cputune.launch.edit import Edit
from cputune.launch.places import Places, Token
from cputune.stack.fit import misfits
from cputune.stack.tables import DISTRIBUTIONS, Versions, load, parse, short_name

_PINNED = re.compile(r"([A-Za-z][A-Za-z0-9._-]*?)(?:\[[\w,-]*\])?(?:={1,3}([0-9][\w.+]*))?")


class Pin(NamedTuple):
    """A package of the stack as a file names it."""

    token: Token
    name: str
    version: str | None
    # Whether another file names the version (``--constraint FILE``).
    constrained: bool = False
    # The version if it is written elsewhere: the value of a Dockerfile's ARG.
    place: Token | None = None


def pin_of(token: Token) -> Pin | None:
    """The package that a word names; None if it is not of the stack."""
    named = _PINNED.fullmatch(token.text)
    name = None
    if named:
        name = short_name(named[1])
    if named is None or name is None:
        return None
    return Pin(token, name, named[2])


@fault("file-package-ended", Severity.WARNING)
def package_ended() -> None:
    """A package without further releases is installed

    Symptom: the stack cannot be upgraded: each part requires old versions of the others.

    Cause: IPEX 2.8 was the last, its repository is archived; the oneCCL bindings are not on PyPI.
    transformers 5 and accelerate 1.13 know neither.

    Remedy: Remove them, and install the current torch, transformers and accelerate: torch itself
    trains in bf16 with AMX, over gloo.

    Source: huggingface/transformers#40784, huggingface/accelerate#3883
    """


@fault("file-pins", Severity.ERROR)
def pins_unfit() -> None:
    """The versions that are installed do not fit together

    Symptom: pip ends with ResolutionImpossible, or importing ends with an error.

    Cause: each release of transformers and accelerate needs certain releases of torch.

    Remedy: Install versions that fit: `cputune doctor --stack` names them.

    Source: https://pypi.org/project/transformers/
    """


def packages_of(pins: list[Pin]) -> tuple[Package, ...]:
    """The packages that will be installed: versions of the file, the newest of the tables for
    others.
    """
    held = {name: str(version) for name, version in load().era("today").versions.items()}
    for pin in pins:
        newest = {"ipex": load().ipex[-1].version, "oneccl": load().oneccl[-1].version}
        held[pin.name] = pin.version or str(newest.get(pin.name, held.get(pin.name, "")))
    return tuple(Package(name=DISTRIBUTIONS[name], version=text) for name, text in held.items())


def judge_pins(
    pins: list[Pin],
    context: Context,
    python: str | None,
    without: Callable[[list[Pin]], tuple[Edit, ...]],
) -> Iterator[Finding]:
    """Packages without further releases or without a version, and versions that do not fit."""
    if context.places is None or not pins:
        return
    ended, others = [], []
    for pin in pins:
        if pin.name in ("ipex", "oneccl"):
            ended.append(pin)
        else:
            others.append(pin)
    renewed, problem = _renewed(context.places, others, python)
    for pin in ended:
        misfit = f"{pin.token.text}: remove it, and install the current stack{problem}"
        line = _line(context.places, pin.token.start)
        edits: tuple[Edit, ...] = ()
        if not problem:
            edits = without(ended) + renewed
        yield package_ended.finding(context.at(line, misfit), edits=edits)
    if ended:
        return
    held = {DISTRIBUTIONS[pin.name]: pin.version for pin in pins if pin.version}
    if python is not None:
        held["python"] = python
    line = _line(context.places, pins[0].token.start)
    for misfit in misfits(Versions.from_names(held)):
        yield pins_unfit.finding(context.at(line, f"{misfit}{problem}"), edits=renewed)
    open_ones = [pin.token.text for pin in pins if pin.version is None and not pin.constrained]
    if open_ones:
        misfit = f"{', '.join(open_ones)}: no version is given"
        yield unpinned.finding(context.at(line, misfit))


@fault("file-unpinned", Severity.ADVICE)
def unpinned() -> None:
    """Packages of the stack are installed without a version

    Symptom: next month the same file installs another torch or transformers, and flags are refused.

    Cause: pip takes the newest release, but versions of torch, transformers and accelerate must fit
    each other.

    Remedy: Name versions that were tried together; `cputune doctor --stack` says which fit.

    Source: https://pip.pypa.io/en/stable/topics/repeatable-installs/
    """


def _renewed(places: Places, pins: list[Pin], python: str | None) -> tuple[tuple[Edit, ...], str]:
    """The edits that set each pinned version to the newest of the tables.

    If those versions do not fit together either, the second value says why.
    """
    today = {name: str(version) for name, version in load().era("today").versions.items()}
    for name in ("torchvision", "torchaudio"):
        today[name] = _built_for(name, today["torch"])
    held = {DISTRIBUTIONS[pin.name]: today.get(pin.name) or pin.version for pin in pins}
    if python is not None:
        held["python"] = python
    wrong = misfits(Versions.from_names({name: text for name, text in held.items() if text}))
    if wrong:
        return (), f"; no fix is printed: {wrong[0]}"
    edits = list[Edit]()
    for pin in pins:
        version = None
        if pin.version is not None:
            version = parse(pin.version)
        if version is None or not today.get(pin.name) or version.public == today[pin.name]:
            continue
        of_place = {today.get(other.name) for other in pins if other.place == pin.place}
        if pin.place is not None and len(of_place) == 1:
            edits.append(places.becomes(pin.place, today[pin.name]))
        else:
            name, equals, _ = re.split(r"(={1,3})", pin.token.text, maxsplit=1)
            edits.append(places.becomes(pin.token, f"{name}{equals}{today[pin.name]}"))
    return tuple(dict.fromkeys(edits)), ""


def _built_for(name: str, torch: str) -> str:
    """The newest release of torchvision or torchaudio for a torch, or ""."""
    if name == "torchvision":
        rows = load().torchvision
    else:
        rows = load().torchaudio
    fitting = []
    for row in rows:
        if SpecifierSet(row.torch).contains(torch):
            fitting.append(row)
    if fitting:
        return str(fitting[-1].version)
    return ""


def _line(places: Places, at: int) -> int:
    return places.text.count("\n", 0, at) + 1


CHECKS = checks_of(__name__)
