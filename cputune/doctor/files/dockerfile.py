"""A Dockerfile judged: its image, the versions that it installs, and its command.

Versions that the file does not name are the newest of the tables. The machine that will run the
image is unknown. Instructions are found here, because BuildKit's parser (the package
``dockerfile``, which has to be built with Go) gives lines without columns, and a fix changes single
words. What CMD and ENTRYPOINT start is read by ``cputune.launch.shell``.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.context import Context, facts_elsewhere
from cputune.doctor.files.ended import judge_sourced
from cputune.doctor.files.judge import judge_launches
from cputune.doctor.files.pins import Pin, judge_pins, packages_of, pin_of
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.host import Host
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.located_words import Span, Word, value_of
from cputune.launch.places import Places, Token
from cputune.launch.shell import read_launches, read_words
from cputune.launch.target import Target
from cputune.stack import Versions
from cputune.stack.fit import misfits
from cputune.stack.tables import load

_INSTRUCTION = re.compile(r"(?mi)^[ \t]*([A-Z]+)[ \t]+((?:[^\n\\]|\\[^\n]|\\\n)*)")
_PIP = re.compile(r"(?<![\w.-])pip3?[ \t]+install\b((?:[^\n\\&|;]|\\.|\\\n)*)", re.DOTALL)

_OF_PYTHON = re.compile(r"(?:docker\.io/)?(?:library/)?python:(3\.\d+)")


@fault("file-image-ended", Severity.WARNING)
def image_ended() -> None:
    """The image holds a stack that has ended

    Symptom: pip finds no version of transformers for the Python of the image, or IPEX does not fit
    the torch that is installed over it.

    Cause: Intel's images for PyTorch on CPUs contain IPEX 2.8 or older, and the torch and Python of
    that time. Hugging Face removed its CPU images in 2023. Releases of torch have no wheel for a
    Python that has ended, and pip then installs the last one that had.

    Remedy: Start from the image of a Python that is supported, and install what you need.

    Source: https://hub.docker.com/r/intel/intel-optimized-pytorch, huggingface/transformers#28148,
    https://devguide.python.org/versions/
    """


def judge_dockerfile(context: Context) -> Iterator[Finding]:
    """Every fault of a Dockerfile. Raises UsageError if it neither installs nor starts anything."""
    places = context.places or Places("")
    instructions = list(_INSTRUCTION.finditer(places.code))
    given = _given(places, instructions)
    pins = list[Pin]()
    for instruction in instructions:
        if instruction[1].upper() == "RUN":
            pins += _pins(places, instruction, given)
    facts = replace(context.facts, packages=packages_of(pins), environment={})
    inside = replace(context, facts=facts, host=Host(), here=False)
    launches = list(_launches(places, instructions))
    if not pins and not launches:
        raise UsageError(
            f"{context.name} installs no part of the stack and starts no training",
            hint="cputune judges pip install, CMD and ENTRYPOINT of a Dockerfile",
        )
    unpinned = any(pin.version is None and not pin.constrained for pin in pins)
    for instruction in instructions:
        if instruction[1].upper() == "FROM":
            needs = _needs_its_image(places, pins)
            yield from _image(places, instruction, given, needs, context)
            if unpinned:
                yield from _ended_python(places, instruction, given, context)
    python = _python(places, instructions, given)
    yield from judge_pins(
        pins, context, python, lambda ended: _without(places, instructions, ended)
    )
    yield from judge_sourced(inside)
    of_launches = list(judge_launches(launches, inside))
    yield from of_launches
    seen = {finding.code for finding in of_launches}
    for finding in _judge_variables(places, instructions, inside):
        if finding.code not in seen:
            yield finding


def _judge_variables(
    places: Places, instructions: list[re.Match[str]], inside: Context
) -> Iterator[Finding]:
    """What ENV sets, judged as it reaches a process of the image, whose machine is not known."""
    variables, lines = dict[str, str](), dict[str, int | None]()
    for name, (value, line) in _variables(places, instructions).items():
        variables[name] = value
        lines[name] = line
    if not variables:
        return
    # Whatever runs in the image may ask for the CPU itself.
    started = {"ACCELERATE_USE_CPU": "true", **variables}
    process = Launch(launcher="python", environment=started)
    facts = facts_elsewhere(inside.facts, None)
    of_image = replace(inside, facts=facts, here=True, lines=lines, target=Target(kind="pod"))
    yield from judge_launches([process], of_image)


_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")


_ASSIGNED = re.compile(
    r"""(?<!\S)(?P<name>[A-Za-z_]\w*)=(?:"(?P<double>[^"\n]*)"|'(?P<single>[^'\n]*)'"""
    r"""|(?P<bare>[^\s"'\\]+))"""
)


def _given(places: Places, instructions: list[re.Match[str]]) -> dict[str, Token]:
    """The values of ARG and ENV as written; the first value of a name counts."""
    given = dict[str, Token]()
    for instruction in instructions:
        if instruction[1].upper() not in ("ARG", "ENV"):
            continue
        for match in _ASSIGNED.finditer(places.code, instruction.start(2), instruction.end(2)):
            kind = next(kind for kind in ("double", "single", "bare") if match[kind] is not None)
            value = Token(match.start(kind), match.end(kind), match[kind])
            given.setdefault(match["name"], value)
    return given


