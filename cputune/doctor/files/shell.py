"""The training commands of a shell script, with the variables that reach them.

Not a shell: a script is read as lines of commands, with variables, arrays and exports filled in.
What only running would show is left standing, and is then taken for unknown: ``$(…)``, arithmetic,
and what the branches of an ``if`` or ``case`` set otherwise. Words are found by hand: shlex knows
neither arrays nor expansions, and bashlex is under the GPL.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import dropwhile

from cputune.errors import UsageError
from cputune.plans.training_command import TrainingCommand, launch_of

LETTERS_AT_MOST = 100_000
"""Of one word once its variables are filled in: ``x=$x$x`` doubles with every line."""
_WORDS_AT_MOST = 10_000
"""Of one array, which can double with every line, too."""

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\f\v]+ | \\\n | (?<![^\s;|&()])\#[^\n]*)
    | (?P<array>[A-Za-z_]\w*\+?=\()
    | (?P<separator>\n|&&|\|\||;;|\|&|[;|&()])
    | (?P<word>(?:'[^']*' | "[^"\\]*(?:\\.[^"\\]*)*" | \\. | [^\s;|&()'"\\]+ | \\\Z)+)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_QUOTED = re.compile(r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.)""", re.DOTALL)
_HIDDEN = re.compile(
    r"""`[^`\n]*`|\$\(\([^()]*\)\)|\$\((?:[^()'"]|'[^']*'|"(?:[^"\\]|\\.)*")*\)""", re.DOTALL
)
"""What only running shows; of several inside each other the innermost."""
_DEEPEST = 20
"""Of commands inside each other; people write three."""

_HERE_DOCUMENT = re.compile(
    r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1([^\n]*)\n(?:[^\n]*\n){0,200}?[ \t]*\2[ \t\r]*$",
    re.MULTILINE,
)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_WHOLE_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_ALL_OF_A_BEGINNING = re.compile(r"\$\{!([A-Za-z_]\w*)[@*]\}")
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}")
_OPEN, _CLOSE = ("if", "case"), ("fi", "esac")
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")


def read_launches(text: str, name: str) -> tuple[TrainingCommand, ...]:
    """The commands of a script that train, in order. Raises UsageError at an open quote."""
    reader = _Reader()
    read = [reader.read(line, words) for line, words in _simple_commands(text, name)]
    return tuple(launch for launch in read if launch is not None)


def shell_line(words: Sequence[str]) -> str:
    """The words of a container's command as a line of shell; of ``bash -c LINE`` that line."""
    if words and words[0].rpartition("/")[2] in ("sh", "bash") and "-c" in words[1:3]:
        return " ".join(words[words.index("-c") + 1 :])
    return shlex.join(words)


class _Reader:
    """The state of the shell, as far as it is followed."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.exported: set[str] = set()
        self.removed: set[str] = set()
        self.branches = 0

    def read(self, line: int, raw: list[str]) -> TrainingCommand | None:
        """Follow one simple command; the launch that it is, or None."""
        if raw[0] in _OPEN:
            self.branches += 1
        elif raw[0] in _CLOSE:
            self.branches -= 1
        words = [word for item in raw for word in self._expanded(item)]
        words = list(dropwhile(lambda word: word in _KEYWORDS, words))
        if raw[0].endswith("=("):
            name, added = raw[0][:-2].rstrip("+"), raw[0].endswith("+=(")
            items = [*self.values.get(name, []), *words[1:]] if added else words[1:]
            self._set(name, items, either=not added, unknown=["$?", *items])
        elif words and words[0] == "unset":
            for word in words[1:]:
                self._unset(_ALL_OF_A_BEGINNING.sub(r"\1*", word))
        elif words and words[0] in _EXPORTS:
            self._assign(words[1:])
            if words[0] == "export":
                self.exported |= {word.partition("=")[0] for word in words[1:]}
        elif all(_ASSIGNMENT.fullmatch(word) for word in words):
            self._assign(words)
        else:
            return self._launch(line, words)
        return None

    def _assign(self, words: list[str]) -> None:
        for found in filter(None, map(_ASSIGNMENT.fullmatch, words)):
            added = "".join(self.values.get(found["name"], [])) if found["more"] else ""
            words = [added + found["value"]]
            self._set(found["name"], words, either=not added, unknown=["$?"])

    def _set(self, name: str, words: list[str], *, either: bool, unknown: list[str]) -> None:
        """Set a variable; one that a branch sets otherwise may be either."""
        if either and self.branches and self.values.get(name, words) != words:
            words = unknown
        self.values[name] = [word[:LETTERS_AT_MOST] for word in words[:_WORDS_AT_MOST]]

    def _unset(self, pattern: str) -> None:
        self.removed.add(pattern)
        for name in [name for name in self.values if fnmatchcase(name, pattern)]:
            del self.values[name]
            self.exported.discard(name)

    def _launch(self, line: int, words: list[str]) -> TrainingCommand | None:
        launch = launch_of(words)
        if launch is None:
            return None
        if launch.launcher == "python" and not (launch.module or launch.script.endswith(".py")):
            return None
        kept = {name: " ".join(self.values[name]) for name in self.exported & self.values.keys()}
        return replace(
            launch,
            line=line,
            environment={**kept, **launch.environment},
            removed=frozenset(self.removed),
        )

    def _expanded(self, word: str) -> list[str]:
        whole = _WHOLE_ARRAY.fullmatch(word)
        if whole and whole[1] in self.values:
            return self.values[whole[1]]
        text = _EXPANSION.sub(self._value, word)
        if _EXPANSION.fullmatch(word) and text.startswith("-"):
            return text.split()  # ARGS="--bf16 --use_cpu" means several words
        return [text if len(text) <= max(LETTERS_AT_MOST, len(word)) else "$?"]

    def _value(self, found: re.Match[str]) -> str:
        value = " ".join(self.values.get(found[1] or found[2], []))
        if value:
            return value
        return found[0] if found[3] is None else found[3]


def _simple_commands(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Each simple command with its line (from 1); what sets an array begins with ``name=(``."""
    words: list[str] = []
    first, in_array = 1, False
    for line, kind, token in _tokens(text, name):
        first = first if words else line
        if kind == "array" and words:
            yield first, words
            words = []
        if kind != "separator":
            words.append(token)
            in_array |= kind == "array"
        elif words and (token == ")" or not in_array):
            yield first, words
            words, in_array = [], False
    if words:
        yield first, words


def _tokens(text: str, name: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each ``word``, ``separator`` and ``array`` that is opened."""
    text = _HERE_DOCUMENT.sub(lambda found: found[3] + "\n" * found[0].count("\n"), text)
    for _ in range(_DEEPEST):
        text, count = _HIDDEN.subn(lambda found: "$?" + "\\\n" * found[0].count("\n"), text)
        if not count:
            break
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UsageError(
                f"{name}:{line}: a quote is opened and never closed",
                hint="close it, or give a file that bash can read",
            )
        kind, position = str(match.lastgroup), match.end()
        if kind != "skip":
            yield line, kind, _QUOTED.sub(_plain, match[kind])
        line += match[0].count("\n")


def _plain(found: re.Match[str]) -> str:
    """What is quoted, without its quotes."""
    single, double, escaped = found.groups()
    if escaped is not None:
        return "" if escaped == "\n" else str(escaped)
    return str(single) if double is None else re.sub(r'\\(?:\n|(["\\$`]))', r"\1", double)
