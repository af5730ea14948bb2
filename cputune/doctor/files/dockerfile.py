"""A Dockerfile judged: its image, the versions that it installs, and the command that it starts.

The command is judged by the versions that stand in the file, and where none stand, by today's; of
the machine that will run the image nothing is known.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from cputune.doctor.files.context import Context
from cputune.doctor.files.ended import judge_sourced
from cputune.doctor.files.judge import judge_launches
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import Package
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.places import Places, Token
from cputune.launch.shell import read_launches, read_words
from cputune.launch.words import Span, Word
from cputune.stack.fit import misfits
from cputune.stack.tables import DISTRIBUTIONS, Versions, load, parse, short_name

_INSTRUCTION = re.compile(r"(?mi)^[ \t]*([A-Z]+)[ \t]+((?:[^\n\\]|\\[^\n]|\\\n)*)")
_PIP = re.compile(r"(?<![\w.-])pip3?[ \t]+install\b((?:[^\n\\&|;]|\\.|\\\n)*)", re.DOTALL)
_PINNED = re.compile(r"([A-Za-z][A-Za-z0-9._-]*?)(?:==([0-9][\w.+]*))?")


class Pin(NamedTuple):
    """A package of the stack as ``pip install`` is told it."""

    token: Token
    name: str
    version: str | None


@fault("file-image-ended", Severity.WARNING)
def image_ended() -> None:
    """The image holds a stack that has ended

    Symptom: pip finds no version of transformers for the Python of the image, or IPEX does not
    fit the torch that is installed over it.

    Cause: Intel's images for PyTorch on CPUs hold IPEX 2.8 or older, and the torch and the
    Python of its time.

    Remedy: Start from the image of Python that the evidence names, and install what is needed.

    Source: https://hub.docker.com/r/intel/intel-optimized-pytorch
    """


@fault("file-package-ended", Severity.WARNING)
def package_ended() -> None:
    """The image installs a package that has ended

    Symptom: the stack cannot be renewed: each part wants the others as they were.

    Cause: IPEX 2.8 was the last, and its repository is archived; the oneCCL bindings are not on
    PyPI. transformers 5 and accelerate 1.13 know neither.

    Remedy: Leave them out, and install today's torch, transformers and accelerate: torch itself
    trains in bf16 with AMX, over gloo.

    Source: huggingface/transformers#40784, huggingface/accelerate#3883
    """


@fault("file-pins", Severity.ERROR)
def pins_unfit() -> None:
    """The versions that the image installs do not fit together

    Symptom: pip ends with ResolutionImpossible, or importing ends with an error.

    Cause: each release of transformers and accelerate needs certain releases of torch.

    Remedy: Install versions that fit: `cputune doctor --stack` names them.

    Source: https://pypi.org/project/transformers/
    """


def judge_dockerfile(context: Context) -> Iterator[Finding]:
    """Every fault of a Dockerfile. Raises UsageError where it neither installs nor starts any."""
    places = context.places or Places("")
    found = list(_INSTRUCTION.finditer(places.code))
    pins = [
        pin
        for instruction in found
        if instruction[1].upper() == "RUN"
        for pin in _pins(places, instruction)
    ]
    facts = replace(context.facts, packages=_packages(pins), environment={})
    inside = replace(context, facts=facts, host=Host(), here=False)
    launches = list(_launches(places, found, context))
    if not pins and not launches:
        raise UsageError(
            f"{context.name} installs no part of the stack and starts no training",
            hint="of a Dockerfile, pip install, CMD and ENTRYPOINT are judged",
        )
    for instruction in found:
        if instruction[1].upper() == "FROM":
            yield from _image(places, instruction, context)
    yield from _versions(pins, context)
    yield from judge_sourced(inside)
    yield from judge_launches(launches, inside)


def _pins(places: Places, run: re.Match[str]) -> Iterator[Pin]:
    """The packages of the stack that a RUN installs by pip."""
    for found in _PIP.finditer(places.code, run.start(2), run.end(2)):
        for token in places.tokens(found.start(1), found.end(1)):
            named = _PINNED.fullmatch(token.text)
            name = short_name(named[1]) if named else None
            if named is not None and name is not None:
                yield Pin(token, name, named[2])


def _packages(pins: list[Pin]) -> tuple[Package, ...]:
    """What the image will hold: the versions of its lines, and today's of all others."""
    held = {name: str(version) for name, version in load().era("today").versions.items()}
    for pin in pins:
        newest = {"ipex": load().ipex[-1].version, "oneccl": load().oneccl[-1].version}
        held[pin.name] = pin.version or str(newest.get(pin.name, held.get(pin.name, "")))
    return tuple(Package(name=DISTRIBUTIONS[name], version=text) for name, text in held.items())


