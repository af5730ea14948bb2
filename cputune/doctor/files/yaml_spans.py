"""A YAML document with line and span of every value, and changes of its keys."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from cputune.doctor.files.context import Context
from cputune.errors import UsageError
from cputune.launch.edit import Edit
from cputune.launch.located_words import Span, Word
from cputune.text.documents import at

# A job has a few hundred; aliases let a small file expand to any number.
VALUES_AT_MOST = 20_000

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML document as plain values, with the line (from 1) of each path.

    ``spans`` are the character ranges of a key with its value (of a list item, the value);
    documents in flow style (JSON) have none. ``words`` are the scalars as written, each with its
    span.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)
    words: dict[Path, Word] = field(default_factory=dict)

    def get(self, *path: str | int) -> Any:
        """The value at a path; None if it is missing or of another type."""
        return at(self.value, *path)

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path, or an empty one."""
        value = self.get(*path)
        if isinstance(value, dict):
            return value
        return {}

    def items(self, *path: str | int) -> list[Any]:
        """The list at a path, or an empty one."""
        value = self.get(*path)
        if isinstance(value, list):
            return value
        return []

    def command(self, *path: str | int) -> list[str]:
        """The list of words at a path, each with its span."""
        items = self.items(*path)
        return [self.words.get((*path, n), str(item)) for n, item in enumerate(items)]

    def line(self, *path: str | int) -> int | None:
        """The line of a path, or of its nearest parent; None for the whole document."""
        while path and path not in self.lines:
            path = path[:-1]
        if path:
            return self.lines.get(path)
        return None


def read_documents(text: str, name: str) -> tuple[Document, ...]:
    """Every document of a YAML (or JSON) file. Raises UsageError if it cannot be read."""
    try:
        return tuple(_document(root, text) for root in yaml.compose_all(text, yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"{name}:{mark.line + 1}: not YAML: {problem}"
            if mark
            else f"{name}: not YAML: {problem}",
            hint="check the indentation, and quote values that contain : or #",
        ) from error


def _document(root: yaml.Node, text: str) -> Document:
    lines: dict[Path, int] = {}
    words: dict[Path, Word] = {}
    spans: dict[Path, tuple[int, int]] = {}
    scalars = yaml.constructor.SafeConstructor()

    def plain(node: yaml.Node, path: Path) -> Any:
        # An alias is the same node again: a few lines may stand for billions of values.
        if len(lines) > VALUES_AT_MOST:
            raise ValueError("it has too many values, or refers to itself")
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [plain(value, (*path, number)) for number, value in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            if isinstance(node, yaml.ScalarNode):
                words.setdefault(path, _word(node, text))
            return scalars.construct_object(node)
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            name = "?"
            if isinstance(key, yaml.ScalarNode):
                name = str(key.value)
            place = (*path, name)
            lines[place] = key.start_mark.line + 1
            mapping[name] = plain(value, place)
            if not node.flow_style:
                spans[place] = key.start_mark.index, _end(value)
        return mapping

    return Document(value=plain(root, ()), lines=lines, spans=spans, words=words)


def _word(node: yaml.ScalarNode, text: str) -> Word:
    """A scalar as a word with its span; in a literal block with the place of each character."""
    value, span = str(node.value), Span(node.start_mark.index, node.end_mark.index)
    source = text[span.start : span.end]
    exact = source in (value, f'"{value}"', f"'{value}'")
    if exact:
        return Word(value, span)
    if node.style != "|":
        return Word(value, places=_letters(value, text, span, node.style))
    places, at = list[int](), text.find("\n", span.start) + 1
    for line in value.splitlines(keepends=True):
        end = text.find("\n", at)
        if end < 0:
            end = len(text)
        first = text.find(line.rstrip("\n"), at, end)
        if first < 0:
            return Word(value)
        places += range(first, first + len(line))
        at = end + 1
    return Word(value, places=tuple(places))


def _letters(value: str, text: str, span: Span, style: str | None) -> tuple[int, ...]:
    """The place of each letter of a scalar over several lines; none if it is not as written.

    Line ends become blanks, which are skipped.
    """
    at = span.start
    if style == ">":
        at = text.find("\n", span.start)
    elif style in ("'", '"'):
        at += 1
    places = list[int]()
    for letter in value:
        if not letter.isspace():
            while at < span.end and text[at].isspace():
                at += 1
            if text[at : at + 1] != letter:
                return ()
        places.append(min(at, span.end - 1))
        if not letter.isspace():
            at += 1
    return tuple(places)


def _end(node: yaml.Node) -> int:
    """End of the last scalar of a node; the node's own end mark may come after comments."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def without_key(document: Document, context: Context, *path: str | int) -> tuple[Edit, ...]:
    """The edit that removes a key with the lines of its value."""
    span = document.spans.get(path)
    if span is None or context.places is None:
        return ()
    text = context.places.text
    end = text.find("\n", max(span[0], span[1] - 1))
    start = text.rfind("\n", 0, span[0]) + 1
    return (Edit(start=start, end=len(text) if end < 0 else end + 1),)


def with_key(
    document: Document, context: Context, line: str, *before: str | int, behind: bool = True
) -> tuple[Edit, ...]:
    """The edit that adds a key and value as a line next to an existing key."""
    span = document.spans.get(before)
    if span is None or context.places is None:
        return ()
    text = context.places.text
    start = text.rfind("\n", 0, span[0]) + 1
    indent = text[start : span[0]]
    if not behind:
        return (Edit(start=start, end=start, text=f"{indent}{line}\n"),)
    end = text.find("\n", max(span[0], span[1] - 1))
    if end < 0:
        return (Edit(start=len(text), end=len(text), text=f"\n{indent}{line}"),)
    return (Edit(start=end + 1, end=end + 1, text=f"{indent}{line}\n"),)


def with_value(document: Document, context: Context, path: Path, value: str) -> tuple[Edit, ...]:
    """The edit that changes the value of a key."""
    span = document.spans.get(path)
    if span is None or context.places is None:
        return ()
    before = context.places.text[span[0] : span[1]]
    start = span[0] + len(before) - len(before.partition(":")[2].lstrip())
    return (Edit(start=start, end=span[1], text=value),)


def with_item(document: Document, context: Context, item: str, listed: Path) -> tuple[Edit, ...]:
    """The edit that adds an item, as the first, to a list of one item for each line."""
    number = document.line(*listed, 0)
    if number is None or context.places is None:
        return ()
    lines = context.places.text.splitlines(keepends=True)
    dash = re.match(r"\s*- ", lines[number - 1])
    if dash is None:
        return ()
    start = sum(len(line) for line in lines[: number - 1])
    return (Edit(start=start, end=start, text=f"{dash[0]}{item}\n"),)
