"""The places of a launch in its file, and the edits that change the file there.

A launch read from shell knows the span of each word, also from a variable or an array. In YAML and
in a Dockerfile the words are searched. A removed word takes its line, comma or backslash with it,
so that the layout stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cputune.launch.container import Container
from cputune.launch.edit import Edit
from cputune.launch.grammar import Tree
from cputune.launch.launch import Launch
from cputune.launch.line_continuations import repaired
from cputune.launch.located_words import span_of
from cputune.launch.translate import Translated

if TYPE_CHECKING:
    from tree_sitter import Node


class Token(NamedTuple):
    """A word as written, with its quotes between ``start`` and ``end``."""

    start: int
    end: int
    text: str


_WORD = re.compile(r"""(["']?)([^\s"'\[\],;|&()\\]+)(\1)""")
_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t]))#[^\n]*")
_TAKES_A_WORD = re.compile("dir|strategy|backend|size|ratio|config|deepspeed")
_SWITCH_VALUES = ("true", "false", "yes", "no", "1", "0")


@dataclass(frozen=True)
class Places:
    """The text of one file, and how to change it.

    Attributes:
        yaml: it is YAML, in which a variable is a ``name`` and a ``value``.
        sets: the word that sets a variable: ``export``, in a Dockerfile ``ENV``.
    """

    text: str
    yaml: bool = False
    sets: str = "export"

    @cached_property
    def code(self) -> str:
        """The text with spaces for comments, in the same places."""
        return _COMMENT.sub(lambda match: " " * len(match[0]), self.text)

    def line_start(self, line: int) -> int:
        """The offset at which a line begins; the first line is 1."""
        at = 0
        for _ in range(line - 1):
            at = self.text.find("\n", at) + 1
        return at

    def span(self, launch: Launch) -> tuple[int, int]:
        """The lines of a launch: to the end of its last continued line; in YAML the whole file."""
        if launch.span is not None:
            return launch.span
        start = self.line_start(max(launch.line, 1))
        if self.yaml or not launch.line:
            return start, len(self.text)
        ended = re.compile(r"(?<!\\)\n").search(self.code, start)
        return start, ended.start() if ended else len(self.text)

    def tokens(self, start: int, end: int) -> Iterator[Token]:
        """The words between two places, without the dashes of YAML lists."""
        for match in _WORD.finditer(self.code, start, end):
            if match[2] != "-":
                yield Token(match.start(), match.end(), match[2])

    def of(self, launch: Launch) -> list[Token]:
        """The words of a launch as written, or in a variable if they are there."""
        spans = [(word, span_of(word)) for word in launch.words]
        tokens = [Token(*span, word) for word, span in spans if span is not None]
        return tokens or list(self.tokens(*self.span(launch)))

    # --- Flags ------------------------------------------------------------------------

    def flags(self, launch: Launch, name: str) -> list[list[Token]]:
        """Each place of a flag: the word, and that of its value, if it has a separate one.

        ``name`` is the flag, or the flag and its value: ``--ddp_backend ccl``.
        """
        flag, _, value = name.partition(" ")
        places = _flags(self.of(launch), flag, value)
        if places or launch.span is not None:
            return places
        return _flags(list(self.tokens(0, len(self.text))), flag, value)

    def change_flag(self, launch: Launch, name: str, instead: str) -> tuple[Edit, ...]:
        """``--no_cuda`` becomes ``--use_cpu``; with "" it is removed, as if the launch has the
        replacement already.
        """
        if instead and launch.argument(instead.partition(" ")[0]) is not None:
            same = instead.partition(" ")[0] == name.partition(" ")[0]
            if not same:
                instead = ""
        edits = list[Edit]()
        for tokens in self.flags(launch, name):
            if not instead:
                edits += self.without(tokens)
                continue
            flag, _, value = instead.partition(" ")
            first = tokens[0]
            given = first.text.partition("=")[2]
            if given:
                edits.append(self.becomes(first, f"{flag}={value or given}"))
                continue
            edits.append(self.becomes(first, flag))
            if value and len(tokens) > 1:
                edits.append(self.becomes(tokens[1], value))
            elif value:
                edits.append(self.after(first, (value,)))
        return tuple(edits)

    def add_flags(self, launch: Launch, *flags: str) -> tuple[Edit, ...]:
        """Arguments of the script, behind its name, before any redirection."""
        scripts = []
        for token in self.of(launch):
            if token.text == launch.script:
                scripts.append(token)
        if scripts:
            return (self.after(scripts[-1], flags),)
        return ()

    def after(self, token: Token, words: Sequence[str]) -> Edit:
        """Words behind one that is there."""
        return Edit(start=token.end, end=token.end, text=self._behind(token, words))

    def without_value(self, launch: Launch, name: str) -> tuple[Edit, ...]:
        """Remove an option with its value."""
        value = launch.argument(name) or launch.option(name)
        if not value:
            return self.change_flag(launch, name, "")
        if value.startswith("$") and not _TAKES_A_WORD.search(name):
            # --use_ipex "$@": what follows a switch is no value of it
            return self.change_flag(launch, name, "")
        return self.change_flag(launch, f"{name} {value}", "")

    def _behind(self, token: Token, flags: Sequence[str]) -> str:
        """The words as a list of YAML, or a line of shell."""
        line = self.text[self.text.rfind("\n", 0, token.start) + 1 : token.start]
        quote = self._quote_of(token)
        if self.text[token.end : token.end + 1] in (",", "]"):
            return "".join(f", {quote or chr(34)}{flag}{quote or chr(34)}" for flag in flags)
        if self.yaml and re.fullmatch(r"\s*-\s+", line):
            return "".join(f"\n{line}{quote}{flag}{quote}" for flag in flags)
        return "".join(f" {flag}" for flag in flags)

    # --- Words ------------------------------------------------------------------------

    def becomes(self, token: Token, text: str) -> Edit:
        """One word becomes another; its quotes stay."""
        quote = self._quote_of(token)
        return Edit(start=token.start, end=token.end, text=f"{quote}{text}{quote}")

    def _quote_of(self, token: Token) -> str:
        """The quote that a word begins with, or ""."""
        first = self.text[token.start]
        if first in "\"'":
            return first
        return ""

    def without(self, tokens: Sequence[Token]) -> tuple[Edit, ...]:
        """These neighbouring words taken out."""
        first, last = tokens[0], tokens[-1]
        between = self.text[first.end : last.start]
        if "\n" in between and re.search(r"\n\s*-\s", between):
            return tuple(self.cut(token.start, token.end) for token in tokens)
        return (self.cut(first.start, last.end),)

    def cut(self, start: int, end: int) -> Edit:
        """Remove what is there, with the line, the comma or the backslash around it."""
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", end)
        if last < 0:
            last = len(self.text)
        before, after = self.text[first:start], self.text[end:last]
        listed = re.match(r",[ \t]*", after)
        if listed and before.strip() not in ("",):
            return Edit(start=start, end=end + listed.end())
        if re.search(r",[ \t]*$", before):
            return Edit(start=first + len(before.rstrip().rstrip(",")), end=end)
        if re.fullmatch(r"\s*(-\s+)?", before) and re.fullmatch(r",?\s*\\?[ \t\r]*(#.*)?", after):
            if "\\" in after or not self._continued(first):
                return Edit(start=first, end=min(last + 1, len(self.text)))
            ended = self.text.rfind("\\", 0, first)
            return Edit(start=len(self.text[:ended].rstrip(" \t")), end=last)
        spaces = len(before) - len(before.rstrip(" \t"))
        if before.strip():
            return Edit(start=start - spaces, end=end)
        following = len(after) - len(after.lstrip(" \t"))
        return Edit(start=start, end=end + following)

    def _continued(self, line_start: int) -> bool:
        return bool(re.search(r"\\\r?\n$", self.text[:line_start]))

    def relaunched(self, launch: Launch, new: Translated) -> tuple[Edit, ...]:
        """The launcher becomes another one; the script, its arguments and the layout stay.

        Options that the new launcher has keep their value as written, also a variable. There are no
        edits if the words of the launcher are in a variable.
        """
        tokens = self.of(launch)
        at = next((i for i, token in enumerate(tokens) if token.text == launch.program), None)
        if at is None or not launch.script:
            return ()
        behind = [token for token in tokens[at + 1 :] if token.text == launch.script]
        start, end = self.span(launch)
        if not behind or not start <= tokens[at].start < behind[0].start < end:
            return ()
        if launch.span is not None and any(span_of(word) is None for word in launch.options):
            return ()
        first, script = tokens[at], behind[0]
        parts = [token for token in tokens[at + 1 :] if first.end <= token.start < script.start]
        quote = self._quote_of(script)
        between = self.text[first.start : script.start]
        flow = re.search(r",\s*$", between) is not None
        listed = re.search(r"\n\s*-\s+$", between) if self.yaml else None
        if flow:
            quote, gap = quote or '"', ", "
        elif listed:
            gap = listed[0]
        else:
            quote, gap = "", " "
        texts = [*new.variables, *new.words]
        before = re.split(r"[;&|(]|(?<!\\)\n", self.code[: first.start])[-1].replace("\\\n", " ")
        behind_another = any("=" not in word for word in before.split())  # srun, nohup, time
        if new.variables and (behind_another or listed or flow):
            texts = ["env", *texts]
        written = [gap.join(f"{quote}{text}{quote}" for text in texts)]
        last = first.end
        for token, text in self._renamed(parts, new, quote):
            if text:
                kept = self.text[last : token.start]
                written.append((kept if last == token.start - len(kept) else gap) + text)
            last = token.end
        closing = self.text[last : script.start]
        if flow or listed:
            closing = gap
        return (Edit(start=first.start, end=script.start, text="".join(written) + closing),)

    def _renamed(
        self, parts: Sequence[Token], new: Translated, quote: str
    ) -> Iterator[tuple[Token, str]]:
        """Each word of the old launcher's options, and its text for the new one, or ""."""
        waiting = list(parts)
        for given, name in new.options:
            for number, word in enumerate(given.words):
                while waiting and waiting[0].text != word:
                    yield waiting.pop(0), ""
                if not waiting:
                    return
                token = waiting.pop(0)
                source = self.text[token.start : token.end]
                if name is None:
                    yield token, ""
                elif number or name == given.name:
                    yield token, source
                else:
                    if source[:1] == quote and quote:
                        bare = source[1:-1]
                    else:
                        bare = source
                    _, equals, value = bare.partition("=")
                    yield token, f"{quote}{name}{equals}{value}{quote}"
        for token in waiting:
            yield token, ""

    # --- Variables --------------------------------------------------------------------

    def assigned(self, name: str) -> list[tuple[int, int, int, int]]:
        """Each place that gives a variable its value: of the assignment, and of the value."""
        if not self.yaml and self.sets == "export":
            places: list[tuple[int, int, int, int]] = []
            for place in self._in_shell:
                if place[0] == name:
                    places.append(place[1:])
            return places
        return self._by_words(name)

    @cached_property
    def _in_shell(self) -> list[tuple[str, int, int, int, int]]:
        """Every assignment of a bash script: name, assignment, value.

        Also words of a command (``env A=1``, ``-x A=1``) and the text of another shell, but no
        here-document.
        """
        tree = Tree(repaired(self.text)[0])
        places = list[tuple[str, int, int, int, int]]()
        for node in tree.nodes("variable_assignment"):
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is None:
                continue
            start, end = tree.span(node)
            first, last = (end, end) if value is None else tree.span(value)
            places.append((tree.of(name), start, end, first, last))
        places += _in_words(tree)
        for named in _HANDED_ON.finditer(tree.text):
            if tree.text[tree.text.rfind("\n", 0, named.start()) + 1 :].lstrip()[:1] != "#":
                places.append((named[1], *named.span(), *named.span(2)))
        return places

    def _by_words(self, name: str) -> list[tuple[int, int, int, int]]:
        """The same for YAML and a Dockerfile, whose words are searched.

        A loader of YAML gives the place of a whole scalar, which is often a script of many lines.
        """
        places = list[tuple[int, int, int, int]]()
        bare = r"""[^\s"';&|)]*"""
        if self.yaml:
            bare = r"""[^\s"';,]*"""
        value = rf"""(?:"[^"\n]*"|'[^'\n]*'|{bare})"""
        for match in re.finditer(rf"(?<![\w$.{{-]){name}=({value})", self.code):
            places.append((match.start(), match.end(), match.start(1), match.end(1)))
        for match in re.finditer(rf"(?<=[ \t])-{{1,2}}g?env[ \t]+{name}[ \t]+(\S+)", self.code):
            places.append((match.start(), match.end(), match.start(1), match.end(1)))
        if self.yaml:
            inline = rf"""\bname:[ \t]*["']?{name}["']?[\s,]+value:[ \t]*({value}|"[^"]*")"""
            for match in re.finditer(inline, self.code):
                end = match.end(1) - self.code[match.start(1) : match.end(1)].endswith("}")
                places.append((match.start(), end, match.start(1), end))
        else:
            for match in re.finditer(rf"(?m)^[ \t]*ENV[ \t]+{name}[ \t]+(\S+)", self.code):
                places.append((match.start(), match.end(), match.start(1), match.end(1)))
        return places

    def _assigned_for(self, launch: Launch, name: str) -> list[tuple[int, int, int, int]]:
        """The places that give a variable the value that this launch has; all if it is not known.

        Another launch of the file may have another value, which stays.
        """
        places = self.assigned(name)
        span = span_of(launch.environment.get(name, ""))
        if span is None:
            return places
        of_launch = []
        for place in places:
            if place[2] <= span.start and span.end <= place[3]:
                of_launch.append(place)
        return of_launch or places

    def _is_given(self, launch: Launch, name: str, places: list[tuple[int, int, int, int]]) -> bool:
        """Whether the value is an argument of the script, or a variable from outside, with a
        default: a fixed value would take that choice away.
        """
        for _, _, at, end in places:
            if "$" in self.text[at:end]:
                return span_of(launch.environment.get(name, "")) is None
        return False

    def set_variable(self, launch: Launch, name: str, value: str) -> tuple[Edit, ...]:
        """Change its value for this launch; without one, set it before the launch, or for its
        container.

        There are no edits if the value is given to the script from outside.
        """
        if launch.sealed is not None and name not in launch.environment:
            return self.pass_on(launch.sealed, f"{name}={value}")
        places = self._assigned_for(launch, name)
        if self._is_given(launch, name, places):
            return ()
        quote = ""
        if self.yaml:
            quote = '"'
        if places:
            edits: list[Edit] = []
            for _, _, at, end in places:
                text = value
                if self.text[at:end][:1] == '"':
                    text = f'"{value}"'
                edits.append(Edit(start=at, end=end, text=text))
            return tuple(edits)
        if self.yaml:
            listed = re.search(r"(?m)^([ \t]*)env:[ \t]*\n([ \t]*-[ \t]+)name:", self.code)
            if listed is None:
                return ()
            dash = listed[2]
            inside = " " * len(dash)
            entry = f"{dash}name: {name}\n{inside}value: {quote}{value}{quote}\n"
            return (Edit(start=listed.start(2), end=listed.start(2), text=entry),)
        return self.line_before(launch, self.setting(name, value))

    def pass_on(self, container: Container, *variables: str) -> tuple[Edit, ...]:
        """Options of ``docker run`` for variables: NAME, or NAME=VALUE."""
        span = span_of(container.begins)
        if span is None:
            return ()
        options = "".join(f" -e {variable}" for variable in variables)
        return (Edit(start=span.end, end=span.end, text=options),)

    def setting(self, name: str, value: str) -> str:
        """The line that sets a variable for every command behind it."""
        return f"{self.sets} {name}={value}"

    def rename_variable(self, name: str, instead: str) -> tuple[Edit, ...]:
        """Another name for a variable, wherever it is set."""
        edits: list[Edit] = []
        for start, _, _, _ in self.assigned(name):
            at = self.text.find(name, start)
            if at >= 0:
                edits.append(Edit(start=at, end=at + len(name), text=instead))
        return tuple(edits)

    def unset_variable(self, launch: Launch, name: str) -> tuple[Edit, ...]:
        """Remove the variable for this launch; if nothing sets it, unset it before the launch."""
        places = self._assigned_for(launch, name)
        if not places:
            if self.sets != "export" or self.yaml:
                return ()
            return self.line_before(launch, f"unset {name}")
        edits: list[Edit] = []
        for at, end, _, _ in places:
            edits += self._unassign(at, end)
        return tuple(edits)

    def _unassign(self, start: int, end: int) -> tuple[Edit, ...]:
        first = self.text.rfind("\n", 0, start) + 1
        before = self.text[first:start]
        if self.yaml and re.fullmatch(r"\s*-\s+\{?\s*", before):
            last = self.text.find("\n", end)
            if last < 0:
                last = len(self.text)
            else:
                last = last + 1
            return (Edit(start=first, end=last),)
        option = re.search(r"(?:-{1,2}g?env|-x|export|declare -x|ENV)[ \t]+$", before)
        alone = re.match(r"[ \t]*(?:$|\\?\n|;|&&|#)", self.text[end:])
        if option and (alone or option[0].strip().startswith("-")):
            start = first + option.start()
            separated = re.match(r"[ \t]*(?:;|&&)[ \t]*", self.text[end:])
            if separated and not option[0].startswith("-"):
                return (Edit(start=start, end=end + separated.end()),)
        return (self.cut(start, end),)

    def set_key(self, key: str, value: str) -> tuple[Edit, ...]:
        """A key of the top level of YAML: another value, or a new line at the end.

        The line is searched, and not the document, so that a comment behind the value stays.
        """
        line = re.search(rf"(?m)^{key}:[ \t]*([^\n]*?)[ \t]*$", self.code)
        if line is None:
            start = len(self.text.rstrip("\n"))
            return (Edit(start=start, end=start, text=f"\n{key}: {value}"),)
        if line[1].strip("'\"") == value.strip("'\""):
            return ()
        return (Edit(start=line.start(1), end=line.end(1), text=value),)

    def line_before(self, launch: Launch, line: str) -> tuple[Edit, ...]:
        """A line of shell before the launch, with its indentation."""
        if self.yaml or not launch.line:
            return ()
        start = self.line_start(launch.line)
        while _GOES_ON.search(self.text[:start]) and start:
            start = self.text.rfind("\n", 0, start - 1) + 1
        here = self.text[start:]
        indent = here[: len(here) - len(here.lstrip(" \t"))]
        return (Edit(start=start, end=start, text=f"{indent}{line}\n"),)