def _image(places: Places, named: re.Match[str], context: Context) -> Iterator[Finding]:
    token = next(
        (word for word in places.tokens(named.start(2), named.end(2)) if word.text[:2] != "--"),
        None,
    )
    if token is None:
        return
    for row in load().images:
        name = token.text.partition("@")[0].partition(":")[0]
        if name.removeprefix("docker.io/") == row.name:
            text = f"FROM {token.text}: start from {row.instead}"
            edits = (places.becomes(token, row.instead),)
            said = context.at(_line(places, token.start), text)
            yield image_ended.finding(said, edits=edits)


def _versions(pins: list[Pin], context: Context) -> Iterator[Finding]:
    """Packages that have ended, and versions that do not fit."""
    if context.places is None:
        return
    ended = [pin for pin in pins if pin.name in ("ipex", "oneccl")]
    renewed = _renewed(context.places, pins)
    for pin in ended:
        said = f"pip install {pin.token.text}: leave it out, and install today's stack"
        line = _line(context.places, pin.token.start)
        edits = (*context.places.without([pin.token]), *renewed)
        yield package_ended.finding(context.at(line, said), edits=edits)
    if ended:
        return
    held = {DISTRIBUTIONS[pin.name]: pin.version for pin in pins if pin.version}
    for said in misfits(Versions.from_names(held)):
        line = _line(context.places, pins[0].token.start)
        yield pins_unfit.finding(context.at(line, said), edits=renewed)


def _renewed(places: Places, pins: list[Pin]) -> tuple[Edit, ...]:
    """Each version that is pinned becomes today's."""
    today = load().era("today").versions
    edits = list[Edit]()
    for pin in pins:
        if pin.version is None or pin.name not in today:
            continue
        version = parse(pin.version)
        if version is not None and version.public != str(today[pin.name]):
            name = pin.token.text.partition("==")[0]
            edits.append(places.becomes(pin.token, f"{name}=={today[pin.name]}"))
    return tuple(edits)


def _launches(
    places: Places, instructions: list[re.Match[str]], context: Context
) -> Iterator[Launch]:
    """What CMD and ENTRYPOINT start, with the variables of ENV."""
    variables = dict[str, str]()
    for instruction in instructions:
        if instruction[1].upper() == "ENV":
            variables |= _set_by(instruction[2])
    for instruction in instructions:
        if instruction[1].upper() not in ("CMD", "ENTRYPOINT"):
            continue
        line = _line(places, instruction.start(2))
        try:
            found = _started(places, instruction, line)
        except UsageError:
            continue
        for launch in found:
            yield replace(launch, line=line, environment={**variables, **launch.environment})


def _started(places: Places, command: re.Match[str], line: int) -> tuple[Launch, ...]:
    """What a command starts: a line of shell, or the words of ``["python", "train.py"]``."""
    try:
        words = json.loads(command[2].replace("\\\n", ""))
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        before = re.sub(r"[^\n]", " ", places.text[: command.start(2)])
        return read_launches(before + command[2], "CMD")
    written, at = list[str](), command.start(2)
    for word in words:
        text = json.dumps(word, ensure_ascii=False)
        found = places.text.find(text, at, command.end(2))
        if found < 0:
            written.append(word)
            continue
        at = found + len(text)
        written.append(Word(word, Span(found, at), exact=text == f'"{word}"'))
    return read_words(written, line=line)


def _set_by(text: str) -> dict[str, str]:
    """``NAME=VALUE …``, or the older ``NAME VALUE``."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.partition("=")[::2] for word in words if "=" in word)


def _line(places: Places, at: int) -> int:
    return places.text.count("\n", 0, at) + 1


CHECKS = checks_of(__name__)
