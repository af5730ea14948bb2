"""``requirements.txt`` and conda's ``environment.yml``: the stack that they install."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.context import Context
from cputune.doctor.files.pins import Pin, judge_pins, pin_of
from cputune.doctor.files.yaml_spans import Document
from cputune.doctor.finding import Finding
from cputune.errors import UsageError
from cputune.launch.edit import Edit
from cputune.launch.located_words import span_of
from cputune.launch.places import Places, Token

_LINE = re.compile(
    r"(?m)^[ \t]*(?P<spec>[A-Za-z][\w.-]*(?:\[[\w,-]*\])?[ \t]*(?:[=~<>!]=?=?[^\s;#]+)?)"
    r"[ \t]*(?:;[^\n#]*)?(?:[ \t]#[^\n]*|--hash\S*|\\)?[ \t]*\r?$"
)
_NAMED = re.compile(r"(?:^|.*/)(?:[\w-]*requirements[\w.-]*|constraints[\w.-]*)\.(?:txt|in)$")


def is_requirements(name: str) -> bool:
    """Whether a file is for pip -r, by its name."""
    return _NAMED.match(name) is not None


def judge_requirements(context: Context) -> Iterator[Finding]:
    """Every fault of a requirements.txt. Raises UsageError if it names nothing of the stack."""
    places = context.places or Places("")
    pins = list[Pin]()
    for match in _LINE.finditer(places.code):
        start = match.start("spec")
        text = re.sub(r"\s+", "", match["spec"])
        token = Token(start, start + len(match["spec"].rstrip()), text)
        if (pin := pin_of(token)) is not None:
            pins.append(pin)
    if not pins:
        raise UsageError(
            f"{context.name} installs no part of the stack",
            hint="cputune judges torch, transformers, accelerate and what they need",
        )
    yield from judge_pins(pins, context, None, lambda ended: _without_lines(places, ended))


def _without_lines(places: Places, ended: list[Pin]) -> tuple[Edit, ...]:
    edits = list[Edit]()
    for pin in ended:
        first = places.text.rfind("\n", 0, pin.token.start) + 1
        last = places.text.find("\n", pin.token.end)
        edits.append(Edit(start=first, end=len(places.text) if last < 0 else last + 1))
    return tuple(edits)


def is_environment(document: Document) -> bool:
    """Whether a document is an environment of conda."""
    named = document.get("dependencies")
    return isinstance(named, list) and document.get("kind") is None


def judge_environment(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of an environment.yml."""
    pins, python = list[Pin](), None
    for word in _specs(document):
        text = str(word)
        named = re.fullmatch(r"(?:[\w-]+::)?([A-Za-z][\w.-]*)\s*=+\s*([\d.]+)(?:=\S+)?", text)
        if named and named[1] == "python":
            python = ".".join(named[2].split(".")[:2])
            continue
        span = span_of(word)
        if named:
            name = {"pytorch": "torch"}.get(named[1], named[1])
        else:
            name = text
        if span is None:
            continue
        version = ""
        if named:
            version = f"=={named[2]}"
        pin = pin_of(Token(span.start, span.end, f"{name}{version}"))
        if pin is not None:
            pins.append(pin)
    # conda spells versions with one =, and has its own builds: what is said is not rewritten.
    for finding in judge_pins(pins, context, python, lambda _: ()):
        yield replace(finding, edits=(), dropped=())


def _specs(document: Document) -> Iterator[str]:
    """The packages of conda, and those of pip below it."""
    for number, item in enumerate(document.items("dependencies")):
        if isinstance(item, str):
            yield document.words.get(("dependencies", number), item)
        elif isinstance(item, dict):
            yield from document.command("dependencies", number, "pip")
