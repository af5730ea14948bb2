"""YAML with the line of every value, read safely and with a bound on its size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from cputune.errors import UsageError

VALUES_AT_MOST = 20_000
DEPTH_AT_MOST = 60

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML document as plain values, and the line (from 1) of each path into it."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def get(self, *path: str | int) -> Any:
        """The value at a path; None where there is nothing, or another kind of thing."""
        value = self.value
        for step in path:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; an empty one where there is none."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def items(self, *path: str | int) -> list[Any]:
        """The list at a path; an empty one where there is none."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    def line(self, *path: str | int) -> int | None:
        """The line of a path, or of the nearest thing around it; None for the whole document."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path) if path else None


class _Loader(yaml.SafeLoader):
    """Stops at a depth, before the scanner spends its time on thousands of open brackets."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEPTH_AT_MOST:
            raise ValueError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_documents(text: str, name: str) -> tuple[Document, ...]:
    """Every document of a YAML (or JSON) file. Raises UsageError where it is none."""
    try:
        loader = _Loader(text)
        found: list[Document] = []
        while loader.check_node():
            found.append(_document(loader, loader.get_node()))
        return tuple(found)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"{name}:{mark.line + 1}: not YAML: {said}" if mark else f"{name}: not YAML: {said}",
            hint="mind the indentation, and quote values that hold : or #; is it a text file?",
        ) from error


def _document(loader: yaml.SafeLoader, root: yaml.Node | None) -> Document:
    lines: dict[Path, int] = {}

    def plain(node: yaml.Node, path: Path) -> Any:
        # An alias is the same node again: a few lines may stand for billions of values.
        if len(lines) > VALUES_AT_MOST or len(path) > DEPTH_AT_MOST:
            raise ValueError("it holds too many values, or refers to itself")
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [plain(value, (*path, number)) for number, value in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            place = (*path, name)
            lines[place] = key.start_mark.line + 1
            found[name] = plain(value, place)
        return found

    value = None if root is None else plain(root, ())
    return Document(value=value, lines=lines)