def _filled(text: str, given: dict[str, Token]) -> str:
    """A word with the variables of ARG and ENV filled in; unknown ones stay."""

    def value(match: re.Match[str]) -> str:
        token = given.get(match[1] or match[2])
        if token is not None:
            return token.text
        if match[3] is None:
            return match[0]
        return match[3]

    return _VARIABLE.sub(value, text)


def _place(text: str, given: dict[str, Token]) -> Token | None:
    """Where the value of a word is written that is one variable, or ends in ``==`` and one."""
    match = _VARIABLE.fullmatch(text.rpartition("=")[2])
    if match is None:
        return None
    return given.get(match[1] or match[2])


def _pins(places: Places, run: re.Match[str], given: dict[str, Token]) -> Iterator[Pin]:
    """The packages of the stack that RUN instructions install by pip."""
    for match in _PIP.finditer(places.code, run.start(2), run.end(2)):
        tokens = list(places.tokens(match.start(1), match.end(1)))
        constrained = value_of([token.text for token in tokens], "-c", "--constraint") is not None
        for token in tokens:
            pin = pin_of(token._replace(text=_filled(token.text, given)))
            if pin is not None:
                place = _place(token.text, given)
                yield pin._replace(token=token, constrained=constrained, place=place)


def _python(
    places: Places, instructions: list[re.Match[str]], given: dict[str, Token]
) -> str | None:
    """The Python of the last image that the file starts from, by its tag."""
    named = None
    for instruction in instructions:
        if instruction[1].upper() == "FROM":
            match = _OF_PYTHON.match(_image_of(instruction, given))
            named = None
            if match:
                named = match[1]
    return named


def _without(
    places: Places, instructions: list[re.Match[str]], ended: list[Pin]
) -> tuple[Edit, ...]:
    """Edits that remove packages; a pip that would install nothing is removed with its RUN."""
    edits = list[Edit]()
    ended_tokens = {pin.token for pin in ended}
    for run in instructions:
        if run[1].upper() != "RUN":
            continue
        for match in _PIP.finditer(places.code, run.start(2), run.end(2)):
            tokens = list(places.tokens(match.start(1), match.end(1)))
            here = [word for word in tokens if word in ended_tokens]
            if not here:
                continue
            if _installs(tokens, here):
                for word in here:
                    edits += places.without([word])
            else:
                edits.append(_without_command(places, run, match))
    return tuple(edits)


_TAKES_VALUE = (
    "-f",
    "--find-links",
    "-i",
    "--index-url",
    "--extra-index-url",
    "-c",
    "--constraint",
)


def _installs(tokens: list[Token], gone: list[Token]) -> bool:
    """Whether a pip still installs something without these words."""
    packages, value = list[Token](), False
    for word in tokens:
        if not value and word not in gone and not word.text.startswith("-"):
            packages.append(word)
        value = word.text in _TAKES_VALUE
    return bool(packages)


def _without_command(places: Places, run: re.Match[str], pip: re.Match[str]) -> Edit:
    """A pip command removed with its ``&&``; the whole RUN if it contains nothing else."""
    text = places.text
    start, end = pip.span()
    before = re.search(r"(?:[\w./]*python[\d.]*[ \t]+-m[ \t]+)?$", text[run.start(2) : start])
    start -= len(before[0]) if before else 0
    end = start + len(text[start:end].rstrip())
    behind = re.match(r"[\s\\]*(?:&&|;)[\s\\]*", text[end : run.end(2)])
    if behind:
        return Edit(start=start, end=end + behind.end())
    ahead = re.search(r"[\s\\]*(?:&&|;)[\s\\]*$", text[run.start(2) : start])
    if ahead:
        return Edit(start=start - len(ahead[0]), end=end)
    first = text.rfind("\n", 0, run.start()) + 1
    last = text.find("\n", run.end())
    return Edit(start=first, end=len(text) if last < 0 else last + 1)


_OTHER_MANAGERS = re.compile(
    r"(?<![\w./-])(yum|dnf|microdnf|zypper|apk|conda|mamba|micromamba)[ \t]"
)


def _needs_its_image(places: Places, pins: list[Pin]) -> str | None:
    """Why a file would not build, or not train, from an image of Python alone."""
    manager = _OTHER_MANAGERS.search(places.code)
    if manager is not None:
        return f"the file calls {manager[1]}, which an image of Python does not have"
    if not any(pin.name == "torch" for pin in pins):
        return "torch comes with this image, and the file does not install it"
    return None


