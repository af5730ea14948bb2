"""A launch as text of a shell: the line that starts it, and what is set before it.

``start`` makes the launch of a launcher, its options and a training, as a record that is judged and
as the words of its line; ``line_of`` writes a launch that was read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cputune.launch.launch import Launch
from cputune.launch.located_words import shell_at
from cputune.launch.translate import Translated

_EXPANDED = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|[@*#0-9])")


def quoted(word: str) -> str:
    """A word as a shell reads it; an unknown variable stays one."""
    if _EXPANDED.search(word) and re.fullmatch(r"[\w@%+=:,./${}*#~-]+", word):
        if re.search(r"[*~]|\$@", word):
            return f'"{word}"'
        return word
    return shlex.quote(word)


class ShellText(str):
    """A word that a shell fills in: ``$port``, ``$here/rank.py``.

    ``text`` is as written; by default between double quotes.
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, value: str, text: str | None = None) -> ShellText:
        """A word of this value, as a reader of the script has it."""
        word = super().__new__(cls, value)
        word.text = f'"{value}"' if text is None else text
        return word


def exact(word: str) -> str:
    """A word for bash that is exactly itself; of a ``ShellText`` its text."""
    if isinstance(word, ShellText):
        return word.text
    if "," in word and "'" not in word:
        return f"'{word}'"  # shellcheck wants it in arrays (SC2054)
    return shlex.quote(word)


def assigned(name: str, value: str) -> ShellText:
    """``NAME=VALUE`` in front of a command or behind ``env``."""
    return ShellText(f"{name}={value}", f"{name}={exact(value)}")


def units(command: Iterable[str]) -> list[str]:
    """Words for bash, an option and its value together."""
    pieces = list[str]()
    pending = False
    for word in command:
        option = word.startswith("-")
        if pending and not option:
            pieces[-1] += f" {exact(word)}"
        else:
            pieces.append(exact(word))
        pending = option
    return pieces


def packed(pieces: Iterable[str], width: int) -> list[str]:
    """Short pieces are put into one line."""
    lines = list[str]()
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece) < width - 2:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def array(name: str, words: Iterable[str], width: int, indent: str = "  ") -> str:
    """These words as an array of bash, as many in a line as fit."""
    first, *others = units(words)
    return f"\n{indent}".join(packed([f"{name}=({first}", *others], width)) + ")"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """A launch that is written, and not read.

    Attributes:
        launch: what it means. It is judged before its text is returned.
        words: of its line; arrays may hold the training.
    """

    launch: Launch
    words: tuple[str, ...] = field(default=())

    def command(self, width: int) -> str:
        """Its line, continued if it is long."""
        return " \\\n  ".join(packed(["exec", *units(self.words)], width)) + "\n"


def start(
    launcher: str,
    program: Sequence[str],
    options: Sequence[str],
    trained: Sequence[str],
    *,
    before: Sequence[str] = (),
    through: Sequence[str] = (),
    written: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    removed: Iterable[str] = (),
    part: bool = False,
) -> LaunchLine:
    """The launch of a training by a launcher.

    Args:
        launcher: its name in ``LAUNCHERS``.
        program: the words that start it: ``("torchrun",)``.
        options: its own.
        trained: the script, or ``-m`` and a module, with its arguments.
        before: words in front of the program.
        through: words of a program between the launcher and the training, which starts it.
        written: the words of the line behind the options, if they are not ``through`` and
            ``trained``.
        environment: the variables that a rank has.
        removed: names that are unset before, ``OMP_*`` for a prefix.
        part: it is one of several ranks although its words do not say so.
    """
    module = trained[0] == "-m"
    script, *arguments = trained[module:]
    head = (*before, *program, *options)
    launch = Launch(
        launcher=launcher,
        program=program[0],
        before=tuple(before),
        options=tuple(options),
        module=module,
        script=script,
        arguments=tuple(arguments),
        words=(*head, *through, *trained),
        environment=dict(environment or {}),
        removed=frozenset(removed),
        part=part,
    )
    if written is None:
        behind = (*through, *trained)
    else:
        behind = tuple(written)
    return LaunchLine(launch=launch, words=(*head, *behind))


def line_of(words: Sequence[str]) -> str:
    """These words as one line; ``NAME=VALUE`` in front of them stays an assignment.

    What is behind ``bash -c`` becomes one word again.
    """
    inside = shell_at(words)
    if inside is not None:
        return f"{line_of(words[:inside])} {shlex.quote(line_of(words[inside:]))}"
    parts, leading = list[str](), True
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            leading = False
        parts.append(f"{name}={quoted(value)}" if leading else quoted(word))
    return " ".join(parts)


def translated(launch: Launch, new: Translated) -> str:
    """The launcher, its options and the script with another launcher.

    Words in front and the script's arguments are left out: they stay, and may hold a secret.
    """
    options = list[str]()
    for given, name in new.options:
        if name is None:
            continue
        _, equals, value = given.words[0].partition("=")
        options += [f"{name}{equals}{value}" if equals else name, *given.words[1:]]
    return line_of([*new.variables, *new.words, *options, launch.script])
