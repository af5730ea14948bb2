"""The edits that fix a launch: its launcher, its options, its variables, its lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.places import Places, Token
from cputune.launch.translate import Translated, by_mpirun, by_python, by_torchrun
from cputune.stack import load
from cputune.stack.tables import MpiOption

_SETS = re.compile(r"export((?: [A-Za-z_]\w*=\S+)+)")
_UNSETS = re.compile(r"unset((?: [A-Za-z_]\w*)+)")


def by_command(places: Places, launch: Launch, command: str | None) -> tuple[Edit, ...]:
    """What a shell command would set or unset, written into the file."""
    sets, unsets = _SETS.fullmatch(command or ""), _UNSETS.fullmatch(command or "")
    edits = list[Edit]()
    if sets:
        for word in shlex.split(sets[1]):
            name, _, value = word.partition("=")
            edits += places.set_variable(launch, name, value)
    if unsets:
        for name in unsets[1].split():
            edits += places.unset_variable(launch, name)
    return tuple(edits)


def force_cpu(places: Places, launch: Launch) -> tuple[Edit, ...]:
    """Ask for the CPU: accelerate launch by its option, a script by its flag."""
    if launch.inside.launcher == "accelerate" and launch.script:
        return behind_program(places, launch.inside, "--cpu")
    return places.add_flags(launch, "--use_cpu")


def behind_program(places: Places, launch: Launch, *options: str) -> tuple[Edit, ...]:
    """Insert options right behind the launcher."""
    tokens = places.of(launch)
    at = next((i for i, token in enumerate(tokens) if token.text == launch.program), None)
    if at is None:
        return ()
    if tokens[at + 1 : at + 2] and tokens[at + 1].text == "launch":
        at += 1
    return (places.after(tokens[at], options),)


def plain_launcher(launch: Launch) -> Translated:
    """python for one rank, torchrun for several, mpirun over the machines of a host file."""
    if launch.machines > 1 and launch.meant("host file") and launch.launcher == "ipexrun":
        return by_mpirun(launch)
    one = launch.total in (None, "1") and launch.machines == 1
    if one and launch.meant("nodes") in (None, "1"):
        return by_python(launch)
    return by_torchrun(launch)


def ranks_by_torchrun(launch: Launch) -> Translated:
    """Start by torchrun the ranks that accelerate would start only through mpirun."""
    replacement = by_torchrun(launch)
    if not any(word.startswith("ACCELERATE_USE_CPU=") for word in replacement.variables):
        replacement.variables.insert(0, "ACCELERATE_USE_CPU=true")
    return replacement


def relaunched(places: Places, launch: Launch, replacement: Translated) -> tuple[Edit, ...]:
    """The launch with another launcher.

    There are no edits if an option has no counterpart, or if the script's word is known only at run
    time.
    """
    is_python = launch.module or launch.script.endswith(".py") or "$" not in launch.script
    if replacement.refused or not launch.script or not is_python:
        return ()
    return places.relaunched(launch, replacement)


def in_dialect(places: Places, launch: Launch, dialect: str) -> tuple[Edit, ...]:
    """Options of mpirun in the dialect of the installed one.

    The launch's words are followed in the text (``Places.of``), and not the options that it was
    read with: in YAML and in a Dockerfile those have no place.
    """
    rows = _mpirun_rows()
    tokens = places.of(launch)
    at = next((i for i, token in enumerate(tokens) if token.text == launch.program), len(tokens))
    edits = list[Edit]()
    while at < len(tokens) and tokens[at].text != launch.script:
        row = rows.get(tokens[at].text)
        previous = None
        if row:
            previous = row.spelling_in(dialect)
        if row is None or previous is None:
            at += 1
            continue
        option, values = _with_values(tokens, at, row.takes)
        if previous:
            text = previous.format(*values)
            edits.append(Edit(start=option[0].start, end=option[-1].end, text=text))
        else:
            edits += places.without(option)
        at += len(option)
    return tuple(edits)


def _mpirun_rows() -> dict[str, MpiOption]:
    """The options of mpirun by each of their spellings."""
    rows = dict[str, MpiOption]()
    for row in load().mpirun:
        for name in row.names:
            rows[name] = row
    return rows


def without_counterpart(launch: Launch, dialect: str) -> Iterator[str]:
    """Options of mpirun that this dialect lacks, with their values."""
    rows = _mpirun_rows()
    for one in launch.given:
        row = rows.get(one.name)
        if row is not None and row.spelling_in(dialect) == "":
            yield one.text


def _with_values(
    tokens: Sequence[Token], at: int, takes: int
) -> tuple[Sequence[Token], tuple[str, ...]]:
    """An option with its values; ``NAME=VALUE`` counts as two."""
    first = ""
    if at + 1 < len(tokens):
        first = tokens[at + 1].text
    if takes == 2 and "=" in first:
        name, _, value = first.partition("=")
        return tokens[at : at + 2], (name, value)
    option = tokens[at : at + 1 + takes]
    return option, tuple(word.text for word in option[1:])


_SETVARS = re.compile(
    r"""(?<![\w./-])(?:source|\.)[ \t]+["']?(\S*(?:setvars\.sh|/conda\.sh|/bin/activate))["']?"""
    r"(?:[ \t]+[^\s;&|)#]+)*(?=[\s;&|)]|$)"
)
_BINDINGS = r"(?:oneccl_bindings_for_pytorch|torch_ccl)"
_FOLDER_OF_BINDINGS = re.compile(
    r"(?:export[ \t]+)?\b(\w+)=(?:\$\(|`)python[0-9.]*\s+-c\s+(\\?[\"'])"
    rf"[^\"'\n]*{_BINDINGS}[^\"'\n]*\2(?:\)|`)"
)


def sourced(places: Places) -> Iterator[tuple[int, str, bool, tuple[Edit, ...]]]:
    """Files of oneAPI or an environment that are sourced: line, path, whether of the bindings,
    edits.

    The edits also remove the line that asks Python for the folder of the bindings.
    """
    requests = list(_FOLDER_OF_BINDINGS.finditer(places.code))
    for match in _SETVARS.finditer(places.code):
        folder = next(
            (variable for variable in requests if re.search(rf"\$\{{?{variable[1]}\b", match[1])),
            None,
        )
        of_bindings = folder is not None or bool(re.search(_BINDINGS, match[1]))
        edits = [_statement(places, match.start(), match.end())]
        if folder is not None:
            edits.append(_statement(places, folder.start(), folder.end()))
        line = places.code.count("\n", 0, match.start()) + 1
        yield line, match[1], of_bindings, tuple(edits)


def _statement(places: Places, start: int, end: int) -> Edit:
    """The edit that removes a shell statement with its separator."""
    separated = re.match(r"[ \t]*(?:;|&&)[ \t]*", places.code[end:])
    if separated:
        end += separated.end()
        if places.code[end : end + 1] != "\n":
            return Edit(start=start, end=end)
    return places.cut(start, end)
