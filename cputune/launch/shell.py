"""The launches of a shell script, with the variables that reach them.

Not a shell: the commands are followed in order, with variables, arrays and exports filled in.
Unknown is what only running would show: ``$(…)``, arithmetic, and values that the branches of an
``if`` or ``case`` set differently. Scripts of csh and tcsh are refused.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cputune.errors import UsageError
from cputune.launch.grammar import Tree, unclosed_quote
from cputune.launch.launch import Launch, launch_of, with_variables
from cputune.launch.line_continuations import Break, repaired
from cputune.launch.located_words import Span, Word, shell_at

if TYPE_CHECKING:
    from tree_sitter import Node

# The longest word with its variables filled in: ``x=$x$x`` doubles with every line.
LETTERS_AT_MOST = 100_000
# The longest array, which can double with every line, too.
_WORDS_AT_MOST = 10_000
# How deep statements may be nested.
_DEEPEST = 200
# How deep ``bash -c`` may be nested in ``bash -c``.
_NESTED = 4

# A variable, or an argument of the script, which is its default if the script is given none.
_SIMPLE = re.compile(
    r"\$(?:([A-Za-z_]\w*|\d)|\{([A-Za-z_]\w*|\d+)(?::?[-=]([^{}]*))?\})", re.DOTALL
)
_WHOLE_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_ELEMENT = re.compile(r"\$\{([A-Za-z_]\w*)\[(\d{1,4})\]\}")
_ALL_OF_A_BEGINNING = re.compile(r"\$\{!([A-Za-z_]\w*)[@*]\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BELOW = re.compile(r"/([\w-]+\.[\w.-]*\w)")
_EXPANDED = ("simple_expansion", "expansion", "string", "concatenation")
_BRANCHES = ("if_statement", "case_statement")
_HIDDEN = ("command_substitution", "arithmetic_expansion", "process_substitution")
# Variables that Slurm may set in a job, with values that its header does not say.
_SET_BY_SLURM = ("SLURM_GPUS", "SLURM_JOB_GPUS")
_CSH = re.compile(r"#!.*\bt?csh\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A part of a script that is not followed, and its line."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFile:
    """What was read of a script.

    Attributes:
        launches: the commands that train, in their order.
        unread: what may decide about a launch, and is not followed.
        breaks: lines at which a command ends although it was meant to continue.
    """

    launches: tuple[Launch, ...]
    unread: tuple[Unread, ...] = ()
    breaks: tuple[Break, ...] = ()


def _no_file(path: str) -> None:
    """No other file is read."""


def read_shell(
    text: str,
    name: str,
    given: Mapping[str, str] | None = None,
    beside: Callable[[str], str | None] = _no_file,
) -> ShellFile:
    """Read a script. Raises UsageError if a quote is opened and never closed, or if it is of csh.

    ``given`` are known variables that the script finds: those of a batch system. ``beside`` returns
    the text of a file that the script sources, or None.
    """
    if _CSH.match(text) is not None or name.endswith((".csh", ".tcsh")):
        raise UsageError(
            f"{name} is a script of csh, which is not read", hint="give a script of sh or bash"
        )
    meant, breaks = repaired(text)
    tree = Tree(meant)
    if (at := unclosed_quote(tree)) is not None:
        raise UsageError(
            f"{name}:{text.count(chr(10), 0, at) + 1}: a quote is opened and never closed",
            hint="close it, or give a file that bash can read",
        )
    values = {k: [_of(v)] for k, v in (given or {}).items()}
    reader = _Reader(text=text, values=values, beside=beside)
    reader.exported.update({"OMP_NUM_THREADS"} & values.keys())
    reader.follow(tree, None)
    return ShellFile(
        launches=tuple(reader.launches),
        unread=tuple(reader.unread),
        breaks=breaks,
    )


def read_launches(text: str, name: str) -> tuple[Launch, ...]:
    """The commands of a script that train, in order. Raises UsageError at an open quote."""
    return read_shell(text, name).launches


def read_words(words: Sequence[str], *, line: int = 0) -> tuple[Launch, ...]:
    """The launches in the words of one command: of a container, or typed.

    Of ``bash -c LINE`` those of the line. Words that have spans keep them.
    """
    reader = _Reader(text="", line=line)
    reader.command([_chars_of(word) for word in words], list(words), line)
    return tuple(reader.launches)


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """Name and value of each assignment of a script, also of those that are words of ``env`` or
    ``-x``.

    Variables in the values are not filled in.
    """
    tree = Tree(text)
    for kind in ("variable_assignment", "word", "concatenation"):
        for node in tree.nodes(kind):
            is_word = node.parent is None or node.parent.type != "concatenation"
            match = _ASSIGNMENT.fullmatch(tree.of(node))
            if is_word and match is not None:
                with contextlib.suppress(ValueError):
                    yield match[1], " ".join(shlex.split(match[2]))


def paths_below(text: str, variable: str) -> Iterator[str]:
    """The paths that a script writes below the folder in a variable: ``$here/rank.py``."""
    tree = Tree(text)
    for kind in ("simple_expansion", "expansion"):
        for node in tree.nodes(kind):
            if tree.of(node) in (f"${variable}", f"${{{variable}}}"):
                match = _BELOW.match(text, tree.span(node).end)
                if match is not None:
                    yield match[1]


@dataclass(frozen=True, slots=True)
class _Chars:
    """A text, and of each letter its place in the file; -1 without a file."""

    text: str
    at: tuple[int, ...]

    def __add__(self, other: _Chars) -> _Chars:
        if len(self.text) + len(other.text) > LETTERS_AT_MOST:
            return _of("$?")
        return _Chars(self.text + other.text, self.at + other.at)

    def split(self) -> list[_Chars]:
        """The fields between blanks."""
        fields: list[_Chars] = []
        for match in re.finditer(r"\S+", self.text):
            fields.append(_Chars(match[0], self.at[match.start() : match.end()]))
        return fields


def _of(text: str) -> _Chars:
    return _Chars(text, (-1,) * len(text))


def _chars_of(word: str) -> _Chars:
    """The letters of a word, each with its place if the word is as written."""
    if isinstance(word, Word) and len(word.places) == len(word) > 0:
        return _Chars(word, word.places)
    span = None
    if isinstance(word, Word) and word.exact:
        span = word.span
    if span is None:
        return _of(word)
    first = span.start + (span.end - span.start - len(word)) // 2  # a quote at each end
    return _Chars(word, tuple(range(first, first + len(word))))


@dataclass
class _Reader:
    """The state of the shell, as far as it is followed."""

    text: str
    values: dict[str, list[_Chars]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    launches: list[Launch] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    beside: Callable[[str], str | None] = _no_file
    elsewhere: str = ""
    set_in: dict[str, str] = field(default_factory=dict)
    branches: int = 0
    all_exported: bool = False
    nested: int = 0
    prefix: list[str] = field(default_factory=list)
    line: int = 0
    tree: Tree = field(init=False)
    places: Sequence[int] | None = None

    # --- Statements ---------------------------------------------------------------------

    def follow(self, tree: Tree, places: Sequence[int] | None) -> None:
        """Follow the statements of a text; ``places`` are those of its letters in the file."""
        self.tree, self.places = tree, places
        self.visit(tree.root, 0)

    def visit(self, node: Node, depth: int) -> None:
        """Follow one statement and what is in it."""
        kind = node.type
        if depth > _DEEPEST or kind in _PASSED_OVER:
            return
        if kind in _STATEMENTS:
            _STATEMENTS[kind](self, node, depth)
            return
        if kind == "list":
            self._listed(node, depth)
            return
        is_branch = kind in _BRANCHES
        if is_branch:
            self.branches += 1
        if kind == "for_statement":
            loop = node.child_by_field_name("variable")
            if loop is not None:
                self.values.pop(self.tree.of(loop), None)
        for child in node.children:
            self.visit(child, depth + 1)
        if is_branch:
            self.branches -= 1

    def _listed(self, node: Node, depth: int) -> None:
        """``A && B`` and ``A || B``: a command is assumed to end well; the result of a test is
        unknown.
        """
        first, *others = node.children
        self.visit(first, depth + 1)
        tested = first.type in ("test_command", "negated_command") or any(
            child.type == "||" for child in others
        )
        self.branches += tested
        for child in others:
            self.visit(child, depth + 1)
        self.branches -= tested

    def _unsets(self, node: Node) -> None:
        for child in node.children[1:]:
            text = self.tree.of(child).strip("\"'")
            if not text.startswith("-"):
                self._unset(_ALL_OF_A_BEGINNING.sub(r"\1*", text))

    def _redirected(self, node: Node, depth: int) -> None:
        """A command with its redirections; words behind one of them are arguments."""
        more, commands = list["Node"](), list["Node"]()
        for child in node.children:
            if child.type == "file_redirect":
                targets = [one for one in child.named_children if one.type != "file_descriptor"]
                more += targets[1:]
            elif child.type == "heredoc_redirect":
                commands += [one for one in child.named_children if "heredoc" not in one.type]
            elif child.type == "command":
                commands.append(child)
            else:
                self.visit(child, depth + 1)
        for child in commands:
            if child.type == "command" and child.parent == node:
                self._understood(child, more)
            else:
                self.visit(child, depth + 1)

    # --- Variables ----------------------------------------------------------------------

    def _assign(self, node: Node, *, exports: bool) -> None:
        name = node.child_by_field_name("name")
        if name is None or name.type != "variable_name":
            return
        named = self.tree.of(name)
        value = node.child_by_field_name("value")
        added = any(child.type == "+=" for child in node.children)
        items, listed = self._value(value)
        if added and listed:
            items = [*self.values.get(named, []), *items]
        elif added:
            before = self.values.get(named, [_of("")])
            if before:
                items = [*before[:-1], before[-1] + items[0]]
        unknown = [_of("$?"), *(items if listed else [])]
        self._set(named, items, either=not added, unknown=unknown)
        self.set_in.pop(named, None)
        if self.elsewhere:
            line = self.tree.text.count("\n", 0, self.tree.span(node).start) + 1
            self.set_in[named] = f"{self.elsewhere}:{line}"
        if exports:
            self.exported.add(named)

    def _value(self, value: Node | None) -> tuple[list[_Chars], bool]:
        """The value of an assignment; whether it is an array."""
        if value is None:
            return [_of("")], False
        if value.type == "array":
            elements: list[_Chars] = []
            for one in value.named_children:
                elements += self._fields(one)[0]
            return elements, True
        end = self.tree.span(value).end
        if re.match(r"\$\w", self.tree.text[end - 1 : end + 1]):
            return [_of("$?")], False  # the grammar ends a value at its second expansion
        joined = _of("")
        for items, _ in self._parts(value, quoted=True):
            joined = joined + (items[0] if items else _of(""))
        return [joined], False

    def _set(self, name: str, items: list[_Chars], *, either: bool, unknown: list[_Chars]) -> None:
        """Set a variable; if a branch sets another value it may be either."""
        texts = [one.text for one in items]
        before = self.values.get(name)
        if (
            either
            and self.branches
            and before is not None
            and [one.text for one in before] != texts
        ):
            items = unknown
        self.values[name] = items[:_WORDS_AT_MOST]

    def _declare(self, node: Node) -> None:
        """``export A=1 B``, and its like."""
        exports = node.children[0].type == "export"
        for child in node.children[1:]:
            if child.type == "word" and "x" in self.tree.of(child) and not exports:
                exports = self.tree.of(child).startswith("-")
            elif child.type == "variable_assignment":
                self._assign(child, exports=exports or self.all_exported)
            elif child.type == "variable_name" and exports:
                self.exported.add(self.tree.of(child))
            elif child.type in _EXPANDED and exports:
                self._exported_by_words(child)

    def _exported_by_words(self, node: Node) -> None:
        """``export $SETTING``, whose variable holds ``NAME=VALUE`` or a name."""
        for one in self._fields(node)[0]:
            match = _ASSIGNMENT.fullmatch(one.text)
            if match is not None:
                value = _Chars(match[2], one.at[match.start(2) :])
                self._set(match[1], [value], either=True, unknown=[_of("$?")])
                self.exported.add(match[1])
            elif re.fullmatch(r"[A-Za-z_]\w*", one.text):
                self.exported.add(one.text)
            elif "$" in one.text:
                line = self.line or self.text.count("\n", 0, max(0, self._start(node))) + 1
                self.unread.append(Unread(text=f"export {one.text}", line=line))

    def _start(self, node: Node) -> int:
        return self._in_file(self.tree.span(node).start)

    def _unset(self, pattern: str) -> None:
        self.removed.add(pattern)
        for name in [name for name in self.values if fnmatchcase(name, pattern)]:
            del self.values[name]
            self.exported.discard(name)

    # --- Words --------------------------------------------------------------------------

    def _fields(self, node: Node) -> tuple[list[_Chars], bool]:
        """The words that an argument becomes; whether they are in another place."""
        fields, current, elsewhere = list[_Chars](), None, False
        for items, splits in self._parts(node, quoted=False):
            pieces = items
            if splits and re.search(r"\s", items[0].text):
                pieces, elsewhere = items[0].split(), True
            elsewhere |= len(items) != 1
            for number, piece in enumerate(pieces):
                if number:
                    fields.append(current or _of(""))
                    current = piece
                elif piece.text or not splits:
                    if current is None:
                        current = piece
                    else:
                        current = current + piece
        if current is not None:
            fields.append(current)
        return fields, elsewhere

    def _parts(self, node: Node, *, quoted: bool) -> list[tuple[list[_Chars], bool]]:
        """The parts of a word: the texts of each, and whether blanks in it end a word."""
        kind, text = node.type, self.tree.of(node)
        if kind == "concatenation":
            parts: list[tuple[list[_Chars], bool]] = []
            for one in node.children:
                parts += self._parts(one, quoted=quoted)
            return parts
        if kind == "string":
            return self._string(node)
        if kind == "raw_string":
            return [([self._plain(node, 1, 1)], False)]
        if kind in _HIDDEN:
            return [([_of("$?")], False)]
        if kind in ("simple_expansion", "expansion"):
            return [self._expanded(node, text, quoted=quoted)]
        return [([self._unescaped(node)], False)]

    def _string(self, node: Node) -> list[tuple[list[_Chars], bool]]:
        """What is between double quotes; each element of an array is a word."""
        start, end = self.tree.span(node)
        at, parts = start + 1, list[tuple[list[_Chars], bool]]()
        for child in node.children:
            if child.type in ("simple_expansion", "expansion", *_HIDDEN):
                first, last = self.tree.span(child)
                parts.append(([self._between(at, first, r'\\(?:\n|(["\\$`]))')], False))
                parts += self._parts(child, quoted=True)
                at = last
        parts.append(([self._between(at, end - 1, r'\\(?:\n|(["\\$`]))')], False))
        alone = [part for part in parts if part[0] and part[0][0].text]
        if len(alone) == 1 and len(alone[0][0]) != 1:
            return alone
        lists = [part for part in parts if not part[0] or len(part[0]) > 1]
        if lists and all(part in lists or not part[0][0].text for part in parts):
            return lists
        return parts

    def _unescaped(self, node: Node) -> _Chars:
        start, end = self.tree.span(node)
        return self._between(start, end, r"\\(?:\n|(.))")

    def _plain(self, node: Node, first: int, last: int) -> _Chars:
        start, end = self.tree.span(node)
        return self._between(start + first, end - last, r"(?!)")

    def _between(self, start: int, end: int, escapes: str) -> _Chars:
        """The text between two places, without the backslashes that escape something."""
        source, letters, at = self.tree.text[start:end], list[str](), list[int]()
        place = 0
        for match in re.finditer(escapes, source, re.DOTALL):
            letters.append(source[place : match.start()])
            at += range(start + place, start + match.start())
            if match[1] is not None:
                letters.append(match[1])
                at.append(start + match.start(1))
            place = match.end()
        letters.append(source[place:])
        at += range(start + place, start + len(source))
        return _Chars("".join(letters), tuple(self._in_file(one) for one in at))

    def _in_file(self, place: int) -> int:
        if self.places is None:
            return place
        return self.places[place]

    def _expanded(self, node: Node, text: str, *, quoted: bool) -> tuple[list[_Chars], bool]:
        array = _WHOLE_ARRAY.fullmatch(text)
        if array and array[1] in self.values:
            return self.values[array[1]], False
        element = _ELEMENT.fullmatch(text)
        if element and int(element[2]) < len(self.values.get(element[1], [])):
            return [self.values[element[1]][int(element[2])]], not quoted
        simple = _SIMPLE.fullmatch(text)
        if simple is None:
            return [_of(text)], False
        items = self.values.get(simple[1] or simple[2], [])
        if items:
            value = items[0]
        else:
            value = _of("")
        for item in items[1:]:
            value = value + _of(" ") + item
        if value.text:
            return [value], not quoted
        if simple[3] is None:
            return [_of(text)], not quoted
        of_job = (simple[1] or simple[2]).startswith(_SET_BY_SLURM)
        if "$(" in simple[3] or "`" in simple[3] or of_job:
            return [_of("$?")], not quoted
        return [_of(re.sub(r"""^(["'])(.*)\1$""", r"\2", simple[3], flags=re.DOTALL))], not quoted

    # --- Commands -----------------------------------------------------------------------

    def _understood(self, node: Node, more: list[Node]) -> None:
        """Follow a command; one that the grammar does not understand is not read."""
        if node.has_error:
            line = self.line or self.text.count("\n", 0, max(0, self._start(node))) + 1
            self.unread.append(Unread(text="a command that is not understood", line=line))
        else:
            self._command(node, more)

    def _command(self, node: Node, more: list[Node]) -> None:
        """Follow one command: what it sets, what it sources, or the launch that it is."""
        chars, words, last = list[_Chars](), list[str](), node
        children, start = self._without_own_lines(node)
        named = False
        for child in (*children, *more):
            if child.type in ("herestring_redirect", "file_redirect", "comment"):
                continue
            if not child.is_named:
                continue
            named |= child.type == "command_name"
            last = child
            for part in child.children if child.type == "command_name" else [child]:
                if part.type == "variable_assignment":
                    self._assigned_for(part, chars, words)
                else:
                    self._word(part, chars, words)
        if not named:
            for child in children:
                if child.type == "variable_assignment":
                    self._assign(child, exports=self.all_exported)
            return
        start = self._in_file(start)
        end = self._in_file(self.tree.span(last).end - 1) + 1
        line = self.line or self.text.count("\n", 0, max(0, start)) + 1
        span = None
        if start >= 0 and end > start:
            span = Span(start, end)
        self.command(chars, words, line, span)

    def _without_own_lines(self, node: Node) -> tuple[list[Node], int]:
        """The parts of a command, and where it begins.

        The grammar takes the line behind ``a=1 b=(2)`` for the command that they are set for; their
        own line sets such variables.
        """
        children, first = list(node.children), 0
        for at, child in enumerate(children[:-1]):
            if child.type != "variable_assignment":
                break
            between = self.tree.text[
                self.tree.span(child).end : self.tree.span(children[at + 1]).start
            ]
            if "\n" in between.replace("\\\n", ""):
                for assignment in children[first : at + 1]:
                    self._assign(assignment, exports=self.all_exported)
                first = at + 1
        return children[first:], self.tree.span(children[first]).start

    def _word(self, node: Node, chars: list[_Chars], words: list[str]) -> None:
        fields, elsewhere = self._fields(node)
        start, end = self.tree.span(node)
        source = self.tree.text[start:end]
        for one in fields:
            chars.append(one)
            span, exact = None, False
            if not elsewhere and self._in_file(start) >= 0 and self._in_file(end - 1) >= 0:
                span = Span(self._in_file(start), self._in_file(end - 1) + 1)
                exact = source in (one.text, f"'{one.text}'", f'"{one.text}"')
            elif one.at and min(one.at) >= 0:
                span = Span(one.at[0], one.at[-1] + 1)
                exact = list(one.at) == list(range(span.start, span.end))
            words.append(Word(one.text, span, exact=exact))

    def _assigned_for(self, node: Node, chars: list[_Chars], words: list[str]) -> None:
        """A variable that is set for this command alone, as the word ``NAME=VALUE``."""
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        start, end = self.tree.span(node)
        items, _ = self._value(value)
        text = f"{self.tree.of(name) if name else ''}={items[0].text if items else ''}"
        span, exact = None, False
        if self._in_file(start) >= 0:
            span = Span(self._in_file(start), self._in_file(end - 1) + 1)
            exact = self.tree.text[start:end] == text
        chars.append(_of(text))
        words.append(Word(text, span, exact=exact))

    def command(
        self, chars: list[_Chars], words: list[str], line: int, span: Span | None = None
    ) -> None:
        """Follow the words of one command."""
        first = ""
        if words:
            first = words[0]
        if first == "set" and {"-a", "allexport"} & set(words):
            self.all_exported = True
        elif first in ("source", ".") and len(words) > 1:
            self._source(words[1], line)
        elif first == "eval":
            self._inside(chars[1:], [], line)
        elif (at := shell_at(words)) is not None:
            self._inside(chars[at : at + 1], words[:at], line)
        else:
            self._launch([*self.prefix, *words], line, span)

    def _source(self, path: str, line: int) -> None:
        """Follow a file that is sourced. Its letters have no places in this one."""
        text = None
        if "$" not in path and self.nested < _NESTED and hasattr(self, "tree"):
            text = self.beside(path)
        if text is None or len(text) > LETTERS_AT_MOST:
            if not (_SETS_UP.search(path) or self._names_setup(line)):
                self.unread.append(Unread(text=f"sources {path}", line=line))
            return
        kept = self.tree, self.places, self.line, self.elsewhere
        self.nested += 1
        self.line = self.line or line
        self.elsewhere = path
        try:
            self.follow(Tree(text), [-1] * len(text))
        finally:
            self.nested -= 1
            self.tree, self.places, self.line, self.elsewhere = kept

    def _line(self, line: int) -> str:
        """A line of the script as it is written, with those that continue it, in small letters.

        Empty for another file's.
        """
        lines = self.text.splitlines()
        if self.elsewhere or not 0 < line <= len(lines):
            return ""
        end = line
        while end < len(lines) and lines[end - 1].endswith("\\"):
            end += 1
        return "\n".join(lines[line - 1 : end]).lower()

    def _names_setup(self, line: int) -> bool:
        """Whether a path that is not known is named by its variable (``source "$setvars"``)."""
        return "setvars" in self._line(line)

    def _by_python(self, words: list[str], line: int) -> list[str]:
        """The words with python for a program that is not known (``"$python" train.py``)."""
        for at, word in enumerate(words[:-1]):
            runs = words[at + 1] == "-m" or words[at + 1].endswith(".py")
            if word.startswith("$") and runs and "python" in self._line(line):
                return [*words[:at], "python", *words[at + 1 :]]
        return words

    def _inside(self, chars: list[_Chars], before: list[str], line: int) -> None:
        """Follow a text for another shell, behind the words that start it."""
        if self.nested >= _NESTED or not chars:
            return
        program = chars[0]
        for one in chars[1:]:
            program = program + _of(" ") + one
        kept = (self.tree if hasattr(self, "tree") else None, self.places, self.prefix, self.line)
        self.nested += 1
        self.prefix = [*self.prefix, *before]
        if not self.text:
            self.line = line
        try:
            inner = Tree(program.text)
            self.line = self.line or line
            self.follow(inner, program.at)
        finally:
            self.nested -= 1
            tree, self.places, self.prefix, self.line = kept
            if tree is not None:
                self.tree = tree

    def _launch(self, words: list[str], line: int, span: Span | None) -> None:
        launch = launch_of(words) or launch_of(self._by_python(words, line))
        if launch is None:
            started = _other_script(words) or self._held_command(words, line)
            if started is not None:
                self.unread.append(Unread(text=f"starts {started}", line=line))
            return
        if launch.launcher == "python" and not (launch.module or launch.script.endswith(".py")):
            return
        if self.elsewhere:
            self.unread.append(Unread(text=f"a launch in {self.elsewhere}", line=line))
            return
        around = next((word for word in launch.before if word.endswith(_SCRIPTS[:-1])), None)
        if around is not None:
            self.unread.append(Unread(text=f"starts {around}", line=line))
        kept = {}
        for name in self.values:  # in the order of the script
            if name in self.exported:
                kept[name] = self._kept(name)
        self.launches.append(
            replace(
                with_variables(launch, kept),
                line=line,
                span=span,
                set_in={name: self.set_in[name] for name in kept if name in self.set_in},
                removed=frozenset(self.removed),
            )
        )

    def _held_command(self, words: list[str], line: int) -> str | None:
        """The variable that holds a command which only running shows: ``$CMD --epochs 2``."""
        written = self.text.splitlines()[line - 1 : line]
        if not words or not words[0].startswith("$") or not written or self.elsewhere:
            return None
        match = _HELD.match(written[0].lstrip())
        return None if match is None else match[0]

    def _kept(self, name: str) -> str:
        """The value of a variable, with its span if its letters are consecutive."""
        items = self.values[name]
        text = " ".join(one.text for one in items)
        if len(items) == 1:
            at = items[0].at
        else:
            at = ()
        if not at or list(at) != list(range(at[0], at[0] + len(at))) or at[0] < 0:
            return text
        return Word(text, Span(at[0], at[-1] + 1))