def _image(
    places: Places,
    named: re.Match[str],
    given: dict[str, Token],
    needs: str | None,
    context: Context,
) -> Iterator[Finding]:
    """``needs``: why the rest of the file does not work in another image; None if it does."""
    token = next(
        (word for word in places.tokens(named.start(2), named.end(2)) if word.text[:2] != "--"),
        None,
    )
    if token is None:
        return
    for row in load().images:
        image = _filled(token.text, given)
        name = image.partition("@")[0].partition(":")[0]
        if name.removeprefix("docker.io/") == row.name:
            text = f"FROM {image}: start from {row.instead}"
            edits: tuple[Edit, ...] = ()
            if needs is None:
                place = _place(token.text, given) or token
                edits = (places.becomes(place, row.instead),)
            else:
                text += f"; no fix is printed: {needs}"
            evidence = context.at(_line(places, token.start), text)
            yield image_ended.finding(evidence, edits=edits)


def _image_of(named: re.Match[str], given: dict[str, Token]) -> str:
    return re.sub(r"^--\S+\s+", "", _filled(named[2].strip(), given))


def _ended_python(
    places: Places, named: re.Match[str], given: dict[str, Token], context: Context
) -> Iterator[Finding]:
    """A Python without a wheel of the current torch: pip takes an old one of a package without a
    version.
    """
    image = _image_of(named, given)
    python = _OF_PYTHON.match(image)
    if python is None:
        return
    torch = str(load().era("today").versions["torch"])
    for misfit in misfits(Versions.from_names({"torch": torch, "python": python[1]})):
        text = f"FROM {image}: {misfit}: pip installs an old one"
        yield image_ended.finding(context.at(_line(places, named.start(2)), text))


def _launches(places: Places, instructions: list[re.Match[str]]) -> Iterator[Launch]:
    """What CMD and ENTRYPOINT start, with the variables of ENV.

    Words of CMD are the arguments of an ENTRYPOINT that is a list of words. Of several the last
    counts.
    """
    variables = {name: value for name, (value, _) in _variables(places, instructions).items()}
    last = dict[str, re.Match[str]]()
    for instruction in instructions:
        if instruction[1].upper() in ("CMD", "ENTRYPOINT"):
            last[instruction[1].upper()] = instruction
    entry, command = last.get("ENTRYPOINT"), last.get("CMD")
    first = entry or command
    if first is None:
        return
    words = list[str]()
    if entry is not None and command is not None:
        before, behind = _words(places, entry), _words(places, command)
        if before is not None and behind is not None:
            words = before + behind
    line = _line(places, first.start(2))
    with contextlib.suppress(UsageError):
        launches = read_words(words, line=line)
        for one in filter(None, (entry, command)):
            launches = launches or _started(places, one, line)
        for launch in launches:
            yield replace(launch, line=line, environment={**variables, **launch.environment})


def _variables(places: Places, instructions: list[re.Match[str]]) -> dict[str, tuple[str, int]]:
    """What ENV sets in the last stage of an image: value and line of each variable.

    A stage that begins with another one has its variables, too.
    """
    variables = dict[str, tuple[str, int]]()
    stages = dict[str, dict[str, tuple[str, int]]]()
    given = _given(places, instructions)
    for instruction in instructions:
        if instruction[1].upper() == "FROM":
            image, _, stage = _image_of(instruction, given).lower().partition(" as ")
            variables = dict(stages.get(image.strip(), {}))
            stages[stage.strip()] = variables
        elif instruction[1].upper() == "ENV":
            for name, value in _set_by(instruction[2]).items():
                at = places.text.find(name, instruction.start(2))
                variables[name] = _filled(value, given), _line(places, at)
    return variables


def launches_of(text: str) -> tuple[Launch, ...]:
    """What CMD and ENTRYPOINT of a Dockerfile start."""
    places = Places(text, sets="ENV")
    return tuple(_launches(places, list(_INSTRUCTION.finditer(places.code))))


def _started(places: Places, command: re.Match[str], line: int) -> tuple[Launch, ...]:
    """What a command starts: a line of shell, or the words of ``["python", "train.py"]``."""
    words = _words(places, command)
    if words is None:
        before = re.sub(r"[^\n]", " ", places.text[: command.start(2)])
        return read_launches(before + command[2], "CMD")
    return read_words(words, line=line)


def _words(places: Places, command: re.Match[str]) -> list[str] | None:
    """The words of ``["python", "train.py"]`` with their places; None for a line of shell."""
    try:
        argv = json.loads(command[2].replace("\\\n", ""))
    except ValueError:
        return None
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        return None
    written, at = list[str](), command.start(2)
    for word in argv:
        text = json.dumps(word, ensure_ascii=False)
        start = places.text.find(text, at, command.end(2))
        if start < 0:
            written.append(word)
            continue
        at = start + len(text)
        written.append(Word(word, Span(start, at), exact=text == f'"{word}"'))
    return written


def _set_by(text: str) -> dict[str, str]:
    """``NAME=VALUE …``, or the older ``NAME VALUE``."""
    try:
        parts = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        return {}
    if parts and "=" not in parts[0]:
        return {parts[0]: " ".join(parts[1:])}
    return dict(word.partition("=")[::2] for word in parts if "=" in word)


def _line(places: Places, at: int) -> int:
    return places.text.count("\n", 0, at) + 1


CHECKS = checks_of(__name__)
