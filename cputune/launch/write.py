"""A launch as text of a shell: the line that starts it, and what is set before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from cputune.launch.launch import Launch
from cputune.launch.translate import Translated
from cputune.launch.words import shell_at

_EXPANDED = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|[@*#0-9])")


def quoted(word: str) -> str:
    """A word as a shell reads it; a variable that is not known stays one."""
    if _EXPANDED.search(word) and re.fullmatch(r"[\w@%+=:,./${}*#~-]+", word):
        return f'"{word}"' if re.search(r"[*~]|\$@", word) else word
    return shlex.quote(word)


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
        leading = leading and bool(equals) and re.fullmatch(r"[A-Za-z_]\w*", name) is not None
        parts.append(f"{name}={quoted(value)}" if leading else quoted(word))
    return " ".join(parts)


def shell_of(launch: Launch) -> str:
    """The launch as a script: what it unsets and exports, and its line."""
    own = {word.partition("=")[0] for word in launch.words}
    lines = [f'unset "${{!{name[:-1]}@}}"' for name in sorted(launch.removed) if name[-1:] == "*"]
    lines += [f"unset {name}" for name in sorted(launch.removed) if re.fullmatch(r"\w+", name)]
    for name, value in sorted(launch.environment.items()):
        if name not in own:
            lines.append(f"export {name}={quoted(value)}")
    return "\n".join([*lines, line_of(launch.words), ""])


def translated(launch: Launch, said: Translated) -> str:
    """The launcher, its options and the script with another launcher in its place.

    What is in front and the script's arguments are left out: they stay, and may hold a secret.
    """
    options = list[str]()
    for given, name in said.options:
        if name is None:
            continue
        _, equals, value = given.words[0].partition("=")
        options += [f"{name}{equals}{value}" if equals else name, *given.words[1:]]
    return line_of([*said.variables, *said.words, *options, launch.script])