# Files that choose an environment; they set no ranks, threads or arguments.
_SETS_UP = re.compile(
    r"(?:^|/)(?:setvars\.sh|conda\.sh|activate(?:\.csh)?|\.?bashrc|\.?(?:bash_)?profile)$"
)
_HELD = re.compile(r"\$\{?\w*(?:CMD|COMMAND|LAUNCH|RUN)\w*\}?", re.IGNORECASE)
_CONTAINERS = ("docker", "podman", "nerdctl", "singularity", "apptainer")
# Programs that start another one, which is named behind them.
_STARTS = frozenset(
    [
        "bash", "sh", "zsh", "dash", "srun", "mpirun", "mpiexec", "mpiexec.hydra", "nohup", "time",
        "exec", "env", "sudo", "timeout", "stdbuf", "numactl", "taskset", "uv", "poetry", "pipenv",
        "ssh", "pdsh", "parallel", "xargs", "sbatch", "qsub", "bsub", "conda", "micromamba",
    ]
)  # fmt: skip
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".job", ".py")


def _other_script(words: Sequence[str]) -> str | None:
    """The script or image that a command starts in a way that is not followed, or None."""
    command = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    if not command:
        return None
    program = command[0].rpartition("/")[2]
    if program in _CONTAINERS and {"run", "exec"} & set(command[1:2]):
        return " ".join(command[:2])
    if command[0].endswith(_SCRIPTS):
        return command[0]
    if program not in _STARTS:
        return None
    return next((word for word in command[1:] if word.endswith(_SCRIPTS)), None)


_STATEMENTS: dict[str, Callable[[_Reader, Node, int], None]] = {
    "command": lambda reader, node, _: reader._understood(node, []),
    "redirected_statement": lambda reader, node, depth: reader._redirected(node, depth),
    "variable_assignment": lambda reader, node, _: reader._assign(
        node, exports=reader.all_exported
    ),
    "declaration_command": lambda reader, node, _: reader._declare(node),
    "unset_command": lambda reader, node, _: reader._unsets(node),
}
_PASSED_OVER = ("test_command", "comment", *_HIDDEN)