# A line that the next one continues.
_GOES_ON = re.compile(r"(?:\\|&&|\|\||\|)[ \t]*\n\Z")
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)=")
_ASSIGNED = re.compile(r"""(?<![\w$.{-])([A-Za-z_]\w*)=("[^"\n]*"|[^\s"';&|)]*)""")
_HANDED_ON = re.compile(r"(?<=[ \t])-{1,2}g?env[ \t]+([A-Za-z_]\w*)[ \t]+([^\s;&|]+)")


def _in_words(tree: Tree) -> Iterator[tuple[str, int, int, int, int]]:
    """Assignments that are words of a command, or in a text between quotes."""
    for kind in ("word", "concatenation"):
        for node in tree.nodes(kind):
            start, end = tree.span(node)
            named = _ASSIGNS.match(tree.text, start, end)
            if named and not _is_part(node):
                yield named[1], start, end, named.end(), end
    for kind in ("string", "raw_string"):
        for node in tree.nodes(kind):
            start, end = tree.span(node)
            for named in _ASSIGNED.finditer(tree.text, start + 1, end - 1):
                if not _is_part(node):
                    yield named[1], *named.span(), *named.span(2)


def _is_part(node: Node) -> bool:
    return node.parent is None or node.parent.type in ("concatenation", "variable_assignment")


def _flags(tokens: Sequence[Token], flag: str, value: str) -> list[list[Token]]:
    """Each place of a flag among these words, with its value."""
    places = list[list[Token]]()
    wanted = flag.lstrip("-").replace("-", "_")
    for at, token in enumerate(tokens):
        name, equals, given = token.text.partition("=")
        if not name.startswith("-") or name.lstrip("-").replace("-", "_") != wanted:
            continue
        following = None
        if at + 1 < len(tokens):
            following = tokens[at + 1]
        if equals:
            if not value or given == value:
                places.append([token])
        elif value:
            if following is not None and following.text == value:
                places.append([token, following])
        elif following is not None and following.text.lower() in _SWITCH_VALUES:
            places.append([token, following])
        else:
            places.append([token])
    return places
