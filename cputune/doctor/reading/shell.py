"""Reading a shell script far enough to see what it starts, with which variables.

Not a shell: assignments, exports, arrays, here-documents, continued lines and quotes are
understood; what only running would show (``$(…)``, arithmetic) stays as it is written,
and is then taken for unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cputune.errors import UsageError

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_ALL_OF_A_BEGINNING = re.compile(r"\$\{!([A-Za-z_]\w*)[@*]\}")
_WHOLE_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_ARRAY_OPENS = re.compile(r"^\s*(?:export\s+|declare\s+-\w+\s+|local\s+)?[A-Za-z_]\w*\+?=\(")
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_KEYWORDS = (
    *("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}"),
    *("time", "exec", "nohup", "command"),
)
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")
_SEPARATORS = frozenset(("&&", "||", ";", "|", "&", "(", ")", ";;", "|&"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """One simple command: its first line, its words, and the variables that reach it.

    ``removed`` are those that the script takes out of its own environment, ``OMP_*`` for all
    of a beginning.
    ``open_choice`` says that words come from a variable that several branches of an if or
    a case set, so that these are the words of one of them only.
    """

    line: int
    words: tuple[str, ...]
    environment: Mapping[str, str]
    removed: frozenset[str] = frozenset()
    open_choice: bool = False


def read_commands(text: str, name: str) -> tuple[ShellCommand, ...]:
    """The commands of a script, in order. Raises UsageError where quotes do not close."""
    reader = _Reader()
    for line, logical in _logical_lines(text, name):
        try:
            reader.read(line, logical)
        except ValueError as error:
            raise UsageError(
                f"{name}:{line}: cannot be read as shell: {error}",
                hint="give a file that bash can read",
            ) from error
    return tuple(reader.commands)


class _Reader:
    def __init__(self) -> None:
        self.commands: list[ShellCommand] = []
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.exported: set[str] = set()
        self.removed: set[str] = set()
        self.export_all = False
        self.depth = 0
        self.set_in_branch: set[str] = set()
        self.chosen_elsewhere: set[str] = set()
        self.open_choice = False

    def read(self, line: int, logical: str) -> None:
        words: list[str] = []
        tokens = iter(_tokens(logical))
        for token in tokens:
            opened = _ASSIGNMENT.fullmatch(token)
            if opened and not opened["value"] and not words:
                following = next(tokens, None)
                if following == "(":
                    before = self.arrays.get(opened["name"], []) if opened["more"] else []
                    found = self._expand_all(_until_closed(tokens))
                    self.arrays[opened["name"]] = [*before, *found]
                    self._note_branch(opened["name"], more=bool(opened["more"]))
                    continue
                words.append(token)
                if following is not None and following not in _SEPARATORS:
                    words.append(following)
                elif following is not None:
                    self._command(line, words)
                    words = []
            elif token in _SEPARATORS:
                self._command(line, words)
                words = []
            else:
                words.append(token)
        self._command(line, words)

    def _command(self, line: int, raw: list[str]) -> None:
        self.open_choice = False
        words = self._expand_all(raw)
        self.depth += bool(words) and words[0] in ("if", "case")
        self.depth -= bool(words) and words[0] in ("fi", "esac")
        while words and words[0] in _KEYWORDS:
            words.pop(0)
        inline: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            before = self.variables.get(match["name"], "") if match["more"] else ""
            inline[match["name"]] = before + match["value"]
            words.pop(0)
        if not words:
            for name in inline:
                self._note_branch(name, more=False)
            self.variables.update(inline)
            if self.export_all:
                self.exported.update(inline)
            return
        if words[0] in _EXPORTS:
            self._export(words)
            return
        if words[0] == "unset":
            self._unset(words[1:])
            return
        if words[0] == "set" and any(re.fullmatch(r"-\w*a\w*", word) for word in words[1:]):
            self.export_all = True
        environment = {n: self.variables[n] for n in self.exported if n in self.variables}
        self.commands.append(
            ShellCommand(
                line=line,
                words=tuple(words),
                environment={**environment, **inline},
                removed=frozenset(self.removed),
                open_choice=self.open_choice,
            )
        )

    def _unset(self, words: list[str]) -> None:
        for word in words:
            beginning = _ALL_OF_A_BEGINNING.fullmatch(word)
            names = [word]
            if beginning:
                names = [name for name in self.variables if name.startswith(beginning[1])]
            for name in names:
                self.variables.pop(name, None)
                self.exported.discard(name)
            self.removed.add(f"{beginning[1]}*" if beginning else word)

    def _note_branch(self, name: str, *, more: bool) -> None:
        if self.depth <= 0 or more:
            return
        if name in self.set_in_branch:
            self.chosen_elsewhere.add(name)
        self.set_in_branch.add(name)

    def _export(self, words: list[str]) -> None:
        exports = words[0] == "export" or "-x" in words
        for word in words[1:]:
            match = _ASSIGNMENT.fullmatch(word)
            name = match["name"] if match else word
            if match:
                self.variables[name] = match["value"]
            if exports:
                self.exported.add(name)

    def _expand_all(self, words: list[str]) -> list[str]:
        found: list[str] = []
        for word in words:
            whole = _WHOLE_ARRAY.fullmatch(word)
            if whole and whole[1] in self.arrays:
                found += self.arrays[whole[1]]
                self.open_choice |= whole[1] in self.chosen_elsewhere
            else:
                found.append(_EXPANSION.sub(self._value, word))
        return found

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = self.variables.get(name)
        self.open_choice |= name in self.chosen_elsewhere
        if value:
            return value
        return match[3] if match[3] is not None else match[0]


def _until_closed(tokens: Iterator[str]) -> list[str]:
    found = []
    for token in tokens:
        if token == ")":
            break
        found.append(token)
    return found


def _tokens(logical: str) -> list[str]:
    hidden = _without_substitutions(logical)
    lexer = shlex.shlex(hidden, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return [token for token in lexer if token.strip()]


def _without_substitutions(text: str) -> str:
    """``$(…)``, ``$((…))`` and backticks replaced by ``$?``: nobody knows what they give."""
    text = re.sub(r"`[^`]*`", "$?", text)
    while (start := text.find("$(")) >= 0:
        depth, end = 0, start + 1
        for end in range(start + 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                break
        text = text[:start] + "$?" + text[end + 1 :]
    return text


def _logical_lines(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and here-documents left out."""
    lines = text.splitlines()
    position = 0
    while position < len(lines):
        start, parts, quote, more = position, [], "", True
        while more and position < len(lines):
            kept, quote, escaped = _scan(lines[position], quote)
            position += 1
            parts.append(kept[:-1] if escaped else kept + ("\n" if quote else " "))
            array = bool(_ARRAY_OPENS.match(parts[0])) and ")" not in "".join(parts[-1:])
            more = bool(quote) or escaped or array
        if quote:
            raise UsageError(
                f"{name}:{start + 1}: a quote is opened and never closed",
                hint="close it, or give a file that bash can read",
            )
        logical = "".join(parts)
        document = _HERE_DOCUMENT.search(logical)
        if document:
            while position < len(lines) and lines[position].strip() != document[2]:
                position += 1
            position += 1
        yield start + 1, logical


def _scan(line: str, quote: str) -> tuple[str, str, bool]:
    """A line without its comment, the quote open at its end, whether it ends in a backslash.

    ``quote`` is the one open at its beginning.
    """
    skip = False
    for position, char in enumerate(line):
        if skip:
            skip = False
        elif char == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (position == 0 or line[position - 1] in " \t;("):
            return line[:position], "", False
    return line, quote, skip
